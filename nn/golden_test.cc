// Five steps of SGD beside PyTorch (tools/make_golden.py).

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/autograd/ops.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/nn/nn_test_models.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::nn {
namespace {

using ::weft::testing::IsOk;

using Json = nlohmann::json;

// ---- five steps of SGD beside PyTorch (tools/make_golden.py)

Tensor FromJson(const Json& json) {
  const auto sizes = json["shape"].get<std::vector<int64_t>>();
  const Shape shape(sizes.begin(), sizes.end());
  if (json["dtype"] == "f32") {
    return Tensor::FromVector(json["values"].get<std::vector<float>>(), shape);
  }
  return Tensor::FromVector(json["values"].get<std::vector<int64_t>>(), shape);
}

// After a few layers and steps the rounding of f32, 6e-8, has grown by the
// lengths of the sums: below a hundred.
void ExpectClose(const Tensor& found, const Json& golden,
                 const std::string& what) {
  const Tensor wanted = FromJson(golden);
  ASSERT_EQ(found.Describe(), wanted.Describe()) << what;
  if (wanted.dtype() == DType::kI64) {
    EXPECT_EQ(found.ToVector<int64_t>(), wanted.ToVector<int64_t>()) << what;
    return;
  }
  const auto got = found.ToVector<float>(), want = wanted.ToVector<float>();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 5e-6 + 5e-6 * std::abs(want[i]))
        << what << ", element " << i;
  }
}

void Descend(const Module& module, double rate) {
  for (const Variable& parameter : module.Parameters()) {
    const Gradient gradient = parameter.gradient();
    if (gradient.is_sparse()) {
      AddRows_(parameter.value(), -rate, gradient.sparse());
    } else if (gradient.defined()) {
      Axpy_(parameter.value(), -rate, gradient.dense());
    }
  }
}

// Trains `module` as the golden run named `name` was. Forward takes the input
// tensor, loss the output and the target.
template <typename Forward, typename Loss>
void ExpectTrainsAsGolden(const std::string& name, Module& module,
                          Forward forward, Loss loss_of) {
  const Json golden =
      Json::parse(std::ifstream("tests/golden/modules.json"))[name];
  nn::StateDict initial;
  for (const auto& [key, value] : golden["initial"].items()) {
    initial[key] = FromJson(value);
  }
  ASSERT_THAT(module.LoadStateDict(initial), IsOk());
  const Tensor input = FromJson(golden["input"]);
  const Tensor target = FromJson(golden["target"]);
  ExpectClose(forward(input).value(), golden["output"], "output");
  for (size_t step = 0; step < golden["losses"].size(); ++step) {
    module.ClearGradients();
    const Variable loss = loss_of(forward(input), target);
    EXPECT_NEAR(loss.value().item<float>(), golden["losses"][step].get<float>(),
                5e-6)
        << "step " << step;
    loss.Backward();
    if (step == 0) {
      for (const NamedParameter& named : module.NamedParameters()) {
        ExpectClose(named.variable.grad(), golden["gradients"][named.name],
                    "gradient of " + named.name);
      }
    }
    Descend(module, golden["lr"]);
  }
  for (const auto& [key, tensor] : module.StateDict()) {
    ExpectClose(tensor, golden["final"][key], key);
  }
}

class Cnn : public Module {
 public:
  explicit Cnn(Generator& random)
      : conv1_(1, 3, 3, random, {{1, 1}, {1, 1}, {1, 1}}),
        conv2_(3, 4, 3, random),
        fc_(4 * 3 * 3, 5, random) {
    AddModule("conv1", conv1_);
    AddModule("conv2", conv2_);
    AddModule("fc", fc_);
  }
  Variable Forward(const Variable& x) {
    const Variable pooled = weft::MaxPool2d(weft::Relu(conv1_.Forward(x)));
    return fc_.Forward(FlattenFrom(weft::Relu(conv2_.Forward(pooled)), 1));
  }

 private:
  Conv2d conv1_, conv2_;
  Linear fc_;
};

class SparseLogistic : public Module {
 public:
  explicit SparseLogistic(Generator& random)
      : weights_(20, 1, BagMode::kSum, random, {TableGradient::kSparse}) {
    AddModule("weights", weights_);
    bias_ = AddParameter("bias", Tensor::Zeros({1}));
  }
  Variable Forward(const Tensor& indices) {
    return FlattenFrom(weights_.Forward(indices) + bias_, 0);
  }

 private:
  EmbeddingBag weights_;
  Variable bias_;
};

TEST(Golden, CnnTrainsAsInPyTorch) {
  Generator random(kSeed);
  Cnn cnn(random);
  ExpectTrainsAsGolden(
      "cnn", cnn, [&](const Tensor& x) { return cnn.Forward(Variable(x)); },
      [](const Variable& y, const Tensor& t) { return CrossEntropy(y, t); });
}

TEST(Golden, MlpTrainsAsInPyTorch) {
  class Mlp : public Module {
   public:
    explicit Mlp(Generator& random) : fc1(8, 16, random), fc2(16, 4, random) {
      AddModule("fc1", fc1);
      AddModule("fc2", fc2);
    }
    Linear fc1, fc2;
  };
  Generator random(kSeed);
  Mlp mlp(random);
  ExpectTrainsAsGolden(
      "mlp", mlp,
      [&](const Tensor& x) {
        return mlp.fc2.Forward(weft::Tanh(mlp.fc1.Forward(Variable(x))));
      },
      [](const Variable& y, const Tensor& t) { return CrossEntropy(y, t); });
}

TEST(Golden, SparseLogisticTrainsAsInPyTorch) {
  Generator random(kSeed);
  SparseLogistic model(random);
  ExpectTrainsAsGolden(
      "sparse_logistic", model,
      [&](const Tensor& x) { return model.Forward(x); },
      [](const Variable& y, const Tensor& t) { return BceWithLogits(y, t); });
}

class BatchNormCnn : public Module {
 public:
  explicit BatchNormCnn(Generator& random)
      : conv_(1, 3, 3, random, {{1, 1}, {1, 1}, {1, 1}}),
        norm_(3, {NormOptions{}, /*momentum=*/0.2}),
        fc_(3 * 5 * 5, 5, random) {
    AddModule("conv", conv_);
    AddModule("norm", norm_);
    AddModule("fc", fc_);
  }
  Variable Forward(const Variable& x) {
    const Variable y = weft::Relu(norm_.Forward(conv_.Forward(x)));
    return fc_.Forward(FlattenFrom(weft::MaxPool2d(y), 1));
  }

 private:
  Conv2d conv_;
  BatchNorm norm_;
  Linear fc_;
};

// The running statistics and the count of batches are part of the final state.
TEST(Golden, BatchNormCnnTrainsAsInPyTorch) {
  Generator random(kSeed);
  BatchNormCnn cnn(random);
  ExpectTrainsAsGolden(
      "batch_norm_cnn", cnn,
      [&](const Tensor& x) { return cnn.Forward(Variable(x)); },
      [](const Variable& y, const Tensor& t) { return CrossEntropy(y, t); });
}

TEST(Golden, LanguageModelWithTiedWeightsTrainsAsInPyTorch) {
  Generator random(kSeed);
  LanguageModel model(random);
  ExpectTrainsAsGolden(
      "language_model", model,
      [&](const Tensor& x) { return model.Forward(x); },
      [](const Variable& y, const Tensor& t) { return CrossEntropy(y, t); });
}

}  // namespace
}  // namespace weft::nn
