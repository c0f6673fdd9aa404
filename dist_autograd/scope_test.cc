#include "weft/dist_autograd/scope.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/recording.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// One scalar weight at a worker.
class Scaler {
 public:
  explicit Scaler(double w)
      : w_(Tensor::Full({}, w, DType::kF64), /*requires_grad=*/true) {}
  Variable Scale(const Variable& x) { return Mul(x, w_); }
  // The gradient that the context of the caller holds here, 0 if there is none,
  // and whether there is one.
  std::vector<double> Gradient(rpc::CallContext& call, const ContextId& id) {
    const weft::Gradient g = GradientOf(call, id, w_).value();
    if (!g.defined()) return {};
    return {g.ToDense().item<double>()};
  }

 private:
  Variable w_;
};
WEFT_RPC_CLASS(Scaler, double);
WEFT_RPC_METHOD(Scaler, Scale);
WEFT_RPC_METHOD(Scaler, Gradient);

Variable Square2(const Variable& x) { return Mul(x, x); }
WEFT_RPC(Square2);

// Scales by the object of a third worker: a nested recorded call.
Variable ScaleElsewhere(rpc::CallContext& call, const rref::RRef<Scaler>& s,
                        const Variable& x) {
  const Scope scope = Scope::Within(call).value();
  return Add(scope.Call(s, &Scaler::Scale, x).value(), x);
}
WEFT_RPC(ScaleElsewhere);

Variable Throws(const Variable& x) {
  Variable y = Mul(x, x);
  y.AddHook([](weft::Gradient) -> weft::Gradient {
    throw Error(absl::InternalError("a hook that fails"));
  });
  return y;
}
WEFT_RPC(Throws);

Variable Scalar(double x, bool requires_grad = true) {
  return Variable(Tensor::Full({}, x, DType::kF64), requires_grad);
}
double Value(const weft::Gradient& g) { return g.ToDense().item<double>(); }

class DistAutogradTest : public ::testing::Test {
 protected:
  DistAutogradTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(Contexts::Open(ranks_[i]).value());
    }
  }
  ~DistAutogradTest() override {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(testing::Becomes([&] {
        const Contexts::Counts c = contexts_[i]->counts();
        return c.contexts == 0 && c.passes == 0;
      })) << "w"
          << i << " has contexts left";
    }
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
  }
  rpc::Target To(int rank) { return ranks_[0].To(absl::StrCat("w", rank)); }
  rref::RRef<Scaler> MakeScaler(int rank, double w) {
    return rref::Make<Scaler>(To(rank), w).value();
  }
  std::vector<double> GradientAt(const rref::RRef<Scaler>& s,
                                 const Scope& scope) {
    return rref::Call(s, &Scaler::Gradient, scope.id()).value();
  }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<Contexts>> contexts_;
};

TEST_F(DistAutogradTest, GradientsReachLeavesOnTwoWorkers) {
  const auto scaler = MakeScaler(1, 3.0);
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(scaler, &Scaler::Scale, x).value();
  const Variable loss = Mul(y, y);  // (3x)^2
  EXPECT_EQ(loss.value().item<double>(), 225.0);
  ASSERT_THAT(scope.Backward(loss), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 90.0);  // 2 * 9 * 5
  EXPECT_EQ(GradientAt(scaler, scope), std::vector<double>{150.0});
  EXPECT_FALSE(x.has_grad());
}

TEST_F(DistAutogradTest, UnusedResultCostsNoMessageAndBlocksNoPass) {
  const auto used = MakeScaler(1, 3.0);
  const auto unused = MakeScaler(2, 7.0);
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(used, &Scaler::Scale, x).value();
  ASSERT_THAT(scope.Call(unused, &Scaler::Scale, x).status(), IsOk());
  const auto report = scope.BackwardAsync({y}).Wait(absl::Seconds(30));
  ASSERT_THAT(report.status(), IsOk());
  EXPECT_EQ(report->participants, 2);
  EXPECT_EQ(report->live_messages, 2u);
  EXPECT_EQ(Value(scope.GradientOf(x)), 3.0);
  EXPECT_EQ(GradientAt(used, scope), std::vector<double>{5.0});
  EXPECT_TRUE(GradientAt(unused, scope).empty());  // absent, not zero
}

TEST_F(DistAutogradTest, NestedCallSpansThreeWorkers) {
  const auto scaler = MakeScaler(2, 3.0);
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), ScaleElsewhere, scaler, x).value();
  EXPECT_EQ(y.value().item<double>(), 20.0);
  const auto report = scope.BackwardAsync({y}).Wait(absl::Seconds(30));
  ASSERT_THAT(report.status(), IsOk());
  EXPECT_EQ(report->participants, 3);
  EXPECT_EQ(Value(scope.GradientOf(x)), 4.0);
  EXPECT_EQ(GradientAt(scaler, scope), std::vector<double>{5.0});
}

