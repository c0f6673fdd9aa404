#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/init.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Json = nlohmann::json;

constexpr uint64_t kSeed = 20;

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

class LanguageModel : public Module {
 public:
  explicit LanguageModel(Generator& random)
      : embedding_(11, 8, random, Padded(0)),
        norm1_({8}),
        attention_(8, 2, random),
        norm2_({8}),
        head_(embedding_.weight(), random, /*bias=*/false) {
    AddModule("embedding", embedding_);
    AddModule("norm1", norm1_);
    AddModule("attention", attention_);
    AddModule("norm2", norm2_);
    AddModule("head", head_);
  }
  Variable Forward(const Tensor& x) {
    const Variable h = embedding_.Forward(x);
    AttentionOptions causal;
    causal.is_causal = true;
    const Variable mixed = h + attention_.Forward(norm1_.Forward(h), causal);
    return Reshape(head_.Forward(norm2_.Forward(mixed)), {-1, 11});
  }

  static EmbeddingOptions Padded(int64_t row) {
    EmbeddingOptions options;
    options.padding = row;
    return options;
  }

 private:
  Embedding embedding_;
  LayerNorm norm1_;
  MultiheadAttention attention_;
  RmsNorm norm2_;
  Linear head_;
};

TEST(Golden, LanguageModelWithTiedWeightsTrainsAsInPyTorch) {
  Generator random(kSeed);
  LanguageModel model(random);
  ExpectTrainsAsGolden(
      "language_model", model,
      [&](const Tensor& x) { return model.Forward(x); },
      [](const Variable& y, const Tensor& t) { return CrossEntropy(y, t); });
}

// ---- modules

std::vector<std::string> Names(const Module& module) {
  std::vector<std::string> names;
  for (const NamedParameter& named : module.NamedParameters()) {
    names.push_back(named.name);
  }
  return names;
}

class WithBuffer : public Module {
 public:
  explicit WithBuffer(Generator& random) : child(2, 1, random) {
    scale = AddParameter("scale", Tensor::Ones({1}));
    count = AddBuffer("count", Tensor::Zeros({}, DType::kI64));
    AddModule("child", child);
  }
  using Module::AddModule;
  using Module::AddParameter;
  Variable scale;
  Buffer count;
  Linear child;
};

TEST(Module, NamesItsOwnParametersThenItsChildrens) {
  Generator random(kSeed);
  const WithBuffer module(random);
  EXPECT_THAT(Names(module),
              ElementsAre("scale", "child.weight", "child.bias"));
  ASSERT_EQ(module.NamedBuffers().size(), 1u);
  EXPECT_EQ(module.NamedBuffers()[0].name, "count");
}

TEST(Module, StateDictSharesStorageAndLoadCopies) {
  Generator random(kSeed);
  WithBuffer a(random), b(random);
  a.scale.value().Fill(4);
  a.count.tensor().Fill(7);
  ASSERT_THAT(b.LoadStateDict(a.StateDict()), IsOk());
  EXPECT_EQ(b.scale.value().item<float>(), 4);
  EXPECT_EQ(b.count.tensor().item<int64_t>(), 7);
  a.scale.value().Fill(5);
  EXPECT_EQ(a.StateDict()["scale"].item<float>(), 5);
  EXPECT_EQ(b.scale.value().item<float>(), 4);
}

TEST(Module, LoadListsAllThatDoesNotFitAndCopiesNothing) {
  Generator random(kSeed);
  WithBuffer module(random);
  nn::StateDict state = module.StateDict();
  state["scale"] = Tensor::Full({1}, 9);
  state["child.weight"] = Tensor::Zeros({7});
  state["stranger"] = Tensor::Zeros({1});
  state["count"] = Tensor::Zeros({});
  state.erase("child.bias");
  EXPECT_THAT(std::string(module.LoadStateDict(state).message()),
              AllOf(HasSubstr("child.weight is f32[7], wanted f32[1, 2]"),
                    HasSubstr("stranger is unexpected"),
                    HasSubstr("count is f32[], wanted i64[]"),
                    HasSubstr("child.bias is missing")));
  EXPECT_EQ(module.scale.value().item<float>(), 1);
}

