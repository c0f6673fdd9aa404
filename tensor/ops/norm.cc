#include "weft/tensor/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/elementwise_loop.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/optional_operand.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::CheckSameDevice;
using internal::ContiguousOrNone;
using internal::DataIf;
using internal::IsHalf;
using internal::OnDevice;
using internal::Or;
using internal::Rounded;
using internal::SumTerms;
using internal::Wide;

// ------------------------------------------------------------------ by row

// x as rows of `n` elements.
struct Rows {
  int64_t rows = 0;
  int64_t n = 1;
};

Rows RowsOf(const Tensor& x, const Shape& normalized, const char* where) {
  const size_t lead = x.shape().size() - normalized.size();
  bool fits = !normalized.empty() && normalized.size() <= x.shape().size();
  Rows rows;
  for (size_t i = 0; fits && i < normalized.size(); ++i) {
    fits = x.shape()[lead + i] == normalized[i];
    rows.n *= normalized[i];
  }
  if (!fits || rows.n == 0) {
    ThrowInvalidArgument(where, ": x is ", x.Describe(),
                         "; wanted one that ends in ", ShapeText(normalized),
                         ", and these not empty");
  }
  internal::CheckFloating(x, where);
  rows.rows = x.numel() / rows.n;
  return rows;
}

void CheckParameter(const Tensor& parameter, absl::string_view name,
                    const Tensor& x, const Shape& wanted, const char* where) {
  if (!parameter.defined()) return;
  CheckSameDevice(parameter, x, where);
  if (parameter.shape() != wanted || parameter.dtype() != x.dtype()) {
    ThrowInvalidArgument(where, ": ", name, " is ", parameter.Describe(),
                         "; wanted ", Name(x.dtype()), ShapeText(wanted));
  }
}

void CheckGrad(const Tensor& grad, const Tensor& x, const char* where) {
  CheckSameDevice(grad, x, where);
  if (grad.shape() != x.shape() || grad.dtype() != x.dtype()) {
    ThrowInvalidArgument(where, ": grad is ", grad.Describe(), ", x is ",
                         x.Describe(), "; wanted the same shape and dtype");
  }
}

NormGradients RoundedTo(DType dtype, const NormGradients& wide) {
  return {Rounded(wide.x, dtype), Rounded(wide.weight, dtype),
          Rounded(wide.bias, dtype)};
}

template <typename T>
struct RowMoments {
  T mean;
  T inverse;
};

// In two passes: the squares of what is left once the mean is gone lose nothing
// to a large mean, but for what rounding left in it, `rest`, which is taken
// off.
template <typename T>
WEFT_VECTORIZE RowMoments<T> MomentsOfRow(const T* x, int64_t n, T epsilon,
                                          bool is_centered) {
  const T count = static_cast<T>(n);
  const T mean = is_centered
                     ? SumTerms<T>(n, [x](int64_t i) { return x[i]; }) / count
                     : T(0);
  const T rest =
      is_centered
          ? SumTerms<T>(n, [x, mean](int64_t i) { return x[i] - mean; }) / count
          : T(0);
  const T square =
      SumTerms<T>(
          n, [x, mean](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) /
      count;
  // In this order NaN stays.
  const T variance = std::max(square - rest * rest, T(0));
  return {mean + rest, T(1) / std::sqrt(variance + epsilon)};
}

template <typename T>
WEFT_VECTORIZE void NormalizeRow(const T* x, RowMoments<T> row, const T* weight,
                                 const T* bias, T* y, int64_t n) {
  const T mean = row.mean;
  const T inverse = row.inverse;
  if (weight != nullptr && bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse;
  if (weight != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] *= weight[i];
  }
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] += bias[i];
  }
}

