#include "weft/tensor/ops/norm.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::SumTerms;

// ------------------------------------------------------------------ by row

// x as rows of `n` elements.
struct Rows {
  int64_t rows = 0;
  int64_t n = 1;
};

Rows RowsOf(const Tensor& x, const Shape& normalized, absl::string_view where) {
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
  rows.rows = x.numel() / rows.n;
  return rows;
}

void CheckParameter(const Tensor& parameter, absl::string_view name,
                    const Tensor& x, const Shape& wanted,
                    absl::string_view where) {
  if (!parameter.defined()) return;
  if (parameter.shape() != wanted || parameter.dtype() != x.dtype()) {
    ThrowInvalidArgument(where, ": ", name, " is ", parameter.Describe(),
                         "; wanted ", Name(x.dtype()), ShapeText(wanted));
  }
}

template <typename T>
const T* DataOrNull(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

Tensor ContiguousOrNone(const Tensor& x) {
  return x.defined() ? x.Contiguous() : x;
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
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - row.mean) * row.inverse;
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
                            absl::string_view where) {
  const Rows rows = RowsOf(x, normalized, where);
  CheckParameter(weight, "weight", x, normalized, where);
  CheckParameter(bias, "bias", x, normalized, where);
  const Tensor in = x.Contiguous();
  const Tensor w = ContiguousOrNone(weight);
  const Tensor b = ContiguousOrNone(bias);
  RowNormResult result;
  result.y = Tensor::Empty(x.shape(), x.dtype());
  if (is_centered) result.mean = Tensor::Empty({rows.rows}, x.dtype());
  result.inverse = Tensor::Empty({rows.rows}, x.dtype());
  VisitFloating(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    for (int64_t i = 0; i < rows.rows; ++i) {
      const T* const from = in.data<T>() + i * rows.n;
      const RowMoments<T> row =
          MomentsOfRow(from, rows.n, static_cast<T>(epsilon), is_centered);
      if (is_centered) result.mean.data<T>()[i] = row.mean;
      result.inverse.data<T>()[i] = row.inverse;
      NormalizeRow(from, row, DataOrNull<T>(w), DataOrNull<T>(b),
                   result.y.data<T>() + i * rows.n, rows.n);
    }
  });
  return result;
}

// With g = grad * weight and z the normalised x:
// dx = inverse * (g - mean(g) - z * mean(g * z)); mean(g) only if centered.
template <typename T>
WEFT_VECTORIZE void RowBackward(const T* grad, const T* z, const T* weight,
                                T inverse, bool is_centered, T* dx, int64_t n) {
  const T count = static_cast<T>(n);
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
    dx[i] = inverse * (dx[i] - mean_g - z[i] * mean_gz);
  }
}

// ----------------------------------------------------------------- by channel

Shape AllButChannels(const Tensor& x, absl::string_view where) {
  if (x.dim() < 2 || !IsDifferentiable(x.dtype())) {
    ThrowInvalidArgument(where, ": x is ", x.Describe(),
                         "; wanted f32 or f64 [n, channels, ...]");
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
                   absl::string_view where) {
  CheckParameter(v, name, x, {x.shape()[1]}, where);
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
  constexpr absl::string_view kWhere = "RowNormBackward";
  const Rows rows = RowsOf(x, normalized, kWhere);
  if (grad.shape() != x.shape() || grad.dtype() != x.dtype()) {
    ThrowInvalidArgument(kWhere, ": grad is ", grad.Describe(), ", x is ",
                         x.Describe(), "; wanted the same shape and dtype");
  }
  const bool is_centered = forward.mean.defined();
  const Tensor in = x.Contiguous();
  const Tensor g = grad.Contiguous();
  const Tensor w = ContiguousOrNone(weight);
  const Tensor z = Tensor::Empty({rows.rows, rows.n}, x.dtype());
  NormGradients result;
  result.x = Tensor::Empty(x.shape(), x.dtype());
  VisitFloating(x.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t first = i * rows.n;
      const T mean = is_centered ? forward.mean.data<T>()[i] : T(0);
      const T inverse = forward.inverse.data<T>()[i];
      NormalizeRow<T>(in.data<T>() + first, {mean, inverse}, nullptr, nullptr,
                      z.data<T>() + first, rows.n);
      RowBackward(g.data<T>() + first, z.data<T>() + first, DataOrNull<T>(w),
                  inverse, is_centered, result.x.data<T>() + first, rows.n);
    }
  });
  const Tensor flat = g.View({rows.rows, rows.n});
  if (has_bias) result.bias = Sum(flat, {0}).View(normalized);
  if (weight.defined()) {
    Mul_(z, flat);
    result.weight = Sum(z, {0}).View(normalized);
  }
  return result;
}

