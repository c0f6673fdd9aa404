// Normalisation of variables.
//
// `weight` and `bias` may be undefined: 1 and 0. Their gradients go where their
// sinks say (see Leaf), like those of any input. f32 and f64.

#ifndef WEFT_AUTOGRAD_OPS_NORM_H_
#define WEFT_AUTOGRAD_OPS_NORM_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/norm.h"

namespace weft {

// x [..., normalized] -> the same; weight and bias [normalized]:
// (x - mean) / sqrt(variance + epsilon) * weight + bias over each row of the
// last dimensions.
Variable LayerNorm(const Variable& x, const Shape& normalized,
                   const Variable& weight, const Variable& bias,
                   double epsilon = 1e-5);

// x / sqrt(mean of x^2 + epsilon) * weight over each row of the last
// dimensions.
Variable RmsNorm(const Variable& x, const Shape& normalized,
                 const Variable& weight, double epsilon = 1e-6);

struct BatchNormOptions {
  // Training: normalise with the batch's own moments, and move the running
  // ones by `momentum` towards them (the variance as that of a sample, count -
  // 1). Otherwise: normalise with the running ones.
  bool is_training = true;
  double momentum = 0.1;
  double epsilon = 1e-5;
};

// x [n, channels, ...] -> the same; weight and bias [channels]. `running_mean`
// and `running_variance` [channels], written to in training; undefined: none
// are kept, and the batch's moments are always used.
//
// Throws Error kInvalidArgument for shapes that do not fit, and in training for
// a channel of one element, whose normalised value would always be 0.
Variable BatchNorm(const Variable& x, const Variable& weight,
                   const Variable& bias, const Tensor& running_mean,
                   const Tensor& running_variance,
                   const BatchNormOptions& options = {});

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_NORM_H_