RowNormResult NormalizeRows(const Tensor& x, const Shape& normalized,
                            const Tensor& weight, const Tensor& bias,
                            double epsilon, bool is_centered,
                            const char* where) {
  const Rows rows = RowsOf(x, normalized, where);
  CheckParameter(weight, "weight", x, normalized, where);
  CheckParameter(bias, "bias", x, normalized, where);
  if (IsHalf(x)) {
    RowNormResult wide = NormalizeRows(Wide(x), normalized, Wide(weight),
                                       Wide(bias), epsilon, is_centered, where);
    wide.y = wide.y.To(x.dtype());
    return wide;
  }
  const Tensor in = x.Contiguous();
  const Tensor w = ContiguousOrNone(weight);
  const Tensor b = ContiguousOrNone(bias);
  RowNormResult result;
  result.y = Tensor::EmptyLike(x);
  if (is_centered) {
    result.mean = Tensor::Empty({rows.rows}, x.dtype(), x.device());
  }
  result.inverse = Tensor::Empty({rows.rows}, x.dtype(), x.device());
  const bool has_weight = w.defined();
  const bool has_bias = b.defined();
  OnDevice(
      {where,
       {epsilon, static_cast<double>(rows.n), is_centered ? 1.0 : 0.0,
        has_weight ? 1.0 : 0.0, has_bias ? 1.0 : 0.0}},
      [=](const Tensor& x, const Tensor& weight, const Tensor& bias,
          const Tensor& y, const Tensor& mean, const Tensor& inverse) {
        VisitFloating(x.dtype(), where, [&](auto type) {
          using T = typename decltype(type)::Type;
          for (int64_t i = 0; i < rows.rows; ++i) {
            const T* const from = x.data<T>() + i * rows.n;
            const RowMoments<T> row = MomentsOfRow(
                from, rows.n, static_cast<T>(epsilon), is_centered);
            if (is_centered) mean.data<T>()[i] = row.mean;
            inverse.data<T>()[i] = row.inverse;
            NormalizeRow<T>(from, row, DataIf<T>(has_weight, weight),
                            DataIf<T>(has_bias, bias), y.data<T>() + i * rows.n,
                            rows.n);
          }
        });
      },
      in, Or(w, in), Or(b, in), result.y, Or(result.mean, result.inverse),
      result.inverse);
  return result;
}

// With g = grad * weight and z the normalised x:
// dx = inverse * (g - mean(g) - z * mean(g * z)); mean(g) only if centered.
// Writes z too.
template <typename T>
WEFT_VECTORIZE void RowBackward(const T* grad, const T* x, RowMoments<T> row,
                                const T* weight, bool is_centered, T* dx, T* z,
                                int64_t n) {
  const T count = static_cast<T>(n);
  for (int64_t i = 0; i < n; ++i) z[i] = (x[i] - row.mean) * row.inverse;
  if (weight != nullptr) {
    for (int64_t i = 0; i < n; ++i) dx[i] = grad[i] * weight[i];
  } else {
    for (int64_t i = 0; i < n; ++i) dx[i] = grad[i];
  }
  const T mean_g =
      is_centered ? SumTerms<T>(n, [dx](int64_t i) { return dx[i]; }) / count
                  : T(0);
  const T mean_gz =
      SumTerms<T>(n, [dx, z](int64_t i) { return dx[i] * z[i]; }) / count;
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = row.inverse * (dx[i] - mean_g - z[i] * mean_gz);
  }
}

// to_weight += grad * z, to_bias += grad; either may be null.
template <typename T>
WEFT_VECTORIZE void AddParameterGradients(const T* grad, const T* z,
                                          T* to_weight, T* to_bias, int64_t n) {
  if (to_weight != nullptr && to_bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      to_weight[i] += grad[i] * z[i];
      to_bias[i] += grad[i];
    }
  } else if (to_weight != nullptr) {
    for (int64_t i = 0; i < n; ++i) to_weight[i] += grad[i] * z[i];
  } else if (to_bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) to_bias[i] += grad[i];
  }
}

// The gradient of a parameter: as many rows as this are added up one after
// another, and then these sums as any sum, so that no chain is long.
constexpr int64_t kAddedRows = 32;

// Such rows, all 0, of one parameter; undefined if its gradient is not wanted.
Tensor SumsOfRows(const Rows& rows, DType dtype, bool is_wanted) {
  if (!is_wanted) return {};
  return Tensor::Zeros({(rows.rows + kAddedRows - 1) / kAddedRows, rows.n},
                       dtype);
}