TEST(Module, RefusesNamesThatAreTakenOrNone) {
  Generator random(kSeed);
  WithBuffer module(random);
  for (const char* name : {"scale", "count", "child", "", "a.b"}) {
    EXPECT_THROW(module.AddParameter(name, Tensor::Ones({1})), Error) << name;
    EXPECT_THROW(module.AddModule(name, module.child), Error) << name;
  }
}

TEST(Module, TiedParameterIsListedOnceAndSavedUnderEachName) {
  Generator random(kSeed);
  LanguageModel model(random);
  const std::vector<std::string> names = Names(model);
  EXPECT_EQ(std::count(names.begin(), names.end(), "embedding.weight"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "head.weight"), 0);
  nn::StateDict state = model.StateDict();
  ASSERT_TRUE(state.contains("head.weight"));
  EXPECT_EQ(state["head.weight"].raw(), state["embedding.weight"].raw());
  EXPECT_EQ(model.Parameters().size(), state.size() - 1);
}

TEST(Module, TiedParameterStaysTiedInOtherMemory) {
  Generator random(kSeed);
  LanguageModel model(random);
  const Variable weight = model.Parameters()[0];
  weight.SetValue(weight.value().Clone());
  nn::StateDict state = model.StateDict();
  EXPECT_EQ(state["embedding.weight"].raw(), weight.value().raw());
  EXPECT_EQ(state["head.weight"].raw(), weight.value().raw());
}

TEST(Module, LoadRefusesTwoValuesForATiedParameter) {
  Generator random(kSeed);
  LanguageModel model(random);
  nn::StateDict state;
  for (const auto& [name, tensor] : model.StateDict()) {
    state[name] = tensor.Clone();
  }
  WEFT_EXPECT_OK(model.LoadStateDict(state));
  state["head.weight"].Fill(3);
  EXPECT_THAT(model.LoadStateDict(state),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "embedding.weight and head.weight are one parameter"));
}

TEST(Module, SharedParameterMustBeALeaf) {
  Generator random(kSeed);
  const Variable weight(Tensor::Ones({2, 3}), /*requires_grad=*/true);
  EXPECT_THROW(Linear(weight * 2, random), Error);
  EXPECT_THROW(Linear(Variable(), random), Error);
  Linear layer(weight, random);
  EXPECT_EQ(layer.Forward(Variable(Tensor::Ones({5, 3}))).shape(),
            Shape({5, 2}));
}

TEST(Module, TrainAndEvalReachChildren) {
  Generator random(kSeed);
  WithBuffer module(random);
  EXPECT_TRUE(module.child.is_training());
  module.Eval();
  EXPECT_FALSE(module.is_training());
  EXPECT_FALSE(module.child.is_training());
  module.Train();
  EXPECT_TRUE(module.child.is_training());
}

TEST(Module, ClearsTheGradientsOfAllParameters) {
  Generator random(kSeed);
  WithBuffer module(random);
  Sum(module.child.Forward(Variable(Tensor::Ones({1, 2}))) * module.scale)
      .Backward();
  for (const Variable& p : module.Parameters()) EXPECT_TRUE(p.has_grad());
  module.ClearGradients();
  for (const Variable& p : module.Parameters()) EXPECT_FALSE(p.has_grad());
}

