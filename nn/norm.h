// Normalisation layers.
//
// Parameters and buffers have PyTorch's names and shapes. Sizes that are not
// positive throw Error kInvalidArgument.

#ifndef WEFT_NN_NORM_H_
#define WEFT_NN_NORM_H_

#include <cstdint>

#include "weft/autograd/variable.h"
#include "weft/nn/module.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

struct NormOptions {
  double epsilon = 1e-5;
  bool affine = true;  // whether there are weight and bias
  DType dtype = DType::kF32;
};

// [..., normalized] -> the same, over each row of the last dimensions. weight
// and bias [normalized], 1 and 0 at first.
class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(const Shape& normalized, const NormOptions& options = {});

 private:
  Variable Compute(const Variable& x) override;

  const Shape normalized_;
  const double epsilon_;
  Variable weight_;
  Variable bias_;
};

// [..., normalized] -> the same, divided by the root of the mean square of each
// row. weight [normalized], 1 at first.
class RmsNorm final : public Layer {
 public:
  explicit RmsNorm(const Shape& normalized, const NormOptions& options = {});

 private:
  Variable Compute(const Variable& x) override;

  const Shape normalized_;
  const double epsilon_;
  Variable weight_;
};

struct BatchNormLayerOptions {
  NormOptions norm;
  // The weight of each batch in the running statistics.
  double momentum = 0.1;
  // If false, each batch is normalised by its own statistics, in evaluation
  // too.
  bool track_running_statistics = true;
};

// [n, channels, ...] -> the same: PyTorch's BatchNorm1d, 2d and 3d. weight and
// bias [channels], 1 and 0 at first; buffers running_mean and running_var
// [channels], 0 and 1 at first, and num_batches_tracked i64 []. In training
// the batch's own statistics are used and the running ones moved; in
// evaluation the running ones are used.
class BatchNorm final : public Layer {
 public:
  explicit BatchNorm(int64_t channels,
                     const BatchNormLayerOptions& options = {});

 private:
  Variable Compute(const Variable& x) override;

  const BatchNormLayerOptions options_;
  Variable weight_;
  Variable bias_;
  Buffer running_mean_;  // none if none are kept, like the next two
  Buffer running_variance_;
  Buffer batches_;
};

}  // namespace weft::nn

#endif  // WEFT_NN_NORM_H_
