// PushDeadline: until when the parts of a step must be stable in the tables.
//
// A rank that ends since its push was not answered in time leaves its parts to
// the others, who meet and push them anew, to the same servers. They have what
// is left of the time for that step, and half of it at least: not all of it
// once more for each rank that ends.

#ifndef WEFT_TRAIN_CORE_PUSH_DEADLINE_H_
#define WEFT_TRAIN_CORE_PUSH_DEADLINE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::train {

// Thread-safety: one thread at a time. Times do not go back.
class PushDeadline {
 public:
  explicit PushDeadline(absl::Duration timeout) : timeout_(timeout) {}

  // The parts of `round` are pushed, for the first time on this rank or again.
  void Begin(int64_t round, Instant now) {
    if (round != round_) {
      round_ = round;
      since_ = now;
      until_ = now + timeout_;
    }
    until_ = std::max(until_, now + timeout_ / 2);
  }
  Instant until() const { return until_; }
  // Since they were pushed for the first time.
  absl::Duration Lasted(Instant now) const { return now - since_; }

 private:
  const absl::Duration timeout_;
  int64_t round_ = -1;
  Instant since_;
  Instant until_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_CORE_PUSH_DEADLINE_H_
