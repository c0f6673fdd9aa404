#include "weft/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/check.h"

namespace weft::optimizer {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Half a cosine: `from` at share 0, `to` at 1.
double Cosine(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(kPi * share)) / 2;
}

// How far `at` is from `begin` to `end`, at most 1; of no way all.
double ShareOf(double at, double begin, double end) {
  return at < end ? (at - begin) / (end - begin) : 1;
}

}  // namespace

Schedule StepDecay(int64_t every, double gamma) {
  WEFT_CHECK(every > 0) << every;
  return [=](int64_t step) {
    return std::pow(gamma, static_cast<double>(step / every));
  };
}

Schedule MultiStepDecay(std::vector<int64_t> milestones, double gamma) {
  std::sort(milestones.begin(), milestones.end());
  return [milestones = std::move(milestones), gamma](int64_t step) {
    const auto passed =
        std::upper_bound(milestones.begin(), milestones.end(), step) -
        milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  };
}

Schedule ExponentialDecay(double gamma) {
  return
      [=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); };
}

Schedule CosineDecay(int64_t steps, double least) {
  WEFT_CHECK(steps >= 0) << steps;
  return [=](int64_t step) {
    return Cosine(
        1, least,
        ShareOf(static_cast<double>(step), 0, static_cast<double>(steps)));
  };
}

Schedule LinearWarmUp(int64_t steps, double from) {
  WEFT_CHECK(steps >= 0) << steps;
  return [=](int64_t step) {
    return from + (1 - from) * ShareOf(static_cast<double>(step), 0,
                                       static_cast<double>(steps));
  };
}

Schedule OneCycle(const OneCycleOptions& options) {
  WEFT_CHECK(options.steps >= 1) << options.steps;
  WEFT_CHECK(options.rising_share > 0 && options.rising_share < 1)
      << options.rising_share;
  const double last = static_cast<double>(options.steps - 1);
  // The first half ends between two steps, as PyTorch's does: before step 0
  // where less than one step rises, so that step 0 is on the way down.
  const double top =
      options.rising_share * static_cast<double>(options.steps) - 1;
  return [=](int64_t step) {
    const double at = std::min(static_cast<double>(step), last);
    return at < top ? Cosine(options.initial_share, 1, ShareOf(at, 0, top))
                    : Cosine(1, options.final_share, ShareOf(at, top, last));
  };
}

Schedule Sequence(std::vector<Phase> phases, Schedule last) {
  for (const Phase& phase : phases) WEFT_CHECK(phase.steps >= 0);
  return [phases = std::move(phases), last = std::move(last)](int64_t step) {
    for (const Phase& phase : phases) {
      if (step < phase.steps) return phase.schedule(step);
      step -= phase.steps;
    }
    return last(step);
  };
}

}  // namespace weft::optimizer
