// The options of a pass: FAST mode, a lineage that is shortened, the deadline
// and its report, and the deterministic order of sums.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/rpc/call.h"

namespace weft::dist_autograd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// The timeout of a pass that is to time out. Long enough for all workers to
// have begun.
constexpr absl::Duration kShort = absl::Seconds(2);

// What the hooks of one worker do: see Multiply.
struct HookSwitch {
  std::function<void(double)> on_gradient;  // set before the pass
};

Variable Double(const Variable& x) { return Add(x, x); }
WEFT_RPC(Double);

// x * factor; the gradient of the result goes through on_gradient.
Variable Multiply(rpc::CallContext& call, const Variable& x, double factor) {
  Variable y = Mul(x, Scalar(factor, /*requires_grad=*/false));
  const std::shared_ptr<HookSwitch> on = call.agent().Local<HookSwitch>();
  if (on != nullptr) {
    y.AddHook([on, factor](weft::Gradient g) -> weft::Gradient {
      if (on->on_gradient) on->on_gradient(factor);
      return g;
    });
  }
  return y;
}
WEFT_RPC(Multiply);

Variable DoubleElsewhere(rpc::CallContext& call, const std::string& where,
                         const Variable& x) {
  const Scope scope = Scope::Within(call).value();
  return scope.Call(call.agent().To(where), Double, x).value();
}
WEFT_RPC(DoubleElsewhere);

PassOptions Fast(absl::Duration timeout = testing::kPatience) {
  PassOptions options;
  options.mode = PassMode::kFast;
  options.timeout = timeout;
  return options;
}

template <typename Matcher>
void ExpectDeadline(const absl::Status& status, const Matcher& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), message);
}

class PassModesTest : public PassFixture {};

TEST_F(PassModesTest, FastEqualsSmartWhereEveryMessageIsUsed) {
  for (const PassMode mode : {PassMode::kSmart, PassMode::kFast}) {
    const Variable x = Scalar(3.0);
    const Scope scope(*contexts_[0]);
    Variable y =
        scope.Call(To(1), DoubleElsewhere, std::string("w2"), x).value();
    y = Mul(scope.Call(To(3), Double, y).value(), y);  // 4x * 2x
    PassOptions options;
    options.mode = mode;
    const Result<PassReport> report =
        scope.BackwardAsync({y}, options).Wait(testing::kPatience);
    ASSERT_THAT(report.status(), IsOk());
    EXPECT_EQ(report->participants, 4);
    EXPECT_EQ(report->live_messages, 6u);
    EXPECT_THAT(report->fast_participants, IsEmpty());
    EXPECT_EQ(Value(scope.GradientOf(x)), 48.0);
  }
}

TEST_F(PassModesTest, FastWithAnUnusedResultNamesTheMessageAtItsDeadline) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Double, x).value();
  ASSERT_THAT(scope.Call(To(1), Multiply, y, 2.0), IsOk());  // is not used
  ExpectDeadline(
      scope.Backward(y, Fast(kShort)),
      AllOf(HasSubstr("worker w1 waits for the gradients of message 1 (the "
                      "result of "),
            HasSubstr("the gradients of message 2 (the result of "),
            HasSubstr("Multiply to w0)"),
            HasSubstr("worker w0 waits for the gradients of message 1 (the "
                      "arguments of "),
            HasSubstr("PassMode::kSmart")));
  EXPECT_FALSE(scope.GradientOf(x).defined());
  // Nothing is left of the failed pass: the same pass by SMART succeeds.
  ASSERT_THAT(scope.Backward(y), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

TEST_F(PassModesTest, FastOfALossWithoutRemoteValuesWaitsForUnusedMessages) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  ASSERT_THAT(scope.Call(To(1), Double, x), IsOk());
  const Variable loss = Mul(x, x);
  // No participant but the root: its own timer ends the pass.
  EXPECT_THAT(scope.Backward(loss, Fast(kShort)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "worker w0 waits for the gradients of message 1"));
  ASSERT_THAT(scope.Backward(loss), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
}

TEST_F(PassModesTest, DeadlineOfASmartPassNamesWorkersStillComputing) {
  const auto on = std::make_shared<HookSwitch>();
  absl::Notification hold;
  on->on_gradient = [&hold](double) { hold.WaitForNotification(); };
  ranks_[1].SetLocal(on);
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Multiply, x, 2.0).value();
  PassOptions options;
  options.timeout = kShort;
  const Future<PassReport> pass = scope.BackwardAsync({y}, options);
  // Worker 1 cannot answer: its strand runs the hook.
  absl::SleepFor(kShort + absl::Seconds(2) + kShort);
  hold.Notify();
  ExpectDeadline(
      pass.Wait(testing::kPatience).status(),
      AllOf(HasSubstr("worker w0 waits for the gradients of message 1"),
            HasSubstr("worker w1 ")));
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

TEST_F(PassModesTest, CancelledPassChangesNoGradient) {
  const auto on = std::make_shared<HookSwitch>();
  absl::Notification began, hold;
  on->on_gradient = [&](double) {
    began.Notify();
    hold.WaitForNotification();
  };
  ranks_[1].SetLocal(on);
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Multiply, x, 2.0).value();
  const Future<PassReport> pass = scope.BackwardAsync({y});
  began.WaitForNotification();
  pass.Cancel(absl::CancelledError("not wanted any more"));
  EXPECT_THAT(pass.Wait(testing::kPatience).status(),
              StatusIs(absl::StatusCode::kCancelled, "not wanted"));
  hold.Notify();
  EXPECT_TRUE(testing::Becomes([&] {
    return contexts_[0]->counts().passes + contexts_[1]->counts().passes == 0;
  }));
  on->on_gradient = nullptr;  // nobody runs it any more
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

TEST_F(PassModesTest, TimeoutThatIsNotPositiveIsRefused) {
  const Scope scope(*contexts_[0]);
  PassOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(scope.BackwardAsync({Scalar(1.0)}, options)
                  .Wait(testing::kPatience)
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "timeout"));
}

