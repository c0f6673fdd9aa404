#include "weft/base/check.h"
#include "weft/device/testing/kernels_cuda.h"

// Without the toolkit there is no Runtime that would call these.
namespace weft::device::testing {

void LaunchFill(void*, float*, float, int64_t) { WEFT_CHECK(false); }
void LaunchAdd(void*, float*, const float*, int64_t) { WEFT_CHECK(false); }
void LaunchSpin(void*, int64_t) { WEFT_CHECK(false); }
void LaunchTrap(void*) { WEFT_CHECK(false); }

}  // namespace weft::device::testing
