// LaunchReduce of a build without CUDA.

#include "weft/collectives/backends/same_device/reduce_cuda.h"

namespace weft::collectives::internal {

bool LaunchReduce(void* /*stream*/, const ReduceCall& /*call*/) {
  return false;
}

}  // namespace weft::collectives::internal
