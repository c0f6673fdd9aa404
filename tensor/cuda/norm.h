// LayerNorm, RmsNorm and BatchNorm, forward and backward.
//
// They compute what tensor/ops/norm.cc does; sums are added up as in rows.h.
//
// Executor: see rows.h.

#ifndef WEFT_TENSOR_CUDA_NORM_H_
#define WEFT_TENSOR_CUDA_NORM_H_

#include <cmath>

#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

// The sum of term(j) over the lanes, as T.
template <typename T, typename Team, typename Term>
WEFT_HOST_DEVICE T SumOver(int64_t n, const Team& team, const Term& term) {
  Wide<T> total = 0;
  for (int64_t j = team.lane(); j < n; j += team.width()) total += term(j);
  return static_cast<T>(team.Fold(total, AddOp()));
}

template <typename T>
struct Moments {
  T mean;
  T variance;
};

// The mean and variance of n terms value(j). `rest` corrects the variance for
// the rounding error of the mean.
template <typename T, typename Team, typename Value>
WEFT_HOST_DEVICE Moments<T> MomentsOf(int64_t n, bool is_centered,
                                      const Team& team, const Value& value) {
  const T count = static_cast<T>(n);
  const T mean = is_centered ? SumOver<T>(n, team, value) / count : T(0);
  T rest = T(0);
  if (is_centered) {
    rest =
        SumOver<T>(n, team, [&](int64_t j) { return value(j) - mean; }) / count;
  }
  const T square = SumOver<T>(n, team,
                              [&](int64_t j) {
                                const T distance = value(j) - mean;
                                return distance * distance;
                              }) /
                   count;
  const T variance = square - rest * rest;
  // In this order NaN stays.
  return {mean + rest, variance < T(0) ? T(0) : variance};
}

// ------------------------------------------------------------------ by row

template <typename T>
struct RowNormBody {
  int64_t n;
  bool is_centered;
  T epsilon;
  const T* in;
  const T* weight;  // or null
  const T* bias;    // or null
  T* out;
  T* mean;  // null if not centered
  T* inverse;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const T* const x = in + row * n;
    const Moments<T> moments =
        MomentsOf<T>(n, is_centered, team, [x](int64_t j) { return x[j]; });
    const T scale = T(1) / std::sqrt(moments.variance + epsilon);
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      T y = (x[j] - moments.mean) * scale;
      if (weight != nullptr) y *= weight[j];
      if (bias != nullptr) y += bias[j];
      out[row * n + j] = y;
    }
    if (!team.leads()) return;
    if (is_centered) mean[row] = moments.mean;
    inverse[row] = scale;
  }
};

inline const char* CheckNorm(const Call& call, int count) {
  if (call.count != count) return kNoCount;
  return AreAll(call, call.operands[0].element) ? nullptr : kNoDType;
}

// Operands: x, weight, bias, y, mean, inverse; contiguous, and others where
// there is none. Numbers: epsilon; elements of a row; whether it is centered,
// has a weight, has a bias.
struct RowNorm {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckNorm(call, 6)) return lack;
    const Operand* const x = call.operands;
    const double* const numbers = call.numbers;
    const int64_t n = static_cast<int64_t>(numbers[1]);
    const bool is_centered = numbers[2] != 0;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEachRow(
          x[5].numel, n, false,
          RowNormBody<T>{
              n, is_centered, static_cast<T>(numbers[0]), x[0].data<T>(),
              numbers[3] != 0 ? x[1].data<T>() : nullptr,
              numbers[4] != 0 ? x[2].data<T>() : nullptr, x[3].data<T>(),
              is_centered ? x[4].data<T>() : nullptr, x[5].data<T>()});
      return nullptr;
    });
  }
};

// What the rows of a backward are made of.
template <typename T>
struct NormRows {
  int64_t n;
  const T* grad;
  const T* in;
  const T* mean;  // or null
  const T* inverse;

