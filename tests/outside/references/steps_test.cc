// Two trainers of remote modules, and the distributed optimizer, at the edges
// of what optimizer/distributed_optimizer.h promises.

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/optimizer.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rref/rref.h"
#include "weft/tests/outside/references/passes.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd::outside {
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
  // The refused optimizer has left nothing: one of a good parameter can be
  // made.
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
}  // namespace weft::dist_autograd::outside