TEST(Module, FrozenParametersAreUsedAndSavedButHaveNoGradient) {
  Generator random(kSeed);
  WithBuffer module(random);
  const Variable x(Tensor::Ones({1, 2}));
  const auto run = [&] {
    Sum(module.child.Forward(x) * module.scale).Backward();
  };
  run();
  module.child.Freeze();
  EXPECT_FALSE(module.NamedParameters()[1].variable.has_grad());
  module.ClearGradients();
  run();
  EXPECT_TRUE(module.scale.has_grad());
  for (const Variable& parameter : module.child.Parameters()) {
    EXPECT_FALSE(parameter.has_grad());
    EXPECT_FALSE(parameter.requires_grad());
  }
  EXPECT_FALSE(module.child.Forward(x).requires_grad());
  // Saved and loaded as before.
  EXPECT_THAT(Names(module),
              ElementsAre("scale", "child.weight", "child.bias"));
  EXPECT_EQ(module.TrainedParameters().size(), 1u);
  WithBuffer other(random);
  EXPECT_THAT(other.LoadStateDict(module.StateDict()), IsOk());
  EXPECT_THAT(module.LoadStateDict(other.StateDict()), IsOk());
  module.Unfreeze();
  run();
  for (const Variable& p : module.Parameters()) EXPECT_TRUE(p.has_grad());
}

TEST(Module, GraphRecordedBeforeFreezingGivesNoGradientAfterIt) {
  Generator random(kSeed);
  WithBuffer module(random);
  const Variable loss =
      Sum(module.child.Forward(Variable(Tensor::Ones({1, 2}))) * module.scale);
  module.child.Freeze();
  loss.Backward();
  module.child.Unfreeze();
  EXPECT_TRUE(module.scale.has_grad());
  for (const Variable& parameter : module.child.Parameters()) {
    EXPECT_FALSE(parameter.has_grad());
  }
}

