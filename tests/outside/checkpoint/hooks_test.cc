// Forward hooks of modules, as module.h says, by clumsy users: hooks that
// change, throw, add and remove, alone and within Checkpoint.

#include "weft/tests/outside/checkpoint/hooks.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::ElementsAre;
using ::weft::nn::HookId;
using ::weft::nn::Module;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Any number of variables in and out.
class Free final : public Module {
 public:
  std::vector<Variable> Forward(
      const std::vector<Variable>& in,
      const std::function<std::vector<Variable>(Seen)>& f) {
    return Call(in, [&](Seen seen) { return f(seen); });
  }
  using Module::has_hooks;
};

Variable Num(float x) { return Variable(Tensor::Scalar<float>(x)); }
float ValueOf(const Variable& x) { return x.value().item<float>(); }

// --- Order and what hooks see. -----------------------------------------------

TEST(Hooks, RunInTheOrderInWhichTheyWereAdded) {
  Tenfold layer;
  std::vector<std::string> log;
  layer.AddForwardHook(After([&] { log.push_back("after1"); }));
  layer.AddForwardPreHook(Before([&] { log.push_back("before1"); }));
  layer.AddForwardPreHook(Before([&] { log.push_back("before2"); }));
  layer.AddForwardHook(After([&] { log.push_back("after2"); }));
  layer.Forward(Num(1));
  EXPECT_THAT(log, ElementsAre("before1", "before2", "after1", "after2"));
}

TEST(Hooks, GetTheModuleTheyAreOf) {
  Tenfold a, b;
  std::vector<Module*> seen;
  for (Tenfold* layer : {&a, &b}) {
    layer->AddForwardPreHook(
        [&](Module& module, Inputs) { seen.push_back(&module); });
    layer->AddForwardHook(
        [&](Module& module, Seen, Outputs) { seen.push_back(&module); });
  }
  b.Forward(Num(1));
  a.Forward(Num(1));
  EXPECT_THAT(seen, ElementsAre(&b, &b, &a, &a));
}

TEST(Hooks, InputThatOneChangesIsWhatTheNextAndTheModuleAndTheAfterHooksSee) {
  Tenfold layer;
  std::vector<float> seen;
  layer.AddForwardPreHook([&](Module&, Inputs in) {
    seen.push_back(ValueOf(in[0]));
    in[0] = in[0] + 1.0;
  });
  layer.AddForwardPreHook([&](Module&, Inputs in) {
    seen.push_back(ValueOf(in[0]));
    in[0] = in[0] * 2.0;
  });
  layer.AddForwardHook([&](Module&, Seen in, Outputs out) {
    seen.push_back(ValueOf(in[0]));
    seen.push_back(ValueOf(out[0]));
    out[0] = out[0] + 0.5;
  });
  layer.AddForwardHook([&](Module&, Seen in, Outputs out) {
    seen.push_back(ValueOf(in[0]));
    seen.push_back(ValueOf(out[0]));
    out[0] = Neg(out[0]);
  });
  const Variable x = Num(3);
  EXPECT_EQ(ValueOf(layer.Forward(x)), -80.5f);
  EXPECT_THAT(seen, ElementsAre(3, 4, 8, 80, 8, 80.5f));
  EXPECT_EQ(ValueOf(x), 3);  // the caller's is as it was
}

TEST(Hooks, GradientsFlowThroughWhatTheyPutInPlace) {
  Tenfold layer;
  layer.AddForwardPreHook([](Module&, Inputs in) { in[0] = Exp(in[0]); });
  layer.AddForwardHook(
      [](Module&, Seen in, Outputs out) { out[0] = Sin(out[0]) * in[0]; });
  const Variable x = LeafOf({4}, 1);
  Sum(layer.Forward(x)).Backward();
  const Variable same = LeafOf({4}, 1);
  const Variable e = Exp(same);
  Sum(Sin(e * 10.0) * e).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(Hooks, MayAddHooksOfGradientsToOutputsAndInputs) {
  for (const bool on : {false, true}) {
    Tenfold layer;
    int outputs = 0;
    layer.AddForwardHook([&](Module&, Seen, Outputs out) {
      out[0].AddHook([&](Gradient g) {
        ++outputs;
        return Gradient((Variable(g.ToDense()) * 0.5).value());
      });
    });
    const Variable x = LeafOf({4}, 1);
    Sum(Maybe(on, [&](In in) { return layer.Forward(in[0]); }, {x})).Backward();
    EXPECT_EQ(outputs, 1) << on;
    EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>(4, 5)) << on;
  }
}

