#include <algorithm>

#include "weft/collectives/backends/same_device/reduce_cuda.h"

namespace weft::collectives::internal {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 2048;

template <typename T, typename Function>
__global__ void ReduceKernel(const ReduceCall call, Function function) {
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
       i < call.elements; i += step) {
    ReduceElement<T>(call, function, i);
  }
}

}  // namespace

bool LaunchReduce(void* stream, const ReduceCall& call) {
  if (call.elements == 0) return true;
  const int blocks = static_cast<int>(
      std::min((call.elements + kThreads - 1) / kThreads, kMostBlocks));
  VisitReduceCall(call, [&](auto type, auto function) {
    using T = typename decltype(type)::Type;
    ReduceKernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        call, function);
  });
  return true;
}

}  // namespace weft::collectives::internal
