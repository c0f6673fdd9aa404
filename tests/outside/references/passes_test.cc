// Recorded passes, remote modules and the distributed optimizer at the edges of
// what dist_autograd/scope.h and optimizer/distributed_optimizer.h promise.

#include "weft/tests/outside/references/passes.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/optimizer.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::optimizer::DistributedOptimizer;
using ::weft::optimizer::SgdOptions;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class Late : public nn::Module {
 public:
  explicit Late(double scale) {
    w_ = AddParameter("w", Weights(2, 2, scale));
    WaitHere();
  }
  Variable Forward(const Variable& x) { return MatMul(x, w_); }

 private:
  Variable w_;
};
WEFT_RPC_MODULE(Late, double);

Variable Square1(const Variable& x) { return Mul(x, x); }
WEFT_RPC(Square1);

Variable SlowBackward(const Variable& x) {
  Variable y = Mul(x, x);
  y.AddHook([](const weft::Gradient& g) {
    WaitHere();
    return g;
  });
  return y;
}
WEFT_RPC(SlowBackward);

// Uses whatever modules it is given within the pass of its caller.
std::vector<std::string> UseModules(
    rpc::CallContext& call, const std::vector<RemoteModule<Natural>>& modules,
    const rref::RRef<Natural>& alone) {
  const Scope scope = Scope::Within(call).value();
  const Variable x(Weights(2, 4, 1.0));
  std::vector<std::string> found;
  const auto note = [&](const absl::Status& status) {
    found.push_back(absl::StatusCodeToString(status.code()));
  };
  for (const auto& module : modules) note(module.Forward(scope, x).status());
  note(scope.Call(alone, &Natural::Forward, x).status());
  note(scope.CallAsync(alone, &Natural::Forward, x).Wait(kLong).status());
  note(scope.Fetch(rref::RRef<Variable>()).status());
  note(ValueOf(rref::RRef<Variable>()).status());
  return found;
}
WEFT_RPC(UseModules);

// ---- Controls of somebody else's context and pass.

