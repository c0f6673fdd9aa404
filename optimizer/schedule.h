// Schedules of the learning rate: what to multiply it by at each step.
//
//   const Schedule schedule = Sequence({{LinearWarmUp(500), 500}},
//                                      CosineDecay(9500));
//   for (int64_t step = 0; step < 10000; ++step) {
//     ...
//     WEFT_RETURN_IF_ERROR(optimizer->SetLearningRateScale(schedule(step)));
//     WEFT_RETURN_IF_ERROR(optimizer->Step());
//   }
//
// A schedule is a function of the number of steps (or epochs) done, from 0. It
// has no state: a run that continues from a checkpoint needs that number only.
// The values are those of PyTorch 1.13's schedulers of the same kind, divided
// by the learning rate of the group.
//
// Numbers that cannot be are checked by crashing (REQUIRES).
//
// Thread-safety: thread-safe.

#ifndef WEFT_OPTIMIZER_SCHEDULE_H_
#define WEFT_OPTIMIZER_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace weft::optimizer {

// REQUIRES of each: step >= 0.
using Schedule = std::function<double(int64_t step)>;

// gamma^(step / every, rounded down). REQUIRES: every > 0. (StepLR)
Schedule StepDecay(int64_t every, double gamma = 0.1);

// gamma to the number of `milestones` that are at most `step`. (MultiStepLR)
Schedule MultiStepDecay(std::vector<int64_t> milestones, double gamma = 0.1);

// gamma^step. (ExponentialLR)
Schedule ExponentialDecay(double gamma);

// Half a cosine from 1 at step 0 to `least` at `steps`, where it stays; with
// steps 0 `least` from the first step on. REQUIRES: steps >= 0.
// (CosineAnnealingLR, which rises again.)
// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5.
Schedule CosineDecay(int64_t steps, double least = 0);

// A line from `from` at step 0 to 1 at `steps`, where it stays; with steps 0 no
// warm-up: 1 from the first step on. REQUIRES: steps >= 0. (LinearLR)
Schedule LinearWarmUp(int64_t steps, double from = 1.0 / 3);

struct OneCycleOptions {
  int64_t steps = 0;            // of the whole cycle, at least 1
  double rising_share = 0.3;    // (0, 1) of the steps
  double initial_share = 0.04;  // of the learning rate, at step 0
  double final_share = 4e-6;    // of the learning rate, at the last step
};

// Half a cosine up to 1, then one down; the group's learning rate is the
// highest. Stays at the end. Does not change the momentum. The top is at step
// rising_share * steps - 1, which need not be whole: if it is below 0, no step
// rises, and step 0 is on the way down; if it is 0, step 0 is the top. A cycle
// of one step has final_share. REQUIRES: as OneCycleOptions says. (OneCycleLR
// with cycle_momentum=False, which divides by zero where the top is at step 0)
// Source: Smith and Topin, "Super-convergence", 2018.
Schedule OneCycle(const OneCycleOptions& options);

struct Phase {
  Schedule schedule;
  int64_t steps = 0;  // at least 0
};

// Each phase in turn, from a step 0 of its own, then `last`. (SequentialLR)
Schedule Sequence(std::vector<Phase> phases, Schedule last);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_SCHEDULE_H_
