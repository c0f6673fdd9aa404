// EmbeddingBag and its gradients. An index or an offset that is out of range
// makes the device fail.
//
// Executor: see rows.h.

#ifndef WEFT_TENSOR_CUDA_BAGS_H_
#define WEFT_TENSOR_CUDA_BAGS_H_

#include "weft/tensor/cuda/indexing.h"

namespace weft::internal::cuda {

template <typename T>
struct BagsView {
  const int64_t* indices;
  const int64_t* offsets;
  const T* scales;  // or null
  int64_t n;        // indices
  int64_t count;    // bags
  int64_t rows;     // of the table
  bool is_mean;

  WEFT_HOST_DEVICE int64_t Begin(int64_t bag) const {
    const int64_t begin = offsets[bag];
    if (begin < 0 || begin > n || (bag == 0 && begin != 0)) WEFT_TRAP();
    return begin;
  }
  WEFT_HOST_DEVICE int64_t End(int64_t bag) const {
    const int64_t end = bag + 1 < count ? offsets[bag + 1] : n;
    if (end < offsets[bag] || end > n) WEFT_TRAP();
    return end;
  }
  WEFT_HOST_DEVICE T Scale(int64_t i, int64_t bag) const {
    if (scales != nullptr) return scales[i];
    return is_mean ? T(1) / static_cast<T>(End(bag) - Begin(bag)) : T(1);
  }
  WEFT_HOST_DEVICE int64_t Row(int64_t i) const {
    return CheckedIndex(indices[i], rows);
  }
  // The bag that holds place i: the last that begins at it or before.
  WEFT_HOST_DEVICE int64_t BagOf(int64_t i) const {
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (offsets[middle] <= i) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == 0) WEFT_TRAP();
    return low - 1;
  }
};

// Reads the operands of a call: {x, indices, offsets, scales if there are 5,
// y}.
template <typename T>
BagsView<T> BagsOf(const Call& call, int64_t rows) {
  const Operand* const x = call.operands;
  return {x[1].data<int64_t>(),
          x[2].data<int64_t>(),
          call.count == 5 ? x[3].data<T>() : nullptr,
          x[1].numel,
          x[2].numel,
          rows,
          call.numbers[0] != 0};
}

inline const char* CheckBags(const Call& call) {
  if (call.count != 4 && call.count != 5) return kNoCount;
  if (!AreContiguous(call)) return kNotContiguous;
  const Operand* const x = call.operands;
  const bool are_alike = x[call.count - 1].element == x[0].element &&
                         (call.count == 4 || x[3].element == x[0].element);
  return are_alike ? nullptr : kNoDType;
}

template <typename T>
struct SumBagBody {
  BagsView<T> bags;
  int64_t dim;
  const T* table;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t at) const {
    const int64_t bag = at / dim;
    const int64_t k = at % dim;
    T total = out[at];
    for (int64_t i = bags.Begin(bag); i < bags.End(bag); ++i) {
      total += bags.Scale(i, bag) * table[bags.Row(i) * dim + k];
    }
    out[at] = total;
  }
};

// Operands: table [rows, dim], indices, offsets, scales if any, and the result
// [bags, dim], which is 0. Numbers: whether it is a mean.
struct EmbeddingBag {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckBags(call)) return lack;
    const Operand& table = call.operands[0];
    const Operand& y = call.operands[call.count - 1];
    return VisitReal(table.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(
          y.numel, SumBagBody<T>{BagsOf<T>(call, table.sizes[0]),
                                 table.sizes[1], table.data<T>(), y.data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct SpreadBagBody {
  BagsView<T> bags;
  int64_t dim;
  const T* grad;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t at) const {
    const int64_t i = at / dim;
    const int64_t bag = bags.BagOf(i);
    (void)bags.Row(i);
    out[at] += bags.Scale(i, bag) * grad[bag * dim + at % dim];
  }
};

// Operands: grad [bags, dim], indices, offsets, scales if any, and the result
// [n, dim], which is 0. Numbers: whether it is a mean; rows of the table.
struct EmbeddingBagBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckBags(call)) return lack;
    const Operand& grad = call.operands[0];
    const Operand& y = call.operands[call.count - 1];
    const int64_t rows = static_cast<int64_t>(call.numbers[1]);
    return VisitReal(grad.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(y.numel,
                       SpreadBagBody<T>{BagsOf<T>(call, rows), grad.sizes[1],
                                        grad.data<T>(), y.data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct DotBagBody {
  BagsView<T> bags;
  int64_t dim;
  const T* grad;
  const T* table;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t i, const Team& team) const {
    const T* const g = grad + bags.BagOf(i) * dim;
    const T* const row = table + bags.Row(i) * dim;
    Wide<T> total = 0;
    for (int64_t k = team.lane(); k < dim; k += team.width()) {
      total += static_cast<Wide<T>>(g[k]) * static_cast<Wide<T>>(row[k]);
    }
    total = team.Fold(total, AddOp());
    if (team.leads()) out[i] = static_cast<T>(total);
  }
};

// Operands: grad [bags, dim], table [rows, dim], indices, offsets, result [n].
struct EmbeddingBagBackwardScales {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 5) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand* const x = call.operands;
    if (x[1].element != x[0].element || x[4].element != x[0].element) {
      return kNoDType;
    }
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      const BagsView<T> bags = {
          x[2].data<int64_t>(), x[3].data<int64_t>(), nullptr, x[2].numel,
          x[3].numel,           x[1].sizes[0],        false};
      executor.ForEachRow(x[4].numel, x[1].sizes[1], false,
                          DotBagBody<T>{bags, x[1].sizes[1], x[0].data<T>(),
                                        x[1].data<T>(), x[4].data<T>()});
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_BAGS_H_
