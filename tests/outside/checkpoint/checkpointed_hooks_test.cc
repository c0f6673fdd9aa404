// Forward hooks of modules within Checkpoint.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/outside/checkpoint/hooks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::ElementsAre;
using ::weft::nn::HookId;
using ::weft::nn::Module;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --- Within Checkpoint. ------------------------------------------------------

TEST(CheckpointedHooks, RunAgainWhereThePassIsComputedAgain) {
  Tenfold layer;
  std::vector<bool> before, after;
  layer.AddForwardPreHook(Before([&] { before.push_back(IsRecomputing()); }));
  layer.AddForwardHook(After([&] { after.push_back(IsRecomputing()); }));
  const Variable x = LeafOf({4}, 1);
  Sum(Checkpoint([&](In in) { return Exp(layer.Forward(in[0])); }, {x}))
      .Backward();
  EXPECT_THAT(before, ElementsAre(false, true));
  EXPECT_THAT(after, ElementsAre(false, true));
}

TEST(CheckpointedHooks, AroundTheWholePartRunOnce) {
  // Call outside, Checkpoint inside.
  class Outer final : public Module {
   public:
    Variable Forward(const Variable& x) {
      return Call({x}, [&](Seen in) {
        return Checkpoint([](In i) { return Tanh(Exp(i[0])); }, in);
      });
    }
  };
  Outer outer;
  int runs = 0;
  outer.AddForwardPreHook([&](Module&, Inputs in) {
    ++runs;
    in[0] = Sin(in[0]);
  });
  outer.AddForwardHook([&](Module&, Seen, Outputs out) {
    ++runs;
    out[0] = Cos(out[0]);
  });
  const Variable x = LeafOf({4}, 1);
  Sum(outer.Forward(x)).Backward();
  EXPECT_EQ(runs, 2);
  const Variable same = LeafOf({4}, 1);
  Sum(Cos(Tanh(Exp(Sin(same))))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointedHooks, ThatChangeInputsAndOutputsGiveTheSameBits) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(1);
    nn::Sequential net;
    net.Add<nn::Linear>(6, 6, random).AddForwardPreHook([](Module&, Inputs in) {
      in[0] = Exp(in[0]) * in[0];
    });
    net.Add<nn::Tanh>().AddForwardHook([](Module&, Seen in, Outputs out) {
      out[0] = out[0] * Sin(in[0]) + out[0];
    });
    net.Add<nn::Dropout>(0.4, random)
        .AddForwardHook([&](Module&, Seen, Outputs out) {
          out[0] = out[0] * Variable(Uniform(out[0].shape(), 0, 1, random));
        });
    const Variable x = LeafOf({3, 6}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return net.Forward(in[0]); }, {x}));
    loss.Backward();
    Tensors found{loss.value(), x.grad(),
                  Tensor::Scalar<int64_t>(random.position())};
    for (const Variable& p : net.Parameters()) found.push_back(p.grad());
    return found;
  });
}