TEST(Hooks, SeeAllInputsAndOutputs) {
  Free module;
  size_t inputs = 99, outputs = 99;
  module.AddForwardPreHook([&](Module&, Inputs in) { inputs = in.size(); });
  module.AddForwardHook([&](Module&, Seen in, Outputs out) {
    EXPECT_EQ(in.size(), inputs);
    outputs = out.size();
    for (Variable& one : out) one = one + 1.0;
  });
  for (const size_t n : {0u, 1u, 2u, 17u}) {
    const std::vector<Variable> in(n, Num(1));
    const auto out = module.Forward(in, [&](Seen seen) {
      std::vector<Variable> twice(seen.begin(), seen.end());
      twice.insert(twice.end(), seen.begin(), seen.end());
      return twice;
    });
    EXPECT_EQ(inputs, n);
    EXPECT_EQ(outputs, 2 * n);
    ASSERT_EQ(out.size(), 2 * n);
    for (const Variable& one : out) EXPECT_EQ(ValueOf(one), 2);
  }
}

TEST(Hooks, UndefinedOutputsAreHandedToThemAndOn) {
  Free module;
  module.AddForwardHook([](Module&, Seen, Outputs out) {
    EXPECT_FALSE(out[0].defined());
    out[1] = Variable();
  });
  const auto out = module.Forward({}, [](Seen) {
    return std::vector<Variable>{Variable(), Num(1)};
  });
  EXPECT_FALSE(out[0].defined());
  EXPECT_FALSE(out[1].defined());
}

TEST(Hooks, InputThatOneTakesAwayIsAnErrorAndNoCrash) {
  Generator random(1);
  nn::Linear linear(4, 2, random);
  const HookId id =
      linear.AddForwardPreHook([](Module&, Inputs in) { in[0] = Variable(); });
  EXPECT_FALSE(StatusOf([&] {
                 linear.Forward(Variable(Numbers({3, 4}, 1)));
               }).ok());
  EXPECT_TRUE(linear.RemoveHook(id));
  EXPECT_THAT(StatusOf([&] {
                linear.Forward(Variable(Numbers({3, 4}, 1)));
              }),
              IsOk());
}

