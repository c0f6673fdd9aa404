// What checkpoint.h says of the second run: effects that happen once, and
// refusal of what was written to since.

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --- Effects. ----------------------------------------------------------------

TEST(CheckpointEffects, OnceOutsideOfItMakesEachTime) {
  int made = 0;
  const auto make = [&] { return Tensor::Full({1}, ++made); };
  EXPECT_EQ(OnceInCheckpoint(make).item<float>(), 1);
  EXPECT_EQ(OnceInCheckpoint(make).item<float>(), 2);
}

TEST(CheckpointEffects, OnceInsideMakesOnceInAnyNestAndInAnyNumberOfPasses) {
  int made = 0;
  const Variable x = LeafOf({4}, 1);
  OneFn f = [&](In in) {
    const Tensor a =
        OnceInCheckpoint([&] { return Tensor::Full({4}, ++made); });
    const Variable y = Twist(in[0] * Variable(a));
    const Tensor b =
        OnceInCheckpoint([&] { return Tensor::Full({4}, ++made); });
    return y * Variable(b);
  };
  for (int i = 0; i < 3; ++i) {
    f = [inner = f](In in) { return Tanh(Checkpoint(inner, {Exp(in[0])})); };
  }
  const Variable loss = Sum(Checkpoint(f, {x}));
  EXPECT_EQ(made, 2);
  loss.Backward(Retained());
  EXPECT_EQ(made, 2);
  const Tensor first = x.grad().Clone();
  x.ClearGradient();
  loss.Backward();
  EXPECT_EQ(made, 2);
  EXPECT_TRUE(SameBits(x.grad(), first));
  const Variable same = LeafOf({4}, 1);
  Variable y = Exp(Exp(Exp(same)));
  y = Twist(y * Variable(Tensor::Full({4}, 1))) *
      Variable(Tensor::Full({4}, 2));
  Sum(Tanh(Tanh(Tanh(y)))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointEffects, OnceUnderANoGradScopeAndAnInnerPartThatJustCalls) {
  int made = 0;
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        Variable scale;
        {
          const NoGradScope scope;
          scale = Checkpoint(
              [&](In inner) {
                return inner[0] * Variable(OnceInCheckpoint([&] {
                         return Tensor::Full({4}, ++made);
                       }));
              },
              {in[0]});
        }
        return Twist(in[0]) * scale;
      },
      {x}));
  loss.Backward();
  EXPECT_EQ(made, 1);
}

// What `make` draws has been drawn: what follows it draws the same as at first.
// What is made once is not made again, and so would not draw again.
TEST(CheckpointEffects, OnceThatDrawsIsRefused) {
  Generator random(5);
  const Variable x = LeafOf({4}, 1);
  const auto draw = [&](In in) {
    const Tensor mask =
        OnceInCheckpoint([&] { return Uniform({4}, 0, 1, random); });
    return Twist(in[0] * Variable(mask));
  };
  EXPECT_THAT(StatusOf([&] { (void)Checkpoint(draw, {x}); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "may not draw random numbers"));
  // Nested, and afterwards, too.
  EXPECT_THAT(StatusOf([&] {
                (void)Checkpoint(
                    [&](In in) { return Checkpoint(draw, {in[0]}); }, {x});
              }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "may not draw random numbers"));
  EXPECT_TRUE(
      Checkpoint([&](In in) { return in[0] * Noise(random, in[0]); }, {x})
          .defined());
}

// A generator that is made there takes no number from anybody else.
TEST(CheckpointEffects, OnceThatDrawsFromAGeneratorOfItsOwnIsTheSame) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const OneFn masked = [&](In in) {
      const Tensor mask = OnceInCheckpoint([] {
        Generator own(9);
        return Uniform({4}, 0, 1, own);
      });
      return Twist(in[0] * Variable(mask)) * Noise(random, in[0]);
    };
    const Variable loss = Sum(Maybe(
        on,
        [&](In in) { return Maybe(on, masked, {in[0]}) + Noise(random, x); },
        {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

// A user who draws only where the effect is had: other numbers follow in the
// second run, which is to be refused, not computed with.
TEST(CheckpointEffects, DrawThatIsLeftOutAgainIsRefusedOrDoesNoHarm) {
  const auto run = [](bool on, absl::Status& status) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    if (!IsRecomputing())
                      (void)random.NextDouble();  // for a report
                    return Twist(in[0] * Noise(random, in[0]));
                  },
                  {x}));
    status = StatusOf([&] { loss.Backward(); });
    return Tensors{x.grad()};
  };
  absl::Status status;
  const Tensors wanted = run(false, status);
  const Tensors found = run(true, status);
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
    return;
  }
  EXPECT_TRUE(SameBits(found, wanted));
}

