#include "weft/train/state/given_share.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace weft::train {

GivenShare::GivenShare(StateParts parts, int share, int shares, Pace pace)
    : parts_(std::move(parts)),
      share_(share),
      shares_(shares),
      pace_(pace),
      next_(share) {
  int64_t all = 0;
  const std::vector<int64_t> bytes = parts_.bytes();
  for (int part = share; part < parts_.size(); part += shares) {
    all += bytes[part];
  }
  most_bytes_ = std::max(pace_.bytes, all / pace_.steps);
}

void GivenShare::CopySome(Instant now) {
  {
    MutexLock lock(mu_);
    if (state_ != State::kCopying) return;
  }
  if (!begun_.has_value()) begun_ = now;
  const bool is_late = now - *begun_ >= pace_.time;
  int64_t copied = 0;
  while (next_ < parts_.size() && (is_late || copied < most_bytes_)) {
    const Tensor copy = parts_.Outgoing(next_).Clone();
    copied += copy.bytes();
    copies_.emplace(next_, copy);
    next_ += shares_;
  }
  if (next_ < parts_.size()) return;
  MutexLock lock(mu_);
  if (state_ != State::kCopying) return;
  state_ = State::kWhole;
  whole_ = std::move(copies_);
  changed_.NotifyAll();
}

void GivenShare::Stop() {
  MutexLock lock(mu_);
  if (state_ == State::kCopying) state_ = State::kStopped;
  changed_.NotifyAll();
}

std::optional<std::map<int, Tensor>> GivenShare::Take(Instant until) {
  const auto deadline = std::chrono::steady_clock::now() +
                        absl::ToChronoNanoseconds(until - SteadyClock().Now());
  MutexLock lock(mu_);
  while (state_ == State::kCopying) {
    if (!changed_.WaitUntil(mu_, deadline)) return std::nullopt;
  }
  if (state_ == State::kStopped) return std::nullopt;
  return std::move(whole_);
}

}  // namespace weft::train