TEST_F(Passes, NobodyElseEndsOrStepsIntoAPass) {
  const Scope scope(*contexts_[0]);
  const Variable x = Scalar(3.0);
  const Variable y = scope.Call(From(0, 1), SlowBackward, x).value();
  PassOptions options;
  options.timeout = kLong;
  const Future<PassReport> pass =
      scope.BackwardAsync(absl::MakeConstSpan(&y, 1), options);
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  const auto denied = StatusIs(absl::StatusCode::kPermissionDenied);
  const absl::Duration soon = absl::Milliseconds(200);
  for (uint64_t number = 0; number < 4; ++number) {
    const PassId id{KeyOf(0), number};
    for (const int liar : {1, 2, 3}) {
      for (const int to : {0, 1, 2}) {
        const rpc::Target at = From(liar, to, soon);
        EXPECT_THAT(rpc::Call(at, internal::TakeOutcome, scope.id(), id,
                              int64_t{0}, std::string()),
                    Not(IsOk()));
        EXPECT_THAT(rpc::Call(at, internal::RepeatOutcome, scope.id(), id,
                              static_cast<int64_t>(absl::StatusCode::kAborted),
                              std::string("stop")),
                    Not(IsOk()));
        EXPECT_THAT(
            rpc::Call(at, internal::TakePart, scope.id(), id,
                      MessageIntervals{{1, 1}},
                      std::vector<WorkerKey>{KeyOf(0), KeyOf(1), KeyOf(liar)},
                      false, false)
                .status(),
            Not(IsOk()));
        EXPECT_THAT(rpc::Call(at, internal::AwaitEnd, scope.id(), id),
                    Not(IsOk()));
        EXPECT_THAT(rpc::Call(at, internal::ReleaseContext, scope.id()),
                    Not(IsOk()));
      }
    }
  }
  EXPECT_THAT(rpc::Call(From(1, 0), internal::ReleaseContext, scope.id()),
              denied);
  EXPECT_FALSE(pass.IsReady());
  may_go_on = true;
  EXPECT_THAT(pass.Wait(kLong).status(), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
}

// A context that nobody has made, or that was made by an incarnation that is
// gone, or by the callee itself.
TEST_F(Passes, ControlsOfContextsThatAreNotThereAreRefusedAndLeaveNothing) {
  for (const ContextId id :
       {ContextId{KeyOf(0), 0}, ContextId{KeyOf(0), 1},
        ContextId{KeyOf(1), std::numeric_limits<uint64_t>::max()},
        ContextId{rpc::WorkerKey{77, 3}, 5}, ContextId{KeyOf(2), 9}}) {
    const PassId pass{KeyOf(2), 1};
    EXPECT_FALSE(rpc::Call(From(2, 1), internal::JoinContext, id).ok());
    rpc::Call(From(2, 1), internal::ReleaseContext, id).IgnoreError();
    EXPECT_FALSE(rpc::Call(From(2, 1), internal::TakePart, id, pass,
                           MessageIntervals{{1, 1}},
                           std::vector<WorkerKey>{KeyOf(2)}, false, false)
                     .ok());
    EXPECT_FALSE(rpc::Call(From(2, 1), internal::TakeGradients, id, pass,
                           uint64_t{1}, std::vector<weft::Gradient>{})
                     .ok());
    rpc::Call(From(2, 1), internal::AskAwaited, id, pass)
        .status()
        .IgnoreError();
    rpc::Call(From(2, 1), internal::AskOutcome, id, pass)
        .status()
        .IgnoreError();
    EXPECT_FALSE(rpc::Call(From(2, 1), internal::AwaitEnd, id, pass).ok());
  }
  ExpectEmptyTables();
}

// ---- Empty and moved-from references, at a peer and within a pass.

TEST_F(Passes, EmptyModulesAndReferencesFailAloneWithinAPassOfAPeer) {
  const auto module = RemoteModule<Natural>::Create(From(0, 1), 0.5).value();
  RemoteModule<Natural> moved = module;
  const RemoteModule<Natural> taken = std::move(moved);
  const Scope scope(*contexts_[0]);
  const auto found = scope.Call(
      From(0, 2), UseModules,
      std::vector<RemoteModule<Natural>>{RemoteModule<Natural>(), taken, moved},
      rref::RRef<Natural>());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, (std::vector<std::string>{
                        "INVALID_ARGUMENT", "OK", "INVALID_ARGUMENT",
                        "INVALID_ARGUMENT", "INVALID_ARGUMENT",
                        "INVALID_ARGUMENT", "INVALID_ARGUMENT"}));
}

TEST_F(Passes, ModuleStillBeingMadeIsTrainedAtOnce) {
  const auto begun = rref::BeginMake<Late>(From(0, 1), 0.5);
  ASSERT_THAT(begun, IsOk());
  const RemoteModule<Late> module(*begun);
  const Scope scope(*contexts_[0]);
  const Variable x(Weights(2, 2, 1.0), true);
  const Future<Variable> y = module.ForwardAsync(scope, x);
  const Future<Variable> hasty = scope.CallAsync(
      begun->WithTimeout(absl::Milliseconds(50)), &Late::Forward, x);
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  EXPECT_THAT(hasty.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(y.IsReady());
  may_go_on = true;
  const auto made = y.Wait(kLong);
  ASSERT_THAT(made, IsOk());
  const auto weights = module.RemoteParameters();
  ASSERT_THAT(weights, IsOk());
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, *weights);
  ASSERT_THAT(optimizer, IsOk());
  ASSERT_THAT(scope.Backward(Sum(*made)), IsOk());
  EXPECT_THAT((*optimizer)->Step(scope), IsOk());
}

// ---- Ends and wrong uses of a pass.