// `out` [n] = the sum of `sums`, if these are defined.
template <typename T>
void AddUp(const Tensor& sums, const Tensor& out) {
  if (!sums.defined()) return;
  const int64_t n = sums.size(1);
  internal::FoldRows(sums.data<T>(), {sums.size(0), n, n, 1}, out.data<T>(),
                     T(0), internal::AddOp());
}

// Which operands and results of RowNormBackward there are.
struct RowParts {
  bool is_centered;
  bool has_weight;
  bool has_bias;
};

// RowNormBackward of contiguous tensors on the CPU. Touches neither `mean`,
// `weight` nor the gradients of parameters that there are not.
template <typename T>
void RowsBackward(const Rows& rows, const RowParts& parts, const Tensor& grad,
                  const Tensor& x, const Tensor& mean, const Tensor& inverse,
                  const Tensor& weight, const NormGradients& out) {
  const Tensor z = Tensor::Empty({rows.n}, x.dtype());  // of one row
  const Tensor to_weight = SumsOfRows(rows, x.dtype(), parts.has_weight);
  const Tensor to_bias = SumsOfRows(rows, x.dtype(), parts.has_bias);
  const auto sum_of = [&](const Tensor& sums, int64_t row) {
    return sums.defined() ? sums.data<T>() + row / kAddedRows * rows.n
                          : nullptr;
  };
  for (int64_t i = 0; i < rows.rows; ++i) {
    const int64_t first = i * rows.n;
    const RowMoments<T> row = {parts.is_centered ? mean.data<T>()[i] : T(0),
                               inverse.data<T>()[i]};
    RowBackward<T>(grad.data<T>() + first, x.data<T>() + first, row,
                   DataIf<T>(parts.has_weight, weight), parts.is_centered,
                   out.x.data<T>() + first, z.data<T>(), rows.n);
    AddParameterGradients(grad.data<T>() + first, z.data<T>(),
                          sum_of(to_weight, i), sum_of(to_bias, i), rows.n);
  }
  AddUp<T>(to_weight, out.weight);
  AddUp<T>(to_bias, out.bias);
}

// ----------------------------------------------------------------- by channel

