// The launchers of testing/kernels.h on CUDA: each puts its kernel on `stream`,
// a cudaStream_t. What goes wrong is for cudaGetLastError to say.
//
// No header of Abseil, which nvcc would have to read.

#ifndef WEFT_DEVICE_TESTING_KERNELS_CUDA_H_
#define WEFT_DEVICE_TESTING_KERNELS_CUDA_H_

#include <cstdint>

namespace weft::device::testing {

void LaunchFill(void* stream, float* out, float value, int64_t elements);
void LaunchAdd(void* stream, float* out, const float* in, int64_t elements);
void LaunchSpin(void* stream, int64_t nanoseconds);
void LaunchTrap(void* stream);

}  // namespace weft::device::testing

#endif  // WEFT_DEVICE_TESTING_KERNELS_CUDA_H_
