#include "weft/ddp/reducer_timing.h"

#include <algorithm>
#include <utility>

namespace weft::ddp {

void ReducerTiming::Launched(const Future<void>& reduced) {
  Reduction reduction;
  reduction.launched = SteadyClock().Now();
  reduction.took_ns = std::make_shared<std::atomic<int64_t>>(-1);
  reduced.OnReady([launched = reduction.launched,
                   took = reduction.took_ns](const Result<void>&) {
    took->store(absl::ToInt64Nanoseconds(SteadyClock().Now() - launched));
  });
  reductions_.push_back(std::move(reduction));
}

void ReducerTiming::Finish() {
  const Instant now = SteadyClock().Now();
  last_ = StepTimes();
  last_.backward = last_mark_ - begun_;
  last_.exposed = now - last_mark_;
  // One after the other: a reduction begins when it is launched and the one
  // before has ended.
  Instant free = begun_;
  for (const Reduction& reduction : reductions_) {
    const int64_t took = reduction.took_ns->load();
    const Instant end =
        took < 0 ? now : reduction.launched + absl::Nanoseconds(took);
    const Instant begin = std::max(free, reduction.launched);
    if (end > begin) last_.communication += end - begin;
    free = std::max(free, end);
  }
  ++steps_;
  total_.backward += last_.backward;
  total_.communication += last_.communication;
  total_.exposed += last_.exposed;
}

}  // namespace weft::ddp
