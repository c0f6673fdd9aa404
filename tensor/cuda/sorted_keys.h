// SortedKeys: numbers in ascending order and where each came from, so that what
// goes to one place is added up by one thread, in the order of the CPU.
//
// Merges runs that double: each element finds its place by a search in the
// other run. O(n log^2 n) steps in log n kernels; 32 n bytes.

#ifndef WEFT_TENSOR_CUDA_SORTED_KEYS_H_
#define WEFT_TENSOR_CUDA_SORTED_KEYS_H_

#include <cstdint>

#include "weft/tensor/cuda/host_device.h"

namespace weft::internal::cuda {

struct SortedView {
  int64_t* keys;
  int64_t* from;  // where keys[i] came from; of equal ones, ascending

  // Whether `i` is the first with its key.
  WEFT_HOST_DEVICE bool IsFirst(int64_t i) const {
    return i == 0 || keys[i - 1] != keys[i];
  }
};

template <typename KeyOf>
struct TakeKeyBody {
  KeyOf key;
  SortedView out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out.keys[i] = key(i);
    out.from[i] = i;
  }
};

// Merges each two neighbours of the runs of `width` of `in`.
struct MergeBody {
  int64_t n;
  int64_t width;
  SortedView in;
  SortedView out;

  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t begin = i - i % width;
    const bool is_left = (i / width) % 2 == 0;
    const int64_t key = in.keys[i];
    int64_t low = is_left ? begin + width : begin - width;
    if (low > n) low = n;
    const int64_t other = low;
    int64_t high = low + width < n ? low + width : n;
    // How many of the other run come before: equal ones of the left do.
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const bool is_before =
          is_left ? in.keys[middle] < key : in.keys[middle] <= key;
      if (is_before) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const int64_t to = (is_left ? i : i - width) + (low - other);
    out.keys[to] = key;
    out.from[to] = in.from[i];
  }
};

// Lives until what reads it is launched. Executor: see rows.h.
template <typename Executor>
class SortedKeys {
 public:
  // Sorts the keys key(i) of each i < n; kernels call `key`. REQUIRES: n > 0.
  template <typename KeyOf>
  SortedKeys(Executor& executor, int64_t n, const KeyOf& key)
      : executor_(executor),
        memory_(executor.template Allocate<int64_t>(4 * n)) {
    if (memory_ == nullptr) return;
    view_ = {memory_, memory_ + n};
    SortedView spare = {memory_ + 2 * n, memory_ + 3 * n};
    executor.ForEach(n, TakeKeyBody<KeyOf>{key, view_});
    for (int64_t width = 1; width < n; width *= 2) {
      executor.ForEach(n, MergeBody{n, width, view_, spare});
      const SortedView merged = spare;
      spare = view_;
      view_ = merged;
    }
  }
  ~SortedKeys() {
    if (memory_ != nullptr) executor_.Free(memory_);
  }
  SortedKeys(const SortedKeys&) = delete;
  SortedKeys& operator=(const SortedKeys&) = delete;

  // False if there was no memory.
  bool ok() const { return memory_ != nullptr; }
  const SortedView& view() const { return view_; }

 private:
  Executor& executor_;
  int64_t* const memory_;
  SortedView view_ = {};
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_SORTED_KEYS_H_