// What comes after the end of this worker's threads ends at once, and does not
// wait for them until a deadline.
TEST_F(Passes, ScopeOfClosedContextsFailsAtOnceInEveryUse) {
  const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition);
  PassOptions options;
  options.timeout = absl::Hours(1);
  const auto backward = [&](const Scope& scope, const Variable& root) {
    const auto pass =
        scope.BackwardAsync(absl::MakeConstSpan(&root, 1), options);
    return pass.Wait(kLong).status();
  };
  const Scope scope(*contexts_[3]);
  const Variable x = Scalar(3.0);
  const auto before = scope.Call(From(3, 1), Square1, x);
  ASSERT_THAT(before, IsOk());
  contexts_[3]->Close();
  EXPECT_THAT(scope.Call(From(3, 1), Square1, x).status(), is_refused);
  EXPECT_THAT(backward(scope, *before), is_refused);
  EXPECT_FALSE(scope.GradientOf(x).defined());
  scope.ClearGradients();
  const Scope later(*contexts_[3]);
  EXPECT_THAT(later.Call(From(3, 1), Square1, x).status(), is_refused);
  EXPECT_THAT(backward(later, Mul(x, x)), is_refused);
  // Nor do calls of others stay there, for which no thread would run.
  const Scope others(*contexts_[0]);
  EXPECT_THAT(others.Call(From(0, 3), Square1, x).status(), is_refused);
  EXPECT_THAT(backward(others, others.Call(From(0, 1), Square1, x).value()),
              IsOk());
  EXPECT_EQ(OpenContexts(3), 0);
}

TEST_F(Passes, RootsAndSeedsThatCannotBeAreInvalidArguments) {
  const Scope scope(*contexts_[0]);
  const Variable x(Tensor::Ones({2}, DType::kF64), true);
  const Variable y = scope.Call(From(0, 1), Square1, x).value();
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(scope.Backward(std::vector<Variable>{}), invalid);
  EXPECT_THAT(scope.Backward(Variable()), invalid);
  EXPECT_THAT(scope.Backward(Variable(Tensor::Ones({}, DType::kF64))), invalid);
  EXPECT_THAT(scope.Backward(y), invalid);  // two elements and no seed
  const auto with = [&](std::vector<weft::Gradient> seeds) {
    PassOptions options;
    options.seeds = std::move(seeds);
    return scope.Backward(y, options);
  };
  EXPECT_THAT(with({weft::Gradient(Tensor::Ones({3}, DType::kF64))}), invalid);
  EXPECT_THAT(with({weft::Gradient(Tensor::Ones({2}, DType::kF32))}), invalid);
  EXPECT_THAT(with({weft::Gradient(Tensor::Ones({2}, DType::kI64))}), invalid);
  EXPECT_THAT(with({weft::Gradient(Tensor::Ones({2}, DType::kF64)),
                    weft::Gradient(Tensor::Ones({2}, DType::kF64))}),
              invalid);
  for (const absl::Duration bad :
       {absl::ZeroDuration(), -absl::Seconds(1), -absl::InfiniteDuration()}) {
    PassOptions options;
    options.timeout = bad;
    EXPECT_THAT(scope.Backward(Sum(y), options), invalid);
  }
  EXPECT_FALSE(scope.GradientOf(x).defined());
  // The pass can still be run.
  ASSERT_THAT(with({weft::Gradient(Tensor::Ones({2}, DType::kF64))}), IsOk());
  EXPECT_THAT(scope.GradientOf(x).ToDense().ToVector<double>(), Each(2.0));
}

TEST_F(Passes, UndefinedVariablesTravelOrAreRefused) {
  const Scope scope(*contexts_[0]);
  const auto squared = scope.Call(From(0, 1), Square1, Variable());
  EXPECT_THAT(squared.status(), Not(IsOk()));
  const auto nothing = scope.Call(From(0, 1), AnyVariable, int64_t{0});
  if (nothing.ok()) {
    EXPECT_FALSE(nothing->defined());
  }
}

