#include "weft/tensor/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/container/inlined_vector.h"
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

Tensor SumsOfRows(const Rows& rows, DType dtype, bool is_wanted) {
  if (!is_wanted) return {};
  return Tensor::Zeros({(rows.rows + kAddedRows - 1) / kAddedRows, rows.n},
                       dtype);
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

// Of the distances from `mean`, and of their squares.
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

// Of grad, and of grad * z, with z = (x - mean) * inverse.
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
void MomentsOfPlanes(const Tensor& x, const Planes& planes,
                     const ChannelMoments& moments) {
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
    moments.mean.data<T>()[c] = mean + rest;
    moments.variance.data<T>()[c] =
        std::max(sums.second / count - rest * rest, T(0));
  }
}

template <typename T>
void NormalizePlanes(const Tensor& x, const Planes& planes, const Tensor& scale,
                     const Tensor& bias, const BatchNormResult& result) {
  for (int64_t i = 0; i < planes.n; ++i) {
    for (int64_t c = 0; c < planes.channels; ++c) {
      const int64_t first = planes.First(i, c);
      ScalePlane(x.data<T>() + first, result.mean.data<T>()[c],
                 scale.data<T>()[c], bias.defined() ? bias.data<T>()[c] : T(0),
                 result.y.data<T>() + first, planes.inner);
    }
  }
}

// Sets result.x, and the sums of grad and of grad * z [channels].
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
  const Tensor z = Tensor::Empty({rows.n}, x.dtype());  // of one row
  const Tensor to_weight = SumsOfRows(rows, x.dtype(), weight.defined());
  const Tensor to_bias = SumsOfRows(rows, x.dtype(), has_bias);
  NormGradients result;
  result.x = Tensor::Empty(x.shape(), x.dtype());
  VisitFloating(x.dtype(), kWhere, [&](auto type) {
    using T = typename decltype(type)::Type;
    const auto sum_of = [&](const Tensor& sums, int64_t row) {
      return sums.defined() ? sums.data<T>() + row / kAddedRows * rows.n
                            : nullptr;
    };
    for (int64_t i = 0; i < rows.rows; ++i) {
      const int64_t first = i * rows.n;
      const RowMoments<T> row = {is_centered ? forward.mean.data<T>()[i] : T(0),
                                 forward.inverse.data<T>()[i]};
      RowBackward(g.data<T>() + first, in.data<T>() + first, row,
                  DataOrNull<T>(w), is_centered, result.x.data<T>() + first,
                  z.data<T>(), rows.n);
      AddParameterGradients(g.data<T>() + first, z.data<T>(),
                            sum_of(to_weight, i), sum_of(to_bias, i), rows.n);
    }
  });
  if (has_bias) result.bias = Sum(to_bias, {0}).View(normalized);
  if (weight.defined()) result.weight = Sum(to_weight, {0}).View(normalized);
  return result;
}

ChannelMoments MomentsOf(const Tensor& x) {
  const Shape dims = AllButChannels(x, "BatchNorm");
  ChannelMoments moments;
  const int64_t channels = x.shape()[1];
  moments.count = channels > 0 ? x.numel() / channels : 0;
  if (const auto planes = PlanesOf(x)) {
    moments.mean = Tensor::Empty({channels}, x.dtype());
    moments.variance = Tensor::Empty({channels}, x.dtype());
    VisitFloating(x.dtype(), "BatchNorm", [&](auto type) {
      MomentsOfPlanes<typename decltype(type)::Type>(x, *planes, moments);
    });
    return moments;
  }
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
  const Tensor scale =
      weight.defined() ? Mul(result.inverse, weight) : result.inverse;
  if (const auto planes = PlanesOf(x)) {
    result.y = Tensor::Empty(x.shape(), x.dtype());
    VisitFloating(x.dtype(), kWhere, [&](auto type) {
      NormalizePlanes<typename decltype(type)::Type>(
          x, *planes, scale.Contiguous(), ContiguousOrNone(bias), result);
    });
    return result;
  }
  result.y = Sub(x, AlongChannels(result.mean, x));
  Mul_(result.y, AlongChannels(scale, x));
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
  const Tensor scale =
      weight.defined() ? Mul(forward.inverse, weight) : forward.inverse;
  NormGradients result;
  if (const auto planes = PlanesOf(x);
      planes.has_value() && grad.shape() == x.shape()) {
    const Tensor sum_g = Tensor::Empty({channels}, x.dtype());
    const Tensor sum_gz = Tensor::Empty({channels}, x.dtype());
    result.x = Tensor::Empty(x.shape(), x.dtype());
    VisitFloating(x.dtype(), "BatchNormBackward", [&](auto type) {
      PlanesBackward<typename decltype(type)::Type>(
          grad.Contiguous(), x, *planes, forward, scale.Contiguous(), of_batch,
          result.x, sum_g, sum_gz);
    });
    if (weight.defined()) result.weight = sum_gz;
    if (has_bias) result.bias = sum_g;
    return result;
  }
  // z is the normalised x.
  const Tensor z = Sub(x, AlongChannels(forward.mean, x));
  Mul_(z, AlongChannels(forward.inverse, x));
  const Tensor sum_g = Sum(grad, dims);
  const Tensor sum_gz = Sum(Mul(grad, z), dims);
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