ChannelMoments MomentsOf(const Tensor& x) {
  const Shape dims = AllButChannels(x, "BatchNorm");
  ChannelMoments moments;
  const int64_t channels = x.shape()[1];
  moments.count = channels > 0 ? x.numel() / channels : 0;
  const Tensor mean = Mean(x, dims, true);
  const Tensor distance = Sub(x, mean);
  // What rounding left in the mean, which may be as much as the deviation.
  const Tensor rest = Mean(distance, dims);
  moments.mean = Add(mean.View({channels}), rest);
  moments.variance =
      Clamp(Sub(Mean(Square(distance), dims), Square(rest)), 0, HUGE_VAL);
  return moments;
}

BatchNormResult BatchNorm(const Tensor& x, const Tensor& mean,
                          const Tensor& variance, const Tensor& weight,
                          const Tensor& bias, double epsilon) {
  constexpr absl::string_view kWhere = "BatchNorm";
  AllButChannels(x, kWhere);
  CheckChannels(mean, "mean", x, kWhere);
  CheckChannels(variance, "variance", x, kWhere);
  CheckChannels(weight, "weight", x, kWhere);
  CheckChannels(bias, "bias", x, kWhere);
  BatchNormResult result;
  result.mean = mean.Clone();  // It may be a running mean, written to later.
  result.inverse = Div(1.0, Sqrt(Add(variance, epsilon)));
  result.y = Sub(x, AlongChannels(result.mean, x));
  Mul_(result.y,
       AlongChannels(
           weight.defined() ? Mul(result.inverse, weight) : result.inverse, x));
  if (bias.defined()) Add_(result.y, AlongChannels(bias, x));
  return result;
}

NormGradients BatchNormBackward(const Tensor& grad, const Tensor& x,
                                const BatchNormResult& forward,
                                const Tensor& weight, bool has_bias,
                                bool of_batch) {
  const Shape dims = AllButChannels(x, "BatchNormBackward");
  const int64_t channels = x.shape()[1];
  const double count =
      channels > 0 ? static_cast<double>(x.numel() / channels) : 0;
  // z is the normalised x.
  const Tensor z = Sub(x, AlongChannels(forward.mean, x));
  Mul_(z, AlongChannels(forward.inverse, x));
  const Tensor sum_g = Sum(grad, dims);
  const Tensor sum_gz = Sum(Mul(grad, z), dims);
  const Tensor scale =
      weight.defined() ? Mul(forward.inverse, weight) : forward.inverse;
  NormGradients result;
  if (of_batch && count > 0) {
    // dx = scale * (grad - mean(grad) - z * mean(grad * z)).
    Mul_(z, AlongChannels(Div(sum_gz, count), x));
    Add_(z, AlongChannels(Div(sum_g, count), x));
    result.x = Sub(grad, z);
    Mul_(result.x, AlongChannels(scale, x));
  } else {
    result.x = Mul(grad, AlongChannels(scale, x));
  }
  if (weight.defined()) result.weight = sum_gz;
  if (has_bias) result.bias = sum_g;
  return result;
}

}  // namespace weft