  // The normalised x.
  WEFT_HOST_DEVICE T Normal(int64_t row, int64_t j) const {
    const T at = mean == nullptr ? T(0) : mean[row];
    return (in[row * n + j] - at) * inverse[row];
  }
};

// dx = inverse * (g - mean(g) - z * mean(g * z)) with g = grad * weight.
template <typename T>
struct RowNormBackwardBody {
  NormRows<T> rows;
  const T* weight;  // or null
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const int64_t n = rows.n;
    const T* const grad = rows.grad + row * n;
    const T* const scale = weight;
    const auto g = [grad, scale](int64_t j) {
      return scale == nullptr ? grad[j] : grad[j] * scale[j];
    };
    const T count = static_cast<T>(n);
    T mean_g = T(0);
    if (rows.mean != nullptr) mean_g = SumOver<T>(n, team, g) / count;
    const T mean_gz =
        SumOver<T>(n, team,
                   [&](int64_t j) { return g(j) * rows.Normal(row, j); }) /
        count;
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      out[row * n + j] =
          rows.inverse[row] * (g(j) - mean_g - rows.Normal(row, j) * mean_gz);
    }
  }
};

// One column of all rows: the gradients of its weight and bias.
template <typename T>
struct NormParametersBody {
  NormRows<T> rows;
  int64_t count;  // of rows
  T* to_weight;   // or null
  T* to_bias;     // or null
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t j, const Team& team) const {
    const T* const grad = rows.grad;
    const int64_t n = rows.n;
    if (to_weight != nullptr) {
      const T sum = SumOver<T>(count, team, [&](int64_t row) {
        return grad[row * n + j] * rows.Normal(row, j);
      });
      if (team.leads()) to_weight[j] = sum;
    }
    if (to_bias != nullptr) {
      const T sum = SumOver<T>(count, team,
                               [&](int64_t row) { return grad[row * n + j]; });
      if (team.leads()) to_bias[j] = sum;
    }
  }
};

// Operands: grad, x, mean, inverse, weight, and the gradients of x, weight and
// bias; contiguous, and others where there is none. Numbers: elements of a row;
// whether it is centered, has a weight, has a bias.
struct RowNormBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckNorm(call, 8)) return lack;
    const Operand* const x = call.operands;
    const int64_t n = static_cast<int64_t>(call.numbers[0]);
    const bool has_weight = call.numbers[2] != 0;
    const bool has_bias = call.numbers[3] != 0;
    const int64_t count = x[3].numel;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      const NormRows<T> rows = {n, x[0].data<T>(), x[1].data<T>(),
                                call.numbers[1] != 0 ? x[2].data<T>() : nullptr,
                                x[3].data<T>()};
      executor.ForEachRow(
          count, n, false,
          RowNormBackwardBody<T>{rows, has_weight ? x[4].data<T>() : nullptr,
                                 x[5].data<T>()});
      if (!has_weight && !has_bias) return nullptr;
      executor.ForEachRow(
          n, count, true,
          NormParametersBody<T>{rows, count,
                                has_weight ? x[6].data<T>() : nullptr,
                                has_bias ? x[7].data<T>() : nullptr});
      return nullptr;
    });
  }
};

// -------------------------------------------------------------- by channel

// The elements of one channel (dimension 1) of N tensors of one shape.
template <int N>
struct ChannelIndex {
  StridedIndex<N> terms;  // from the channel's first
  int64_t steps[N];       // from a channel to the next
  int64_t channels;

  WEFT_HOST_DEVICE int64_t First(int k, int64_t channel) const {
    return channel * steps[k];
  }
  bool LiesAcross() const {
    return channels > 1 && terms.dims > 0 &&
           Distance(steps[0]) < Distance(terms.strides[0][0]);
  }
};

