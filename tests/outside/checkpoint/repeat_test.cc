// What checkpoint.h says of the second run: the same random numbers, effects
// that happen once, and refusal of all that is not the same.

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

Variable Noise(Generator& random, const Variable& like) {
  return Variable(Uniform(like.shape(), 0, 1, random));
}

Tensor Place(const Generator& random) {
  return Tensor::FromVector<int64_t>({static_cast<int64_t>(random.seed()),
                                      static_cast<int64_t>(random.stream()),
                                      static_cast<int64_t>(random.position())});
}
// The place, and the number that comes next.
Tensor NextOf(Generator& random) {
  return Tensor::FromVector<int64_t>({static_cast<int64_t>(random.position()),
                                      static_cast<int64_t>(random.NextU32())});
}

// --- Generators. -------------------------------------------------------------

TEST(CheckpointRandom, SameNumbersAgainAndThePlaceIsAsWithout) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    random.Seek(3);  // in the middle of a block of four
    const Variable x = LeafOf({7}, 1);
    const Variable loss = Sum(Maybe(
        on, [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
    const Tensor between = NextOf(random);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), between, NextOf(random)};
  });
}

TEST(CheckpointRandom, PlaceAfterThePassIsWhereTheUserPutIt) {
  Generator random(5);
  const Variable x = LeafOf({7}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
  random.Seek(1001);
  const uint32_t first = Generator(random).NextU32();
  loss.Backward();
  EXPECT_EQ(random.position(), 1001u);
  EXPECT_EQ(random.NextU32(), first);
}

TEST(CheckpointRandom, OneGeneratorForAllPartsAndTheOutsideToo) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({3}, 1);
    Variable y = x;
    for (int i = 0; i < 6; ++i) {
      y = Maybe(
          on,
          [&random](In in) {
            return Twist(in[0] * Noise(random, in[0]) + random.NextNormal());
          },
          {y});
      y = y * random.NextDouble();
    }
    const Variable loss = Sum(y);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, SeveralGeneratorsInTurns) {
  ExpectSameWithAndWithout([](bool on) {
    std::vector<Generator> random;
    for (int i = 0; i < 40; ++i) random.emplace_back(i, i % 3);
    const Variable x = LeafOf({3}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    Variable y = in[0];
                    for (int i = 0; i < 200; ++i) {
                      y = Tanh(y * random[(i * 7) % 40].NextDouble() + y);
                    }
                    return y;
                  },
                  {x}));
    for (int i = 0; i < 40; i += 2) random[i].NextU64();
    loss.Backward();
    Tensors found{loss.value(), x.grad()};
    for (Generator& one : random) found.push_back(NextOf(one));
    return found;
  });
}