// What `make` records is not recorded again, and nobody misses it.
TEST(CheckpointEffects, OnceThatUsesOperationsOfVariables) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    const Tensor scale = OnceInCheckpoint(
                        [&] { return Exp(in[0] * w).value(); });
                    return Twist(in[0]) * Variable(scale);
                  },
                  {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointEffects, OnceThatUsesOperationsUnderANoGradScope) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [&](In in) {
                                      const Tensor scale =
                                          OnceInCheckpoint([&] {
                                            const NoGradScope scope;
                                            return Exp(in[0]).value();
                                          });
                                      return Twist(in[0]) * Variable(scale);
                                    },
                                    {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

TEST(CheckpointEffects, OnceMayMakeNothing) {
  const Variable x = LeafOf({4}, 1);
  int made = 0;
  Sum(Checkpoint(
          [&](In in) {
            EXPECT_FALSE(OnceInCheckpoint([&] {
                           ++made;
                           return Tensor();
                         }).defined());
            return Twist(in[0]);
          },
          {x}))
      .Backward();
  EXPECT_EQ(made, 1);
}

TEST(CheckpointEffects, OnceThatThrowsEndsTheForwardPassWithThat) {
  const Variable x = LeafOf({4}, 1);
  EXPECT_THROW(Checkpoint(
                   [&](In in) {
                     OnceInCheckpoint([]() -> Tensor {
                       throw std::runtime_error("no tensor");
                     });
                     return in[0];
                   },
                   {x}),
               std::runtime_error);
  EXPECT_FALSE(IsCheckpointing());
}

TEST(CheckpointEffects, OnceMoreOftenAgainThanAtFirstIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const auto make = [] { return Tensor::Ones({4}); };
        Variable y = in[0] * Variable(OnceInCheckpoint(make));
        if (IsRecomputing()) y = y + Variable(OnceInCheckpoint(make));
        return Twist(y);
      },
      {x}));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointEffects, SeenByAUserWhoAsksIsRecomputing) {
  int steps = 0;
  const Variable x = LeafOf({4}, 1);
  Variable y = x;
  for (int i = 0; i < 4; ++i) {
    y = Checkpoint(
        [&](In in) {
          if (!IsRecomputing()) ++steps;
          return Twist(in[0]);
        },
        {y});
  }
  Sum(y).Backward();
  EXPECT_EQ(steps, 4);
}

// --- Passes inside the function. ---------------------------------------------

TEST(CheckpointPasses, ThroughWhatItComputesItselfAreRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  absl::Status inside;
  const absl::Status outside = StatusOf([&] {
    Checkpoint(
        [&](In in) {
          const Variable y = Twist(in[0] * w);
          inside = StatusOf([&] { Sum(y).Backward(Retained()); });
          ThrowIfError(inside);
          return y;
        },
        {x});
  });
  EXPECT_THAT(inside, StatusIs(kFailedPrecondition));
  EXPECT_THAT(outside, StatusIs(kFailedPrecondition));
  EXPECT_FALSE(IsCheckpointing());
}

TEST(CheckpointPasses, RefusalThatTheFunctionCatchesDoesNoHarm) {
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const Variable y = Twist(in[0]);
        (void)StatusOf([&] { Sum(y).Backward(Retained()); });
        return y;
      },
      {x}));
  x.ClearGradient();
  const absl::Status status = StatusOf([&] { loss.Backward(); });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
  }
}

// A pass of another graph, recorded before.
TEST(CheckpointPasses, OfAnotherGraphRunInsideTheFunction) {
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  const Variable other = Sum(Checkpoint(TwistIn, {w}));
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const Variable a = Exp(in[0]);
        if (!IsRecomputing()) other.Backward();
        return Sin(a) * in[0];
      },
      {x}));
  loss.Backward();
  const Variable x2 = LeafOf({4}, 1);
  const Variable w2 = LeafOf({4}, 2);
  Sum(Twist(w2)).Backward();
  Sum(Sin(Exp(x2)) * x2).Backward();
  EXPECT_TRUE(SameBits(x.grad(), x2.grad()));
  EXPECT_TRUE(SameBits(w.grad(), w2.grad()));
}

