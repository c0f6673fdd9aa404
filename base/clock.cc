#include "weft/base/clock.h"

#include <time.h>

namespace weft {
namespace {

class MonotonicClock final : public Clock {
 public:
  Instant Now() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return Instant::FromNanoseconds(int64_t{now.tv_sec} * 1'000'000'000 +
                                    now.tv_nsec);
  }
};

}  // namespace

Clock& SteadyClock() {
  static MonotonicClock clock;
  return clock;
}

}  // namespace weft