TEST(CheckpointRandom, EveryWayToDraw) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4, 4}, 1);
    const Variable loss = Sum(Maybe(
        on,
        [&](In in) {
          Variable y = in[0] * (random.NextDouble() + 1);
          y = Tanh(y) * random.NextNormal();
          y = Tanh(y) * (1.0 + static_cast<double>(random.NextBelow(9)));
          y = Tanh(y) * (1.0 + static_cast<double>(random.NextU32() % 9));
          y = Tanh(y) * (1.0 + static_cast<double>(random.NextU64() % 9));
          y = Tanh(y) * Variable(Normal({4, 4}, 0, 1, random));
          y = IndexSelect(y, 0, Permutation(4, random));
          y = MaskedFill(Tanh(y), Bernoulli({4, 4}, 0.3, random), 0.5);
          y = IndexSelect(y, 0,
                          Multinomial(Tensor::Ones({4}), 4, true, random));
          return Gather(Exp(y), 1, Categorical(y.value(), random).View({4, 1}));
        },
        {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, GeneratorMadeInsideTheFunction) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [&](In in) {
                                      Variable y = in[0];
                                      for (int i = 0; i < 5; ++i) {
                                        Generator random(17 + i);
                                        y = Twist(y * Noise(random, y));
                                        const auto heap =
                                            std::make_unique<Generator>(3, i);
                                        y = Twist(y * Noise(*heap, y));
                                      }
                                      return y;
                                    },
                                    {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

// A copy repeats what the generator would have given ("Copy to repeat").
TEST(CheckpointRandom, CopyOfAGeneratorThatWentOnSinceGivesTheSameAgain) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [&](In in) {
                                      Generator copy = random;
                                      return Twist(in[0] * Noise(copy, in[0]));
                                    },
                                    {x}));
    random.Seek(500);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, CopyOfAGeneratorAfterDrawingFromItGivesTheSameAgain) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    const double scale = random.NextDouble();
                    Generator copy = random;
                    const Variable a =
                        Twist(in[0] * Noise(copy, in[0])) * scale;
                    return a * Noise(random, in[0]);
                  },
                  {x}));
    random.Seek(500);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, ForksAreTheSameAgain) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [&](In in) {
                                      Variable y = in[0];
                                      for (int i = 0; i < 4; ++i) {
                                        Generator child = random.Fork(i);
                                        y = Twist(y * Noise(child, y));
                                      }
                                      return y * Noise(random, y);
                                    },
                                    {x}));
    random.NextU64();
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

// "go on afterwards as if it had not" run again.
TEST(CheckpointRandom, GeneratorThatTheFunctionSeeksGoesOnAsWithout) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    random.Seek(64);
                    return Twist(in[0] * Noise(random, in[0]));
                  },
                  {x}));
    for (int i = 0; i < 10; ++i) random.NextU32();
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, GeneratorThatTheFunctionDrawsFromThenSeeks) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(on,
                                    [&](In in) {
                                      const Variable a = Noise(random, in[0]);
                                      random.Seek(64);
                                      const Variable b = Noise(random, in[0]);
                                      random.Seek(2);
                                      return Twist(in[0] * a) * b;
                                    },
                                    {x}));
    for (int i = 0; i < 10; ++i) random.NextU32();
    loss.Backward();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

TEST(CheckpointRandom, GeneratorThatTheFunctionAssignsGoesOnAsWithout) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [&](In in) {
                    random = Generator(99, 7);
                    return Twist(in[0] * Noise(random, in[0]));
                  },
                  {x}));
    for (int i = 0; i < 10; ++i) random.NextU32();
    random = Generator(1234);
    random.Seek(77);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), Place(random), NextOf(random)};
  });
}

// Between the passes the user gives the generator another seed.
TEST(CheckpointRandom, GeneratorThatTheUserAssignedSinceGivesTheSameAgain) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(
        on, [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
    random = Generator(6, 9);
    random.NextU32();
    loss.Backward();
    return Tensors{loss.value(), x.grad(), Place(random), NextOf(random)};
  });
}

TEST(CheckpointRandom, PartsInANestOfThree) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const OneFn inner = [&](In in) {
      return Twist(in[0] * Noise(random, in[0]));
    };
    const OneFn middle = [&, inner](In in) {
      const Variable a = Maybe(on, inner, {in[0] * Noise(random, in[0])});
      return Maybe(on, inner, {a}) * Noise(random, in[0]);
    };
    const Variable loss =
        Sum(Maybe(on,
                  [&, middle](In in) {
                    Variable y = in[0];
                    for (int i = 0; i < 3; ++i) {
                      y = Maybe(on, middle, {y}) + Noise(random, y);
                    }
                    return y;
                  },
                  {x}));
    const Tensor between = NextOf(random);
    loss.Backward();
    return Tensors{loss.value(), x.grad(), between, NextOf(random)};
  });
}