TEST(Module, VariableWithoutGradientIsAParameterThatIsFrozenForGood) {
  class Frozen : public Module {
   public:
    using Module::AddParameter;
  };
  Frozen module;
  const Variable table(Tensor::FromVector<int64_t>({1, 2}));
  module.AddParameter("table", table);
  module.AddParameter("shared", table);
  module.AddParameter("other", Variable(Tensor::Ones({2})));
  module.AddParameter("empty", Variable(Tensor::Ones({0})));
  module.AddParameter("none", Variable(Tensor::Ones({0})));
  module.AddParameter("weight", Tensor::Ones({2}));
  EXPECT_THAT(Names(module),
              ElementsAre("table", "other", "empty", "none", "weight"));
  EXPECT_EQ(module.TrainedParameters().size(), 1u);
  EXPECT_EQ(module.StateDict().size(), 6u);
  EXPECT_THAT(module.LoadStateDict(module.StateDict()), IsOk());
  nn::StateDict untied;
  for (const auto& [name, tensor] : module.StateDict()) {
    untied[name] = tensor.Clone();
  }
  untied["shared"].Fill(5);
  EXPECT_THAT(module.LoadStateDict(untied),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table and shared are one parameter"));
  module.ClearGradients();
  module.Freeze();
  EXPECT_FALSE(module.Parameters()[4].requires_grad());
  EXPECT_THAT(CatchToStatus([&] { module.Unfreeze(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "table"));
  EXPECT_FALSE(module.Parameters()[4].requires_grad());
}

TEST(Module, BufferThatIsNotSavedIsInNoStateDict) {
  class Masked : public Module {
   public:
    Masked() {
      mask = AddBuffer("mask", Tensor::Ones({2}), /*is_saved=*/false);
      count = AddBuffer("count", Tensor::Zeros({}, DType::kI64));
    }
    Buffer mask, count;
  };
  Masked a, b;
  EXPECT_EQ(a.NamedBuffers().size(), 2u);
  EXPECT_EQ(a.StateDict().size(), 1u);
  a.mask.tensor().Fill(7);
  a.count.tensor().Fill(3);
  EXPECT_THAT(b.LoadStateDict(a.StateDict()), IsOk());
  EXPECT_EQ(b.count.tensor().item<int64_t>(), 3);
  EXPECT_EQ(b.mask.tensor().ToVector<float>()[0], 1);
  // As PyTorch's: one that a state dict has is unexpected.
  nn::StateDict with_mask = a.StateDict();
  with_mask["mask"] = a.mask.tensor();
  EXPECT_THAT(
      b.LoadStateDict(with_mask),
      StatusIs(absl::StatusCode::kInvalidArgument, "mask is unexpected"));
}

// ---- layers

TEST(Module, HooksRunAroundTheForwardPassUntilTheyAreRemoved) {
  Generator random(1);
  Sequential net;
  Relu& relu = net.Add<Relu>();
  std::vector<std::string> log;
  const auto before = [&](const std::string& name) {
    return [&log, name](Module&, absl::Span<Variable>) {
      log.push_back("before " + name);
    };
  };
  const auto after = [&](const std::string& name) {
    return
        [&log, name](Module&, absl::Span<const Variable>,
                     absl::Span<Variable>) { log.push_back("after " + name); };
  };
  const HookId first = net.AddForwardPreHook(before("net"));
  const HookId last = net.AddForwardHook(after("net"));
  relu.AddForwardHook(after("relu"));
  relu.AddForwardPreHook(before("relu"));
  relu.AddForwardPreHook(before("relu, 2"));
  EXPECT_NE(first, last);
  const Variable x(Tensor::FromVector<float>({-1, 2}), true);
  (void)net.Forward(x);
  EXPECT_THAT(log, ElementsAre("before net", "before relu", "before relu, 2",
                               "after relu", "after net"));
  EXPECT_TRUE(net.RemoveHook(first));
  EXPECT_FALSE(net.RemoveHook(first));
  EXPECT_TRUE(net.RemoveHook(last));
  EXPECT_FALSE(net.RemoveHook(17));
  log.clear();
  // They run again where the pass is computed again.
  Sum(Checkpoint(
          [&](absl::Span<const Variable> in) { return net.Forward(in[0]); },
          {x}))
      .Backward();
  EXPECT_THAT(log, ElementsAre("before relu", "before relu, 2", "after relu",
                               "before relu", "before relu, 2", "after relu"));
}

TEST(Module, HooksMayReplaceInputsAndOutputsAndSeeGradients) {
  Generator random(1);
  Linear layer(2, 1, random);
  Embedding table(3, 2, random);
  layer.AddForwardPreHook([](Module&, absl::Span<Variable> inputs) {
    ASSERT_EQ(inputs.size(), 1);
    inputs[0] = inputs[0] * 2;
  });
  std::vector<float> gradient;
  layer.AddForwardHook([&](Module& module, absl::Span<const Variable> inputs,
                           absl::Span<Variable> outputs) {
    EXPECT_EQ(&module, &layer);
    EXPECT_EQ(inputs[0].value().ToVector<float>(), (std::vector<float>{2, 4}));
    outputs[0] = outputs[0] * 3;
    outputs[0].AddHook([&](Gradient g) {
      gradient = g.ToDense().ToVector<float>();
      return g;
    });
  });
  table.AddForwardPreHook([](Module&, absl::Span<Variable> inputs) {
    inputs[0] = Variable(Tensor::FromVector<int64_t>({2}));
  });
  const Variable x(Tensor::FromVector<float>({1, 2}, {1, 2}));
  const Variable y = layer.Forward(x);
  const StateDict state = layer.StateDict();
  const std::vector<float> w = state.at("weight").ToVector<float>();
  const float b = state.at("bias").item<float>();
  EXPECT_FLOAT_EQ(y.value().item<float>(), 3 * (2 * w[0] + 4 * w[1] + b));
  y.Backward(Tensor::Full({1, 1}, 5));
  EXPECT_THAT(gradient, ElementsAre(5));
  EXPECT_EQ(
      table.Forward(Tensor::Zeros({1}, DType::kI64)).value().ToVector<float>(),
      table.weight().value()(2).ToVector<float>());
}

TEST(Module, HookThatThrowsEndsThePassAndHooksMayChangeWithinOne) {
  Relu layer;
  int runs = 0;
  HookId id = 0;
  id = layer.AddForwardPreHook([&](Module& module, absl::Span<Variable>) {
    ++runs;
    EXPECT_TRUE(module.RemoveHook(id));
    module.AddForwardHook(
        [](Module&, absl::Span<const Variable>, absl::Span<Variable>) {
          ThrowInvalidArgument("enough");
        });
  });
  const Variable x(Tensor::Ones({1}));
  (void)layer.Forward(x);
  EXPECT_THAT(CatchToStatus([&] { (void)layer.Forward(x); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "enough"));
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(layer.AddForwardHook(nullptr), Error);
  EXPECT_THROW(layer.AddForwardPreHook(nullptr), Error);
}

TEST(Sequential, RunsItsLayersInOrderUnderTheirNumbers) {
  Generator random(kSeed);
  Sequential net;
  net.Add<Conv2d>(1, 2, 3, random);
  net.Add<Relu>();
  net.Add<MaxPool2d>();
  net.Add<Flatten>();
  net.Add<Linear>(2 * 3 * 3, 4, random, LayerOptions{/*bias=*/false});
  const Variable y = net.Forward(Variable(Tensor::Ones({5, 1, 8, 8})));
  EXPECT_EQ(y.shape(), Shape({5, 4}));
  EXPECT_THAT(Names(net), ElementsAre("0.weight", "0.bias", "4.weight"));
}

TEST(Layers, AgreeWithTheirFunctions) {
  const Variable x(Tensor::FromVector<float>({-1, 2, 0.5, -3}, {1, 1, 2, 2}));
  const auto values = [](const Variable& v) {
    return v.value().ToVector<float>();
  };
  EXPECT_EQ(values(Relu().Forward(x)), values(weft::Relu(x)));
  EXPECT_EQ(values(Sigmoid().Forward(x)), values(weft::Sigmoid(x)));
  EXPECT_EQ(values(Tanh().Forward(x)), values(weft::Tanh(x)));
  EXPECT_THAT(values(MaxPool2d().Forward(x)), ElementsAre(2));
  EXPECT_THAT(values(AvgPool2d().Forward(x)), ElementsAre(-0.375));
  EXPECT_EQ(Flatten().Forward(x).shape(), Shape({1, 4}));
}

TEST(Layers, RefuseSizesThatAreNotPositive) {
  Generator random(kSeed);
  EXPECT_THROW(Linear(0, 1, random), Error);
  EXPECT_THROW(Conv2d(1, -1, 3, random), Error);
  EXPECT_THROW(Embedding(5, 0, random), Error);
}

TEST(Embedding, LooksRowsUp) {
  Generator random(kSeed);
  Embedding table(5, 3, random);
  const Tensor ids = Tensor::FromVector<int64_t>({4, 0, 4}, {3, 1});
  const Variable y = table.Forward(ids);
  EXPECT_EQ(y.shape(), Shape({3, 1, 3}));
  const Tensor weight = table.StateDict()["weight"];
  EXPECT_EQ(y.value().Select(0, 2).ToVector<float>(),
            weight.Select(0, 4).ToVector<float>());
}

TEST(Embedding, PaddingRowIsZeroAndGetsNoGradient) {
  Generator random(kSeed);
  for (const TableGradient kind :
       {TableGradient::kDense, TableGradient::kSparse}) {
    EmbeddingOptions options = LanguageModel::Padded(2);
    options.gradient = kind;
    Embedding table(4, 2, random, options);
    EXPECT_THAT(table.weight().value().Select(0, 2).ToVector<float>(),
                ElementsAre(0, 0));
    Sum(table.Forward(Tensor::FromVector<int64_t>({2, 1, 2, 3, 1}))).Backward();
    EXPECT_THAT(table.weight().grad().ToVector<float>(),
                ElementsAre(0, 0, 2, 2, 0, 0, 1, 1));
    EXPECT_EQ(table.weight().gradient().is_sparse(),
              kind == TableGradient::kSparse);
  }
  EXPECT_THROW(Embedding(4, 2, random, LanguageModel::Padded(4)), Error);
  EXPECT_THROW(Embedding(4, 2, random, LanguageModel::Padded(-1)), Error);
}

TEST(BatchNorm, EvaluationUsesTheRunningStatisticsAndLeavesThem) {
  BatchNorm norm(1);
  nn::StateDict state = norm.StateDict();
  state["running_mean"].Fill(3);
  state["running_var"].Fill(4);
  norm.Eval();
  const Variable x(Tensor::FromVector<float>({5, 3, 1}, {3, 1}));
  const std::vector<float> y = norm.Forward(x).value().ToVector<float>();
  EXPECT_NEAR(y[0], 1, 1e-5);
  EXPECT_NEAR(y[2], -1, 1e-5);
  EXPECT_EQ(state["running_mean"].item<float>(), 3);
  EXPECT_EQ(state["num_batches_tracked"].item<int64_t>(), 0);
  norm.Train();
  norm.Forward(x);
  EXPECT_FLOAT_EQ(state["running_mean"].item<float>(), 3);
  EXPECT_FLOAT_EQ(state["running_var"].item<float>(), 0.9f * 4 + 0.1f * 4);
  EXPECT_EQ(state["num_batches_tracked"].item<int64_t>(), 1);
}

TEST(BatchNorm, WithoutRunningStatisticsUsesEachBatch) {
  BatchNormLayerOptions options;
  options.track_running_statistics = false;
  options.norm.affine = false;
  BatchNorm norm(1, options);
  EXPECT_TRUE(norm.StateDict().empty());
  norm.Eval();
  const Variable x(Tensor::FromVector<float>({10, 20}, {2, 1}));
  const std::vector<float> y = norm.Forward(x).value().ToVector<float>();
  EXPECT_NEAR(y[0], -1, 1e-5);
  EXPECT_NEAR(y[1], 1, 1e-5);
}

TEST(BatchNorm, StatisticsOfACheckpointedLayerMoveOnce) {
  const auto train = [](bool is_checkpointed) {
    BatchNorm norm(2);
    for (int step = 0; step < 3; ++step) {
      const Variable x(Tensor::FromVector<float>(
                           {1.0f * step, 2, 3, 5.0f * step, 7, 11}, {3, 2}),
                       /*requires_grad=*/true);
      const auto layer = [&](absl::Span<const Variable> in) {
        return weft::Tanh(norm.Forward(in[0]));
      };
      Sum(is_checkpointed ? Checkpoint(layer, {x}) : layer({x})).Backward();
    }
    std::vector<double> all;
    for (const auto& [name, tensor] : norm.StateDict()) {
      for (const double v : tensor.To(DType::kF64).ToVector<double>()) {
        all.push_back(v);
      }
    }
    for (const Variable& parameter : norm.Parameters()) {
      for (const float v : parameter.grad().ToVector<float>()) all.push_back(v);
    }
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(NormLayers, RefuseSizesThatAreNotPositive) {
  EXPECT_THROW(LayerNorm({3, 0}), Error);
  EXPECT_THROW(RmsNorm(Shape{}), Error);
  EXPECT_THROW(BatchNorm(-1), Error);
}

TEST(MultiheadAttention, MaskHidesKeys) {
  Generator random(kSeed);
  MultiheadAttention attention(4, 2, random);
  const Tensor x = Normal({1, 3, 4}, 0, 1, random);
  AttentionOptions masked;
  masked.mask = Tensor::FromVector<int64_t>({1, 1, 0}).To(DType::kBool);
  const auto before =
      attention.Forward(Variable(x), masked).value().Select(1, 0);
  const std::vector<float> wanted = before.ToVector<float>();
  x.Select(1, 2).Fill(100);
  EXPECT_EQ(attention.Forward(Variable(x), masked)
                .value()
                .Select(1, 0)
                .ToVector<float>(),
            wanted);
  EXPECT_THROW(MultiheadAttention(4, 3, random), Error);
  EXPECT_THROW(attention.Forward(Variable(x.Select(0, 0))), Error);
}

TEST(EmbeddingBag, OfOneSizeIsEmbeddingBagWithOffsets) {
  Generator random(kSeed);
  EmbeddingBag bag(6, 2, BagMode::kMean, random);
  const Tensor ids = Tensor::FromVector<int64_t>({0, 1, 2, 3, 4, 5}, {2, 3});
  EXPECT_EQ(bag.Forward(ids).value().ToVector<float>(),
            bag.Forward(ids.View({6}), Tensor::FromVector<int64_t>({0, 3}))
                .value()
                .ToVector<float>());
  EXPECT_THROW(bag.Forward(ids.View({6})), Error);
}

TEST(Dropout, KeepsTheMeanInTrainingAndAllInEvaluation) {
  Generator random(kSeed);
  Dropout dropout(0.25, random);
  const Variable x(Tensor::Ones({10000}), /*requires_grad=*/true);
  const Variable y = dropout.Forward(x);
  const std::vector<float> values = y.value().ToVector<float>();
  int64_t dropped = 0;
  for (const float v : values) {
    dropped += v == 0;
    EXPECT_TRUE(v == 0 || std::abs(v - 1 / 0.75f) < 1e-6f) << v;
  }
  // 2500 expected, with a deviation of 43: ten of those.
  EXPECT_NEAR(static_cast<double>(dropped), 2500, 430);
  Sum(y).Backward();
  EXPECT_EQ(x.grad().ToVector<float>(), values);
  dropout.Eval();
  EXPECT_TRUE(dropout.Forward(x).value().IsSameAs(x.value()));
}

TEST(Dropout, RepeatsWithItsGenerator) {
  Generator a(kSeed), b(kSeed);
  Dropout one(0.5, a), two(0.5, b);
  const Variable x(Tensor::Ones({64}));
  EXPECT_EQ(one.Forward(x).value().ToVector<float>(),
            two.Forward(x).value().ToVector<float>());
  EXPECT_THROW(Dropout(1, a), Error);
}

// ---- initialisers

double Variance(const Tensor& x) {
  const std::vector<float> values = x.ToVector<float>();
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = static_cast<double>(values.size());
  return squares / n - (sum / n) * (sum / n);
}

// The variance of n = 40000 draws has a relative deviation of sqrt(2 / n), 0.7
// per cent, if normal, and less if uniform.
TEST(Init, HasTheVarianceOfItsFans) {
  Generator random(kSeed);
  const Shape shape = {100, 100, 2, 2};
  const double in = 400, out = 400;
  const double slack = 0.04;
  EXPECT_NEAR(Variance(KaimingUniform(shape, random)) * in / 2, 1, slack);
  EXPECT_NEAR(Variance(KaimingNormal(shape, random)) * in / 2, 1, slack);
  EXPECT_NEAR(Variance(XavierUniform(shape, random)) * (in + out) / 2, 1,
              slack);
  EXPECT_NEAR(Variance(XavierNormal(shape, random)) * (in + out) / 2, 1, slack);
}

TEST(Init, CountsFansAsInAndOutTimesTheField) {
  EXPECT_EQ(FansOf({5, 3}).in, 3);
  EXPECT_EQ(FansOf({5, 3}).out, 5);
  EXPECT_EQ(FansOf({5, 3, 2, 4}).in, 24);
  EXPECT_EQ(FansOf({5, 3, 2, 4}).out, 40);
  EXPECT_THROW(FansOf({5}), Error);
}

TEST(Init, OfLayersStaysWithinPyTorchsBound) {
  Generator random(kSeed);
  Linear layer(16, 64, random);
  float largest = 0;
  for (const auto& [name, tensor] : layer.StateDict()) {
    for (const float v : tensor.ToVector<float>()) {
      largest = std::max(largest, std::abs(v));
    }
  }
  EXPECT_LE(largest, 0.25f);
  EXPECT_GT(largest, 0.24f);
}

}  // namespace
}  // namespace weft::nn
