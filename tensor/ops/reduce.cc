#include "weft/tensor/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::AddOp;
using internal::IsHalf;
using internal::LayoutOf;
using internal::OnDevice;
using internal::StridedLoop;
using internal::Wide;

// Which dimensions go, and the shapes that remain.
struct Plan {
  uint64_t is_reduced = 0;  // Bit d for dimension d.
  Shape kept;               // With size 1 where reduced.
  Shape squeezed;           // Without.
};

Plan PlanFor(const Shape& shape, absl::Span<const int64_t> dims,
             absl::string_view where) {
  Plan plan;
  const int64_t rank = static_cast<int64_t>(shape.size());
  for (const int64_t dim : dims) {
    const uint64_t bit = uint64_t{1} << WrapDim(dim, rank, where);
    if ((plan.is_reduced & bit) != 0) {
      ThrowInvalidArgument(where, ": dim ", dim, " is named twice");
    }
    plan.is_reduced |= bit;
  }
  if (dims.empty()) plan.is_reduced = ~uint64_t{0};
  for (int64_t d = 0; d < rank; ++d) {
    const bool goes = (plan.is_reduced >> d & 1) != 0;
    plan.kept.push_back(goes ? 1 : shape[d]);
    if (!goes) plan.squeezed.push_back(shape[d]);
  }
  return plan;
}

template <typename T, typename Op>
WEFT_VECTORIZE T FoldRun(const T* in, int64_t stride, int64_t n, T start,
                         Op op) {
  if (stride == 1) {
    return internal::FoldTerms(n, start, op, [in](int64_t i) { return in[i]; });
  }
  return internal::FoldTerms(
      n, start, op, [in, stride](int64_t i) { return in[i * stride]; });
}

// One dimension of what is folded.
struct FoldDim {
  int64_t size;
  int64_t stride;
  bool is_reduced;
};
using FoldDimList = absl::InlinedVector<FoldDim, 6>;

// The dimensions of x, outermost first, neighbours joined where they go on from
// each other.
FoldDimList JoinedDims(const Tensor& x, uint64_t is_reduced) {
  FoldDimList dims;
  for (int d = 0; d < x.dim(); ++d) {
    const FoldDim dim = {x.shape()[d], x.strides()[d],
                         (is_reduced >> d & 1) != 0};
    if (dim.size == 1) continue;
    FoldDim* const last = dims.empty() ? nullptr : &dims.back();
    if (last != nullptr && last->is_reduced == dim.is_reduced &&
        last->stride == dim.stride * dim.size) {
      last->size *= dim.size;
      last->stride = dim.stride;
    } else {
      dims.push_back(dim);
    }
  }
  return dims;
}

// Folds dimension after dimension, from the innermost outwards.
template <typename T, typename Op>
class Folder {
 public:
  Folder(FoldDimList dims, T start, Op op)
      : dims_(std::move(dims)), start_(start), op_(op) {}

  // Writes the fold of dimensions [d, end) at `in` to out[0], out[1], ...
  void Run(size_t d, const T* in, T* out) const {
    if (d == dims_.size()) {
      *out = *in;
      return;
    }
    const FoldDim& dim = dims_[d];
    if (TryRows(d, in, out)) return;
    if (!dim.is_reduced) {
      const int64_t inner = KeptFrom(d + 1);
      for (int64_t i = 0; i < dim.size; ++i) {
        Run(d + 1, in + i * dim.stride, out + i * inner);
      }
    } else if (d + 1 == dims_.size()) {
      *out = FoldRun(in, dim.stride, dim.size, start_, op_);
    } else {
      FoldOuter(d, in, out);
    }
  }

 private:
  int64_t KeptFrom(size_t d) const {
    int64_t kept = 1;
    for (; d < dims_.size(); ++d)
      kept *= dims_[d].is_reduced ? 1 : dims_[d].size;
    return kept;
  }

