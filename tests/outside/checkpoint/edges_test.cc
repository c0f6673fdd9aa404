// What checkpoint.h says, at the edges: inputs and results of every kind, how
// often the function runs.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/graph_task.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --- Inputs. -----------------------------------------------------------------

TEST(CheckpointInputs, LeafAsInput) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({7, 3}, 1);
    const Variable loss = Sum(Maybe(on, TwistIn, {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointInputs, ComputedVariableAsInput) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({7, 3}, 1);
    const Variable loss = Sum(Square(Maybe(on, TwistIn, {Exp(x)})));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointInputs, NoInputsAtAllAndAllByClosure) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({5}, 1);
    const Variable h = Exp(x);
    const Variable loss = Sum(Maybe(on,
                                    [=](In in) {
                                      EXPECT_TRUE(in.empty());
                                      return Twist(h) * x;
                                    },
                                    {}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointInputs, SameInputTwiceAndOnceMoreByClosure) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({5}, 1);
    const Variable loss = Sum(Maybe(
        on, [=](In in) { return Exp(in[0]) * Sin(in[1]) + Cos(x) * in[0]; },
        {x, x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointInputs, NoInputThatNeedsAGradientButAWeightByClosure) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable w = LeafOf({3, 4}, 2);
    const Variable x(Numbers({2, 3}, 1));
    const Variable loss =
        Sum(Maybe(on, [=](In in) { return Tanh(MatMul(in[0], w)); }, {x}));
    EXPECT_TRUE(loss.requires_grad());
    loss.Backward();
    return Tensors{loss.value(), w.grad()};
  });
}

TEST(CheckpointInputs, NothingThatNeedsAGradientGivesAResultWithoutHistory) {
  int calls = 0;
  const Variable y = Checkpoint(
      [&](In in) {
        ++calls;
        return Twist(in[0]);
      },
      {Variable(Numbers({4}, 1))});
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(y.is_leaf());
  EXPECT_EQ(calls, 1);
}

TEST(CheckpointInputs, FrozenLeafAsInputGetsNoGradient) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    x.SetRequiresGrad(false);
    const Variable loss =
        Sum(Maybe(on, [=](In in) { return Exp(in[0]) * Tanh(w); }, {x}));
    loss.Backward();
    return Tensors{loss.value(), w.grad(), x.grad()};
  });
}

TEST(CheckpointInputs, UndefinedInputIsHandedOn) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4, 3}, 1);
    const Variable w = LeafOf({2, 3}, 2);
    const Variable loss = Sum(Maybe(on,
                                    [](In in) {
                                      EXPECT_FALSE(in[2].defined());
                                      return Tanh(Linear(in[0], in[1], in[2]));
                                    },
                                    {x, w, Variable()}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointInputs, IntegerAndBoolInputsAreHandedOn) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable table = LeafOf({6, 3}, 1);
    const Variable rows(Tensor::FromVector<int64_t>({5, 0, 5, 2}));
    const Variable loss = Sum(Square(
        Maybe(on, [=](In in) { return Exp(Embedding(table, in[0].value())); },
              {rows})));
    loss.Backward();
    return Tensors{loss.value(), table.grad()};
  });
}

