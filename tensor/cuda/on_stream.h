// OnStream: the Executor that launches bodies as kernels. For .cu files only.

#ifndef WEFT_TENSOR_CUDA_ON_STREAM_H_
#define WEFT_TENSOR_CUDA_ON_STREAM_H_

#include <algorithm>
#include <cstdint>

#include "weft/tensor/cuda/host_device.h"
#include "weft/tensor/cuda/team.h"

namespace weft::internal::cuda {

template <typename Body>
__global__ void ForEachKernel(Body body, int64_t n) {
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
       i < n; i += step) {
    body(i);
  }
}

// Joins the threads of a block.
struct BlockBarrier {
  WEFT_HOST_DEVICE void operator()() const {
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
  }
};

// Each block takes `columns` rows at a time; a row has as many threads as there
// are blocks of `columns` threads in it.
template <typename Body>
__global__ void ForEachRowKernel(Body body, int64_t rows, int columns) {
  extern __shared__ double slots[];
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int lane = static_cast<int>(threadIdx.x) / columns;
  const int width = static_cast<int>(blockDim.x) / columns;
  for (int64_t first = blockIdx.x * static_cast<int64_t>(columns); first < rows;
       first += gridDim.x * static_cast<int64_t>(columns)) {
    // All threads go along, as they meet at barriers.
    const int64_t row = first + column;
    const bool is_row = row < rows;
    body(is_row ? row : 0, Team<BlockBarrier>(lane, width, column, columns,
                                              is_row, slots, BlockBarrier()));
  }
}

class OnStream {
 public:
  // `stream` is a cudaStream_t.
  explicit OnStream(void* stream)
      : stream_(static_cast<cudaStream_t>(stream)) {}

  template <typename Body>
  void ForEach(int64_t n, const Body& body) {
    if (n == 0) return;
    constexpr int kThreads = 256;
    const int64_t blocks =
        std::min<int64_t>((n - 1) / kThreads + 1, kMaxBlocks);
    ForEachKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_>>>(body,
                                                                           n);
  }

  // Calls body(row, team) by each thread of a row's team. `terms` is how many
  // elements a row has. `lies_across`: neighbours in memory are of different
  // rows, so that threads side by side should be, too.
  template <typename Body>
  void ForEachRow(int64_t rows, int64_t terms, bool lies_across,
                  const Body& body) {
    if (rows == 0) return;
    const int columns = lies_across && rows > 1 ? 32 : 1;
    const int most = columns == 1 ? 1024 : 16;
    int width = columns == 1 ? 32 : 1;
    while (width < most && width * int64_t{4} < terms) width *= 2;
    const int threads = width * columns;
    const int64_t blocks =
        std::min<int64_t>((rows - 1) / columns + 1, kMaxBlocks);
    ForEachRowKernel<<<static_cast<unsigned>(blocks), threads,
                       threads * kSlotBytes, stream_>>>(body, rows, columns);
  }

  // Memory for work that comes next on the stream, null if there is none; Free
  // gives it back after that.
  template <typename T>
  T* Allocate(int64_t elements) {
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(
        &memory, static_cast<size_t>(elements) * sizeof(T), stream_);
    if (error == cudaSuccess) return static_cast<T*>(memory);
    (void)cudaGetLastError();  // The launcher tells it.
    return nullptr;
  }
  void Free(void* memory) { (void)cudaFreeAsync(memory, stream_); }

 private:
  // Enough to fill any device; each goes on with what is left.
  static constexpr int64_t kMaxBlocks = 1 << 16;

  cudaStream_t stream_;
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ON_STREAM_H_