// A scope of one agent and a target of another: who has two agents in a
// process mixes them up one day.
TEST_F(Passes, TargetOfAnotherAgentInAScopeIsRefusedOrRecorded) {
  const Scope scope(*contexts_[0]);
  const Variable x = Scalar(3.0);
  const auto y = scope.Call(From(2, 1), Square1, x);
  if (y.ok()) {
    if (scope.Backward(*y).ok()) {
      EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
    }
  } else {
    EXPECT_FALSE(y.status().message().empty());
  }
  const Variable z = scope.Call(From(0, 1), Square1, x).value();
  scope.ClearGradients();
  ASSERT_THAT(scope.Backward(z), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
}

// ---- ValueOf.

TEST_F(Passes, ValueOfAVariableStillBeingMadeWaitsForIt) {
  const auto late = rref::BeginRemote(From(0, 1), LateVariable, 2.5);
  ASSERT_THAT(late, IsOk());
  const Future<Tensor> value = ValueOfAsync(*late);
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  EXPECT_FALSE(value.IsReady());
  EXPECT_THAT(ValueOf(late->WithTimeout(absl::Milliseconds(50))).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  may_go_on = true;
  const auto found = value.Wait(kLong);
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->ToVector<double>(), Each(2.5));
}

TEST_F(Passes, ValueOfWhatWasNeverMadeIsTheErrorOfItsCreation) {
  const auto never = rref::BeginRemote(From(0, 1), NoVariable, 2.5);
  ASSERT_THAT(never, IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ValueOf(*never).status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         "no room for a variable"));
  }
  Kill(3);
  // A variable whose owner is gone.
  const auto at_dead = rref::BeginRemote(From(0, 3), AnyVariable, int64_t{4});
  if (at_dead.ok()) {
    EXPECT_THAT(ValueOf(*at_dead).status(),
                StatusIs(absl::StatusCode::kUnavailable));
  } else {
    EXPECT_THAT(at_dead.status(), StatusIs(absl::StatusCode::kUnavailable));
  }
}

// Whatever kind of variable it is: frozen, integer, one with a history.
TEST_F(Passes, ValueOfAnyKindOfVariable) {
  for (const int owner : {0, 1}) {
    for (const int64_t which : {1, 2, 3, 4}) {
      const auto made = rref::Remote(From(0, owner), AnyVariable, which);
      ASSERT_THAT(made, IsOk());
      const auto value = ValueOf(*made);
      ASSERT_THAT(value, IsOk()) << which;
      EXPECT_EQ(value->shape(), (Shape{2})) << which;
    }
    const auto none = rref::Remote(From(0, owner), AnyVariable, int64_t{0});
    ASSERT_THAT(none, IsOk());
    const auto value = ValueOf(*none);
    if (value.ok()) {
      EXPECT_FALSE(value->defined());
    }
  }
  EXPECT_EQ(OpenContexts(1), 0);
}

// A value is as it was when it was asked for, at whatever worker.
TEST_F(Passes, ValueOfStaysAsItWasThroughSteps) {
  const auto here = rref::MakeLocal(
      ranks_[0], std::make_shared<Variable>(Weights(40, 40, 1.0), true));
  ASSERT_THAT(here, IsOk());
  const auto module = RemoteModule<Natural>::Create(From(0, 1), 0.5).value();
  std::vector<rref::RRef<Variable>> weights = module.RemoteParameters().value();
  weights.push_back(*here);
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.5}, weights);
  ASSERT_THAT(optimizer, IsOk());
  const Variable local = *here->Local().value();
  std::vector<Tensor> values;
  std::vector<std::vector<double>> copies;
  for (int step = 0; step < 5; ++step) {
    for (const auto& weight : weights) {
      values.push_back(ValueOf(weight).value());
      copies.push_back(values.back().ToVector<double>());
    }
    const Scope scope(*contexts_[0]);
    const Variable y =
        module.Forward(scope, Variable(Weights(3, 4, 1.0))).value();
    ASSERT_THAT(scope.Backward(Add(Sum(Mul(y, y)), Sum(local))), IsOk());
    ASSERT_THAT((*optimizer)->Step(scope), IsOk());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i].ToVector<double>(), copies[i]) << i;
    }
    EXPECT_NE(ValueOf(weights[0]).value().ToVector<double>(),
              copies[copies.size() - weights.size()]);
  }
}

}  // namespace
}  // namespace weft::dist_autograd::outside