TEST(CheckpointInputs, TensorWithoutElements) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x(Tensor::Zeros({0, 3}), true);
    const Variable w = LeafOf({3, 2}, 2);
    const Variable loss =
        Sum(Maybe(on, [=](In in) { return Tanh(MatMul(in[0], w)); }, {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointInputs, ManyInputs) {
  ExpectSameWithAndWithout([](bool on) {
    std::vector<Variable> x;
    for (int i = 0; i < 300; ++i) x.push_back(LeafOf({3}, i));
    const Variable loss = Sum(Maybe(
        on,
        [](In in) {
          Variable y = in[0];
          for (size_t i = 1; i < in.size(); ++i) y = Tanh(y * in[i] + in[i]);
          return y;
        },
        x));
    loss.Backward();
    Tensors found{loss.value()};
    for (const Variable& v : x) found.push_back(v.grad());
    return found;
  });
}

TEST(CheckpointInputs, SpanOfInputsMayEndWithTheCall) {
  const Variable x = LeafOf({4}, 1);
  Variable loss;
  {
    auto inputs = std::make_unique<std::vector<Variable>>();
    inputs->push_back(x);
    inputs->push_back(Exp(x));
    loss = Sum(Checkpoint([](In in) { return Tanh(in[0] * in[1]); }, *inputs));
  }
  loss.Backward();
  const Variable same = LeafOf({4}, 1);
  Sum(Tanh(same * Exp(same))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointInputs, FunctionObjectMayEndWithTheCall) {
  const Variable x = LeafOf({4}, 1);
  Variable loss;
  {
    const auto w = std::make_shared<Variable>(LeafOf({4}, 2));
    OneFn f = [w](In in) { return Tanh(in[0] * *w); };
    loss = Sum(Checkpoint(f, {x}));
    f = nullptr;
  }
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }), IsOk());
  EXPECT_TRUE(x.has_grad());
}

TEST(CheckpointInputs, FunctionThatIsNoneThrowsAndDoesNotCrash) {
  EXPECT_ANY_THROW(Checkpoint(OneFn(), {LeafOf({2}, 1)}));
  EXPECT_ANY_THROW(Checkpoint(ManyFn(), {LeafOf({2}, 1)}));
  EXPECT_FALSE(IsCheckpointing());
}

// --- Results. ----------------------------------------------------------------

TEST(CheckpointResults, InputItself) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable y = Maybe(on, [](In in) { return in[0]; }, {x});
    const Variable loss = Sum(y * y);
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointResults, WeightOfTheClosureItself) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable y = Maybe(on, [=](In) { return w; }, {x});
    const Variable loss = Sum(Exp(y));
    loss.Backward();
    return Tensors{loss.value(), w.grad(), x.grad()};
  });
}

TEST(CheckpointResults, UndefinedVariable) {
  const Variable y =
      Checkpoint([](In) { return Variable(); }, {LeafOf({4}, 1)});
  EXPECT_FALSE(y.defined());
}

TEST(CheckpointResults, None) {
  EXPECT_TRUE(
      Checkpoint([](In) { return std::vector<Variable>(); }, {LeafOf({4}, 1)})
          .empty());
  EXPECT_TRUE(
      Checkpoint([](In) { return std::vector<Variable>(); }, {}).empty());
}

TEST(CheckpointResults, SameOneTwice) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const std::vector<Variable> y =
        MaybeMany(on,
                  [](In in) {
                    const Variable t = Twist(in[0]);
                    return std::vector<Variable>{t, t, in[0]};
                  },
                  {x});
    const Variable loss = Sum(y[0] * Exp(y[1]) * y[2]);
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointResults, DetachedOneHasNoHistory) {
  const Variable x = LeafOf({4}, 1);
  const std::vector<Variable> y = Checkpoint(
      [](In in) {
        const Variable t = Twist(in[0]);
        return std::vector<Variable>{t, t.Detach(), Variable()};
      },
      {x});
  EXPECT_TRUE(y[0].requires_grad());
  EXPECT_FALSE(y[1].requires_grad());
  EXPECT_FALSE(y[2].defined());
  Sum(y[0] * y[1]).Backward();
  const Variable same = LeafOf({4}, 1);
  const Variable t = Twist(same);
  Sum(t * t.Detach()).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointResults, ThatIsNotUsedCostsNoSecondRun) {
  int calls = 0;
  const Variable x = LeafOf({4}, 1);
  const Variable unused = Checkpoint(
      [&](In in) {
        ++calls;
        return Twist(in[0]);
      },
      {x});
  Sum(Exp(x)).Backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(unused.defined());
}

