#include "weft/collectives/accumulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "weft/collectives/reduce_functions.h"
#include "weft/tensor/vectorize.h"

namespace weft::collectives {
namespace {

// Elements that are no arithmetic type of C++ are 16 bits wide: sums of many of
// them would soon stop growing.
template <typename T>
using AccumulatorOf = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <typename A, typename T>
WEFT_VECTORIZE void LoadRun(const T* in, A* acc, int64_t count) {
  for (int64_t i = 0; i < count; ++i) acc[i] = static_cast<A>(in[i]);
}

template <typename A, typename T>
WEFT_VECTORIZE void LoadScaledRun(const T* in, A factor, A* acc,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) acc[i] = factor * static_cast<A>(in[i]);
}

template <typename A, typename T, typename Op>
WEFT_VECTORIZE void AddRun(const T* in, A* acc, int64_t count, Op op) {
  for (int64_t i = 0; i < count; ++i) {
    acc[i] = op(acc[i], static_cast<A>(in[i]));
  }
}

template <typename A, typename T, typename Op>
WEFT_VECTORIZE void AddScaledRun(const T* in, A factor, A* acc, int64_t count,
                                 Op op) {
  for (int64_t i = 0; i < count; ++i) {
    // Rounded before the sum, as LoadScaledRun rounds it: a fused operation
    // would make the result depend on the order of the ranks.
    const A scaled = factor * static_cast<A>(in[i]);
    acc[i] = op(acc[i], scaled);
  }
}

// outputs[k][i] = a[i] op b[i], for each output k, which may be a or b: each
// line is read and written in one pass, so that it changes its core once. The
// block in between is what the compiler sees that nothing overlaps with.
template <typename A, typename Op>
WEFT_VECTORIZE void CombineRun(const A* a, const A* b,
                               absl::Span<std::byte* const> outputs,
                               int64_t count, Op op) {
  constexpr int64_t kBlock = 256 / sizeof(A);
  alignas(64) A block[kBlock];
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) block[j] = op(a[i + j], b[i + j]);
    for (std::byte* const output : outputs) {
      memcpy(output + i * sizeof(A), block, sizeof block);
    }
  }
  for (; i < count; ++i) {
    const A value = op(a[i], b[i]);
    for (std::byte* const output : outputs) {
      memcpy(output + i * sizeof(A), &value, sizeof(A));
    }
  }
}

template <typename A, typename T>
WEFT_VECTORIZE void StoreRun(const A* acc, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(acc[i]);
}

template <typename A, typename T>
WEFT_VECTORIZE void StoreAverageRun(const A* acc, A ranks, T* out,
                                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(acc[i] / ranks);
}

// The sum of two ranks' elements, divided as StoreAverageRun does.
template <typename A>
struct AverageOfTwo {
  A operator()(A a, A b) const {
    return static_cast<A>(internal::Add()(a, b) / static_cast<A>(2));
  }
};

// Calls run(element type, accumulator type).
template <typename Run>
void WithTypes(DType dtype, Run run) {
  VisitDType(dtype, [&](auto type) {
    using T = typename decltype(type)::Type;
    run(type, ElementType<AccumulatorOf<T>>());
  });
}

}  // namespace

int64_t AccumulatorBytes(DType dtype) {
  int64_t bytes = 0;
  WithTypes(dtype, [&](auto, auto accumulator) {
    bytes = sizeof(typename decltype(accumulator)::Type);
  });
  return bytes;
}

bool ElementsAreAccumulators(DType dtype, const Reduction& reduction) {
  return AccumulatorBytes(dtype) == ItemSize(dtype) && reduction.factor == 1;
}

void LoadElements(DType dtype, const Reduction& reduction, const void* elements,
                  void* accumulators, int64_t count) {
  WithTypes(dtype, [&](auto element, auto accumulator) {
    using T = typename decltype(element)::Type;
    using A = typename decltype(accumulator)::Type;
    const T* in = static_cast<const T*>(elements);
    A* acc = static_cast<A*>(accumulators);
    if constexpr (std::is_floating_point_v<A>) {
      if (reduction.factor != 1) {
        return LoadScaledRun(in, static_cast<A>(reduction.factor), acc, count);
      }
    }
    if (elements != accumulators) LoadRun(in, acc, count);
  });
}

