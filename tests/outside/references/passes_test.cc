// Recorded passes, remote modules and the distributed optimizer at the edges of
// what dist_autograd/scope.h and optimizer/distributed_optimizer.h promise.

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/catch_to_status.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/optimizer.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::optimizer::DistributedGroup;
using ::weft::optimizer::DistributedOptimizer;
using ::weft::optimizer::FtrlOptions;
using ::weft::optimizer::Optimizer;
using ::weft::optimizer::SgdOptions;
using ::weft::optimizer::StepOptions;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

std::atomic<int> inside{0};
std::atomic<bool> may_go_on{false};

void WaitHere() {
  ++inside;
  EXPECT_TRUE(Becomes([] { return may_go_on.load(); }));
  --inside;
}

Tensor Weights(int64_t rows, int64_t columns, double scale) {
  Tensor w = Tensor::Zeros({rows, columns}, DType::kF64);
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<double>()[i] = scale * std::sin(1.0 + 3.0 * static_cast<double>(i));
  }
  return w;
}

// As anybody would write it: weights as they are, views of them, and both.
class Natural : public nn::Module {
 public:
  explicit Natural(double scale) {
    w_ = AddParameter("w", Weights(4, 4, scale));
    b_ = AddParameter("b", Weights(1, 4, 0.5 * scale));
  }
  Variable Forward(const Variable& x) {
    const Variable h = Tanh(MatMul(x, Transpose(w_, 0, 1)));
    const Variable left = MatMul(h, Slice(w_, 1, 0, 2));
    const Variable right = MatMul(h, Slice(w_, 1, 2, 4));
    const Variable both = Concat(std::vector<Variable>{left, right}, 1);
    return Mul(Add(both, b_), Reshape(Mul(b_, b_), {4}));
  }

 private:
  Variable w_, b_;
};
WEFT_RPC_MODULE(Natural, double);

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

Variable LateVariable(double x) {
  WaitHere();
  return Variable(Tensor::Full({2}, x, DType::kF64), true);
}
WEFT_RPC(LateVariable);

Variable NoVariable(double) {
  throw Error(absl::ResourceExhaustedError("no room for a variable"));
}
WEFT_RPC(NoVariable);

Variable AnyVariable(int64_t which) {
  switch (which) {
    case 0:
      return Variable();
    case 1:
      return Variable(Tensor::Ones({2}, DType::kI64));
    case 2:
      return Variable(Tensor::Ones({2}, DType::kF64), false);
    case 3:
      return Add(Variable(Tensor::Ones({2}, DType::kF64), true), 1.0);
    default:
      return Variable(Tensor::Full({2}, 7.0, DType::kF64), true);
  }
}
WEFT_RPC(AnyVariable);

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

class Passes : public PassFixture {
 protected:
  Passes() { may_go_on = false; }
  ~Passes() override { may_go_on = true; }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  rref::RRef<Variable> VariableAt(int owner) {
    return rref::Remote(From(0, owner), AnyVariable, int64_t{4}).value();
  }
};

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
  // And the pass may be run all the same.
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
  // Whose owner is gone.
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

// ---- Two trainers and a natural module.

TEST_F(Passes, TwoTrainersOfANaturalModuleWithViewsHaveTheBitsOfOneProcess) {
  const auto module = RemoteModule<Natural>::Create(From(0, 1), 0.5).value();
  const auto weights = module.RemoteParameters().value();
  auto first =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1, 0.9}, weights);
  auto second =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.2}, weights);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  Natural local(0.5);
  auto one =
      Optimizer::Create({{SgdOptions{0.1, 0.9}, local.NamedParameters()}});
  auto two = Optimizer::Create({{SgdOptions{0.2}, local.NamedParameters()}});
  for (int step = 0; step < 4; ++step) {
    const Variable a(Weights(5, 4, 1.0 + step)), b(Weights(5, 4, 2.0 + step));
    const Scope pass_a(*contexts_[0]), pass_b(*contexts_[0]);
    const Variable ya = module.Forward(pass_a, a).value();
    const Variable yb = module.Forward(pass_b, b).value();
    ASSERT_THAT(pass_a.Backward(Sum(Mul(ya, ya))), IsOk());
    ASSERT_THAT((*first)->Step(pass_a), IsOk());
    ASSERT_THAT(pass_b.Backward(Sum(Mul(yb, yb))), IsOk());
    ASSERT_THAT((*second)->Step(pass_b), IsOk());

    // The same in one process, each gradient from the weights of before.
    const auto gradients = [&](const Variable& x) {
      local.ClearGradients();
      const Variable y = local.Forward(x);
      Sum(Mul(y, y)).Backward();
      std::vector<weft::Gradient> all;
      for (const Variable& p : local.Parameters()) {
        all.push_back(weft::Gradient(p.grad().Clone()));
      }
      return all;
    };
    const auto of_a = gradients(a), of_b = gradients(b);
    size_t i = 0, j = 0;
    ASSERT_THAT(
        (*one)->Apply([&](const nn::NamedParameter&) { return of_a[i++]; }),
        IsOk());
    ASSERT_THAT(
        (*two)->Apply([&](const nn::NamedParameter&) { return of_b[j++]; }),
        IsOk());
    for (size_t p = 0; p < weights.size(); ++p) {
      ASSERT_EQ(ValueOf(weights[p]).value().ToVector<double>(),
                local.Parameters()[p].value().ToVector<double>())
          << "step " << step << " parameter " << p;
    }
  }
}