TEST(CheckpointResults, PartThatIsNotUsedLeavesTheOthersGradientsRight) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const std::vector<Variable> y =
        MaybeMany(on,
                  [=](In in) {
                    const Variable a = Exp(in[0]);
                    const Variable b = Tanh(w * a);
                    return std::vector<Variable>{Sin(a), b, Sqrt(Exp(b))};
                  },
                  {x});
    const Variable loss = Sum(y[0]);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

// Two results of one function, each of which has a graph of its own.
TEST(CheckpointResults, EachMayHaveItsOwnBackwardPass) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const std::vector<Variable> y =
        MaybeMany(on,
                  [=](In in) {
                    return std::vector<Variable>{Twist(in[0]), Twist(w) * w};
                  },
                  {x});
    Sum(y[0]).Backward();
    const Tensor between = x.grad().Clone();
    Sum(y[1]).Backward();
    return Tensors{between, x.grad(), w.grad()};
  });
}

TEST(CheckpointResults, EachMayBeDroppedBeforeTheOthersPass) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    std::vector<Variable> y =
        MaybeMany(on,
                  [](In in) {
                    const Variable a = Exp(in[0]);
                    return std::vector<Variable>{Tanh(a), Sin(a), Cos(a)};
                  },
                  {x});
    y[0] = Variable();
    const Variable loss = Sum(y[1]);
    y.clear();
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointResults, OneThatIsWrittenToLaterLeavesTheGradientRight) {
  const Variable x = LeafOf({4}, 1);
  const Variable y = Checkpoint([](In in) { return Exp(in[0]); }, {x});
  const Variable loss = Sum(y);
  y.value().Fill(1e9);
  // Without it, Exp would say that its result was written to.
  const absl::Status status = StatusOf([&] { loss.Backward(); });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
    return;
  }
  const Variable same = LeafOf({4}, 1);
  Sum(Exp(same)).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointResults, HookOnAResultRunsOnceForEachPass) {
  ExpectSameWithAndWithout([](bool on) {
    int runs = 0;
    const Variable x = LeafOf({4}, 1);
    const Variable y = Maybe(on, TwistIn, {x});
    y.AddHook([&](Gradient g) {
      ++runs;
      return Gradient(Mul(Variable(g.ToDense()), 3.0).value());
    });
    Sum(y).Backward();
    EXPECT_EQ(runs, 1);
    return Tensors{x.grad()};
  });
}

TEST(CheckpointResults, HookInsideTheFunctionRunsOnceForEachPass) {
  ExpectSameWithAndWithout([](bool on) {
    int runs = 0;
    const Variable x = LeafOf({4}, 1);
    const Variable y =
        Maybe(on,
              [&](In in) {
                const Variable h = Exp(in[0]);
                h.AddHook([&](Gradient g) {
                  ++runs;
                  EXPECT_FALSE(IsCheckpointing());
                  EXPECT_FALSE(IsRecomputing());
                  return Gradient(Mul(Variable(g.ToDense()), 3.0).value());
                });
                return Sin(h);
              },
              {x});
    Sum(y).Backward();
    EXPECT_EQ(runs, 1);
    return Tensors{x.grad()};
  });
}

TEST(CheckpointResults, HookThatTakesTheGradientAwaySparesTheSecondRun) {
  int calls = 0;
  const Variable x = LeafOf({4}, 1);
  const Variable y = Checkpoint(
      [&](In in) {
        ++calls;
        return Twist(in[0]);
      },
      {x});
  y.AddHook([](Gradient) { return Gradient(); });
  Sum(y).Backward();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(x.has_grad());
}

// --- How often the function runs. --------------------------------------------

TEST(CheckpointRuns, OnceForwardAndOnceInThePass) {
  std::vector<bool> seen;
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        EXPECT_TRUE(IsCheckpointing());
        seen.push_back(IsRecomputing());
        return Twist(Twist(Twist(in[0])));
      },
      {x}));
  EXPECT_FALSE(IsCheckpointing());
  EXPECT_EQ(seen, std::vector<bool>({false}));
  loss.Backward();
  EXPECT_EQ(seen, std::vector<bool>({false, true}));
  EXPECT_FALSE(IsCheckpointing());
  EXPECT_FALSE(IsRecomputing());
}

