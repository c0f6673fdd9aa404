// What checkpoint.h says of parts in parts, and of what is kept and for how
// long.

#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/saved_tensor.h"
#include "weft/autograd/variable.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::StatusIs;

// --- Nesting. ----------------------------------------------------------------

OneFn Nested(int depth) {
  if (depth == 0) return TwistIn;
  return [inner = Nested(depth - 1)](In in) {
    return Tanh(Checkpoint(inner, {Exp(in[0])}) * in[0]);
  };
}
Variable Flat(int depth, const Variable& x) {
  return depth == 0 ? Twist(x) : Tanh(Flat(depth - 1, Exp(x)) * x);
}

TEST(CheckpointNesting, GradientsAreThoseOfTheFlatFunction) {
  for (const int depth : {1, 2, 3, 5, 9}) {
    const Variable x = LeafOf({5}, 1);
    const Variable loss = Sum(Checkpoint(Nested(depth), {x * 0.1}));
    loss.Backward();
    const Variable same = LeafOf({5}, 1);
    const Variable wanted = Sum(Flat(depth, same * 0.1));
    wanted.Backward();
    EXPECT_TRUE(SameBits(loss.value(), wanted.value())) << depth;
    EXPECT_TRUE(SameBits(x.grad(), same.grad())) << depth;
  }
}

TEST(CheckpointNesting, InnermostOfTenRunsElevenTimes) {
  int calls = 0;
  OneFn f = [&](In in) {
    ++calls;
    return Twist(in[0]);
  };
  for (int i = 0; i < 9; ++i) {
    f = [inner = f](In in) { return Checkpoint(inner, in); };
  }
  const Variable x = LeafOf({5}, 1);
  Sum(Checkpoint(f, {x})).Backward();
  EXPECT_LE(calls, 11);
  EXPECT_GE(calls, 2);
}

TEST(CheckpointNesting, RecomputingIsTrueInTheInnersFirstRunOfTheSecondOuter) {
  std::vector<bool> seen;
  const Variable x = LeafOf({5}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        return Exp(Checkpoint(
            [&](In inner) {
              seen.push_back(IsRecomputing());
              return Twist(inner[0]);
            },
            {Sin(in[0])}));
      },
      {x}));
  loss.Backward();
  ASSERT_GE(seen.size(), 2u);
  EXPECT_FALSE(seen[0]);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_TRUE(seen[i]) << i;
}

TEST(CheckpointNesting, RetainedGraphOfNestedParts) {
  const Variable x = LeafOf({5}, 1);
  const Variable loss = Sum(Checkpoint(Nested(3), {x * 0.1}));
  loss.Backward(Retained());
  const Tensor first = x.grad().Clone();
  for (int pass = 0; pass < 3; ++pass) {
    x.ClearGradient();
    loss.Backward(Retained());
    EXPECT_TRUE(SameBits(x.grad(), first)) << pass;
  }
}

