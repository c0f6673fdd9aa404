#include "weft/bench/ddp_models.h"

#include <cstdint>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/base/check.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/norm.h"
#include "weft/tensor/random.h"

namespace weft::bench {
namespace {

constexpr int64_t kWords = 1024, kWidth = 256, kLength = 128, kLayers = 6;

Tensor Labels(int64_t n, int64_t classes) {
  const Tensor labels = Tensor::Empty({n}, DType::kI64);
  for (int64_t i = 0; i < n; ++i) {
    labels.data<int64_t>()[i] = (i * 7919 + i / 3) % classes;
  }
  return labels;
}

class Mlp final : public TrainedModel {
 public:
  Mlp()
      : a_(784, 1024, random_), b_(1024, 1024, random_), c_(1024, 10, random_) {
    AddModule("a", a_);
    AddModule("b", b_);
    AddModule("c", c_);
  }
  Variable Loss() override {
    const Variable h = Relu(b_.Forward(Relu(a_.Forward(x_))));
    return CrossEntropy(c_.Forward(h), y_);
  }
  void MoveBatch(Device device) override {
    x_ = Variable(x_.value().To(device));
    y_ = y_.To(device);
  }

 private:
  Generator random_{1};
  nn::Linear a_, b_, c_;
  Variable x_{Normal({64, 784}, 0.0, 1.0, random_)};
  Tensor y_ = Labels(64, 10);
};

class Cnn final : public TrainedModel {
 public:
  Cnn()
      : conv1_(1, 32, 3, random_),
        conv2_(32, 64, 3, random_),
        a_(9216, 128, random_),
        b_(128, 10, random_) {
    AddModule("conv1", conv1_);
    AddModule("conv2", conv2_);
    AddModule("a", a_);
    AddModule("b", b_);
  }
  Variable Loss() override {
    Variable h = Relu(conv2_.Forward(Relu(conv1_.Forward(x_))));
    h = FlattenFrom(MaxPool2d(h), 1);
    return CrossEntropy(b_.Forward(Relu(a_.Forward(h))), y_);
  }
  void MoveBatch(Device device) override {
    x_ = Variable(x_.value().To(device));
    y_ = y_.To(device);
  }

 private:
  Generator random_{1};
  nn::Conv2d conv1_, conv2_;
  nn::Linear a_, b_;
  Variable x_{Normal({64, 1, 28, 28}, 0.0, 1.0, random_)};
  Tensor y_ = Labels(64, 10);
};

class Block final : public nn::Module {
 public:
  explicit Block(Generator& random)
      : norm1_({kWidth}),
        attention_(kWidth, 8, random),
        norm2_({kWidth}),
        wide_(kWidth, 4 * kWidth, random),
        narrow_(4 * kWidth, kWidth, random) {
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("wide", wide_);
    AddModule("narrow", narrow_);
  }
  Variable Forward(const Variable& x) {
    AttentionOptions causal;
    causal.is_causal = true;
    const Variable h = Add(x, attention_.Forward(norm1_.Forward(x), causal));
    return Add(h, narrow_.Forward(Gelu(wide_.Forward(norm2_.Forward(h)))));
  }

 private:
  nn::LayerNorm norm1_;
  nn::MultiheadAttention attention_;
  nn::LayerNorm norm2_;
  nn::Linear wide_, narrow_;
};

class Lm final : public TrainedModel {
 public:
  Lm()
      : words_(kWords, kWidth, random_),
        places_(kLength, kWidth, random_),
        output_(kWidth, kWords, random_) {
    AddModule("words", words_);
    AddModule("places", places_);
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks_.push_back(std::make_unique<Block>(random_));
      AddModule("block" + std::to_string(i), *blocks_.back());
    }
    AddModule("output", output_);
  }
  Variable Loss() override {
    Variable x = Add(words_.Forward(x_), places_.Forward(at_));
    for (const auto& block : blocks_) x = block->Forward(x);
    return CrossEntropy(Reshape(output_.Forward(x), {8 * kLength, kWords}), y_);
  }
  void MoveBatch(Device device) override {
    for (Tensor* const one : {&x_, &at_, &y_}) *one = one->To(device);
  }

 private:
  static Tensor Places() {
    const Tensor at = Tensor::Empty({kLength}, DType::kI64);
    for (int64_t i = 0; i < kLength; ++i) at.data<int64_t>()[i] = i;
    return at;
  }

  Generator random_{1};
  nn::Embedding words_, places_;
  std::vector<std::unique_ptr<Block>> blocks_;
  nn::Linear output_;
  Tensor x_ = Labels(8 * kLength, kWords).View({8, kLength});
  Tensor at_ = Places();
  Tensor y_ = Labels(8 * kLength, kWords - 1);
};

}  // namespace

std::unique_ptr<TrainedModel> MakeModel(const std::string& name) {
  if (name == "mlp") return std::make_unique<Mlp>();
  if (name == "cnn") return std::make_unique<Cnn>();
  WEFT_CHECK_EQ(name, "lm");
  return std::make_unique<Lm>();
}

}  // namespace weft::bench
