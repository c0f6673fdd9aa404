// Normalisation: layer, root mean square and batch. f32, f64, f16 and bf16, of
// which means, variances and inverses are f32.
//
// Each forward returns what its backward needs. `weight` and `bias` may be
// undefined: 1 and 0.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes or devices that do
// not fit.

#ifndef WEFT_TENSOR_OPS_NORM_H_
#define WEFT_TENSOR_OPS_NORM_H_

#include "weft/tensor/tensor.h"

namespace weft {

// Source: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang, Sennrich,
// "Root Mean Square Layer Normalization", 2019.
struct RowNormResult {
  Tensor y;
  Tensor mean;     // [rows]; undefined for RmsNorm.
  Tensor inverse;  // [rows]: 1 / sqrt(variance + epsilon).
};

struct NormGradients {
  Tensor x;
  Tensor weight;  // Undefined if there is no weight.
  Tensor bias;    // Undefined if there is no bias.
};

// Over the last dimensions, which `normalized` names by their sizes: x [...,
// normalized] -> the same; y = (x - mean) / sqrt(variance + epsilon) * weight +
// bias; weight and bias [normalized]. The variance is that of the population.
RowNormResult LayerNorm(const Tensor& x, const Shape& normalized,
                        const Tensor& weight, const Tensor& bias,
                        double epsilon = 1e-5);
// y = x / sqrt(mean of x^2 + epsilon) * weight.
RowNormResult RmsNorm(const Tensor& x, const Shape& normalized,
                      const Tensor& weight, double epsilon = 1e-6);

// The backward of both: `forward` is what they returned for x and weight.
NormGradients RowNormBackward(const Tensor& grad, const Tensor& x,
                              const RowNormResult& forward,
                              const Shape& normalized, const Tensor& weight,
                              bool has_bias);

// Source: Ioffe, Szegedy, "Batch Normalization", 2015.
struct BatchNormResult {
  Tensor y;
  Tensor mean;     // [channels]
  Tensor inverse;  // [channels]: 1 / sqrt(variance + epsilon).
};

// The mean and the variance of the population of each channel, over all but
// dimension 1 of x [n, channels, ...]; [channels] both.
struct ChannelMoments {
  Tensor mean;
  Tensor variance;
  int64_t count = 0;  // Elements of one channel.
};
ChannelMoments MomentsOf(const Tensor& x);

// x [n, channels, ...], normalised with these moments; weight and bias
// [channels].
BatchNormResult BatchNorm(const Tensor& x, const Tensor& mean,
                          const Tensor& variance, const Tensor& weight,
                          const Tensor& bias, double epsilon = 1e-5);

// `of_batch`: the moments were those of x, and are differentiated; otherwise
// they are constants.
NormGradients BatchNormBackward(const Tensor& grad, const Tensor& x,
                                const BatchNormResult& forward,
                                const Tensor& weight, bool has_bias,
                                bool of_batch);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_NORM_H_