TEST(CheckpointRuns, NotAgainWhereNothingWasSaved) {
  int calls = 0;
  const Variable x = LeafOf({4}, 1);
  Sum(Checkpoint(
          [&](In in) {
            ++calls;
            return in[0] + in[0] + 3.0;
          },
          {x}))
      .Backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>(4, 2));
}

// Inputs that were written to do not matter where nobody asks for them.
TEST(CheckpointRuns, NothingIsProvenWhereNothingWasSaved) {
  const Variable x = LeafOf({4}, 1);
  const Variable h = x * 2.0;
  const Variable loss = Sum(Checkpoint([](In in) { return in[0] + 3.0; }, {h}));
  h.value().Fill(0);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }), IsOk());
}

TEST(CheckpointRuns, OnTheThreadOfThePass) {
  std::vector<std::thread::id> threads;
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        threads.push_back(std::this_thread::get_id());
        return Twist(in[0]);
      },
      {x}));
  std::thread::id other;
  std::thread pass([&] {
    other = std::this_thread::get_id();
    loss.Backward();
    EXPECT_FALSE(IsCheckpointing());
  });
  pass.join();
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0], std::this_thread::get_id());
  EXPECT_EQ(threads[1], other);
}

TEST(CheckpointRuns, NotInAnotherThreadsEyes) {
  Checkpoint(
      [&](In in) {
        std::thread([] {
          EXPECT_FALSE(IsCheckpointing());
          EXPECT_FALSE(IsRecomputing());
        }).join();
        return in[0];
      },
      {LeafOf({4}, 1)});
}

TEST(CheckpointRuns, UnderANoGradScopeItJustCalls) {
  const NoGradScope scope;
  int calls = 0;
  const Variable y = Checkpoint(
      [&](In in) {
        ++calls;
        EXPECT_FALSE(IsCheckpointing());
        EXPECT_TRUE(NoGradScope::IsOpen());
        return Twist(in[0]);
      },
      {LeafOf({4}, 1)});
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(y.requires_grad());
}

TEST(CheckpointRuns, UnderAnEnableGradScopeInANoGradScopeItRecords) {
  ExpectSameWithAndWithout([](bool on) {
    const NoGradScope no;
    const Variable x = LeafOf({4}, 1);
    Variable y;
    {
      const EnableGradScope yes;
      y = Sum(Maybe(on, TwistIn, {x}));
    }
    // The pass runs, and so does the function, within the outer scope.
    EXPECT_TRUE(y.requires_grad());
    y.Backward();
    EXPECT_TRUE(NoGradScope::IsOpen());
    return Tensors{y.value(), x.grad()};
  });
}

TEST(CheckpointRuns, PassUnderANoGradScopeComputesTheSameAgain) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss = Sum(Maybe(on,
                                    [=](In in) {
                                      EXPECT_FALSE(NoGradScope::IsOpen());
                                      Variable y = Exp(in[0]);
                                      // What a function of its own would do.
                                      if (y.requires_grad())
                                        y = Tanh(y * w) * Sin(w);
                                      return y;
                                    },
                                    {x}));
    const NoGradScope scope;
    loss.Backward();
    EXPECT_TRUE(NoGradScope::IsOpen());
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointRuns, ScopesInsideTheFunctionCountBothTimes) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss = Sum(Maybe(on,
                                    [=](In in) {
                                      Variable constant;
                                      {
                                        const NoGradScope scope;
                                        constant = Exp(in[0]) * Tanh(w);
                                        const EnableGradScope inner;
                                        constant = constant * Sin(w);
                                      }
                                      return constant * Twist(in[0]);
                                    },
                                    {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointRuns, RetainedGraphGivesTheSameGradientEachTime) {
  int calls = 0;
  const Variable x = LeafOf({6}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        ++calls;
        return Twist(in[0]);
      },
      {Exp(x)}));
  loss.Backward(Retained());
  const Tensor first = x.grad().Clone();
  EXPECT_EQ(calls, 2);
  for (int pass = 0; pass < 3; ++pass) {
    x.ClearGradient();
    loss.Backward(Retained());
    EXPECT_TRUE(SameBits(x.grad(), first)) << pass;
  }
  EXPECT_LE(calls, 5);  // at most once for each pass
  x.ClearGradient();
  loss.Backward();
  EXPECT_TRUE(SameBits(x.grad(), first));
}

