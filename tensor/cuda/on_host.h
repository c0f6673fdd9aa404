// OnHost: the Executor that runs bodies on the CPU, for tests: the threads of a
// team are threads.

#ifndef WEFT_TENSOR_CUDA_ON_HOST_H_
#define WEFT_TENSOR_CUDA_ON_HOST_H_

#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "weft/tensor/cuda/team.h"

namespace weft::internal::cuda {

struct ThreadBarrier {
  pthread_barrier_t* barrier;
  void operator()() const { pthread_barrier_wait(barrier); }
};

class OnHost {
 public:
  template <typename Body>
  void ForEach(int64_t n, const Body& body) {
    for (int64_t i = n - 1; i >= 0; --i) body(i);
  }

  // One block, as ForEachRowKernel of on_stream.h has them.
  template <typename Body>
  void ForEachRow(int64_t rows, int64_t /*terms*/, bool lies_across,
                  const Body& body) {
    const int columns = lies_across ? 3 : 1;
    const int width = lies_across ? 2 : 4;
    const int threads = width * columns;
    std::vector<double> slots(static_cast<size_t>(threads) * kSlotBytes /
                              sizeof(double));
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(threads));
    std::vector<std::thread> block;
    for (int t = 0; t < threads; ++t) {
      block.emplace_back([&, t] {
        for (int64_t first = 0; first < rows; first += columns) {
          const int64_t row = first + t % columns;
          const bool is_row = row < rows;
          body(is_row ? row : 0,
               Team<ThreadBarrier>(t / columns, width, t % columns, columns,
                                   is_row, slots.data(),
                                   ThreadBarrier{&barrier}));
        }
      });
    }
    for (std::thread& thread : block) thread.join();
    pthread_barrier_destroy(&barrier);
  }

  template <typename T>
  T* Allocate(int64_t elements) {
    return static_cast<T*>(
        std::malloc(static_cast<size_t>(elements) * sizeof(T)));
  }
  void Free(void* memory) { std::free(memory); }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ON_HOST_H_