TEST(CheckpointRandom, RetainedGraphDrawsTheSameInEachPass) {
  Generator random(5);
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
  loss.Backward(Retained());
  const Tensor first = x.grad().Clone();
  for (int i = 0; i < 3; ++i) {
    random.NextU32();
    const uint64_t place = random.position();
    x.ClearGradient();
    loss.Backward(Retained());
    EXPECT_TRUE(SameBits(x.grad(), first)) << i;
    EXPECT_EQ(random.position(), place) << i;
  }
}

TEST(CheckpointRandom, FunctionThatThrowsAgainLeavesThePlaceAsItWas) {
  Generator random(5);
  const Variable x = LeafOf({4}, 1);
  bool fail = true;
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const Variable y = Twist(in[0] * Noise(random, in[0]));
        if (IsRecomputing() && fail) ThrowInvalidArgument("second");
        return y * Noise(random, in[0]);
      },
      {x}));
  random.Seek(321);
  EXPECT_THAT(StatusOf([&] { loss.Backward(Retained()); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "second"));
  EXPECT_EQ(random.position(), 321u);
  fail = false;
  x.ClearGradient();
  loss.Backward();
  EXPECT_EQ(random.position(), 321u);
  Generator same(5);
  const Variable again = LeafOf({4}, 1);
  const Variable y = Twist(again * Noise(same, again));
  Sum(y * Noise(same, again)).Backward();
  EXPECT_TRUE(SameBits(x.grad(), again.grad()));
}

TEST(CheckpointRandom, GeneratorThatEndedSinceIsNotTouched) {
  // The memory is used again for another generator, which must not move.
  alignas(Generator) unsigned char room[sizeof(Generator)];
  auto* first = new (room) Generator(5);
  const Variable x = LeafOf({4}, 1);
  Generator* current = first;
  const Variable loss = Sum(Checkpoint(
      [&](In in) { return Twist(in[0] * Noise(*current, in[0])); }, {x}));
  first->~Generator();
  auto* second = new (room) Generator(6);
  second->Seek(40);
  current = second;
  loss.Backward();
  EXPECT_EQ(second->position(), 40u);
  EXPECT_EQ(second->seed(), 6u);
  second->~Generator();
}

TEST(CheckpointRandom, DrawnOnAnotherThreadThanThePass) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(5);
    const Variable x = LeafOf({4}, 1);
    const Variable loss = Sum(Maybe(
        on, [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
    random.NextU32();
    std::thread([&] { loss.Backward(); }).join();
    return Tensors{loss.value(), x.grad(), NextOf(random)};
  });
}

// --- Observers of generators. ------------------------------------------------

class Counter : public GeneratorObserver {
 public:
  void OnDraw(Generator&) override { ++draws; }
  void OnEnd(const Generator&) override { ++ends; }
  int draws = 0;
  int ends = 0;
};

TEST(GeneratorObservers, SeeDrawsAndEndsOfTheirThreadOnly) {
  Counter counter;
  GeneratorObserver* const before = GeneratorObserver::Set(&counter);
  {
    Generator random(1);
    random.NextU32();
    EXPECT_GE(counter.draws, 1);
    const int seen = counter.draws;
    std::thread([] { Generator(2).NextU32(); }).join();
    EXPECT_EQ(counter.draws, seen);
    EXPECT_EQ(counter.ends, 0);
  }
  EXPECT_EQ(counter.ends, 1);
  EXPECT_EQ(GeneratorObserver::Set(before), &counter);
}

TEST(GeneratorObservers, OneOfTheUserIsBackAfterEachRun) {
  Counter counter;
  GeneratorObserver* const before = GeneratorObserver::Set(&counter);
  Generator random(5);
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x}));
  EXPECT_EQ(GeneratorObserver::Set(&counter), &counter);
  loss.Backward();
  EXPECT_EQ(GeneratorObserver::Set(&counter), &counter);
  EXPECT_ANY_THROW(Checkpoint(
      [&](In) -> Variable { throw std::runtime_error("early"); }, {x}));
  EXPECT_EQ(GeneratorObserver::Set(before), &counter);
}

