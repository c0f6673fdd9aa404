#include "weft/net/edge/call_rate_limiter.h"

#include <algorithm>

#include "absl/time/time.h"

namespace weft::net {
namespace {

constexpr absl::Duration kFills = absl::Seconds(4);
// Beyond it, those whose allowance is whole are forgotten, then all: that is
// better than to hold memory for whoever comes.
constexpr size_t kMaxPeers = 4096;

}  // namespace

bool CallRateLimiter::Allows(const std::string& peer, Instant now) {
  MutexLock lock(mu_);
  if (whole_at_.size() >= kMaxPeers) Forget(now);
  Instant& whole = whole_at_.emplace(peer, now).first->second;
  const Instant then = std::max(whole, now) + kFills / at_once_;
  if (then - now > kFills) return false;
  whole = then;
  return true;
}

void CallRateLimiter::Forget(Instant now) {
  absl::erase_if(whole_at_,
                 [&](const auto& entry) { return entry.second <= now; });
  if (whole_at_.size() >= kMaxPeers) whole_at_.clear();
}

}  // namespace weft::net