// A checkpoint that is put back between a forward and its backward: the
// gradients are those of the weights that the forward has used, or the pass
// fails; never of a mixture.
TEST_F(Passes, LoadStateBetweenForwardAndBackwardGivesNoWrongGradient) {
  const auto module = RemoteModule<Natural>::Create(From(0, 1), 0.5).value();
  const auto weights = module.RemoteParameters().value();
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.0}, weights);
  ASSERT_THAT(optimizer, IsOk());
  auto state = (*optimizer)->SaveState().value();
  for (auto& [name, value] : state) {
    if (name.find("/value") == std::string::npos) continue;
    value = Tensor::Full(value.shape(), 3.0, value.dtype());
  }
  const Variable x(Weights(5, 4, 1.0), true);
  const Scope scope(*contexts_[0]);
  const Variable y = module.Forward(scope, x).value();
  ASSERT_THAT((*optimizer)->LoadState(state), IsOk());
  EXPECT_THAT(ValueOf(weights[0]).value().ToVector<double>(), Each(3.0));
  const absl::Status passed = scope.Backward(Sum(Mul(y, y)));
  if (!passed.ok()) {
    EXPECT_THAT(passed, StatusIs(absl::StatusCode::kFailedPrecondition));
    return;
  }
  Natural local(0.5);
  const Variable mine(Weights(5, 4, 1.0), true);
  const Variable z = local.Forward(mine);
  Sum(Mul(z, z)).Backward();
  EXPECT_EQ(scope.GradientOf(x).ToDense().ToVector<double>(),
            mine.grad().ToVector<double>());
}

// ---- DistributedOptimizer.

TEST_F(Passes, OptimizerNamesEachOwnerWhoseParameterItRefuses) {
  std::vector<rref::RRef<Variable>> weights;
  int64_t kind = 0;
  for (const int owner : {1, 2, 3, 0}) {
    weights.push_back(
        rref::Remote(From(0, owner), AnyVariable, kind++).value());
  }
  const absl::Status refused =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, weights)
          .status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* owner : {"w0", "w1", "w2", "w3"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(owner));
  }
  // Nothing of it is left: one of a good parameter can be made.
  EXPECT_THAT(
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, {VariableAt(1)}),
      IsOk());
}

TEST_F(Passes, OptimizerOfEmptyMovedAndFailedReferencesIsRefused) {
  const auto good = VariableAt(1);
  rref::RRef<Variable> moved = good;
  const rref::RRef<Variable> taken = std::move(moved);
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  const auto create = [&](std::vector<rref::RRef<Variable>> weights) {
    return DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1},
                                        std::move(weights))
        .status();
  };
  EXPECT_THAT(create({}), invalid);
  EXPECT_THAT(create({good, rref::RRef<Variable>()}), invalid);
  EXPECT_THAT(create({moved, good}), invalid);
  EXPECT_THAT(create({good, taken}), invalid);  // twice
  const auto never = rref::BeginRemote(From(0, 2), NoVariable, 1.0);
  ASSERT_THAT(never, IsOk());
  EXPECT_THAT(create({good, *never}), Not(IsOk()));
  EXPECT_THAT(
      DistributedOptimizer::Create(ranks_[0], std::vector<DistributedGroup>{})
          .status(),
      invalid);
}

TEST_F(Passes, OptimizerOfAParameterStillBeingMadeWaitsForItOrSaysSo) {
  const auto late = rref::BeginRemote(From(0, 1), LateVariable, 1.0);
  ASSERT_THAT(late, IsOk());
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  absl::Status created;
  std::thread maker([&] {
    created = DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, {*late})
                  .status();
  });
  may_go_on = true;
  maker.join();
  EXPECT_THAT(created, IsOk());
}