TEST(CheckpointPasses, OfAnotherGraphRunInsideBothRuns) {
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  const Variable other = Sum(Checkpoint(TwistIn, {w}));
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const Variable a = Exp(in[0]);
        w.ClearGradient();
        other.Backward(Retained());
        return Sin(a) * in[0] * Variable(w.grad().Clone());
      },
      {x}));
  const absl::Status status = StatusOf([&] { loss.Backward(); });
  const Variable x2 = LeafOf({4}, 1);
  const Variable w2 = LeafOf({4}, 2);
  Sum(Twist(w2)).Backward();
  Sum(Sin(Exp(x2)) * x2 * Variable(w2.grad())).Backward();
  EXPECT_THAT(status, IsOk());
  EXPECT_TRUE(SameBits(x.grad(), x2.grad()));
}

// A whole training step of something else, made and run inside.
TEST(CheckpointPasses, WholeStepOfItsOwnInsideIsRefusedOrRight) {
  const Variable x = LeafOf({4}, 1);
  const absl::Status status = StatusOf([&] {
    const Variable loss = Sum(Checkpoint(
        [&](In in) {
          const Variable v(Tensor::Ones({4}), true);
          Sum(v + v).Backward();  // saves nothing
          return Twist(in[0]) * Variable(v.grad());
        },
        {x}));
    loss.Backward();
  });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
    return;
  }
  const Variable same = LeafOf({4}, 1);
  Sum(Twist(same) * Variable(Tensor::Full({4}, 2))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

// --- What was written to since. ----------------------------------------------

TEST(CheckpointVersions, InputThatWasWrittenToIsRefusedAndTheOperationNamed) {
  const Variable x = LeafOf({4}, 1);
  const Variable h = x * 2.0;
  const Variable loss = Sum(Checkpoint(TwistIn, {h}));
  h.value().Fill(0.5);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition, "Tanh"));
  EXPECT_FALSE(x.has_grad());
}

TEST(CheckpointVersions, InputWrittenWithItsOwnBitsIsRefusedToo) {
  const Variable x = LeafOf({4}, 1);
  const Variable h = x * 2.0;
  const Variable loss = Sum(Checkpoint(TwistIn, {h}));
  h.value().CopyFrom(h.value().Clone());
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointVersions, InputWithoutAGradientThatWasWrittenToIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable scale(Numbers({4}, 3));
  const Variable loss = Sum(
      Checkpoint([](In in) { return Twist(in[0]) * Exp(in[1]); }, {x, scale}));
  scale.value().Fill(0);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointVersions, InputThatIsAViewOfWhatWasWrittenToIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Tensor base = Numbers({2, 4}, 3);
  const Variable row(base.Select(0, 1));
  const Variable loss = Sum(
      Checkpoint([](In in) { return Twist(in[0]) * Exp(in[1]); }, {x, row}));
  base.Fill(0);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointVersions, InputThatIsALeafAndWasWrittenToIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(TwistIn, {x}));
  x.value().Fill(0.5);
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointVersions, InputThatIsALeafAndWasReplacedIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(TwistIn, {x}));
  x.SetValue(Numbers({4}, 9));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointVersions, InputThatTheFunctionItselfWritesToIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable h = x * 2.0;
  const Variable loss = Sum(Checkpoint(
      [](In in) {
        const Variable y = Sin(in[0]);
        in[0].value().Fill(0.25);
        return Exp(y);
      },
      {h}));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

struct Change {
  const char* name;
  std::function<void(const Variable& w)> make;
};

class WeightThat : public ::testing::TestWithParam<Change> {};