TEST(Hooks, InputOfAnotherShapeIsTheUsersErrorInTheModulesWords) {
  Generator random(1);
  nn::Linear linear(4, 2, random);
  linear.AddForwardPreHook([](Module&, Inputs in) {
    in[0] = Variable(Numbers({3, 5}, 1));
  });
  EXPECT_THAT(StatusOf([&] {
                linear.Forward(Variable(Numbers({3, 4}, 1)));
              }),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Hooks, RunUnderANoGradScopeAndInEvaluationToo) {
  Tenfold layer;
  int runs = 0;
  layer.AddForwardPreHook(Before([&] { ++runs; }));
  layer.AddForwardHook(After([&] { ++runs; }));
  layer.Eval();
  const NoGradScope scope;
  layer.Forward(Num(1));
  EXPECT_EQ(runs, 2);
}

TEST(Hooks, AreNoPartOfTheStateDict) {
  Generator random(1);
  nn::Linear linear(4, 2, random);
  const auto before = linear.StateDict();
  linear.AddForwardHook(After([] {}));
  EXPECT_EQ(linear.StateDict().size(), before.size());
  EXPECT_THAT(linear.LoadStateDict(before), IsOk());
}

TEST(Hooks, OfChildrenRunInsideThoseOfTheirParent) {
  Generator random(1);
  nn::Sequential net;
  std::vector<std::string> log;
  const auto watch = [&](Module& module, const std::string& name) {
    module.AddForwardPreHook(
        Before([&log, name] { log.push_back("<" + name); }));
    module.AddForwardHook(After([&log, name] { log.push_back(name + ">"); }));
  };
  watch(net.Add<nn::Linear>(4, 4, random), "a");
  watch(net.Add<nn::Relu>(), "b");
  auto inner = std::make_unique<nn::Sequential>();
  watch(inner->Add<nn::Tanh>(), "d");
  watch(*inner, "c");
  net.Append(std::move(inner));
  watch(net, "net");
  net.Forward(Variable(Numbers({2, 4}, 1)));
  EXPECT_THAT(log, ElementsAre("<net", "<a", "a>", "<b", "b>", "<c", "<d", "d>",
                               "c>", "net>"));
}

TEST(Hooks, OfALayerThatIsThereTwiceRunForEachUse) {
  Tenfold layer;
  int runs = 0;
  layer.AddForwardHook(After([&] { ++runs; }));
  EXPECT_EQ(ValueOf(layer.Forward(layer.Forward(Num(1)))), 100);
  EXPECT_EQ(runs, 2);
}

// Every layer there is.
TEST(Hooks, OfEachLayerRun) {
  Generator random(1);
  std::vector<std::pair<std::unique_ptr<nn::Layer>, Tensor>> layers;
  const Tensor flat = Numbers({4, 6}, 1);
  const Tensor image = Numbers({2, 3, 6, 6}, 1);
  layers.emplace_back(std::make_unique<nn::Linear>(6, 2, random), flat);
  layers.emplace_back(std::make_unique<nn::Conv2d>(3, 2, 3, random), image);
  Pool2dOptions pool;
  layers.emplace_back(std::make_unique<nn::MaxPool2d>(pool), image);
  layers.emplace_back(std::make_unique<nn::AvgPool2d>(pool), image);
  layers.emplace_back(std::make_unique<nn::Relu>(), flat);
  layers.emplace_back(std::make_unique<nn::Sigmoid>(), flat);
  layers.emplace_back(std::make_unique<nn::Tanh>(), flat);
  layers.emplace_back(std::make_unique<nn::Flatten>(), image);
  layers.emplace_back(std::make_unique<nn::Dropout>(0.5, random), flat);
  layers.emplace_back(std::make_unique<nn::Sequential>(), flat);
  layers.emplace_back(std::make_unique<nn::LayerNorm>(Shape{6}), flat);
  layers.emplace_back(std::make_unique<nn::RmsNorm>(Shape{6}), flat);
  layers.emplace_back(std::make_unique<nn::BatchNorm>(6), flat);
  for (size_t i = 0; i < layers.size(); ++i) {
    int runs = 0;
    layers[i].first->AddForwardPreHook(Before([&] { ++runs; }));
    layers[i].first->AddForwardHook(After([&] { ++runs; }));
    layers[i].first->Forward(Variable(layers[i].second));
    EXPECT_EQ(runs, 2) << i;
  }
}

// "Inputs that are tensors, such as indices, are variables without a gradient."
TEST(Hooks, OfModulesWhoseInputsAreTensorsSeeThemAsVariables) {
  Generator random(1);
  nn::Embedding embedding(5, 3, random);
  nn::EmbeddingBag bag(5, 3, BagMode::kSum, random);
  std::vector<size_t> seen;
  const auto watch = [&](Module& module) {
    module.AddForwardPreHook([&](Module&, Inputs in) {
      seen.push_back(in.size());
      EXPECT_EQ(in[0].dtype(), DType::kI64);
      EXPECT_FALSE(in[0].requires_grad());
      in[0] = Variable(Tensor::Zeros(in[0].shape(), DType::kI64));
    });
  };
  watch(embedding);
  watch(bag);
  const Tensor rows = Tensor::FromVector<int64_t>({4, 3});
  const Variable y = embedding.Forward(rows);
  EXPECT_TRUE(SameBits(y.value().Select(0, 1),
                       embedding.weight().value().Select(0, 0)));
  bag.Forward(rows, Tensor::FromVector<int64_t>({0, 1}));
  bag.Forward(rows.View({1, 2}));
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0], 1u);
  EXPECT_EQ(seen[1], 2u);
}

TEST(Hooks, OfAttentionAndItsOutputLayerRun) {
  Generator random(1);
  nn::MultiheadAttention attention(8, 2, random);
  int runs = 0;
  attention.AddForwardPreHook(Before([&] { ++runs; }));
  attention.AddForwardHook([&](Module&, Seen in, Outputs out) {
    ++runs;
    EXPECT_EQ(in[0].shape(), out[0].shape());
  });
  attention.Forward(Variable(Numbers({2, 3, 8}, 1)));
  EXPECT_EQ(runs, 2);
}