  // The last two dimensions, if that which is kept is the denser one.
  bool TryRows(size_t d, const T* in, T* out) const {
    if (d + 2 != dims_.size()) return false;
    if (dims_[d].is_reduced == dims_[d + 1].is_reduced) return false;
    const FoldDim& reduced = dims_[d].is_reduced ? dims_[d] : dims_[d + 1];
    const FoldDim& kept = dims_[d].is_reduced ? dims_[d + 1] : dims_[d];
    if (std::abs(kept.stride) > std::abs(reduced.stride)) return false;
    internal::FoldRows(in,
                       {reduced.size, kept.size, reduced.stride, kept.stride},
                       out, start_, op_);
    return true;
  }

  // Dimension d, each of whose elements is a fold of its own: a cascade of
  // whole results.
  void FoldOuter(size_t d, const T* in, T* out) const {
    const int64_t n = KeptFrom(d + 1);
    // A plain array: std::vector<bool> is none.
    const std::unique_ptr<T[]> levels(
        new T[static_cast<size_t>(n * internal::kCascadeLevels)]);
    std::fill_n(levels.get(), n * internal::kCascadeLevels, start_);
    for (int64_t i = 0; i < dims_[d].size; ++i) {
      Run(d + 1, in + i * dims_[d].stride, out);
      Join(out, levels.get(), n);
      internal::ForFullLevels(i + 1, [&](int level) {
        T* const from = levels.get() + level * n;
        Join(from, from + n, n);
        std::fill_n(from, n, start_);
      });
    }
    std::copy_n(levels.get(), n, out);
    for (int level = 1; level < internal::kCascadeLevels; ++level) {
      Join(levels.get() + level * n, out, n);
    }
  }

  // to[i] = op(to[i], from[i]).
  void Join(const T* from, T* to, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) to[i] = op_(to[i], from[i]);
  }

  const FoldDimList dims_;
  const T start_;
  const Op op_;
};

// Folds x over the plan's dimensions; the result has shape plan.kept. A device
// is given no dims: they are those that are 1 in the result alone.
template <typename T, typename Op>
Tensor FoldDims(const char* where, const Tensor& x, const Plan& plan, T start,
                Op op) {
  const Tensor result = Tensor::Empty(plan.kept, DTypeOf<T>, x.device());
  OnDevice(
      where,
      [is_reduced = plan.is_reduced, start, op](const Tensor& x,
                                                const Tensor& y) {
        T* const out = y.data<T>();
        if (x.numel() == 0) {
          std::fill_n(out, y.numel(), start);
          return;
        }
        const Folder<T, Op> folder(JoinedDims(x, is_reduced), start, op);
        folder.Run(0, x.data<T>(), out);
      },
      x, result);
  return result;
}

// How many elements become one.
double CountOf(const Tensor& x, const Plan& plan) {
  double count = 1;
  for (size_t d = 0; d < x.shape().size(); ++d) {
    if ((plan.is_reduced >> d & 1) != 0) count *= x.shape()[d];
  }
  return count;
}

Tensor Finish(const Tensor& kept, const Plan& plan, bool keep_dims) {
  return keep_dims ? kept : kept.View(plan.squeezed);
}

template <typename Op>
Tensor Extremum(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims,
                bool is_max, const char* where, Op op) {
  if (IsHalf(x)) {
    return Extremum(Wide(x), dims, keep_dims, is_max, where, op).To(x.dtype());
  }
  const Plan plan = PlanFor(x.shape(), dims, where);
  if (x.numel() == 0 && NumElements(plan.kept, where) > 0) {
    ThrowInvalidArgument(where, ": nothing to choose from in ", x.Describe());
  }
  return VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    using Limits = std::numeric_limits<T>;
    const T low = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    const T high = Limits::has_infinity ? Limits::infinity() : Limits::max();
    return Finish(FoldDims<T>(where, x, plan, is_max ? low : high, op), plan,
                  keep_dims);
  });
}

