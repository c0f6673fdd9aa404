#include "weft/nn/norm.h"

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops/norm.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::nn {
namespace {

void CheckSizes(const Shape& normalized, const char* layer) {
  for (const int64_t size : normalized) {
    if (size <= 0) {
      ThrowInvalidArgument(layer, ": the shape is ", ShapeText(normalized),
                           "; wanted positive sizes");
    }
  }
  if (normalized.empty()) {
    ThrowInvalidArgument(layer, ": wanted one dimension or more");
  }
}

}  // namespace

LayerNorm::LayerNorm(const Shape& normalized, const NormOptions& options)
    : normalized_(normalized), epsilon_(options.epsilon) {
  CheckSizes(normalized, "LayerNorm");
  if (!options.affine) return;
  weight_ = AddParameter("weight", Tensor::Ones(normalized, options.dtype));
  bias_ = AddParameter("bias", Tensor::Zeros(normalized, options.dtype));
}

Variable LayerNorm::Compute(const Variable& x) {
  return weft::LayerNorm(x, normalized_, weight_, bias_, epsilon_);
}

RmsNorm::RmsNorm(const Shape& normalized, const NormOptions& options)
    : normalized_(normalized), epsilon_(options.epsilon) {
  CheckSizes(normalized, "RmsNorm");
  if (!options.affine) return;
  weight_ = AddParameter("weight", Tensor::Ones(normalized, options.dtype));
}

Variable RmsNorm::Compute(const Variable& x) {
  return weft::RmsNorm(x, normalized_, weight_, epsilon_);
}

BatchNorm::BatchNorm(int64_t channels, const BatchNormLayerOptions& options)
    : options_(options) {
  CheckSizes({channels}, "BatchNorm");
  const DType dtype = options.norm.dtype;
  if (options.norm.affine) {
    weight_ = AddParameter("weight", Tensor::Ones({channels}, dtype));
    bias_ = AddParameter("bias", Tensor::Zeros({channels}, dtype));
  }
  if (options.track_running_statistics) {
    running_mean_ = AddBuffer("running_mean", Tensor::Zeros({channels}, dtype));
    running_variance_ =
        AddBuffer("running_var", Tensor::Ones({channels}, dtype));
    batches_ = AddBuffer("num_batches_tracked", Tensor::Zeros({}, DType::kI64));
  }
}

Variable BatchNorm::Compute(const Variable& x) {
  weft::BatchNormOptions options;
  options.is_training = is_training();
  options.momentum = options_.momentum;
  options.epsilon = options_.norm.epsilon;
  if (is_training() && IsRecomputing()) {  // the statistics have moved
    return weft::BatchNorm(x, weight_, bias_, Tensor(), Tensor(), options);
  }
  const Variable y = weft::BatchNorm(x, weight_, bias_, running_mean_.tensor(),
                                     running_variance_.tensor(), options);
  // Counted after what may throw.
  if (is_training() && batches_.defined()) Add_(batches_.tensor(), 1);
  return y;
}

}  // namespace weft::nn
