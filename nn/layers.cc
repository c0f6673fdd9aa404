#include "weft/nn/layers.h"

#include "absl/strings/str_cat.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/nn/init.h"

namespace weft::nn {
namespace {

int64_t Positive(int64_t size, const char* layer, const char* what) {
  if (size <= 0) {
    ThrowInvalidArgument(layer, ": ", what, " is ", size,
                         "; wanted a positive number");
  }
  return size;
}

// PyTorch's default for tables: normal, of variance 1.
Tensor Table(int64_t rows, int64_t dim, const char* layer, Generator& random,
             DType dtype) {
  return Normal({Positive(rows, layer, "rows"), Positive(dim, layer, "dim")}, 0,
                1, random, dtype);
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, Generator& random,
               const LayerOptions& options) {
  Positive(in, "Linear", "in");
  Positive(out, "Linear", "out");
  weight_ = AddParameter("weight",
                         FanInUniform({out, in}, in, random, options.dtype));
  if (options.bias) {
    bias_ =
        AddParameter("bias", FanInUniform({out}, in, random, options.dtype));
  }
}

Linear::Linear(const Variable& weight, Generator& random, bool bias) {
  weight_ = AddParameter("weight", weight);
  if (weight.dim() != 2) {
    ThrowInvalidArgument("Linear: the weight is ", weight.value().Describe(),
                         "; wanted [out, in]");
  }
  if (bias) {
    bias_ = AddParameter("bias", FanInUniform({weight.size(0)}, weight.size(1),
                                              random, weight.dtype()));
  }
}

Variable Linear::Compute(const Variable& x) {
  return weft::Linear(x, weight_, bias_);
}

Conv2d::Conv2d(int64_t channels, int64_t filters, int64_t kernel,
               Generator& random, const Conv2dOptions& convolution,
               const LayerOptions& options)
    : convolution_(convolution) {
  Positive(channels, "Conv2d", "channels");
  Positive(filters, "Conv2d", "filters");
  Positive(kernel, "Conv2d", "kernel");
  const int64_t fan_in = channels * kernel * kernel;
  weight_ =
      AddParameter("weight", FanInUniform({filters, channels, kernel, kernel},
                                          fan_in, random, options.dtype));
  if (options.bias) {
    bias_ = AddParameter(
        "bias", FanInUniform({filters}, fan_in, random, options.dtype));
  }
}

Variable Conv2d::Compute(const Variable& x) {
  return weft::Conv2d(x, weight_, bias_, convolution_);
}

Embedding::Embedding(int64_t rows, int64_t dim, Generator& random,
                     const EmbeddingOptions& options)
    : options_(options) {
  const Tensor table = Table(rows, dim, "Embedding", random, options.dtype);
  if (options.padding.has_value()) {
    if (*options.padding < 0 || *options.padding >= rows) {
      ThrowInvalidArgument("Embedding: the padding is row ", *options.padding,
                           " of ", rows);
    }
    table.Select(0, *options.padding).Fill(0);
  }
  weight_ = AddParameter("weight", table);
}

Variable Embedding::Forward(const Tensor& indices) {
  return Call({Variable(indices)}, [&](absl::Span<const Variable> inputs) {
    return weft::Embedding(weight_, inputs[0].value(), options_.gradient,
                           options_.padding);
  });
}

EmbeddingBag::EmbeddingBag(int64_t rows, int64_t dim, BagMode mode,
                           Generator& random, const EmbeddingOptions& options)
    : mode_(mode), gradient_(options.gradient) {
  weight_ = AddParameter(
      "weight", Table(rows, dim, "EmbeddingBag", random, options.dtype));
}

Variable EmbeddingBag::Forward(const Tensor& indices, const Tensor& offsets) {
  return Call({Variable(indices), Variable(offsets)},
              [&](absl::Span<const Variable> inputs) {
                return weft::EmbeddingBag(weight_, inputs[0].value(),
                                          inputs[1].value(), mode_, gradient_);
              });
}

Variable EmbeddingBag::Forward(const Tensor& indices) {
  if (indices.dim() != 2) {
    ThrowInvalidArgument("EmbeddingBag: indices without offsets are ",
                         indices.Describe(), "; wanted i64[bags, size]");
  }
  const Tensor offsets = Mul(Tensor::Arange(indices.size(0)),
                             static_cast<double>(indices.size(1)));
  return Forward(indices.Reshape({-1}), offsets);
}

Variable MaxPool2d::Compute(const Variable& x) {
  return weft::MaxPool2d(x, options_);
}

Variable AvgPool2d::Compute(const Variable& x) {
  return weft::AvgPool2d(x, options_);
}

Variable Relu::Compute(const Variable& x) { return weft::Relu(x); }

Variable Sigmoid::Compute(const Variable& x) { return weft::Sigmoid(x); }

Variable Tanh::Compute(const Variable& x) { return weft::Tanh(x); }

Variable Flatten::Compute(const Variable& x) { return FlattenFrom(x, 1); }

Dropout::Dropout(double probability, Generator& random)
    : probability_(probability), random_(random) {
  if (!(probability >= 0 && probability < 1)) {
    ThrowInvalidArgument("Dropout: probability is ", probability,
                         "; wanted 0 <= probability < 1");
  }
}

Variable Dropout::Compute(const Variable& x) {
  if (!is_training() || probability_ == 0) return x;
  const double kept = 1 - probability_;
  const Tensor mask =
      Bernoulli(x.shape(), kept, random_, x.value().device()).To(x.dtype());
  return x * Variable(Mul(mask, 1 / kept));
}

void Sequential::Append(std::unique_ptr<Layer> layer) {
  AddModule(absl::StrCat(layers_.size()), *layer);
  layers_.push_back(std::move(layer));
}

Variable Sequential::Compute(const Variable& x) {
  Variable y = x;
  for (const std::unique_ptr<Layer>& layer : layers_) y = layer->Forward(y);
  return y;
}

}  // namespace weft::nn
