// SimDriver: waits by running the simulation; for one thread.

#ifndef WEFT_SIM_SIM_DRIVER_H_
#define WEFT_SIM_SIM_DRIVER_H_

#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/sim/simulator.h"

namespace weft::sim {

// Thread-safety: as its Simulator, which must outlive it.
class SimDriver final : public Driver {
 public:
  explicit SimDriver(Simulator& simulator) : simulator_(simulator) {}

  Clock& clock() override { return simulator_.clock(); }

  // Runs events until `what` is ready. With no event left before `deadline`
  // the clock goes there at once; if that is infinite, it returns false too,
  // for nothing more can happen.
  bool Wait(Waitable& what, Instant deadline) override;

 private:
  Simulator& simulator_;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_SIM_DRIVER_H_