Shape AllButChannels(const Tensor& x, const char* where) {
  if (x.dim() < 2 || !IsFloating(x.dtype())) {
    ThrowInvalidArgument(where, ": x is ", x.Describe(),
                         "; wanted f32, f64, f16 or bf16 [n, channels, ...]");
  }
  Shape dims = {0};
  for (int d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

// `v` [channels] as it broadcasts to x.
Tensor AlongChannels(const Tensor& v, const Tensor& x) {
  Shape shape(x.dim(), 1);
  shape[1] = v.numel();
  return v.Reshape(shape);
}

void CheckChannels(const Tensor& v, absl::string_view name, const Tensor& x,
                   const char* where) {
  CheckParameter(v, name, x, {x.shape()[1]}, where);
}

// x as [n, channels, inner], where the `inner` elements of a plane lie side by
// side and are enough for loops over them; for others, and for x that is not
// contiguous, operations on whole tensors do.
struct Planes {
  int64_t n = 0;
  int64_t channels = 0;
  int64_t inner = 0;

  int64_t First(int64_t i, int64_t channel) const {
    return (i * channels + channel) * inner;
  }
  int64_t count() const { return n * inner; }
};

std::optional<Planes> PlanesOf(const Tensor& x) {
  constexpr int64_t kEnough = 32;
  const Planes planes = {
      x.shape()[0], x.shape()[1],
      x.numel() / std::max<int64_t>(x.shape()[0] * x.shape()[1], 1)};
  if (!x.is_contiguous() || planes.inner < kEnough) return std::nullopt;
  return planes;
}

// Two sums in one.
template <typename T>
struct TwoSums {
  T first;
  T second;
};

// The sums of one channel over all planes, of which visit(offset of a plane)
// returns two.
template <typename T, typename Visit>
TwoSums<T> SumsOfChannel(const Planes& planes, int64_t channel, Visit visit) {
  absl::InlinedVector<T, 128> first, second;
  for (int64_t i = 0; i < planes.n; ++i) {
    const TwoSums<T> sums = visit(planes.First(i, channel));
    first.push_back(sums.first);
    second.push_back(sums.second);
  }
  const auto sum = [&](const auto& of) {
    return SumTerms<T>(planes.n, [&](int64_t i) { return of[i]; });
  };
  return {sum(first), sum(second)};
}

template <typename T>
WEFT_VECTORIZE T SumOfPlane(const T* x, int64_t n) {
  return SumTerms<T>(n, [x](int64_t i) { return x[i]; });
}

// The sums of the distances from `mean`, and of their squares.
template <typename T>
WEFT_VECTORIZE TwoSums<T> DistancesOfPlane(const T* x, T mean, int64_t n) {
  return {SumTerms<T>(n, [x, mean](int64_t i) { return x[i] - mean; }),
          SumTerms<T>(n, [x, mean](int64_t i) {
            return (x[i] - mean) * (x[i] - mean);
          })};
}

// y = (x - mean) * scale + bias.
template <typename T>
WEFT_VECTORIZE void ScalePlane(const T* x, T mean, T scale, T bias, T* y,
                               int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + bias;
}

// The sums of grad, and of grad * z, with z = (x - mean) * inverse.
template <typename T>
WEFT_VECTORIZE TwoSums<T> GradientsOfPlane(const T* grad, const T* x, T mean,
                                           T inverse, int64_t n) {
  return {SumTerms<T>(n, [grad](int64_t i) { return grad[i]; }),
          SumTerms<T>(n, [=](int64_t i) {
            return grad[i] * ((x[i] - mean) * inverse);
          })};
}

// dx = scale * (grad - mean_g - z * mean_gz).
template <typename T>
WEFT_VECTORIZE void PlaneBackward(const T* grad, const T* x, T mean, T inverse,
                                  T scale, T mean_g, T mean_gz, T* dx,
                                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T z = (x[i] - mean) * inverse;
    dx[i] = scale * (grad[i] - mean_g - z * mean_gz);
  }
}

template <typename T>
void MomentsOfPlanes(const Tensor& x, const Planes& planes, const Tensor& means,
                     const Tensor& variances) {
  const T* const in = x.data<T>();
  const T count = static_cast<T>(planes.count());
  for (int64_t c = 0; c < planes.channels; ++c) {
    const T mean =
        SumsOfChannel<T>(
            planes, c,
            [&](int64_t first) {
              return TwoSums<T>{SumOfPlane(in + first, planes.inner), T(0)};
            })
            .first /
        count;
    const TwoSums<T> sums = SumsOfChannel<T>(planes, c, [&](int64_t first) {
      return DistancesOfPlane(in + first, mean, planes.inner);
    });
    // What rounding left in the mean, which may be as much as the deviation.
    const T rest = sums.first / count;
    means.data<T>()[c] = mean + rest;
    variances.data<T>()[c] = std::max(sums.second / count - rest * rest, T(0));
  }
}

template <typename T>
void NormalizePlanes(const Tensor& x, const Planes& planes, const Tensor& mean,
                     const Tensor& scale, const Tensor& bias, const Tensor& y) {
  for (int64_t i = 0; i < planes.n; ++i) {
    for (int64_t c = 0; c < planes.channels; ++c) {
      const int64_t first = planes.First(i, c);
      ScalePlane(x.data<T>() + first, mean.data<T>()[c], scale.data<T>()[c],
                 bias.defined() ? bias.data<T>()[c] : T(0), y.data<T>() + first,
                 planes.inner);
    }
  }
}

// Sets `result`, and the sums of grad and of grad * z [channels].
template <typename T>
void PlanesBackward(const Tensor& grad, const Tensor& x, const Planes& planes,
                    const BatchNormResult& forward, const Tensor& scale,
                    bool of_batch, const Tensor& result, const Tensor& sum_g,
                    const Tensor& sum_gz) {
  const T* const g = grad.data<T>();
  const T* const in = x.data<T>();
  const T count = static_cast<T>(planes.count());
  for (int64_t c = 0; c < planes.channels; ++c) {
    const T mean = forward.mean.data<T>()[c];
    const T inverse = forward.inverse.data<T>()[c];
    const TwoSums<T> sums = SumsOfChannel<T>(planes, c, [&](int64_t first) {
      return GradientsOfPlane(g + first, in + first, mean, inverse,
                              planes.inner);
    });
    sum_g.data<T>()[c] = sums.first;
    sum_gz.data<T>()[c] = sums.second;
    const T mean_g = of_batch ? sums.first / count : T(0);
    const T mean_gz = of_batch ? sums.second / count : T(0);
    for (int64_t i = 0; i < planes.n; ++i) {
      const int64_t first = planes.First(i, c);
      PlaneBackward(g + first, in + first, mean, inverse, scale.data<T>()[c],
                    mean_g, mean_gz, result.data<T>() + first, planes.inner);
    }
  }
}

// ------------------------------- by channel, of tensors that lie in any way

// out = op(a, b); a and b broadcast to it.
template <typename T, typename Op>
void CombineInto(const Tensor& a, const Tensor& b, const Tensor& out, Op op) {
  using internal::LayoutOf;
  const internal::StridedLoop<3> loop(
      out.shape(), {LayoutOf(a), LayoutOf(b), LayoutOf(out)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    internal::BinaryRun(a.data<T>() + at[0], strides[0], b.data<T>() + at[1],
                        strides[1], out.data<T>() + at[2], strides[2], n, op);
  });
}

// MomentsOf on the CPU.
template <typename T>
void MomentsOnHost(const Tensor& x, const Tensor& means,
                   const Tensor& variances) {
  if (const auto planes = PlanesOf(x)) {
    return MomentsOfPlanes<T>(x, *planes, means, variances);
  }
  const Shape dims = AllButChannels(x, "BatchNorm");
  const Tensor mean = Mean(x, dims, true);
  const Tensor distance = Sub(x, mean);
  // What rounding left in the mean, which may be as much as the deviation.
  const Tensor rest = Mean(distance, dims);
  const Tensor square = Mean(Square(distance), dims);
  for (int64_t c = 0; c < means.numel(); ++c) {
    const T left = rest.data<T>()[c];
    const T variance = square.data<T>()[c] - left * left;
    means.data<T>()[c] = mean.data<T>()[c] + left;
    variances.data<T>()[c] = variance < T(0) ? T(0) : variance;
  }
}

// BatchNorm on the CPU; `weight` and `bias` may be undefined, the others of
// [channels] but `variance` are contiguous.
template <typename T>
void BatchNormOnHost(double epsilon, const Tensor& x, const Tensor& mean,
                     const Tensor& variance, const Tensor& weight,
                     const Tensor& bias, const Tensor& y,
                     const Tensor& inverse) {
  for (int64_t c = 0; c < inverse.numel(); ++c) {
    const T value = variance.data<T>()[c * variance.strides()[0]];
    inverse.data<T>()[c] = T(1) / std::sqrt(value + static_cast<T>(epsilon));
  }
  const Tensor scale = weight.defined() ? Mul(inverse, weight) : inverse;
  if (const auto planes = PlanesOf(x)) {
    return NormalizePlanes<T>(x, *planes, mean, scale, ContiguousOrNone(bias),
                              y);
  }
  CombineInto<T>(x, AlongChannels(mean, x), y, internal::SubOp());
  Mul_(y, AlongChannels(scale, x));
  if (bias.defined()) Add_(y, AlongChannels(bias, x));
}

// BatchNormBackward on the CPU: sets `result`, and the sums of grad and of
// grad * z, z being the normalised x. `weight` may be undefined.
template <typename T>
void BatchNormBackwardOnHost(bool of_batch, const Tensor& grad, const Tensor& x,
                             const BatchNormResult& forward,
                             const Tensor& weight, const Tensor& result,
                             const Tensor& sum_g, const Tensor& sum_gz) {
  const Tensor scale =
      weight.defined() ? Mul(forward.inverse, weight) : forward.inverse;
  if (const auto planes = PlanesOf(x)) {
    return PlanesBackward<T>(grad.Contiguous(), x, *planes, forward, scale,
                             of_batch, result, sum_g, sum_gz);
  }
  const Shape dims = AllButChannels(x, "BatchNormBackward");
  const int64_t channels = x.shape()[1];
  const double count =
      channels > 0 ? static_cast<double>(x.numel() / channels) : 0;
  const Tensor z = Sub(x, AlongChannels(forward.mean, x));
  Mul_(z, AlongChannels(forward.inverse, x));
  sum_g.CopyFrom(Sum(grad, dims));
  sum_gz.CopyFrom(Sum(Mul(grad, z), dims));
  if (!of_batch || count == 0) {
    return CombineInto<T>(grad, AlongChannels(scale, x), result,
                          internal::MulOp());
  }
  // dx = scale * (grad - mean(grad) - z * mean(grad * z)).
  Mul_(z, AlongChannels(Div(sum_gz, count), x));
  Add_(z, AlongChannels(Div(sum_g, count), x));
  CombineInto<T>(grad, z, result, internal::SubOp());
  Mul_(result, AlongChannels(scale, x));
}

}  // namespace

