// What checkpoint.h says of functions that are not the same again, that throw,
// and that run on several threads.

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --- Functions that are not the same again. ----------------------------------

struct Odd {
  const char* name;
  std::function<Variable(const Variable&)> again;
};
class FunctionThat : public ::testing::TestWithParam<Odd> {};

TEST_P(FunctionThat, GivesOtherResultsInTheSecondRunIsRefused) {
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