// Var in f64.
Tensor WideVar(const Tensor& x, absl::Span<const int64_t> dims,
               int64_t correction, bool keep_dims, const char* where) {
  internal::CheckFloating(x, where);
  const double divisor = CountOf(x, PlanFor(x.shape(), dims, where)) -
                         static_cast<double>(correction);
  const Tensor sum = Sum(Square(Centered(x, dims)), dims, keep_dims);
  if (divisor > 0) return Div(sum, divisor);
  return Tensor::Full(sum.shape(), std::nan(""), DType::kF64, sum.device());
}

template <typename T>
WEFT_VECTORIZE double SquaresOf(const T* in, int64_t n) {
  return internal::SumTerms<double>(n, [in](int64_t i) {
    return static_cast<double>(in[i]) * static_cast<double>(in[i]);
  });
}

// The first element that `beats` all before it; the first NaN, if any.
template <typename T, typename Beats>
int64_t FirstBest(const T* in, int64_t stride, int64_t n, Beats beats) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    const T value = in[i * stride];
    const T found = in[best * stride];
    const bool found_is_nan = found != found;
    if (!found_is_nan && (value != value || beats(value, found))) best = i;
  }
  return best;
}

// Writes to y [as x, but 1 in dimension d] where along d the best of x lies.
template <typename T, typename Beats>
void BestOfLines(const Tensor& x, const Tensor& y, int d, Beats beats) {
  const int64_t n = x.shape()[d];
  const Tensor heads = x.Slice(d, 0, n > 0 ? 1 : 0);
  const StridedLoop<2> loop(y.shape(), {LayoutOf(heads), LayoutOf(y)});
  const T* const in = x.data<T>();
  int64_t* const out = y.data<int64_t>();
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      out[at[1] + i * strides[1]] =
          FirstBest(in + at[0] + i * strides[0], x.strides()[d], n, beats);
    }
  });
}

// Does the work of ArgMax and ArgMin.
template <typename Beats>
Tensor ArgBest(const Tensor& x, int64_t dim, bool keep_dims, const char* where,
               Beats beats) {
  if (IsHalf(x)) return ArgBest(Wide(x), dim, keep_dims, where, beats);
  const int d = WrapDim(dim, x.dim(), where);
  const int64_t n = x.shape()[d];
  Shape shape = x.shape();
  shape[d] = 1;
  const Tensor kept = Tensor::Empty(shape, DType::kI64, x.device());
  if (n == 0 && kept.numel() > 0) {
    ThrowInvalidArgument(where, ": nothing to choose from in ", x.Describe());
  }
  VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    OnDevice(
        {where, {static_cast<double>(d)}},
        [d, beats](const Tensor& x, const Tensor& y) {
          BestOfLines<T>(x, y, d, beats);
        },
        x, kept);
  });
  return keep_dims ? kept : kept.Squeeze(d);
}

}  // namespace

Tensor Sum(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  const Plan plan = PlanFor(x.shape(), dims, "Sum");
  if (x.dtype() == DType::kU8 || x.dtype() == DType::kBool) {
    return Sum(x.To(DType::kI64), dims, keep_dims);
  }
  if (IsHalf(x)) return Sum(Wide(x), dims, keep_dims).To(x.dtype());
  return VisitNumber(x.dtype(), "Sum", [&](auto type) {
    using T = typename decltype(type)::Type;
    return Finish(FoldDims<T>("Sum", x, plan, T{0}, AddOp()), plan, keep_dims);
  });
}

Tensor Mean(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  internal::CheckFloating(x, "Mean");
  if (IsHalf(x)) return Mean(Wide(x), dims, keep_dims).To(x.dtype());
  const double count = CountOf(x, PlanFor(x.shape(), dims, "Mean"));
  Tensor sum = Sum(x, dims, keep_dims);
  if (sum.numel() > 0) Mul_(sum, 1 / count);
  return sum;
}

