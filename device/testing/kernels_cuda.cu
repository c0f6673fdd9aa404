#include <algorithm>

#include "weft/device/testing/kernels_cuda.h"

namespace weft::device::testing {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 2048;

int Blocks(int64_t elements) {
  return static_cast<int>(
      std::min((elements + kThreads - 1) / kThreads, kMaxBlocks));
}

__device__ int64_t FirstElement() {
  return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
}

__device__ int64_t Stride() {
  return gridDim.x * static_cast<int64_t>(blockDim.x);
}

__global__ void FillKernel(float* out, float value, int64_t elements) {
  for (int64_t i = FirstElement(); i < elements; i += Stride()) out[i] = value;
}

__global__ void AddKernel(float* out, const float* in, int64_t elements) {
  for (int64_t i = FirstElement(); i < elements; i += Stride()) out[i] += in[i];
}

__device__ int64_t Nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds) {
  const int64_t begin = Nanoseconds();
  while (Nanoseconds() - begin < nanoseconds) {
  }
}

__global__ void TrapKernel() { asm volatile("trap;"); }

cudaStream_t Native(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void LaunchFill(void* stream, float* out, float value, int64_t elements) {
  if (elements == 0) return;
  FillKernel<<<Blocks(elements), kThreads, 0, Native(stream)>>>(out, value,
                                                                elements);
}

void LaunchAdd(void* stream, float* out, const float* in, int64_t elements) {
  if (elements == 0) return;
  AddKernel<<<Blocks(elements), kThreads, 0, Native(stream)>>>(out, in,
                                                               elements);
}

void LaunchSpin(void* stream, int64_t nanoseconds) {
  SpinKernel<<<1, 1, 0, Native(stream)>>>(nanoseconds);
}

void LaunchTrap(void* stream) { TrapKernel<<<1, 1, 0, Native(stream)>>>(); }

}  // namespace weft::device::testing
