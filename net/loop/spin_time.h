// SpinTime: how long a thread that waits for events looks for the next one
// before it sleeps.
//
// To sleep and to be woken costs both ends 10 to 50 us, and the caches what
// other programs put there meanwhile. Where events come regularly and a little
// later than the thread would look, as those of training steps of some hundred
// microseconds do, it looks for longer. A single event that comes later ends
// that, so that a thread looks once in vain.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_NET_LOOP_SPIN_TIME_H_
#define WEFT_NET_LOOP_SPIN_TIME_H_

#include <algorithm>

#include "absl/time/time.h"

namespace weft::net {

class SpinTime {
 public:
  // So many events in a row make it look for `longest` in place of `spin`.
  static constexpr int kRegular = 16;

  SpinTime(absl::Duration spin, absl::Duration longest)
      : spin_(spin), longest_(std::max(spin, longest)) {}

  absl::Duration Get() const {
    return in_a_row_ == kRegular ? longest_ : spin_;
  }

  // It slept until an event came, so long after the one before, or after it
  // began to wait.
  void OnWoken(absl::Duration waited) {
    if (waited > longest_) {
      in_a_row_ = 0;
    } else if (waited > spin_) {  // else others wanted its core
      in_a_row_ = std::min(in_a_row_ + 1, kRegular);
    }
  }

 private:
  const absl::Duration spin_;
  const absl::Duration longest_;
  int in_a_row_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_SPIN_TIME_H_
