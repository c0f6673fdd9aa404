// GivenShare: the share of the state of a training that one rank gives to
// newcomers, copied a little at a time between its steps.
//
// A copy of all at once would stop the training for as long as it takes, and
// most of that is the memory that it fills for the first time. Parts that were
// copied after different steps do no harm: what has changed since is found by
// its hash, and sent once the newcomers are taken in (first_copy.h).
//
// Thread-safety: CopySome by the thread that trains, Take by one other thread,
// once; Stop by any.

#ifndef WEFT_TRAIN_STATE_GIVEN_SHARE_H_
#define WEFT_TRAIN_STATE_GIVEN_SHARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/tensor/tensor.h"
#include "weft/train/state_parts.h"

namespace weft::train {

class GivenShare {
 public:
  struct Pace {
    // Of one CopySome: a part at least, then parts up to so many bytes, or this
    // share of all where that is more.
    int64_t bytes = int64_t{4} << 20;
    int steps = 32;
    // Once so much time has passed since the first, all that is left: others
    // wait for it.
    absl::Duration time = absl::Seconds(2);
  };

  // The parts `share` + n * `shares` of `parts`, whose tensors it reads in
  // CopySome alone.
  GivenShare(StateParts parts, int share, int shares, Pace pace);
  GivenShare(StateParts parts, int share, int shares)
      : GivenShare(std::move(parts), share, shares, Pace()) {}

  int share() const { return share_; }
  int shares() const { return shares_; }
  int parts() const { return parts_.size(); }  // of all shares

  // Copies the next parts, if any are left and nobody has called Stop.
  void CopySome(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is copied any more.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all is copied: copies by part. Nothing: it was stopped before,
  // or `until` has passed.
  std::optional<std::map<int, Tensor>> Take(Instant until)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kCopying, kWhole, kStopped };

  const StateParts parts_;
  const int share_;
  const int shares_;
  const Pace pace_;

  // Of the thread that trains, until all is copied.
  int next_;  // part
  int64_t most_bytes_ = 0;
  std::optional<Instant> begun_;
  std::map<int, Tensor> copies_;

  Mutex mu_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kCopying;
  std::map<int, Tensor> whole_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STATE_GIVEN_SHARE_H_
