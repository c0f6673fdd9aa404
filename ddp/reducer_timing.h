// ReducerTiming: how long a reducer's steps take, and which part of its
// communication was not hidden behind the backward pass.

#ifndef WEFT_DDP_REDUCER_TIMING_H_
#define WEFT_DDP_REDUCER_TIMING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"

namespace weft::ddp {

// Times of steps: one, or the sum of several.
struct StepTimes {
  absl::Duration backward;       // from Begin to the last mark
  absl::Duration communication;  // while a reduction was under way
  absl::Duration exposed;        // while Finish waited for one
  // The part of communication that was not hidden, from 0 to 1.
  double exposed_share() const {
    if (communication <= absl::ZeroDuration()) return 0;
    return std::min(1.0, absl::FDivDuration(exposed, communication));
  }
};

// Thread-safety: one thread at a time; what it watches may end on any.
class ReducerTiming {
 public:
  void Begin() {
    begun_ = last_mark_ = SteadyClock().Now();
    reductions_.clear();
  }
  void Mark() { last_mark_ = SteadyClock().Now(); }
  void Launched(const Future<void>& reduced);
  // All that was launched is reduced: the time since the last mark is exposed.
  void Finish();

  int64_t steps() const { return steps_; }
  const StepTimes& last() const { return last_; }
  const StepTimes& total() const { return total_; }

 private:
  struct Reduction {
    Instant launched;
    std::shared_ptr<std::atomic<int64_t>> took_ns;  // -1: goes on
  };

  Instant begun_, last_mark_;
  std::vector<Reduction> reductions_;  // in the order of their execution
  int64_t steps_ = 0;
  StepTimes last_, total_;
};

}  // namespace weft::ddp

#endif  // WEFT_DDP_REDUCER_TIMING_H_