// A leaf by closure: used directly, by an inner part, or under a scope that
// records nothing.
TEST_P(WeightThat, ChangedSinceIsRefused) {
  const std::vector<std::function<Variable(const Variable&, const Variable&)>>
      uses = {
          [](const Variable& x, const Variable& w) { return Twist(x * w); },
          [](const Variable& x, const Variable& w) {
            return Checkpoint([w](In in) { return Twist(in[0] * w); }, {x});
          },
          [](const Variable& x, const Variable& w) {
            return Checkpoint([](In in) { return Twist(in[0] * in[1]); },
                              {x, w});
          },
          [](const Variable& x, const Variable& w) {
            Variable scale;
            {
              const NoGradScope scope;
              scale = Exp(w);
            }
            return Twist(x * scale);
          },
          [](const Variable& x, const Variable& w) {
            return Twist(x + Reshape(w, {4}));
          },
      };
  for (size_t i = 0; i < uses.size(); ++i) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss =
        Sum(Checkpoint([&](In in) { return uses[i](in[0], w); }, {x}));
    GetParam().make(w);
    EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
                StatusIs(kFailedPrecondition))
        << i;
    EXPECT_FALSE(IsCheckpointing());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Was, WeightThat,
    ::testing::Values(
        Change{"Filled", [](const Variable& w) { w.value().Fill(0.1); }},
        Change{"Replaced",
               [](const Variable& w) { w.SetValue(Numbers({4}, 9)); }},
        Change{"ReplacedByItsOwnBits",
               [](const Variable& w) { w.SetValue(w.value().Clone()); }},
        Change{"Updated",
               [](const Variable& w) {
                 w.value().BeginUpdate();
                 *w.value().data<float>() = 3;
               }},
        Change{"SteppedByAnOptimizer",
               [](const Variable& w) {
                 auto made = optimizer::Optimizer::Create(
                     {{optimizer::SgdOptions{0.5}, {{"w", w}}}});
                 ASSERT_THAT(made, IsOk());
                 w.SetGradient(Gradient(Tensor::Ones({4})));
                 EXPECT_THAT((*made)->Step(), IsOk());
               }},
        Change{"FilledThenMoved",
               [](const Variable& w) {
                 w.value().Fill(0.1);
                 w.leaf()->MoveTo(w.value().Clone());
               }},
        Change{"UpdatedThenMoved",
               [](const Variable& w) {
                 w.value().BeginUpdate();
                 *w.value().data<float>() = 3;
                 w.leaf()->MoveTo(w.value().Clone());
               }},
        Change{"MovedThenFilled",
               [](const Variable& w) {
                 w.leaf()->MoveTo(w.value().Clone());
                 w.value().Fill(0.1);
               }},
        Change{"MovedThenUpdated",
               [](const Variable& w) {
                 w.leaf()->MoveTo(w.value().Clone());
                 w.value().BeginUpdate();
                 *w.value().data<float>() = 3;
               }},
        Change{"MovedFilledMoved",
               [](const Variable& w) {
                 w.leaf()->MoveTo(w.value().Clone());
                 w.value().Fill(0.1);
                 w.leaf()->MoveTo(w.value().Clone());
               }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointVersions, WeightThatWasMovedSinceIsTheSame) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss =
        Sum(Maybe(on, [=](In in) { return Twist(in[0] * w) * w; }, {x}));
    w.leaf()->MoveTo(w.value().Clone());
    x.leaf()->MoveTo(x.value().Clone());
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointVersions, WeightThatWasReleasedAndBroughtBackIsTheSame) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Tensor kept = w.value().Clone();
    const Variable loss =
        Sum(Maybe(on, [=](In in) { return Twist(in[0] * w) * w; }, {x}));
    w.leaf()->MoveTo(Tensor::Zeros({1}).Expand({4}));
    w.leaf()->MoveTo(kept);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointVersions, WeightUpdatedAfterThePassIsNoFaultOfTheNextGraph) {
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  for (int i = 0; i < 3; ++i) {
    x.ClearGradient();
    const Variable loss =
        Sum(Checkpoint([=](In in) { return Twist(in[0] * w); }, {x}));
    EXPECT_THAT(StatusOf([&] { loss.Backward(); }), IsOk()) << i;
    w.value().BeginUpdate();
    *w.value().data<float>() += 1;
  }
}

TEST(CheckpointVersions, RefusedRetainedGraphStaysRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  const Variable loss =
      Sum(Checkpoint([=](In in) { return Twist(in[0] * w); }, {x}));
  loss.Backward(Retained());
  w.value().Fill(0.5);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(StatusOf([&] { loss.Backward(Retained()); }),
                StatusIs(kFailedPrecondition))
        << i;
  }
}

// Frozen and unfrozen between the passes: as without.
TEST(CheckpointVersions, WeightThatWasFrozenSinceGetsNothing) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss = Sum(Maybe(
        on, [=](In in) { return Twist(Tanh(w) * in[0] * w) * Exp(w); }, {x}));
    w.SetRequiresGrad(false);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointVersions, WeightThatWasUnfrozenSinceGetsNothing) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    w.SetRequiresGrad(false);
    const Variable loss = Sum(Maybe(
        on, [=](In in) { return Twist(Tanh(w) * in[0] * w) * Exp(w); }, {x}));
    w.SetRequiresGrad(true);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

TEST(CheckpointVersions, InputThatWasFrozenSinceGetsNothing) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable w = LeafOf({4}, 2);
    const Variable loss = Sum(Maybe(
        on, [=](In in) { return Twist(Tanh(w) * in[0] * w) * Exp(in[0]); },
        {x}));
    x.SetRequiresGrad(false);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), w.grad()};
  });
}

}  // namespace
}  // namespace weft::outside