Tensor Centered(const Tensor& x, absl::Span<const int64_t> dims) {
  internal::CheckFloating(x, "Centered");
  const Tensor wide = x.To(DType::kF64);
  if (x.numel() == 0) return wide;
  // A rounded mean may lie outside of what it is the mean of: equal elements
  // would be at a distance from it.
  const Tensor mean =
      Minimum(Maximum(Mean(wide, dims, true), Min(wide, dims, true)),
              Max(wide, dims, true));
  Tensor distance = Sub(wide, mean);
  // What rounding left of the mean, which is more than the deviation where the
  // mean is far above it.
  Sub_(distance, Mean(distance, dims, true));
  return distance;
}

Tensor Var(const Tensor& x, absl::Span<const int64_t> dims, int64_t correction,
           bool keep_dims) {
  return WideVar(x, dims, correction, keep_dims, "Var").To(x.dtype());
}

Tensor Std(const Tensor& x, absl::Span<const int64_t> dims, int64_t correction,
           bool keep_dims) {
  return Sqrt(WideVar(x, dims, correction, keep_dims, "Std")).To(x.dtype());
}

Tensor Max(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  return Extremum(x, dims, keep_dims, true, "Max", internal::MaximumOp());
}

Tensor Min(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  return Extremum(x, dims, keep_dims, false, "Min", internal::MinimumOp());
}

Tensor ArgMax(const Tensor& x, int64_t dim, bool keep_dims) {
  return ArgBest(x, dim, keep_dims, "ArgMax", std::greater<>());
}

Tensor ArgMin(const Tensor& x, int64_t dim, bool keep_dims) {
  return ArgBest(x, dim, keep_dims, "ArgMin", std::less<>());
}

Tensor SumTo(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int64_t lead = x.dim() - static_cast<int64_t>(shape.size());
  absl::InlinedVector<int64_t, 6> dims;
  bool fits = lead >= 0;
  for (int64_t d = 0; fits && d < x.dim(); ++d) {
    const bool is_stretched =
        d < lead || (shape[d - lead] == 1 && x.shape()[d] != 1);
    fits = is_stretched || shape[d - lead] == x.shape()[d];
    if (is_stretched) dims.push_back(d);
  }
  if (!fits) {
    ThrowInvalidArgument("SumTo: ", ShapeText(shape), " does not expand to ",
                         ShapeText(x.shape()));
  }
  return Sum(x, dims, true).View(shape);
}

Tensor ExtremumBackward(const Tensor& grad, const Tensor& x, const Tensor& y,
                        absl::Span<const int64_t> dims) {
  if (IsHalf(x)) {
    return ExtremumBackward(Wide(grad), Wide(x), Wide(y), dims).To(x.dtype());
  }
  const Tensor is_chosen = Equal(x, y).To(x.dtype());
  const Tensor share = Div(grad.View(y.shape()), Sum(is_chosen, dims, true));
  return Mul(is_chosen, share);
}

bool AllFinite(const Tensor& x) {
  if (IsHalf(x)) return AllFinite(Wide(x));
  // x - x is 0 for finite x, else NaN; sums keep NaN.
  return VisitFloating(x.dtype(), "AllFinite", [&](auto type) {
    using T = typename decltype(type)::Type;
    const auto zero = Sum(Sub(x, x));
    return zero.template item<T>() == T{0};
  });
}

double SquaredNorm(const Tensor& x) {
  if (IsHalf(x)) return SquaredNorm(Wide(x));
  return VisitFloating(x.dtype(), "SquaredNorm", [&](auto type) {
    using T = typename decltype(type)::Type;
    const Tensor flat = x.Contiguous();
    if (x.device().is_cpu()) return SquaresOf(flat.data<T>(), flat.numel());
    const Tensor sum = Tensor::Empty({}, DType::kF64, x.device());
    OnDevice(
        "SquaredNorm",
        [](const Tensor& x, const Tensor& y) {
          *y.data<double>() = SquaresOf(x.data<T>(), x.numel());
        },
        flat, sum);
    return sum.item<double>();
  });
}

}  // namespace weft
