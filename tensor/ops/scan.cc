#include "weft/tensor/ops/scan.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/strided_loop.h"

namespace weft {
namespace {

using internal::AddOp;
using internal::IsHalf;
using internal::LayoutOf;
using internal::StridedLoop;
using internal::Wide;

// Calls visit(first of x's line, first of y's line) for each line of x and y
// along dimension d; their other sizes are equal.
template <typename Visit>
void ForEachLine(const Tensor& x, const Tensor& y, int d, Visit&& visit) {
  if (x.shape()[d] == 0 || y.shape()[d] == 0) return;
  const Tensor x_heads = x.Slice(d, 0, 1);
  const Tensor y_heads = y.Slice(d, 0, 1);
  const StridedLoop<2> loop(x_heads.shape(),
                            {LayoutOf(x_heads), LayoutOf(y_heads)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      visit(at[0] + i * strides[0], at[1] + i * strides[1]);
    }
  });
}

template <typename T>
void SumLines(const Tensor& x, const Tensor& y, int d, bool is_reversed) {
  using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
  const int64_t n = x.shape()[d];
  ForEachLine(x, y, d, [&](int64_t from, int64_t to) {
    const T* const in = x.data<T>() + from;
    T* const out = y.data<T>() + to;
    Total total = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = is_reversed ? n - 1 - j : j;
      total = AddOp()(total, static_cast<Total>(in[i * x.strides()[d]]));
      out[i * y.strides()[d]] = static_cast<T>(total);
    }
  });
}

Tensor RunningSum(const Tensor& x, int64_t dim, bool is_reversed,
                  const char* where) {
  const int d = WrapDim(dim, x.dim(), where);
  if (IsHalf(x)) {
    return RunningSum(Wide(x), dim, is_reversed, where).To(x.dtype());
  }
  const Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
  VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    internal::OnDevice(
        {where, {static_cast<double>(d)}},
        [d, is_reversed](const Tensor& x, const Tensor& y) {
          SumLines<T>(x, y, d, is_reversed);
        },
        x, y);
  });
  return y;
}

// Whether `a` comes before `b`: NaN is larger than all numbers.
template <typename T>
bool IsLarger(T a, T b) {
  const bool a_is_nan = a != a;
  const bool b_is_nan = b != b;
  if (a_is_nan || b_is_nan) return a_is_nan && !b_is_nan;
  return a > b;
}

// Does the work of TopK.
template <typename T>
void ChooseBest(const Tensor& x, int d, bool is_largest, const Tensor& values,
                const Tensor& indices) {
  const int64_t k = values.shape()[d];
  const int64_t stride = x.strides()[d];
  const int64_t step = values.strides()[d];
  std::vector<int64_t> order(static_cast<size_t>(x.shape()[d]));
  ForEachLine(x, values, d, [&](int64_t from, int64_t to) {
    const T* const in = x.data<T>() + from;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(
        order.begin(), order.begin() + k, order.end(),
        [&](int64_t i, int64_t j) {
          const T a = in[i * stride];
          const T b = in[j * stride];
          const bool first = is_largest ? IsLarger(a, b) : IsLarger(b, a);
          const bool second = is_largest ? IsLarger(b, a) : IsLarger(a, b);
          return first || (!second && i < j);
        });
    for (int64_t i = 0; i < k; ++i) {
      const int64_t chosen = order[static_cast<size_t>(i)];
      values.data<T>()[to + i * step] = in[chosen * stride];
      indices.data<int64_t>()[to + i * step] = chosen;
    }
  });
}

}  // namespace

Tensor Cumsum(const Tensor& x, int64_t dim) {
  if (x.dtype() == DType::kU8 || x.dtype() == DType::kBool) {
    return Cumsum(x.To(DType::kI64), dim);
  }
  return RunningSum(x, dim, false, "Cumsum");
}

Tensor CumsumBackward(const Tensor& grad, int64_t dim) {
  return RunningSum(grad, dim, true, "CumsumBackward");
}

TopKResult TopK(const Tensor& x, int64_t k, int64_t dim, bool is_largest) {
  const int d = WrapDim(dim, x.dim(), "TopK");
  const int64_t n = x.shape()[d];
  if (k < 0 || k > n) {
    ThrowInvalidArgument("TopK: k is ", k, ", dimension ", d, " of ",
                         x.Describe(), " has ", n, " elements");
  }
  if (IsHalf(x)) {
    const TopKResult wide = TopK(Wide(x), k, dim, is_largest);
    return {wide.values.To(x.dtype()), wide.indices};
  }
  Shape shape = x.shape();
  shape[d] = k;
  const TopKResult result = {Tensor::Empty(shape, x.dtype(), x.device()),
                             Tensor::Empty(shape, DType::kI64, x.device())};
  VisitNumber(x.dtype(), "TopK", [&](auto type) {
    using T = typename decltype(type)::Type;
    internal::OnDevice(
        {"TopK", {static_cast<double>(d), is_largest ? 1.0 : 0.0}},
        [d, is_largest](const Tensor& x, const Tensor& values,
                        const Tensor& indices) {
          ChooseBest<T>(x, d, is_largest, values, indices);
        },
        x, result.values, result.indices);
  });
  return result;
}

}  // namespace weft