TEST(CheckpointRuns, SecondPassOfAGraphThatWasNotRetainedIsRefused) {
  const Variable x = LeafOf({6}, 1);
  const Variable loss = Sum(Checkpoint(TwistIn, {x}));
  loss.Backward();
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointRuns, PassThatReleasesWhenToldCanBeRepeated) {
  const Variable x = LeafOf({6}, 1);
  int calls = 0;
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        ++calls;
        return Twist(in[0]);
      },
      {x}));
  GraphTask::Options options;
  options.release_when_told = true;
  Tensor first;
  {
    GraphTask task(options);
    WEFT_ASSERT_OK(task.Expect(loss.edge()));
    WEFT_ASSERT_OK(task.Feed(loss.edge(), Gradient(Tensor::Ones({}))));
    WEFT_ASSERT_OK(task.Run());
    first = x.grad().Clone();
  }
  x.ClearGradient();
  {
    GraphTask task(options);
    WEFT_ASSERT_OK(task.Expect(loss.edge()));
    WEFT_ASSERT_OK(task.Feed(loss.edge(), Gradient(Tensor::Ones({}))));
    WEFT_ASSERT_OK(task.Run());
    WEFT_ASSERT_OK(task.ReleaseSaved());
  }
  EXPECT_TRUE(SameBits(x.grad(), first));
  EXPECT_LE(calls, 3);
}

TEST(CheckpointRuns, EightPartsInAChainRunTwiceEach) {
  std::vector<int> calls(8, 0);
  const Variable x = LeafOf({6}, 1);
  Variable y = x;
  for (int i = 0; i < 8; ++i) {
    y = Checkpoint(
        [&calls, i](In in) {
          ++calls[i];
          return Twist(in[0]);
        },
        {y});
  }
  Sum(y).Backward();
  EXPECT_EQ(calls, std::vector<int>(8, 2));
  const Variable same = LeafOf({6}, 1);
  y = same;
  for (int i = 0; i < 8; ++i) y = Twist(y);
  Sum(y).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointRuns, OneFunctionForManyPartsWithStateOfItsOwnCopy) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable w = LeafOf({4, 4}, 3);
    const OneFn f = [=](In in) { return Tanh(MatMul(in[0], w)); };
    const Variable x = LeafOf({2, 4}, 1);
    Variable y = x;
    for (int i = 0; i < 5; ++i) y = Maybe(on, f, {y});
    const Variable loss = Sum(y);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointRuns, TwoLossesOfOnePartInOnePass) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const std::vector<Variable> y =
        MaybeMany(on,
                  [](In in) {
                    const Variable h = Twist(in[0]);
                    return std::vector<Variable>{Sum(Exp(h)), Sum(Sin(h))};
                  },
                  {x});
    ThrowIfError(Backward({y[0], y[1]}, {Gradient(Tensor::Full({}, 2)),
                                         Gradient(Tensor::Full({}, -3))}));
    return Tensors{x.grad()};
  });
}

TEST(CheckpointRuns, PassToPartOfTheGraphOnlyThenToAllOfIt) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable h = Maybe(on, TwistIn, {x});
    const Variable y = Maybe(on, TwistIn, {h});
    Sum(h).Backward(Retained());
    const Tensor part = x.grad().Clone();
    Sum(y).Backward();
    return Tensors{part, x.grad()};
  });
}

}  // namespace
}  // namespace weft::outside
