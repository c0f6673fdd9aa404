// ConnectProgress: whether an agent still makes first connections, so that a
// peer which is slow to answer on a busy machine is not taken for a lost one.

#ifndef WEFT_RPC_AGENT_CONNECT_PROGRESS_H_
#define WEFT_RPC_AGENT_CONNECT_PROGRESS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::rpc {

// Thread-safety: thread-safe.
class ConnectProgress {
 public:
  // So many times `give_up_after` a peer is waited for, whatever else happens.
  static constexpr int kLongest = 6;

  // A peer has answered, or called, for the first time. Later connections do
  // not count: one that comes and goes says nothing about others. `took`: how
  // long it was tried.
  void Note(Instant now, absl::Duration took = absl::ZeroDuration()) {
    last_ns_.store(now.nanoseconds(), std::memory_order_relaxed);
    const int64_t ns = absl::ToInt64Nanoseconds(took);
    int64_t longest = longest_ns_.load(std::memory_order_relaxed);
    while (ns > longest && !longest_ns_.compare_exchange_weak(
                               longest, ns, std::memory_order_relaxed)) {
    }
  }

  // Until when a peer is waited for that is tried since `since`. After the last
  // of the others as long as eight times what the slowest of them took: on a
  // crowded host the one that has most to do answers last.
  Instant Until(Instant since, absl::Duration give_up_after) const {
    const int64_t last = last_ns_.load(std::memory_order_relaxed);
    const Instant first = since + give_up_after;
    if (last == kNever) return first;
    const absl::Duration slowest =
        absl::Nanoseconds(longest_ns_.load(std::memory_order_relaxed));
    const Instant more = Instant::FromNanoseconds(last) +
                         std::max(give_up_after, kSlowest * slowest);
    return std::max(first, std::min(more, since + kLongest * give_up_after));
  }

 private:
  static constexpr int kSlowest = 8;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();
  std::atomic<int64_t> last_ns_{kNever};
  std::atomic<int64_t> longest_ns_{0};
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_CONNECT_PROGRESS_H_
