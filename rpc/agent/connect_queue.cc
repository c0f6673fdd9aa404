#include "weft/rpc/agent/connect_queue.h"

#include <algorithm>
#include <utility>

namespace weft::rpc {

void ConnectQueue::Enter(uint32_t peer, Begin begin) {
  {
    MutexLock lock(mu_);
    waiting_.emplace(peer - first_, std::move(begin));
    if (under_way_ == 0) left_at_ = clock_.Now();
  }
  BeginNext();
  bool looks = false;
  {
    MutexLock lock(mu_);
    if (!waiting_.empty()) looks = !std::exchange(is_looking_, true);
  }
  if (looks) LookAroundLater();
}

std::vector<ConnectQueue::Begin> ConnectQueue::Next() {
  std::vector<Begin> next;
  while (under_way_ < at_once_ && !waiting_.empty()) {
    next.push_back(std::move(waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
    ++under_way_;
  }
  return next;
}

void ConnectQueue::BeginNext() {
  for (bool is_first = true;; is_first = false) {
    std::vector<Begin> next;
    uint64_t round = 0;
    {
      MutexLock lock(mu_);
      // Whoever begins others looks once more when that is done.
      if (is_first && is_beginning_) return;
      next = Next();
      round = round_;
      is_beginning_ = !next.empty();
    }
    if (next.empty()) return;
    for (Begin& begin : next) {
      begin(std::make_unique<Attempt>(weak_from_this(), round, clock_.Now()));
    }
  }
}

ConnectQueue::Attempt::~Attempt() {
  if (const auto queue = queue_.lock()) {
    queue->Left(round_, queue->clock_.Now() - began_, has_succeeded_);
  }
}

void ConnectQueue::Left(uint64_t round, absl::Duration took,
                        bool has_succeeded) {
  {
    MutexLock lock(mu_);
    if (has_succeeded && took > kSlow) {
      at_once_ = std::max(kLeast, at_once_ / 2);
    } else if (has_succeeded && took < kQuick) {
      at_once_ = std::min(kMost, at_once_ + 1);
    }
    if (has_succeeded) left_at_ = clock_.Now();
    if (round == round_) --under_way_;
  }
  BeginNext();
}

void ConnectQueue::LookAroundLater() {
  run_at_(clock_.Now() + kPatience, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->LookAround();
  });
}

void ConnectQueue::LookAround() {
  {
    MutexLock lock(mu_);
    if (waiting_.empty()) {
      is_looking_ = false;
      return;
    }
    if (clock_.Now() - left_at_ >= kPatience) {
      ++round_;
      under_way_ = 0;
      at_once_ = std::min(kMost, 2 * at_once_);
      left_at_ = clock_.Now();
    }
  }
  BeginNext();
  LookAroundLater();
}

}  // namespace weft::rpc