TEST_F(DistAutogradTest, PingPongOfAHundredCallsEqualsLocal) {
  const Variable x = Scalar(1.01);
  const Scope scope(*contexts_[0]);
  Variable y = x;
  Variable local = Scalar(1.01);
  Variable z = local;
  for (int i = 0; i < 100; ++i) {
    y = Add(scope.Call(To(1 + i % 2), Square2, y).value(),
            Scalar(-0.01 * i, false));
    y = Mul(y, Scalar(0.5, false));
    z = Mul(Add(Mul(z, z), Scalar(-0.01 * i, false)), Scalar(0.5, false));
  }
  ASSERT_THAT(scope.Backward(y), IsOk());
  z.Backward();
  EXPECT_EQ(Value(scope.GradientOf(x)), Value(local.gradient()));
}

TEST_F(DistAutogradTest, RemoteResultIsFetchedWithItsHistory) {
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const auto kept = rref::Remote(scope.Recorded(To(1)), Square2, x);
  ASSERT_THAT(kept.status(), IsOk());
  const Variable y = scope.Fetch(*kept).value();
  ASSERT_THAT(scope.Fetch(*kept).status(), IsOk());  // and is not used
  ASSERT_THAT(scope.Backward(y), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 10.0);
}

// Made there once the test says so.
std::atomic<bool> may_be_made{false};
Variable MakeSlowly(double x) {
  EXPECT_TRUE(testing::Becomes([] { return may_be_made.load(); }));
  return Scalar(x);
}
WEFT_RPC(MakeSlowly);
class SlowScaler : public Scaler {
 public:
  explicit SlowScaler(double w) : Scaler(w) {
    EXPECT_TRUE(testing::Becomes([] { return may_be_made.load(); }));
  }
  Variable ScaleIt(const Variable& x) { return Scale(x); }
};
WEFT_RPC_CLASS(SlowScaler, double);
WEFT_RPC_METHOD(SlowScaler, ScaleIt);

TEST_F(DistAutogradTest, RecordedCallsOfAnObjectStillBeingMadeWaitForIt) {
  may_be_made = false;
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const auto scaler = rref::BeginMake<SlowScaler>(To(1), 3.0);
  ASSERT_THAT(scaler.status(), IsOk());
  const auto scaled = scope.CallAsync(*scaler, &SlowScaler::ScaleIt, x);
  const auto value = rref::BeginRemote(To(2), MakeSlowly, 5.0);
  ASSERT_THAT(value.status(), IsOk());
  const auto fetched = scope.FetchAsync(*value);
  EXPECT_FALSE(scaled.IsReady());
  EXPECT_FALSE(fetched.IsReady());
  may_be_made = true;
  const auto y = scaled.Wait(testing::kPatience);
  ASSERT_THAT(y.status(), IsOk());
  const auto z = fetched.Wait(testing::kPatience);
  ASSERT_THAT(z.status(), IsOk());
  EXPECT_THAT(scope.Fetch(*value).status(), IsOk());
  EXPECT_THAT(scope.Call(*scaler, &SlowScaler::ScaleIt, x).status(), IsOk());
  // The calls were recorded, too.
  ASSERT_THAT(scope.Backward(Mul(*y, *z)), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 15.0);
}

