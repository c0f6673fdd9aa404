// What checkpoint.h says of the second run: the same random numbers.

#include "weft/tensor/random.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::StatusIs;

Tensor Place(const Generator& random) {
  return Tensor::FromVector<int64_t>({static_cast<int64_t>(random.seed()),
                                      static_cast<int64_t>(random.stream()),
                                      static_cast<int64_t>(random.position())});
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

}  // namespace
}  // namespace weft::outside
