#include "weft/sim/sim_driver.h"

#include <algorithm>

namespace weft::sim {

bool SimDriver::Wait(Waitable& what, Instant deadline) {
  while (!what.IsReady()) {
    if (simulator_.NextAt() <= deadline && simulator_.Step()) continue;
    if (!deadline.is_infinite()) {
      simulator_.AdvanceTo(std::max(deadline, simulator_.Now()));
    }
    return false;
  }
  return true;
}

}  // namespace weft::sim