// --- Adding and removing. ----------------------------------------------------

TEST(HookIds, OfOneModuleAreDifferentAndNotUsedAgain) {
  Tenfold layer;
  std::set<HookId> ids;
  for (int i = 0; i < 500; ++i) {
    const HookId a = layer.AddForwardPreHook(Before([] {}));
    const HookId b = layer.AddForwardHook(After([] {}));
    EXPECT_TRUE(ids.insert(a).second);
    EXPECT_TRUE(ids.insert(b).second);
    EXPECT_TRUE(layer.RemoveHook(i % 2 == 0 ? a : b));
  }
}

TEST(HookIds, ThatAreNoneOrWereRemovedAreFalse) {
  Tenfold layer;
  EXPECT_FALSE(layer.RemoveHook(0));
  EXPECT_FALSE(layer.RemoveHook(1));
  EXPECT_FALSE(layer.RemoveHook(~HookId{0}));
  const HookId id = layer.AddForwardHook(After([] {}));
  EXPECT_FALSE(layer.RemoveHook(id + 1));
  EXPECT_FALSE(layer.RemoveHook(0));
  EXPECT_TRUE(layer.RemoveHook(id));
  EXPECT_FALSE(layer.RemoveHook(id));
}

TEST(HookIds, AreOfOneModuleOnly) {
  Tenfold a, b;
  int runs = 0;
  a.AddForwardHook(After([&] { ++runs; }));
  const HookId second = a.AddForwardHook(After([&] { ++runs; }));
  b.AddForwardHook(After([&] { ++runs; }));
  EXPECT_FALSE(b.RemoveHook(second));
  a.Forward(Num(1));
  b.Forward(Num(1));
  EXPECT_EQ(runs, 3);
}

TEST(HookIds, OutliveTheModuleWithoutHarm) {
  auto watched = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = watched;
  HookId id;
  {
    Tenfold layer;
    id = layer.AddForwardHook(
        [watched = std::move(watched)](Module&, Seen, Outputs) {});
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());  // the module kept the hook, nobody else
  Tenfold other;
  EXPECT_FALSE(other.RemoveHook(id));
}

TEST(HookIds, RemovedHookIsGoneAndFreed) {
  Tenfold layer;
  auto watched = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = watched;
  const HookId id = layer.AddForwardPreHook(
      [watched = std::move(watched)](Module&, Inputs) { ++*watched; });
  layer.Forward(Num(1));
  EXPECT_TRUE(layer.RemoveHook(id));
  EXPECT_TRUE(watch.expired());
  layer.Forward(Num(1));
}

TEST(HookIds, ModuleWhoseHooksAreAllRemovedHasNone) {
  Free module;
  EXPECT_FALSE(module.has_hooks());
  const HookId id = module.AddForwardHook(After([] {}));
  EXPECT_TRUE(module.has_hooks());
  EXPECT_TRUE(module.RemoveHook(id));
  const auto out = module.Forward({Num(2)}, [](Seen in) {
    return std::vector<Variable>(in.begin(), in.end());
  });
  EXPECT_EQ(ValueOf(out[0]), 2);
}

TEST(Hooks, EmptyOneIsRefusedOrThrowsAndDoesNotCrash) {
  Tenfold layer;
  EXPECT_ANY_THROW({
    layer.AddForwardPreHook(nullptr);
    layer.Forward(Num(1));
  });
  Tenfold other;
  EXPECT_ANY_THROW({
    other.AddForwardHook(nullptr);
    other.Forward(Num(1));
  });
}

TEST(Hooks, AddedByAHookCountFromTheNextPassOn) {
  Tenfold layer;
  int added_before = 0, added_after = 0, first = 0;
  layer.AddForwardPreHook([&](Module& module, Inputs) {
    if (first++ > 0) return;
    module.AddForwardPreHook(Before([&] { ++added_before; }));
    module.AddForwardHook(After([&] { ++added_after; }));
  });
  layer.Forward(Num(1));
  EXPECT_EQ(added_before, 0);
  EXPECT_EQ(added_after, 0);
  layer.Forward(Num(1));
  EXPECT_EQ(added_before, 1);
  EXPECT_EQ(added_after, 1);
}