TEST(CheckpointedHooks, RemovedBetweenThePassesIsRefusedIfItSavedTensors) {
  Tenfold layer;
  const HookId id = layer.AddForwardHook(
      [](Module&, Seen, Outputs out) { out[0] = Exp(out[0]); });
  const Variable x = LeafOf({4}, 1);
  const Variable loss =
      Sum(Checkpoint([&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
  layer.RemoveHook(id);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CheckpointedHooks, AddedBetweenThePassesIsRefusedIfItSavedTensors) {
  Tenfold layer;
  const Variable x = LeafOf({4}, 1);
  const Variable loss =
      Sum(Checkpoint([&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
  layer.AddForwardHook(
      [](Module&, Seen, Outputs out) { out[0] = Exp(out[0]); });
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CheckpointedHooks, OneThatOnlyLooksMayComeAndGoBetweenThePasses) {
  Tenfold layer;
  int looks = 0;
  const HookId first = layer.AddForwardHook(After([&] { ++looks; }));
  const Variable x = LeafOf({4}, 1);
  const Variable loss =
      Sum(Checkpoint([&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
  EXPECT_TRUE(layer.RemoveHook(first));
  layer.AddForwardPreHook(Before([&] { looks += 10; }));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }), IsOk());
  EXPECT_EQ(looks, 11);
}

TEST(CheckpointedHooks, OneThatRemovesItselfInTheSecondRun) {
  ExpectSameWithAndWithout([](bool on) {
    Tenfold layer;
    HookId id = 0;
    id = layer.AddForwardHook([&](Module& module, Seen, Outputs out) {
      if (IsRecomputing()) module.RemoveHook(id);
      out[0] = Sin(out[0]);
    });
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointedHooks, OneThatThrowsAgainEndsThePassWithThat) {
  Tenfold layer;
  layer.AddForwardHook(After([] {
    if (IsRecomputing()) throw Error(absl::AbortedError("hook's words"));
  }));
  const Variable x = LeafOf({4}, 1);
  const Variable loss =
      Sum(Checkpoint([&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(absl::StatusCode::kAborted, "hook's words"));
  EXPECT_FALSE(IsCheckpointing());
}

// Weights that are brought before each pass of a layer and released after it.
TEST(CheckpointedHooks, ThatBringAndReleaseTheWeightsGiveTheSameBits) {
  const auto run = [](bool on, bool moves) {
    Generator random(1);
    nn::Sequential net;
    for (int i = 0; i < 3; ++i) {
      nn::Linear& linear = net.Add<nn::Linear>(6, 6, random);
      net.Add<nn::Tanh>();
      if (!moves) continue;
      const Variable w = linear.weight();
      const Tensor full = w.value().Clone();
      const Tensor none = Tensor::Zeros({}).Expand({6, 6});
      w.leaf()->MoveTo(none);
      linear.AddForwardPreHook(
          [=](Module&, Inputs) { w.leaf()->MoveTo(full.Clone()); });
      linear.AddForwardHook([=](Module&, Seen, Outputs out) {
        if (!IsRecomputing()) w.leaf()->MoveTo(none);
        if (!out[0].requires_grad()) return;
        out[0].AddHook([=](Gradient g) {
          w.leaf()->MoveTo(full.Clone());
          return g;
        });
      });
    }
    const Variable x = LeafOf({3, 6}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return net.Forward(in[0]); }, {x}));
    loss.Backward();
    Tensors found{loss.value(), x.grad()};
    for (const Variable& p : net.Parameters()) found.push_back(p.grad());
    return found;
  };
  const Tensors wanted = run(false, false);
  EXPECT_TRUE(SameBits(run(false, true), wanted));
  EXPECT_TRUE(SameBits(run(true, false), wanted));
  EXPECT_TRUE(SameBits(run(true, true), wanted));
}

// A hook that keeps what it sees, as users do to look at activations.
TEST(CheckpointedHooks, OneThatKeepsOutputsSeesTheSameBitsBothTimes) {
  Generator random(1);
  nn::Linear linear(6, 6, random);
  Tensors kept;
  linear.AddForwardHook(
      [&](Module&, Seen, Outputs out) { kept.push_back(out[0].value()); });
  const Variable x = LeafOf({3, 6}, 1);
  Sum(Checkpoint([&](In in) { return Tanh(linear.Forward(in[0])); }, {x}))
      .Backward();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_TRUE(SameBits(kept[0], kept[1]));
}

// Likewise with the history: a loss beside the one of the model, of an
// activation that the hook kept from the first run.
TEST(CheckpointedHooks, LossOfAnActivationThatAHookKeptHasItsGradient) {
  ExpectSameWithAndWithout([](bool on) {
    Tenfold layer;
    Variable kept;
    layer.AddForwardHook([&](Module&, Seen, Outputs out) {
      const Variable auxiliary = Exp(out[0] * 0.1);
      if (!IsRecomputing()) kept = auxiliary;
    });
    const Variable x = LeafOf({4}, 1);
    const Variable y =
        Maybe(on, [&](In in) { return Sin(layer.Forward(Cos(in[0]))); }, {x});
    const Variable loss = Sum(y) + Sum(kept);
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

}  // namespace
}  // namespace weft::outside