TEST(GeneratorObservers, NoneIsLeftAfterARunThatThrew) {
  EXPECT_ANY_THROW(Checkpoint(
      [&](In) -> Variable {
        return Checkpoint(
            [](In) -> Variable { throw std::runtime_error("early"); }, {});
      },
      {LeafOf({4}, 1)}));
  EXPECT_EQ(GeneratorObserver::Set(nullptr), nullptr);
  EXPECT_FALSE(IsCheckpointing());
}

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

// --- Functions that are not the same again. ----------------------------------

struct Odd {
  const char* name;
  std::function<Variable(const Variable&)> again;
};
class FunctionThat : public ::testing::TestWithParam<Odd> {};

TEST_P(FunctionThat, IsNotTheSameAgainIsRefused) {
  for (const bool nested : {false, true}) {
    const Variable x = LeafOf({4}, 1);
    const OneFn odd = [](In in) {
      return IsRecomputing() ? GetParam().again(in[0]) : Sin(Exp(in[0]));
    };
    const OneFn outer = [odd](In in) { return Checkpoint(odd, {Cos(in[0])}); };
    const Variable loss = Sum(Checkpoint(nested ? outer : odd, {x}));
    EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
                StatusIs(kFailedPrecondition))
        << nested;
    EXPECT_FALSE(x.has_grad()) << nested;
    EXPECT_FALSE(IsCheckpointing());
    EXPECT_FALSE(IsRecomputing());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Again, FunctionThat,
    ::testing::Values(
        Odd{"SavesMore", [](const Variable& x) { return Cos(Sin(Exp(x))); }},
        Odd{"SavesLess", [](const Variable& x) { return Exp(x); }},
        Odd{"SavesNothing", [](const Variable& x) { return x + x; }},
        Odd{"SavesMoreElements",
            [](const Variable& x) {
              return Sin(Exp(Expand(Unsqueeze(x, 0), {3, 4})));
            }},
        Odd{"SavesFewerElements",
            [](const Variable& x) { return Sin(Exp(Slice(x, 0, 0, 2))); }},
        Odd{"SavesTheSameElementsInAnotherShape",
            [](const Variable& x) {
              return Sin(Exp(Reshape(x, {2, 2})));
            }},
        Odd{"SavesAnotherDType",
            [](const Variable& x) {
              return Cast(Sin(Exp(Cast(x, DType::kF64))), DType::kF32);
            }},
        Odd{"ReturnsNothing", [](const Variable&) { return Variable(); }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointAgain, OtherNumberOfResultsWithTheSameInsideDoesNotCrash) {
  const Variable x = LeafOf({4}, 1);
  const std::vector<Variable> y = Checkpoint(
      [](In in) {
        const Variable a = Sin(Exp(in[0]));
        return IsRecomputing() ? std::vector<Variable>()
                               : std::vector<Variable>{a, a};
      },
      {x});
  const absl::Status status = StatusOf([&] { Sum(y[0]).Backward(); });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
    return;
  }
  const Variable same = LeafOf({4}, 1);
  Sum(Sin(Exp(same))).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointAgain, OtherInnerPartsThanAtFirstAreRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable loss = Sum(Checkpoint(
      [](In in) {
        Variable y = Checkpoint(TwistIn, {in[0]});
        if (IsRecomputing()) y = Checkpoint(TwistIn, {y});
        return Exp(y);
      },
      {x}));
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

TEST(CheckpointAgain, AnotherLeafThanAtFirstIsRefused) {
  const Variable x = LeafOf({4}, 1);
  const Variable a = LeafOf({4}, 2);
  const Variable b = LeafOf({4}, 3);
  const Variable loss = Sum(Checkpoint(
      [&](In in) { return Twist(in[0] * (IsRecomputing() ? b : a)); }, {x}));
  // "the leaves that it uses are proven to be the same".
  EXPECT_THAT(StatusOf([&] { loss.Backward(); }),
              StatusIs(kFailedPrecondition));
}

// --- Exceptions. -------------------------------------------------------------

struct Thrown {
  const char* name;
  std::function<void()> run;
  absl::StatusCode code;
  const char* words;
};
class FunctionThatThrows : public ::testing::TestWithParam<Thrown> {};

TEST_P(FunctionThatThrows, AgainEndsThePassWithThatUnderTheOperationsName) {
  for (const bool nested : {false, true}) {
    bool fails = true;
    const Variable x = LeafOf({4}, 1);
    const OneFn throws = [&](In in) {
      const Variable a = Exp(in[0]);
      if (IsRecomputing() && fails) GetParam().run();
      return Sin(a);
    };
    const OneFn outer = [&](In in) {
      return Tanh(Checkpoint(throws, {Cos(in[0])}));
    };
    const Variable loss = Sum(Checkpoint(nested ? outer : throws, {x}));
    for (int i = 0; i < 3; ++i) {
      const absl::Status status = StatusOf([&] { loss.Backward(Retained()); });
      EXPECT_THAT(status, StatusIs(GetParam().code, GetParam().words));
      EXPECT_THAT(status, StatusIs(GetParam().code, nested ? "Tanh" : "Sin"));
      EXPECT_FALSE(IsCheckpointing());
      EXPECT_FALSE(IsRecomputing());
      EXPECT_FALSE(NoGradScope::IsOpen());
    }
    // "a graph that was retained can be run again".
    fails = false;
    x.ClearGradient();
    EXPECT_THAT(StatusOf([&] { loss.Backward(Retained()); }), IsOk());
    const Variable same = LeafOf({4}, 1);
    const Variable inner = nested ? Cos(same) : same;
    const Variable y = Sin(Exp(inner));
    Sum(nested ? Tanh(y) : y).Backward();
    EXPECT_TRUE(SameBits(x.grad(), same.grad()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FunctionThatThrows,
    ::testing::Values(
        Thrown{"RuntimeError", [] { throw std::runtime_error("user's words"); },
               absl::StatusCode::kInternal, "user's words"},
        Thrown{"Number", [] { throw 7; }, absl::StatusCode::kInternal, ""},
        Thrown{"OutOfMemory", [] { throw std::bad_alloc(); },
               absl::StatusCode::kResourceExhausted, ""},
        Thrown{"WeftError",
               [] { throw Error(absl::DataLossError("lost on disk")); },
               absl::StatusCode::kDataLoss, "lost on disk"},
        Thrown{"WrongShape",
               [] {
                 (void)MatMul(LeafOf({2, 3}, 1), LeafOf({2, 3}, 1));
               },
               absl::StatusCode::kInvalidArgument, ""}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointThrows, ForwardWhatTheFunctionThrowsAndNothingStaysOpen) {
  struct Own {};
  const Variable x = LeafOf({4}, 1);
  EXPECT_THROW(Checkpoint([](In) -> Variable { throw Own(); }, {x}), Own);
  EXPECT_THROW(Checkpoint(
                   [](In in) {
                     return Checkpoint(
                         [](In inner) -> Variable {
                           (void)Twist(inner[0]);
                           throw Own();
                         },
                         in);
                   },
                   {x}),
               Own);
  EXPECT_FALSE(IsCheckpointing());
  // What is recorded now keeps its tensors as ever.
  const Variable loss = Sum(Twist(x));
  loss.Backward();
  const Variable same = LeafOf({4}, 1);
  Sum(Twist(same)).Backward();
  EXPECT_TRUE(SameBits(x.grad(), same.grad()));
}

TEST(CheckpointThrows, InnerFailureThatTheOuterCatchesBothTimes) {
  ExpectSameWithAndWithout([](bool on) {
    const Variable x = LeafOf({4}, 1);
    const Variable loss =
        Sum(Maybe(on,
                  [on](In in) {
                    Variable y = Exp(in[0]);
                    try {
                      y = Maybe(on,
                                [](In inner) -> Variable {
                                  (void)Twist(inner[0]);
                                  throw std::runtime_error("no");
                                },
                                {y});
                    } catch (const std::runtime_error&) {
                      y = Sin(y);
                    }
                    return y;
                  },
                  {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad()};
  });
}

// A part behind the one that failed has had its gradient or not; a second pass
// is right all the same.
TEST(CheckpointThrows, PartInTheMiddleOfAChainFailsOnceThenThePassIsRight) {
  bool fails = true;
  const Variable x = LeafOf({4}, 1);
  const Variable w = LeafOf({4}, 2);
  Variable y = x;
  for (int i = 0; i < 5; ++i) {
    y = Checkpoint(
        [&, i](In in) {
          if (IsRecomputing() && i == 2 && fails) {
            throw std::runtime_error("middle");
          }
          return Twist(in[0] * w);
        },
        {y});
  }
  const Variable loss = Sum(y);
  EXPECT_THAT(StatusOf([&] { loss.Backward(Retained()); }),
              StatusIs(absl::StatusCode::kInternal, "middle"));
  fails = false;
  x.ClearGradient();
  w.ClearGradient();
  loss.Backward();
  const Variable x2 = LeafOf({4}, 1);
  const Variable w2 = LeafOf({4}, 2);
  y = x2;
  for (int i = 0; i < 5; ++i) y = Twist(y * w2);
  Sum(y).Backward();
  EXPECT_TRUE(SameBits(x.grad(), x2.grad()));
  EXPECT_TRUE(SameBits(w.grad(), w2.grad()));
}

// --- Threads. ----------------------------------------------------------------

TEST(CheckpointThreads, EachWithItsOwnGraph) {
  const Variable same = LeafOf({8}, 1);
  Variable y = same;
  for (int i = 0; i < 20; ++i) y = Twist(y);
  Sum(y).Backward();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        const Variable x = LeafOf({8}, 1);
        Variable z = x;
        for (int i = 0; i < 20; ++i) z = Checkpoint(TwistIn, {z});
        Sum(z).Backward();
        EXPECT_TRUE(SameBits(x.grad(), same.grad()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CheckpointThreads, OneRetainedGraphOnSeveralAtOnce) {
  // "tasks that retain it share them" (graph_task.h).
  const Variable x = LeafOf({8}, 1);
  Variable y = x;
  for (int i = 0; i < 10; ++i) y = Checkpoint(TwistIn, {y});
  const Variable loss = Sum(y);
  const Variable same = LeafOf({8}, 1);
  Variable z = same;
  for (int i = 0; i < 10; ++i) z = Twist(z);
  Sum(z).Backward();
  for (int round = 0; round < 20; ++round) {
    x.ClearGradient();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        EXPECT_THAT(StatusOf([&] { loss.Backward(Retained()); }), IsOk());
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Variable sum = LeafOf({8}, 1);
    Tensor wanted = same.grad().Clone();
    for (int t = 1; t < 4; ++t) {
      wanted = (Variable(wanted) + Variable(same.grad())).value();
    }
    ASSERT_TRUE(SameBits(x.grad(), wanted)) << round;
  }
}

TEST(CheckpointThreads, GraphOfOneThreadEndsOnAnother) {
  const Variable x = LeafOf({8}, 1);
  Generator random(3);
  for (int round = 0; round < 20; ++round) {
    Variable y = Checkpoint(
        [&](In in) { return Twist(in[0] * Noise(random, in[0])); }, {x});
    std::thread([y = std::move(y), round]() mutable {
      if (round % 2 == 0) Sum(y).Backward();
      y = Variable();
    }).join();
  }
}

}  // namespace
}  // namespace weft::outside
