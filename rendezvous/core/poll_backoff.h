// PollBackoff: how soon to ask again for what is held until there is news.

#ifndef WEFT_RENDEZVOUS_CORE_POLL_BACKOFF_H_
#define WEFT_RENDEZVOUS_CORE_POLL_BACKOFF_H_

#include <algorithm>

#include "absl/time/time.h"

namespace weft::rendezvous {

// A peer that holds a call sets the pace itself; one that answers at once with
// nothing new is asked after 50 ms, 100 ms, ... 1 s.
//
// Thread-safety: one thread at a time. Copyable.
class PollBackoff {
 public:
  // The pause after an answer without news, which took `held`.
  absl::Duration Pause(absl::Duration held) {
    if (held >= kLeast) {
      Reset();
    } else {
      pause_ = std::clamp(2 * pause_, kLeast, kMost);
    }
    return pause_;
  }
  // There was news.
  void Reset() { pause_ = absl::ZeroDuration(); }

 private:
  static constexpr absl::Duration kLeast = absl::Milliseconds(50);
  static constexpr absl::Duration kMost = absl::Seconds(1);
  absl::Duration pause_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_POLL_BACKOFF_H_