TEST_F(DistAutogradTest, RecordedCallsOfAFailedCreationEndWithItsError) {
  const Scope scope(*contexts_[0]);
  const auto value = rref::BeginRemote(To(1), Throws, Scalar(1.0, false));
  ASSERT_THAT(value.status(), IsOk());
  may_be_made = false;
  const auto never = rref::BeginRemote(
      To(1).WithTimeout(absl::Milliseconds(50)), MakeSlowly, 5.0);
  ASSERT_THAT(never.status(), IsOk());
  EXPECT_THAT(scope.Fetch(*never).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  may_be_made = true;
}

// Also one that a peer has sent.
Variable ScaleByWhatCame(rpc::CallContext& call, const rref::RRef<Scaler>& s,
                         const Variable& x) {
  const Scope scope = Scope::Within(call).value();
  const auto y = scope.Call(s, &Scaler::Scale, x);
  ThrowIfError(y.status());
  return *y;
}
WEFT_RPC(ScaleByWhatCame);

TEST_F(DistAutogradTest, EmptyReferencesAreRefused) {
  const Scope scope(*contexts_[0]);
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef");
  const rref::RRef<Scaler> empty;
  EXPECT_THAT(scope.Call(empty, &Scaler::Scale, Scalar(1.0)).status(), refused);
  EXPECT_THAT(scope.CallAsync(empty, &Scaler::Scale, Scalar(1.0))
                  .Wait(testing::kPatience)
                  .status(),
              refused);
  EXPECT_THAT(scope.Fetch(rref::RRef<Variable>()).status(), refused);
  EXPECT_THAT(scope.Call(To(1), ScaleByWhatCame, empty, Scalar(1.0)).status(),
              refused);
}

TEST_F(DistAutogradTest, TwoPassesWithRetainAddUp) {
  const auto scaler = MakeScaler(1, 3.0);
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(scaler, &Scaler::Scale, x).value();
  PassOptions retain;
  retain.retain_graph = true;
  ASSERT_THAT(scope.Backward(y, retain), IsOk());
  ASSERT_THAT(scope.Backward(y), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
  EXPECT_EQ(GradientAt(scaler, scope), std::vector<double>{10.0});
  EXPECT_THAT(scope.Backward(y),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(DistAutogradTest, FailureInANodeLeavesAllGradientsAsTheyWere) {
  const auto scaler = MakeScaler(2, 3.0);
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(scaler, &Scaler::Scale, x).value();
  const Variable bad = scope.Call(To(1), Throws, y).value();
  EXPECT_THAT(scope.Backward(bad),
              StatusIs(absl::StatusCode::kInternal, "a hook that fails"));
  EXPECT_FALSE(scope.GradientOf(x).defined());
  EXPECT_TRUE(GradientAt(scaler, scope).empty());
  // What the failed pass did not consume can be used again.
  ASSERT_THAT(scope.Backward(y), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 3.0);
}

TEST_F(DistAutogradTest, PassOverTheGraphOfADeadWorkerIsRefused) {
  const Variable x = Scalar(5.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Square2, x).value();
  ranks_[0].PeerGone({1, 1}, "killed");
  EXPECT_THAT(scope.Backward(y),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is lost"));
  EXPECT_FALSE(scope.GradientOf(x).defined());
  ranks_[1].PeerGone({0, 1}, "killed");
}

TEST_F(DistAutogradTest, WrongRootsAreRefused) {
  const Scope scope(*contexts_[0]);
  EXPECT_THAT(scope.Backward(Scalar(1.0, false)),
              StatusIs(absl::StatusCode::kInvalidArgument, "no gradient"));
  const Variable v(Tensor::Ones({2}, DType::kF64), true);
  EXPECT_THAT(scope.Backward(v),
              StatusIs(absl::StatusCode::kInvalidArgument, "seeds"));
  PassOptions options;
  options.seeds = {Tensor::Full({2}, 2.0, DType::kF64)};
  ASSERT_THAT(scope.Backward(v, options), IsOk());
}

TEST_F(DistAutogradTest, VariableOutsideOfARecordedCallIsRefused) {
  EXPECT_THAT(rpc::Call(To(1), Square2, Scalar(1.0)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "recorded"));
  EXPECT_THAT(rpc::Call(To(1), Square2, Scalar(3.0, false)).status(), IsOk());
}

TEST_F(DistAutogradTest, LocalBackwardThroughAReceivedValueNamesTheRightCall) {
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Square2, Scalar(3.0)).value();
  EXPECT_THAT(
      weft::Backward({y}, {weft::Gradient(Tensor::Full({}, 1.0, DType::kF64))}),
      StatusIs(absl::StatusCode::kFailedPrecondition, "Scope::Backward"));
}

TEST_F(DistAutogradTest, ValueOfAnotherContextIsRefused) {
  const Scope first(*contexts_[0]);
  const Variable y = first.Call(To(1), Square2, Scalar(3.0)).value();
  const Scope second(*contexts_[0]);
  EXPECT_THAT(second.Backward(y),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Detach"));
}

TEST_F(DistAutogradTest, ReleaseBeforeARecordedCallRefusesTheCall) {
  const Scope scope(*contexts_[0]);
  ASSERT_THAT(rpc::Call(To(1), internal::ReleaseContext, scope.id()), IsOk());
  EXPECT_THAT(scope.Call(To(1), Square2, Scalar(3.0)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
  EXPECT_EQ(contexts_[1]->counts().contexts, 0);
}

TEST_F(DistAutogradTest, RecordedCallInAContextOfADeadWorkerIsRefused) {
  const Scope scope(*contexts_[0]);
  // Worker 1 takes part and makes a call of its own once worker 0 is gone.
  ranks_[2].PeerGone({0, 1}, "killed");
  ASSERT_THAT(scope.Call(To(1), Square2, Scalar(3.0)).status(), IsOk());
  const auto context = contexts_[1]->Find(scope.id()).value();
  const Variable x = Scalar(2.0);
  const auto refused = rpc::Call(
      ranks_[1].To("w2").WithAttachment(Contexts::kKind,
                                        [&](const rpc::CodecContext& message) {
                                          return StageRequest(context,
                                                              message.peer, "");
                                        }),
      Square2, x);
  EXPECT_THAT(refused.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is gone"));
  EXPECT_EQ(contexts_[2]->counts().contexts, 0);
  ranks_[0].PeerGone({2, 1}, "killed");
}

TEST_F(DistAutogradTest, BackwardInAReleasedContextIsRefused) {
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Square2, Scalar(3.0)).value();
  contexts_[0]->Release(scope.id());
  EXPECT_THAT(scope.Backward(y),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
}

}  // namespace
}  // namespace weft::dist_autograd