template <int N>
bool MakeChannelIndex(const Operand* const (&tensors)[N],
                      ChannelIndex<N>* index) {
  Operand parts[N];
  Layout layouts[N];
  for (int k = 0; k < N; ++k) {
    parts[k] = *tensors[k];
    parts[k].sizes[1] = 1;
    layouts[k] = LayoutOf(parts[k]);
    index->steps[k] = tensors[k]->strides[1];
  }
  index->channels = tensors[0]->sizes[1];
  return MakeIndex<N>(parts[0].dims, parts[0].sizes, layouts, &index->terms);
}

// A vector of channels as it broadcasts to x: its offsets are channels.
inline Operand ChannelsOf(const Operand& x) {
  Operand channels = x;
  for (int d = 0; d < x.dims; ++d) {
    if (d != 1) channels.sizes[d] = 1;
    channels.strides[d] = d == 1 ? 1 : 0;
  }
  return channels;
}

// A vector [channels], or null.
template <typename T>
struct ChannelVector {
  const T* data;
  int64_t step;
  WEFT_HOST_DEVICE T operator[](int64_t channel) const {
    return data[channel * step];
  }
  WEFT_HOST_DEVICE bool exists() const { return data != nullptr; }
};

template <typename T>
ChannelVector<T> VectorOf(const Operand& x, bool exists) {
  return {exists ? x.data<T>() : nullptr, exists ? x.strides[0] : 0};
}

template <typename T>
struct BatchNormMomentsBody {
  ChannelIndex<1> index;
  const T* in;
  T* means;
  T* variances;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t channel, const Team& team) const {
    const T* const x = in + index.First(0, channel);
    const Moments<T> moments =
        MomentsOf<T>(index.terms.count, true, team,
                     [&](int64_t j) { return x[index.terms.At(j)[0]]; });
    if (!team.leads()) return;
    means[channel] = moments.mean;
    variances[channel] = moments.variance;
  }
};

// Operands: x [n, channels, ...]; means and variances [channels].
struct BatchNormMoments {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckNorm(call, 3)) return lack;
    const Operand* const x = call.operands;
    if (!x[1].is_contiguous || !x[2].is_contiguous) return kNotContiguous;
    ChannelIndex<1> index;
    if (!MakeChannelIndex<1>({&x[0]}, &index)) return kTooManyDims;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEachRow(
          index.channels, index.terms.count, index.LiesAcross(),
          BatchNormMomentsBody<T>{index, x[0].data<T>(), x[1].data<T>(),
                                  x[2].data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct InverseBody {
  ChannelVector<T> variance;
  T epsilon;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t channel) const {
    out[channel] = T(1) / std::sqrt(variance[channel] + epsilon);
  }
};

template <typename T>
struct BatchNormBody {
  StridedIndex<3> index;  // of x, y and the channel
  const T* in;
  const T* mean;
  const T* inverse;
  ChannelVector<T> weight;
  ChannelVector<T> bias;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<3> at = index.At(i);
    const int64_t channel = at[2];
    const T scale =
        weight.exists() ? inverse[channel] * weight[channel] : inverse[channel];
    const T y = (in[at[0]] - mean[channel]) * scale;
    out[at[1]] = bias.exists() ? y + bias[channel] : y;
  }
};

// Operands: x, mean, variance, weight, bias, y, inverse; mean and inverse
// contiguous; others where there is no weight or bias. Numbers: epsilon;
// whether there is a weight, a bias.
struct BatchNorm {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckNorm(call, 7)) return lack;
    const Operand* const x = call.operands;
    if (!x[1].is_contiguous || !x[6].is_contiguous) return kNotContiguous;
    const Operand channels = ChannelsOf(x[0]);
    StridedIndex<3> index;
    if (!MakeIndex<3>(x[0].dims, x[0].sizes,
                      {LayoutOf(x[0]), LayoutOf(x[5]), LayoutOf(channels)},
                      &index)) {
      return kTooManyDims;
    }
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(
          x[6].numel,
          InverseBody<T>{VectorOf<T>(x[2], true),
                         static_cast<T>(call.numbers[0]), x[6].data<T>()});
      executor.ForEach(index.count,
                       BatchNormBody<T>{index, x[0].data<T>(), x[1].data<T>(),
                                        x[6].data<T>(),
                                        VectorOf<T>(x[3], call.numbers[1] != 0),
                                        VectorOf<T>(x[4], call.numbers[2] != 0),
                                        x[5].data<T>()});
      return nullptr;
    });
  }
};