TEST(Hooks, RemovedByAHookStillRunInThisPass) {
  Tenfold layer;
  int later = 0, after = 0;
  HookId later_id = 0, after_id = 0;
  layer.AddForwardPreHook([&](Module& module, Inputs) {
    module.RemoveHook(later_id);
    module.RemoveHook(after_id);
  });
  later_id = layer.AddForwardPreHook(Before([&] { ++later; }));
  after_id = layer.AddForwardHook(After([&] { ++after; }));
  layer.Forward(Num(1));
  EXPECT_EQ(later, 1);
  EXPECT_EQ(after, 1);
  layer.Forward(Num(1));
  EXPECT_EQ(later, 1);
  EXPECT_EQ(after, 1);
}

TEST(Hooks, OneThatRemovesItselfRunsOnceAndUsesWhatItHoldsUntilItEnds) {
  Tenfold layer;
  int runs = 0;
  HookId id = 0;
  auto held = std::make_shared<std::string>(1000, 'x');
  const std::weak_ptr<std::string> watch = held;
  id = layer.AddForwardHook(
      [&, held = std::move(held)](Module& module, Seen, Outputs) {
        EXPECT_TRUE(module.RemoveHook(id));
        EXPECT_FALSE(module.RemoveHook(id));
        EXPECT_EQ(*held, std::string(1000, 'x'));
        ++runs;
      });
  layer.Forward(Num(1));
  layer.Forward(Num(1));
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(watch.expired());
}

TEST(Hooks, OneThatRemovesAllAndAddsAHundred) {
  Tenfold layer;
  std::vector<HookId> ids;
  int runs = 0;
  for (int i = 0; i < 10; ++i) {
    ids.push_back(layer.AddForwardPreHook([&](Module& module, Inputs) {
      for (const HookId id : std::exchange(ids, {})) module.RemoveHook(id);
      for (int k = 0; k < 100; ++k) {
        module.AddForwardHook(After([&] { ++runs; }));
      }
    }));
  }
  layer.Forward(Num(1));
  EXPECT_EQ(runs, 0);
  layer.Forward(Num(1));
  EXPECT_EQ(runs, 1000);
}

TEST(Hooks, OneThatCallsItsModuleAgainSeesThatPassesHooks) {
  Tenfold layer;
  int depth = 0, runs = 0;
  layer.AddForwardHook([&](Module&, Seen, Outputs out) {
    ++runs;
    if (depth++ < 3) out[0] = layer.Forward(out[0]);
  });
  EXPECT_EQ(ValueOf(layer.Forward(Num(1))), 10000);
  EXPECT_EQ(runs, 4);
}

TEST(Hooks, ThatThrowEndThePassAndTheNextIsWhole) {
  Tenfold layer;
  bool fails = true;
  int later = 0;
  layer.AddForwardPreHook(Before([&] {
    if (fails) throw std::runtime_error("before");
  }));
  layer.AddForwardPreHook(Before([&] { ++later; }));
  EXPECT_THROW(layer.Forward(Num(1)), std::runtime_error);
  EXPECT_EQ(layer.computed, 0);
  EXPECT_EQ(later, 0);
  fails = false;
  EXPECT_EQ(ValueOf(layer.Forward(Num(1))), 10);
  EXPECT_EQ(later, 1);

  bool after_fails = true;
  layer.AddForwardHook(After([&] {
    if (after_fails) throw Error(absl::AbortedError("after"));
  }));
  EXPECT_THAT(StatusOf([&] { layer.Forward(Num(1)); }),
              StatusIs(absl::StatusCode::kAborted, "after"));
  after_fails = false;
  EXPECT_EQ(ValueOf(layer.Forward(Num(1))), 10);
}

TEST(Modules, AreNeitherCopiedNorMoved) {
  static_assert(!std::is_copy_constructible_v<nn::Relu>);
  static_assert(!std::is_move_constructible_v<nn::Relu>);
  static_assert(!std::is_copy_assignable_v<nn::Relu>);
  static_assert(!std::is_move_assignable_v<nn::Relu>);
  // What holds them may move, and hooks go along.
  auto layer = std::make_unique<Tenfold>();
  int runs = 0;
  layer->AddForwardHook(After([&] { ++runs; }));
  const auto moved = std::move(layer);
  moved->Forward(Num(1));
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace weft::outside