RowNormResult LayerNorm(const Tensor& x, const Shape& normalized,
                        const Tensor& weight, const Tensor& bias,
                        double epsilon) {
  return NormalizeRows(x, normalized, weight, bias, epsilon, true, "LayerNorm");
}

RowNormResult RmsNorm(const Tensor& x, const Shape& normalized,
                      const Tensor& weight, double epsilon) {
  return NormalizeRows(x, normalized, weight, Tensor(), epsilon, false,
                       "RmsNorm");
}

NormGradients RowNormBackward(const Tensor& grad, const Tensor& x,
                              const RowNormResult& forward,
                              const Shape& normalized, const Tensor& weight,
                              bool has_bias) {
  constexpr const char* kWhere = "RowNormBackward";
  const Rows rows = RowsOf(x, normalized, kWhere);
  CheckGrad(grad, x, kWhere);
  CheckParameter(weight, "weight", x, normalized, kWhere);
  if (IsHalf(x)) {
    return RoundedTo(x.dtype(),
                     RowNormBackward(Wide(grad), Wide(x), forward, normalized,
                                     Wide(weight), has_bias));
  }
  CheckParameter(forward.mean, "mean", x, {rows.rows}, kWhere);
  CheckParameter(forward.inverse, "inverse", x, {rows.rows}, kWhere);
  const Tensor in = x.Contiguous();
  const Tensor means = ContiguousOrNone(forward.mean);
  const Tensor inverses = forward.inverse.Contiguous();
  const Tensor w = ContiguousOrNone(weight);
  NormGradients result;
  result.x = Tensor::EmptyLike(x);
  if (weight.defined()) {
    result.weight = Tensor::Empty(normalized, x.dtype(), x.device());
  }
  if (has_bias) {
    result.bias = Tensor::Empty(normalized, x.dtype(), x.device());
  }
  const RowParts parts = {means.defined(), w.defined(), has_bias};
  OnDevice(
      {kWhere,
       {static_cast<double>(rows.n), parts.is_centered ? 1.0 : 0.0,
        parts.has_weight ? 1.0 : 0.0, parts.has_bias ? 1.0 : 0.0}},
      [rows, parts](const Tensor& grad, const Tensor& x, const Tensor& mean,
                    const Tensor& inverse, const Tensor& weight,
                    const Tensor& to_x, const Tensor& to_weight,
                    const Tensor& to_bias) {
        VisitFloating(x.dtype(), kWhere, [&](auto type) {
          RowsBackward<typename decltype(type)::Type>(
              rows, parts, grad, x, mean, inverse, weight,
              {to_x, to_weight, to_bias});
        });
      },
      grad.Contiguous(), in, Or(means, inverses), inverses, Or(w, in), result.x,
      Or(result.weight, result.x), Or(result.bias, result.x));
  return result;
}

