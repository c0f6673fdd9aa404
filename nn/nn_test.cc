#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/nn_test_models.h"
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

// ---- modules

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
  // As in PyTorch, such a buffer is unexpected in a state dict.
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

}  // namespace
}  // namespace weft::nn
