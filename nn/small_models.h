// SmallModels: what tests train on each device beside the CPU: two layers, a
// CNN with batch norm and dropout, a transformer.

#ifndef WEFT_NN_SMALL_MODELS_H_
#define WEFT_NN_SMALL_MODELS_H_

#include <functional>
#include <memory>

#include "weft/autograd/ops.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/tensor/random.h"

namespace weft::nn::testing {

class SmallModel : public Module {
 public:
  // The mean loss of examples of 6 numbers, `x` [n, 6], whose classes, 0 to 3,
  // are `labels` [n]. Of Transformer n is 8.
  virtual Variable Loss(const Tensor& x, const Tensor& labels) = 0;
};

class TwoLayers : public SmallModel {
 public:
  explicit TwoLayers(Generator& random)
      : hidden_(6, 16, random), output_(16, 4, random) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
  }
  Variable Loss(const Tensor& x, const Tensor& labels) override {
    const Variable flat(x.Reshape({x.size(0), 6}));
    return CrossEntropy(output_.Forward(weft::Relu(hidden_.Forward(flat))),
                        labels);
  }

 private:
  Linear hidden_, output_;
};

class SmallCnn : public SmallModel {
 public:
  explicit SmallCnn(Generator& random)
      : conv_(1, 4, 2, random),
        norm_(4),
        dropout_(0.3, random),
        output_(8, 4, random) {
    AddModule("conv", conv_);
    AddModule("norm", norm_);
    AddModule("dropout", dropout_);
    AddModule("output", output_);
  }
  Variable Loss(const Tensor& x, const Tensor& labels) override {
    const Variable images(x.View({x.size(0), 1, 2, 3}));
    const Variable seen = weft::Relu(norm_.Forward(conv_.Forward(images)));
    const Variable flat = Reshape(seen, {x.size(0), 8});
    return CrossEntropy(output_.Forward(dropout_.Forward(flat)), labels);
  }

 private:
  Conv2d conv_;
  BatchNorm norm_;
  Dropout dropout_;
  Linear output_;
};

class Transformer : public SmallModel {
 public:
  explicit Transformer(Generator& random)
      : tokens_(4, 8, random),
        attention_(8, 2, random),
        norm_(Shape{8}),
        output_(8, 4, random) {
    AddModule("tokens", tokens_);
    AddModule("attention", attention_);
    AddModule("norm", norm_);
    AddModule("output", output_);
  }
  // `labels` are the tokens too, of two rows of text.
  Variable Loss(const Tensor& /*x*/, const Tensor& labels) override {
    const Variable seen = tokens_.Forward(labels.View({2, 4}));
    AttentionOptions options;
    options.is_causal = true;
    const Variable mixed =
        norm_.Forward(seen + attention_.Forward(seen, options));
    const Variable logits = output_.Forward(weft::Gelu(mixed));
    return CrossEntropy(Reshape(logits, {8, 4}), labels);
  }

 private:
  Embedding tokens_;
  MultiheadAttention attention_;
  LayerNorm norm_;
  Linear output_;
};

// Makes a model whose parameters, and whose dropout, are drawn from what is
// given.
using MakeSmallModel = std::function<std::unique_ptr<SmallModel>(Generator&)>;

template <typename Model>
MakeSmallModel MakeSmall() {
  return [](Generator& random) { return std::make_unique<Model>(random); };
}

}  // namespace weft::nn::testing

#endif  // WEFT_NN_SMALL_MODELS_H_