ChannelMoments MomentsOf(const Tensor& x) {
  AllButChannels(x, "BatchNorm");
  if (IsHalf(x)) return MomentsOf(Wide(x));
  ChannelMoments moments;
  const int64_t channels = x.shape()[1];
  moments.count = channels > 0 ? x.numel() / channels : 0;
  moments.mean = Tensor::Empty({channels}, x.dtype(), x.device());
  moments.variance = Tensor::Empty({channels}, x.dtype(), x.device());
  OnDevice(
      "BatchNormMoments",
      [](const Tensor& x, const Tensor& means, const Tensor& variances) {
        VisitFloating(x.dtype(), "BatchNorm", [&](auto type) {
          MomentsOnHost<typename decltype(type)::Type>(x, means, variances);
        });
      },
      x, moments.mean, moments.variance);
  return moments;
}

BatchNormResult BatchNorm(const Tensor& x, const Tensor& mean,
                          const Tensor& variance, const Tensor& weight,
                          const Tensor& bias, double epsilon) {
  constexpr const char* kWhere = "BatchNorm";
  AllButChannels(x, kWhere);
  CheckChannels(weight, "weight", x, kWhere);
  CheckChannels(bias, "bias", x, kWhere);
  if (IsHalf(x)) {
    BatchNormResult wide = BatchNorm(Wide(x), Wide(mean), Wide(variance),
                                     Wide(weight), Wide(bias), epsilon);
    wide.y = wide.y.To(x.dtype());
    return wide;
  }
  CheckChannels(mean, "mean", x, kWhere);
  CheckChannels(variance, "variance", x, kWhere);
  BatchNormResult result;
  result.mean = mean.Clone();  // It may be a running mean, written to later.
  result.inverse =
      Tensor::Empty(variance.shape(), variance.dtype(), variance.device());
  result.y = Tensor::EmptyLike(x);
  const bool has_weight = weight.defined();
  const bool has_bias = bias.defined();
  OnDevice(
      {kWhere, {epsilon, has_weight ? 1.0 : 0.0, has_bias ? 1.0 : 0.0}},
      [=](const Tensor& x, const Tensor& mean, const Tensor& variance,
          const Tensor& weight, const Tensor& bias, const Tensor& y,
          const Tensor& inverse) {
        VisitFloating(x.dtype(), kWhere, [&](auto type) {
          BatchNormOnHost<typename decltype(type)::Type>(
              epsilon, x, mean, variance, has_weight ? weight : Tensor(),
              has_bias ? bias : Tensor(), y, inverse);
        });
      },
      x, result.mean, variance, Or(weight, x), Or(bias, x), result.y,
      result.inverse);
  return result;
}