void AddElements(DType dtype, const Reduction& reduction, const void* elements,
                 void* accumulators, int64_t count) {
  WithTypes(dtype, [&](auto element, auto accumulator) {
    using T = typename decltype(element)::Type;
    using A = typename decltype(accumulator)::Type;
    const T* in = static_cast<const T*>(elements);
    A* acc = static_cast<A*>(accumulators);
    internal::WithFunction<A>(reduction.op, [&](auto op) {
      if constexpr (std::is_floating_point_v<A>) {
        if (reduction.factor != 1) {
          return AddScaledRun(in, static_cast<A>(reduction.factor), acc, count,
                              op);
        }
      }
      AddRun(in, acc, count, op);
    });
  });
}

void AddAccumulators(DType dtype, ReduceOp op, const void* others,
                     void* accumulators, int64_t count) {
  WithTypes(dtype, [&](auto, auto accumulator) {
    using A = typename decltype(accumulator)::Type;
    internal::WithFunction<A>(op, [&](auto function) {
      AddRun(static_cast<const A*>(others), static_cast<A*>(accumulators),
             count, function);
    });
  });
}

void StoreElements(DType dtype, ReduceOp op, int ranks,
                   const void* accumulators, void* elements, int64_t count) {
  WithTypes(dtype, [&](auto element, auto accumulator) {
    using T = typename decltype(element)::Type;
    using A = typename decltype(accumulator)::Type;
    const A* acc = static_cast<const A*>(accumulators);
    T* out = static_cast<T*>(elements);
    if constexpr (!std::is_same_v<T, bool>) {
      if (op == ReduceOp::kAverage) {
        return StoreAverageRun(acc, static_cast<A>(ranks), out, count);
      }
    }
    if (accumulators != elements) StoreRun(acc, out, count);
  });
}

namespace {

// Whether the elements can be reduced without accumulators beside them.
bool AreTwoAccumulators(DType dtype, ReduceOp op,
                        absl::Span<const Contribution> contributions) {
  return contributions.size() == 2 &&
         ElementsAreAccumulators(dtype,
                                 Reduction(op, contributions[0].factor)) &&
         ElementsAreAccumulators(dtype, Reduction(op, contributions[1].factor));
}

void ReduceTwo(DType dtype, ReduceOp op, const void* a, const void* b,
               absl::Span<std::byte* const> outputs, int64_t count) {
  WithTypes(dtype, [&](auto, auto accumulator) {
    using A = typename decltype(accumulator)::Type;
    const A* const first = static_cast<const A*>(a);
    const A* const second = static_cast<const A*>(b);
    if constexpr (!std::is_same_v<A, bool>) {
      if (op == ReduceOp::kAverage) {
        return CombineRun(first, second, outputs, count, AverageOfTwo<A>());
      }
    }
    internal::WithFunction<A>(op, [&](auto function) {
      CombineRun(first, second, outputs, count, function);
    });
  });
}

}  // namespace

void ReduceContributions(DType dtype, ReduceOp op,
                         absl::Span<const Contribution> contributions,
                         absl::Span<std::byte* const> outputs, int64_t count) {
  if (AreTwoAccumulators(dtype, op, contributions)) {
    return ReduceTwo(dtype, op, contributions[0].elements,
                     contributions[1].elements, outputs, count);
  }
  constexpr int64_t kPiece = 1024;  // At most 8 KiB of accumulators.
  alignas(64) std::byte accumulators[kPiece * sizeof(int64_t)];
  const int64_t item = ItemSize(dtype);
  const int ranks = static_cast<int>(contributions.size());
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t n = std::min(kPiece, count - begin);
    const int64_t offset = begin * item;
    for (int r = 0; r < ranks; ++r) {
      const Reduction reduction(op, contributions[r].factor);
      const std::byte* in = contributions[r].elements + offset;
      if (r == 0) {
        LoadElements(dtype, reduction, in, accumulators, n);
      } else {
        AddElements(dtype, reduction, in, accumulators, n);
      }
    }
    StoreElements(dtype, op, ranks, accumulators, outputs[0] + offset, n);
    for (size_t i = 1; i < outputs.size(); ++i) {
      memcpy(outputs[i] + offset, outputs[0] + offset, n * item);
    }
  }
}

}  // namespace weft::collectives