TEST(CheckpointNesting, InnerPartUnderANoGradScopeOfTheOuter) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({5}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [on](In in) {
                                      Variable scale;
                                      {
                                        const NoGradScope scope;
                                        scale = Maybe(on, TwistIn, {in[0]});
                                      }
                                      return Tanh(in[0]) * scale;
                                    },
                                    {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointNesting, InnerResultThatTheOuterDoesNotUse) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({5}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [on](In in) {
                                      (void)Maybe(on, TwistIn, {in[0]});
                                      const Variable b =
                                          Maybe(on, TwistIn, {Exp(in[0])});
                                      (void)Maybe(on, TwistIn, {b});
                                      return b * in[0];
                                    },
                                    {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

// The inner function refers to what the outer computed.
TEST(CheckpointNesting, InnerCapturesAVariableOfTheOuter) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({5}, 1);
    const Variable w = LeafOf({5}, 2);
    const Variable loss = Sum(Maybe(
        on,
        [on, w](In in) {
          const Variable h = Exp(in[0]) * w;
          return Maybe(
              on, [h, w](In inner) { return Tanh(h * inner[0]) * Sin(w * h); },
              {Sin(h)});
        },
        {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointNesting, TwoHundredDeep) {
  const int depth = 200;
  OneFn f = TwistIn;
  for (int i = 0; i < depth; ++i) {
    f = [inner = f](In in) { return Checkpoint(inner, in); };
  }
  const Variable x = LeafOf({5}, 1);
  Sum(Checkpoint(f, {x})).Backward();
  const Variable same = LeafOf({5}, 1);
  Sum(Twist(same)).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

// --- What is kept. -----------------------------------------------------------

struct Probe {
  std::shared_ptr<int> alive = std::make_shared<int>(0);
  std::weak_ptr<int> watch() const { return alive; }
};

TEST(CheckpointKeeps, FunctionEndsWithTheResult) {
  std::weak_ptr<int> watch;
  {
    Probe probe;
    watch = probe.watch();
    const Variable x = LeafOf({5}, 1);
    Variable y =
        Checkpoint([probe, x](In in) { return Twist(in[0]) * Exp(x); }, {x});
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(CheckpointKeeps, FunctionEndsWithTheGraphAfterAPass) {
  std::weak_ptr<int> watch;
  const Variable x = LeafOf({5}, 1);
  {
    Probe probe;
    watch = probe.watch();
    const Variable loss = Sum(
        Checkpoint([probe, x](In in) { return Twist(in[0]) * Exp(x); }, {x}));
    loss.Backward();
  }
  EXPECT_TRUE(watch.expired());
}

TEST(CheckpointKeeps, FunctionEndsWithTheGraphAfterAFailedPass) {
  std::weak_ptr<int> watch;
  const Variable x = LeafOf({5}, 1);
  {
    Probe probe;
    watch = probe.watch();
    const Variable loss = Sum(Checkpoint(
        [probe, x](In in) {
          const Variable y = Twist(in[0]) * Exp(x);
          if (IsRecomputing()) throw std::runtime_error("late");
          return y;
        },
        {x}));
    EXPECT_FALSE(StatusOf([&] { loss.Backward(Retained()); }).ok());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(CheckpointKeeps, FunctionEndsWithTheGraphOfNestedAndRetainedPasses) {
  std::weak_ptr<int> watch;
  const Variable x = LeafOf({5}, 1);
  {
    Probe probe;
    watch = probe.watch();
    const Variable loss = Sum(Checkpoint(
        [probe, x](In in) {
          return Checkpoint(
              [probe, x](In inner) { return Twist(inner[0]) * x; },
              {Exp(in[0])});
        },
        {x}));
    loss.Backward(Retained());
    loss.Backward(Retained());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(CheckpointKeeps, NothingAfterTheForwardPassThrew) {
  Probe probe;
  const std::weak_ptr<int> watch = probe.watch();
  const Variable x = LeafOf({5}, 1);
  {
    OneFn f = [probe = std::move(probe), x](In in) -> Variable {
      (void)Twist(in[0]);
      throw std::runtime_error("early");
    };
    EXPECT_THROW(Checkpoint(f, {x}), std::runtime_error);
  }
  EXPECT_TRUE(watch.expired());
}

// A result that has no history keeps nothing.
TEST(CheckpointKeeps, NothingForAResultWithoutHistory) {
  Probe probe;
  const std::weak_ptr<int> watch = probe.watch();
  Variable y;
  {
    OneFn f = [probe = std::move(probe)](In in) { return Twist(in[0]); };
    y = Checkpoint(f, {Variable(Numbers({4}, 1))});
  }
  EXPECT_TRUE(watch.expired());
}

TEST(CheckpointKeeps, NoElementsOfWhatTheFunctionComputes) {
  std::weak_ptr<int> inside;
  const Variable x = LeafOf({5}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        auto owner = std::make_shared<std::vector<float>>(5, 2.0f);
        auto token = std::make_shared<int>(0);
        if (!IsRecomputing()) inside = token;
        struct Both {
          std::shared_ptr<std::vector<float>> memory;
          std::shared_ptr<int> token;
        };
        auto both = std::make_shared<Both>(Both{owner, token});
        const Variable scale(
            Tensor::FromBlob(owner->data(), {5}, DType::kF32, both));
        return Exp(in[0] * scale);
      },
      {x}));
  EXPECT_TRUE(inside.expired());
  loss.Backward();
  EXPECT_TRUE(x.has_grad());
}

// Each part keeps the one before it alive; all end without recursion, and so
// does the pass. "No recursion anywhere" (autograd/README.md).
TEST(CheckpointKeeps, ChainOfAHundredThousandPartsEndsOnAFlatStack) {
  const Variable x = LeafOf({1}, 1);
  Variable y = x;
  for (int i = 0; i < 100000; ++i) {
    y = Checkpoint([](In in) { return in[0] * in[0]; }, {y});
  }
  y = Variable();
  SUCCEED();
}

TEST(CheckpointKeeps, ChainOfAHundredThousandPartsRunsOnAFlatStack) {
  const Variable x(Tensor::Ones({1}), true);
  Variable y = x;
  for (int i = 0; i < 100000; ++i) {
    y = Checkpoint([](In in) { return Sin(in[0]) + in[0] - Sin(in[0]); }, {y});
  }
  Sum(y).Backward();
  EXPECT_TRUE(x.has_grad());
}

TEST(CheckpointKeeps, RetainedChainEndsOnAFlatStackAfterItsPass) {
  const Variable x(Tensor::Ones({1}), true);
  Variable y = x;
  for (int i = 0; i < 50000; ++i) {
    y = Checkpoint([](In in) { return Tanh(in[0]) * in[0]; }, {y});
  }
  y.Backward(Retained());
  EXPECT_TRUE(x.has_grad());
  y = Variable();
}

// --- Saved tensors of one's own. ---------------------------------------------

TEST(CheckpointSaved, TensorMayBeUndefined) {
  EXPECT_FALSE(SavedTensor(Tensor()).Get().defined());
  EXPECT_FALSE(SavedTensor(Variable()).Get().defined());
  Checkpoint(
      [](In in) {
        EXPECT_FALSE(SavedTensor(Tensor()).Get().defined());
        EXPECT_FALSE(SavedTensor(Variable()).Get().defined());
        return in[0];
      },
      {LeafOf({3}, 1)});
}

TEST(CheckpointSaved, OutsideOfItIsTheTensorItself) {
  const Tensor x = Numbers({3}, 1);
  const SavedTensor saved(x);
  const SavedTensor copy = saved;
  EXPECT_TRUE(saved.Get().IsSameAs(x));
  EXPECT_TRUE(copy.Get().IsSameAs(x));
  x.Fill(3);
  EXPECT_THAT(StatusOf([&] { saved.Get(); }), StatusIs(kFailedPrecondition));
  EXPECT_THAT(StatusOf([&] { copy.Get(); }), StatusIs(kFailedPrecondition));
}

TEST(CheckpointSaved, OfALeafIsItsValueAsItWas) {
  const Variable w = LeafOf({3}, 1);
  const SavedTensor saved(w);
  EXPECT_TRUE(SameBits(saved.Get(), w.value()));
  const Tensor before = w.value().Clone();
  w.value().storage()->KeepVersions();
  const SavedTensor later(w);
  w.value().BeginUpdate();
  *w.value().data<float>() = 77;
  EXPECT_TRUE(SameBits(later.Get(), before));
}

TEST(CheckpointSaved, GetAfterTheFunctionComputesItAgain) {
  std::vector<SavedTensor> saved;
  int calls = 0;
  const Variable x = LeafOf({3}, 1);
  const Variable y = Checkpoint(
      [&](In in) {
        ++calls;
        const Variable h = Exp(in[0]);
        const SavedTensor one(h.value());
        if (!IsRecomputing()) saved.push_back(one);
        return Sin(h);
      },
      {x});
  ASSERT_EQ(saved.size(), 1u);
  const SavedTensor copy = saved[0];
  EXPECT_TRUE(SameBits(copy.Get(), Exp(x).value()));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(SameBits(saved[0].Get(), Exp(x).value()));
  Sum(y).Backward();
  const Variable same = LeafOf({3}, 1);
  Sum(Sin(Exp(same))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointSaved, GetInsideTheFunctionIsRefusedAndLeavesThingsInOrder) {
  const Variable x = LeafOf({3}, 1);
  const Variable y = Checkpoint(
      [&](In in) {
        const Variable h = Exp(in[0]);
        const SavedTensor one(h.value());
        const absl::Status status = StatusOf([&] { one.Get(); });
        if (!status.ok()) {
          EXPECT_THAT(status, StatusIs(kFailedPrecondition));
        }
        return Sin(h);
      },
      {x});
  Sum(y).Backward();
  const Variable same = LeafOf({3}, 1);
  Sum(Sin(Exp(same))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointSaved, OneThatOutlivesTheGraphStillGivesItsElements) {
  std::vector<SavedTensor> saved;
  const Variable x = LeafOf({3}, 1);
  {
    const Variable y = Checkpoint(
        [&](In in) {
          const Variable h = Exp(in[0]);
          const SavedTensor one(h.value());
          if (!IsRecomputing()) saved.push_back(one);
          return Sin(h);
        },
        {x});
    Sum(y).Backward();
  }
  EXPECT_TRUE(SameBits(saved[0].Get(), Exp(x).value()));
}

// --- Grad scopes by themselves. ----------------------------------------------

TEST(GradScopes, NestInAnyOrderAndEndWithAnException) {
  EXPECT_FALSE(NoGradScope::IsOpen());
  {
    const EnableGradScope yes;
    EXPECT_FALSE(NoGradScope::IsOpen());
    const NoGradScope no;
    EXPECT_TRUE(NoGradScope::IsOpen());
    {
      const NoGradScope twice;
      const EnableGradScope again;
      EXPECT_FALSE(NoGradScope::IsOpen());
      const NoGradScope last;
      EXPECT_TRUE(NoGradScope::IsOpen());
    }
    EXPECT_TRUE(NoGradScope::IsOpen());
    try {
      const EnableGradScope thrown;
      throw std::runtime_error("out");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(NoGradScope::IsOpen());
    std::thread([] { EXPECT_FALSE(NoGradScope::IsOpen()); }).join();
  }
  EXPECT_FALSE(NoGradScope::IsOpen());
}

}  // namespace
}  // namespace weft::outside