// The sums of grad and of grad * z over a channel, z = (x - mean) * inverse.
template <typename T>
struct BatchNormSumsBody {
  ChannelIndex<2> index;  // of grad and x
  const T* grad;
  const T* in;
  const T* mean;
  const T* inverse;
  T* sum_g;
  T* sum_gz;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t channel, const Team& team) const {
    const T* const g = grad + index.First(0, channel);
    const T* const x = in + index.First(1, channel);
    const int64_t n = index.terms.count;
    const T at = mean[channel];
    const T scale = inverse[channel];
    const T first =
        SumOver<T>(n, team, [&](int64_t j) { return g[index.terms.At(j)[0]]; });
    const T second = SumOver<T>(n, team, [&](int64_t j) {
      const Offsets<2> place = index.terms.At(j);
      return g[place[0]] * ((x[place[1]] - at) * scale);
    });
    if (!team.leads()) return;
    sum_g[channel] = first;
    sum_gz[channel] = second;
  }
};

// dx = scale * (grad - mean(grad) - z * mean(grad * z)).
template <typename T>
struct BatchNormBackwardBody {
  StridedIndex<4> index;  // of grad, x, dx and the channel
  T count;                // 0: the moments are constants
  const T* grad;
  const T* in;
  const T* mean;
  const T* inverse;
  ChannelVector<T> weight;
  const T* sum_g;
  const T* sum_gz;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<4> at = index.At(i);
    const int64_t c = at[3];
    const T scale = weight.exists() ? inverse[c] * weight[c] : inverse[c];
    if (count == T(0)) {
      out[at[2]] = scale * grad[at[0]];
      return;
    }
    const T z = (in[at[1]] - mean[c]) * inverse[c];
    out[at[2]] =
        scale * (grad[at[0]] - sum_g[c] / count - z * (sum_gz[c] / count));
  }
};

// Operands: grad, x, mean, inverse, weight, dx, and the sums of grad and of
// grad * z [channels]; mean and inverse contiguous; another where there is no
// weight. Numbers: whether the moments are of the batch, whether there is a
// weight.
struct BatchNormBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckNorm(call, 8)) return lack;
    const Operand* const x = call.operands;
    if (!x[2].is_contiguous || !x[3].is_contiguous) return kNotContiguous;
    const Operand channels = ChannelsOf(x[1]);
    ChannelIndex<2> by_channel;
    StridedIndex<4> index;
    if (!MakeChannelIndex<2>({&x[0], &x[1]}, &by_channel) ||
        !MakeIndex<4>(x[1].dims, x[1].sizes,
                      {LayoutOf(x[0]), LayoutOf(x[1]), LayoutOf(x[5]),
                       LayoutOf(channels)},
                      &index)) {
      return kTooManyDims;
    }
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEachRow(
          by_channel.channels, by_channel.terms.count, by_channel.LiesAcross(),
          BatchNormSumsBody<T>{by_channel, x[0].data<T>(), x[1].data<T>(),
                               x[2].data<T>(), x[3].data<T>(), x[6].data<T>(),
                               x[7].data<T>()});
      const T count =
          call.numbers[0] != 0 ? static_cast<T>(by_channel.terms.count) : T(0);
      executor.ForEach(
          index.count,
          BatchNormBackwardBody<T>{
              index, count, x[0].data<T>(), x[1].data<T>(), x[2].data<T>(),
              x[3].data<T>(), VectorOf<T>(x[4], call.numbers[1] != 0),
              x[6].data<T>(), x[7].data<T>(), x[5].data<T>()});
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_NORM_H_