NormGradients BatchNormBackward(const Tensor& grad, const Tensor& x,
                                const BatchNormResult& forward,
                                const Tensor& weight, bool has_bias,
                                bool of_batch) {
  constexpr const char* kWhere = "BatchNormBackward";
  AllButChannels(x, kWhere);
  CheckGrad(grad, x, kWhere);
  CheckChannels(weight, "weight", x, kWhere);
  if (IsHalf(x)) {
    return RoundedTo(
        x.dtype(), BatchNormBackward(Wide(grad), Wide(x), forward, Wide(weight),
                                     has_bias, of_batch));
  }
  CheckChannels(forward.mean, "mean", x, kWhere);
  CheckChannels(forward.inverse, "inverse", x, kWhere);
  const int64_t channels = x.shape()[1];
  const Tensor sum_g = Tensor::Empty({channels}, x.dtype(), x.device());
  const Tensor sum_gz = Tensor::Empty({channels}, x.dtype(), x.device());
  NormGradients result;
  result.x = Tensor::EmptyLike(x);
  const bool has_weight = weight.defined();
  OnDevice(
      {kWhere, {of_batch ? 1.0 : 0.0, has_weight ? 1.0 : 0.0}},
      [of_batch, has_weight](const Tensor& grad, const Tensor& x,
                             const Tensor& mean, const Tensor& inverse,
                             const Tensor& weight, const Tensor& to_x,
                             const Tensor& sum_g, const Tensor& sum_gz) {
        VisitFloating(x.dtype(), kWhere, [&](auto type) {
          BatchNormBackwardOnHost<typename decltype(type)::Type>(
              of_batch, grad, x, {{}, mean, inverse},
              has_weight ? weight : Tensor(), to_x, sum_g, sum_gz);
        });
      },
      grad, x, forward.mean.Contiguous(), forward.inverse.Contiguous(),
      Or(weight, x), result.x, sum_g, sum_gz);
  if (has_weight) result.weight = sum_gz;
  if (has_bias) result.bias = sum_g;
  return result;
}

}  // namespace weft