// ------------------------------------------------------------ lineage

ContextsOptions FewIntervals(size_t most) {
  ContextsOptions options;
  options.max_lineage_intervals = most;
  return options;
}

class ShortLineageTest : public PassFixture {
 protected:
  ShortLineageTest() : PassFixture(3, FewIntervals(3)) {}

  // Uses every second of the results of worker 1: their numbers have gaps.
  Variable SumOfSome(const Scope& scope, const Variable& x, bool use_all) {
    Variable sum = Scalar(0.0, false);
    for (int i = 0; i < 8; ++i) {
      const Variable y = scope.Call(To(1), Double, x).value();
      if (use_all || i % 2 == 0) sum = Add(sum, y);
    }
    return sum;
  }
};

TEST_F(ShortLineageTest, OverflowWithUnusedResultsFallsBackToFastAndSaysSo) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable sum = SumOfSome(scope, x, /*use_all=*/false);
  PassOptions options;
  options.timeout = kShort;
  ExpectDeadline(scope.Backward(sum, options),
                 AllOf(HasSubstr("waits for the gradients of message 2"),
                       HasSubstr("max_lineage_intervals")));
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

TEST_F(ShortLineageTest, OverflowWhereAllIsUsedEndsWellAndTheReportSaysSo) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  // Every second result first: the lineage of that sum has gaps, and is
  // shortened before the rest fills them.
  Variable sum = Scalar(0.0, false);
  std::vector<Variable> rest;
  for (int i = 0; i < 8; ++i) {
    Variable y = scope.Call(To(1), Double, x).value();
    if (i % 2 == 0) {
      sum = Add(sum, y);
    } else {
      rest.push_back(std::move(y));
    }
  }
  for (const Variable& y : rest) sum = Add(sum, y);
  const Result<PassReport> report =
      scope.BackwardAsync({sum}).Wait(testing::kPatience);
  ASSERT_THAT(report.status(), IsOk());
  EXPECT_THAT(report->fast_participants, ElementsAre("w0", "w1"));
  EXPECT_EQ(Value(scope.GradientOf(x)), 16.0);
}

TEST_F(ShortLineageTest, LineageWithoutGapsIsNotShortened) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable sum = SumOfSome(scope, x, /*use_all=*/true);
  ASSERT_THAT(scope.Call(To(2), Double, x), IsOk());  // is not used
  const Result<PassReport> report =
      scope.BackwardAsync({sum}).Wait(testing::kPatience);
  ASSERT_THAT(report.status(), IsOk());
  EXPECT_THAT(report->fast_participants, IsEmpty());
  EXPECT_EQ(report->live_messages, 16u);
}

// ------------------------------------------------------------ sums

uint64_t Bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The gradient of x, of which three calls used it; worker 1, 2 or 3 holds its
// gradients back until the other two are at worker 0.
double GradientWithLast(rpc::Ranks& ranks, Contexts& contexts, int last) {
  std::vector<std::shared_ptr<HookSwitch>> switches;
  std::atomic<int> passed{0};
  absl::Notification others_passed;
  for (int worker = 1; worker <= 3; ++worker) {
    switches.push_back(std::make_shared<HookSwitch>());
    switches.back()->on_gradient = [&, worker](double) {
      if (worker == last) {
        others_passed.WaitForNotification();
        // Their gradients are on the way to worker 0, and shorter than this.
        absl::SleepFor(absl::Milliseconds(50));
      } else if (++passed == 2) {
        others_passed.Notify();
      }
    };
    ranks[worker].SetLocal(switches.back());
  }
  // Not exact: the sum of three depends on its order.
  const double factors[] = {0.1, 0.2, 0.3};
  const Variable x = Scalar(1.0);
  const Scope scope(contexts);
  Variable sum = Scalar(0.0, false);
  for (int worker = 1; worker <= 3; ++worker) {
    sum = Add(sum, scope
                       .Call(ranks[0].To(absl::StrCat("w", worker)), Multiply,
                             x, factors[worker - 1])
                       .value());
  }
  PassOptions options;
  options.deterministic = true;
  EXPECT_THAT(scope.Backward(sum, options), IsOk());
  return Value(scope.GradientOf(x));
}

TEST_F(PassModesTest, DeterministicPassGivesTheSameBitsInEveryOrderOfArrival) {
  for (const int last : {1, 2, 3}) {
    EXPECT_EQ(Bits(GradientWithLast(ranks_, *contexts_[0], last)),
              Bits((0.1 + 0.2) + 0.3))
        << "last: w" << last;
  }
}

}  // namespace
}  // namespace weft::dist_autograd
