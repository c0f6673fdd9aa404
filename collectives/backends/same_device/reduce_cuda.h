// LaunchReduce: a ReduceCall as a kernel of CUDA.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CUDA_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CUDA_H_

#include "weft/collectives/backends/same_device/reduce_call.h"

namespace weft::collectives::internal {

// `stream` is a cudaStream_t, whose device is current. False: this build has no
// CUDA. What goes wrong else is for cudaGetLastError to say.
bool LaunchReduce(void* stream, const ReduceCall& call);

}  // namespace weft::collectives::internal

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CUDA_H_
