// Layers: the modules that small models are made of.
//
// Parameters have PyTorch's names, shapes and default initialisers, so that a
// state dict means the same model in both. Sizes that are not positive throw
// Error kInvalidArgument.

#ifndef WEFT_NN_LAYERS_H_
#define WEFT_NN_LAYERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "weft/autograd/ops/conv.h"
#include "weft/autograd/ops/index.h"
#include "weft/autograd/variable.h"
#include "weft/nn/module.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/random.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

struct LayerOptions {
  bool bias = true;
  DType dtype = DType::kF32;
};

// [..., in] -> [..., out]: x * weight^T + bias. weight [out, in], bias [out].
class Linear final : public Layer {
 public:
  Linear(int64_t in, int64_t out, Generator& random,
         const LayerOptions& options = {});
  // With a weight [out, in] that another module has too, such as an Embedding.
  // Throws Error kInvalidArgument unless it is a leaf that requires a gradient.
  Linear(const Variable& weight, Generator& random, bool bias = true);

  const Variable& weight() const { return weight_; }

 private:
  Variable Compute(const Variable& x) override;

  Variable weight_;
  Variable bias_;
};

// [n, channels, h, w] -> [n, filters, oh, ow]. weight [filters, channels,
// kernel, kernel], bias [filters].
class Conv2d final : public Layer {
 public:
  Conv2d(int64_t channels, int64_t filters, int64_t kernel, Generator& random,
         const Conv2dOptions& convolution = {},
         const LayerOptions& options = {});

 private:
  Variable Compute(const Variable& x) override;

  const Conv2dOptions convolution_;
  Variable weight_;
  Variable bias_;
};

struct EmbeddingOptions {
  TableGradient gradient = TableGradient::kDense;
  DType dtype = DType::kF32;
  // Embedding only: the padding row. It is 0 at first and gets no gradient.
  std::optional<int64_t> padding = std::nullopt;
};

// i64 [...] -> [..., dim]. weight [rows, dim].
class Embedding final : public Module {
 public:
  Embedding(int64_t rows, int64_t dim, Generator& random,
            const EmbeddingOptions& options = {});
  Variable Forward(const Tensor& indices);

  const Variable& weight() const { return weight_; }

 private:
  const EmbeddingOptions options_;
  Variable weight_;
};

// The sum or mean of rows, by bag. weight [rows, dim].
class EmbeddingBag final : public Module {
 public:
  EmbeddingBag(int64_t rows, int64_t dim, BagMode mode, Generator& random,
               const EmbeddingOptions& options = {});
  // i64 [n], and where each bag begins [bags] -> [bags, dim].
  Variable Forward(const Tensor& indices, const Tensor& offsets);
  // Bags of one size: i64 [bags, size] -> [bags, dim].
  Variable Forward(const Tensor& indices);

 private:
  const BagMode mode_;
  const TableGradient gradient_;
  Variable weight_;
};

class MaxPool2d final : public Layer {
 public:
  explicit MaxPool2d(const Pool2dOptions& options = {}) : options_(options) {}

 private:
  Variable Compute(const Variable& x) override;

  const Pool2dOptions options_;
};

class AvgPool2d final : public Layer {
 public:
  explicit AvgPool2d(const Pool2dOptions& options = {}) : options_(options) {}

 private:
  Variable Compute(const Variable& x) override;

  const Pool2dOptions options_;
};

class Relu final : public Layer {
 private:
  Variable Compute(const Variable& x) override;
};

class Sigmoid final : public Layer {
 private:
  Variable Compute(const Variable& x) override;
};

class Tanh final : public Layer {
 private:
  Variable Compute(const Variable& x) override;
};

// [n, ...] -> [n, the rest].
class Flatten final : public Layer {
 private:
  Variable Compute(const Variable& x) override;
};

// In training, zeroes each element with `probability` and scales the others so
// that the mean stays; in evaluation, nothing.
class Dropout final : public Layer {
 public:
  // `random` is borrowed. Throws Error kInvalidArgument unless 0 <=
  // probability < 1.
  Dropout(double probability, Generator& random);

 private:
  Variable Compute(const Variable& x) override;

  const double probability_;
  Generator& random_;
};

// Its layers, one after another, named "0", "1", ...
class Sequential final : public Layer {
 public:
  Sequential() = default;

  // Makes a layer and puts it at the end: net.Add<nn::Linear>(784, 10, random).
  template <typename L, typename... Args>
  L& Add(Args&&... args) {
    auto layer = std::make_unique<L>(std::forward<Args>(args)...);
    L& added = *layer;
    Append(std::move(layer));
    return added;
  }
  void Append(std::unique_ptr<Layer> layer);

 private:
  Variable Compute(const Variable& x) override;

  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace weft::nn

#endif  // WEFT_NN_LAYERS_H_