TEST_F(Passes, StepSaveAndLoadNameAllOwnersThatAreGone) {
  std::vector<rref::RRef<Variable>> weights;
  for (const int owner : {0, 1, 2, 3}) weights.push_back(VariableAt(owner));
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, weights);
  ASSERT_THAT(optimizer, IsOk());
  EXPECT_EQ((*optimizer)->owners(), 4);
  const auto state = (*optimizer)->SaveState();
  ASSERT_THAT(state, IsOk());
  const Scope scope(*contexts_[0]);
  const Variable local = *weights[0].Local().value();
  ASSERT_THAT(scope.Backward(Sum(local)), IsOk());
  const Tensor before = local.value().Clone();
  Kill(2);
  Kill(3);
  for (const absl::Status& failed :
       {(*optimizer)->Step(scope), (*optimizer)->SaveState().status(),
        (*optimizer)->LoadState(*state)}) {
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(std::string(failed.message()), HasSubstr("w2"));
    EXPECT_THAT(std::string(failed.message()), HasSubstr("w3"));
  }
  EXPECT_EQ(local.value().ToVector<double>(), before.ToVector<double>());
  EXPECT_EQ(ValueOf(weights[1]).value().ToVector<double>(),
            (std::vector<double>{7, 7}));
}

TEST_F(Passes, StepOptionsThatCannotBeChangeNothing) {
  const auto weight = VariableAt(0);
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{1.0}, {weight});
  ASSERT_THAT(optimizer, IsOk());
  const Scope scope(*contexts_[0]);
  const Variable local = *weight.Local().value();
  ASSERT_THAT(scope.Backward(Sum(local)), IsOk());
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double scale : {kNan, kInf, -kInf, -1.0}) {
    StepOptions options;
    options.learning_rate_scale = scale;
    EXPECT_THAT((*optimizer)->Step(scope, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << scale;
  }
  for (const double norm : {kNan, -kInf, -1.0, 0.0}) {
    StepOptions options;
    options.largest_norm = norm;
    EXPECT_THAT((*optimizer)->Step(scope, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << norm;
  }
  EXPECT_THAT(local.value().ToVector<double>(), Each(7.0));
  StepOptions by_sum;
  by_sum.largest_norm = 1.0;
  by_sum.norm = optimizer::Norm::kSum;
  const auto report = (*optimizer)->Step(scope, by_sum);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->gradient_norm, 2.0);
  EXPECT_EQ(report->updated, 1);
  for (const double value : local.value().ToVector<double>()) {
    EXPECT_NEAR(value, 6.5, 1e-5);
  }
}

// A scale of 0 is allowed: a schedule that ends at 0 moves nothing, by any
// rule.
TEST_F(Passes, LearningRateScaleZeroMovesNoWeightByAnyRule) {
  for (const optimizer::RuleOptions& rule :
       {optimizer::RuleOptions(SgdOptions{0.1, 0.9}),
        optimizer::RuleOptions(optimizer::AdamOptions{0.1}),
        optimizer::RuleOptions(optimizer::AdamWOptions{0.1}),
        optimizer::RuleOptions(optimizer::AdagradOptions{0.1}),
        optimizer::RuleOptions(FtrlOptions{0.1})}) {
    const auto name = std::string(optimizer::RuleName(rule));
    const Variable w(Tensor::Full({3}, 0.0, DType::kF64), true);
    auto local = Optimizer::Create({{rule, {{"w", w}}}});
    ASSERT_THAT(local, IsOk());
    const auto step = [&](double scale) {
      EXPECT_THAT((*local)->SetLearningRateScale(scale), IsOk());
      w.ClearGradient();
      Sum(Mul(w, Variable(Tensor::Full({3}, 2.0, DType::kF64)))).Backward();
      EXPECT_THAT((*local)->Step(), IsOk());
    };
    step(1.0);
    const auto before = w.value().ToVector<double>();
    step(0.0);
    const auto still = w.value().ToVector<double>();
    for (const double x : still) EXPECT_TRUE(std::isfinite(x)) << name;
    if (name != "ftrl") {
      EXPECT_EQ(still, before) << name;
    }
    step(1.0);
    for (const double x : w.value().ToVector<double>()) {
      EXPECT_TRUE(std::isfinite(x)) << name;
    }
  }
}

}  // namespace
}  // namespace weft::dist_autograd
