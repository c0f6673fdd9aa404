// SkewedDriver: the clock of one node of a simulation, which began at another
// time than the others' and runs faster or slower.

#ifndef WEFT_SIM_SKEWED_DRIVER_H_
#define WEFT_SIM_SKEWED_DRIVER_H_

#include <cstdint>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"

namespace weft::sim {

struct ClockSkew {
  absl::Duration offset;
  int64_t millionths = 0;  // by so much faster; above -1000000
};

// Waits as another driver, by a clock of its own.
//
// Thread-safety: as the other driver, which must outlive it.
class SkewedDriver final : public Driver {
 public:
  SkewedDriver(Driver& inner, ClockSkew skew);

  Clock& clock() override { return clock_; }
  bool Wait(Waitable& what, Instant deadline) override {
    return inner_.Wait(what, ToInner(deadline));
  }

  // When, by the other driver's clock, this one will first show `when`.
  Instant ToInner(Instant when) const;

 private:
  class SkewedClock final : public Clock {
   public:
    SkewedClock(Clock& inner, ClockSkew skew) : inner_(inner), skew_(skew) {}
    Instant Now() const override;

   private:
    Clock& inner_;
    const ClockSkew skew_;
  };

  Driver& inner_;
  const ClockSkew skew_;
  SkewedClock clock_;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_SKEWED_DRIVER_H_
