// The whole path over three agents: references made at two servers, passed on,
// used in a recorded forward, one backward, one distributed step; equal to the
// same model trained in one process.

#include "weft/optimizer/distributed_optimizer.h"

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer_fixture.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Runs a layer that a third worker owns, and adds its input.
Variable Residual(rpc::CallContext& call, const rref::RRef<Layer>& layer,
                  const Variable& x) {
  const auto scope = dist_autograd::Scope::Within(call).value();
  return Add(scope.Call(layer, &Layer::Forward, x).value(), x);
}
WEFT_RPC(Residual);

const std::vector<RuleOptions>& Rules() {
  static const auto* const kRules = new std::vector<RuleOptions>{
      SgdOptions{0.1, 0.9}, AdamOptions{0.05},         AdamWOptions{0.05},
      AdagradOptions{0.1},  FtrlOptions{0.1},          LambOptions{0.05},
      LionOptions{0.01},    RowwiseAdagradOptions{0.1}};
  return *kRules;
}

// It comes from a peer.
TEST_F(DistributedOptimizerTest, NumberThatIsNoNormIsRefusedAtTheOwner) {
  const auto w = std::make_shared<Variable>(InitialWeight(5, 1, 0.7), true);
  OptimizerShard shard({ToSpec(SgdOptions{1.0})}, {0},
                       {{0, 0, rref::MakeLocal(ranks_[0], w).value()}});
  const dist_autograd::Scope pass(*contexts_[0]);
  for (const int64_t norm : {-2, 3, 1 << 30}) {
    EXPECT_THAT(shard.CheckIn(*contexts_[0], pass.id(), norm),
                StatusIs(absl::StatusCode::kInvalidArgument, "wanted a norm"));
  }
  EXPECT_THAT(shard.CheckIn(*contexts_[0], pass.id(), -1), IsOk());
  for (const double scale : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(shard.ApplyIn(*contexts_[0], pass.id(), 1.0, scale),
                StatusIs(absl::StatusCode::kInvalidArgument, "gradient_scale"));
  }
}

TEST_F(DistributedOptimizerTest, TrainsAsOneProcessDoesByEveryRule) {
  const Tensor x = InitialWeight(4, 3, 1.0);
  // Some gradients are beyond these limits.
  const ClipOptions clip = {0.5, 0.75};
  for (const RuleOptions& rule : Rules()) {
    SCOPED_TRACE(RuleName(rule));
    // Distributed: one layer at each server and one here.
    const auto first = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
    const auto second = rref::Make<Layer>(To(2), 5, 5, 0.3).value();
    const auto head =
        std::make_shared<Variable>(InitialWeight(5, 1, 0.7), true);
    auto optimizer = DistributedOptimizer::Create(
        ranks_[0],
        {DistributedGroup{rule,
                          {rref::Call(first, &Layer::Weight).value(),
                           rref::Call(second, &Layer::Weight).value(),
                           rref::MakeLocal(ranks_[0], head).value()},
                          /*lazy=*/false,
                          clip}});
    ASSERT_THAT(optimizer.status(), IsOk());
    EXPECT_EQ((*optimizer)->owners(), 3);
    // The same in one process.
    const Variable w1(InitialWeight(3, 5, 0.5), true);
    const Variable w2(InitialWeight(5, 5, 0.3), true);
    const Variable w3(InitialWeight(5, 1, 0.7), true);
    auto local = Optimizer::Create(
        {{rule, {{"w1", w1}, {"w2", w2}, {"w3", w3}}, /*lazy=*/false, clip}});
    ASSERT_THAT(local.status(), IsOk());
    for (int step = 0; step < 5; ++step) {
      const dist_autograd::Scope pass(*contexts_[0]);
      const Variable h = pass.Call(first, &Layer::Forward, Variable(x)).value();
      const Variable r = pass.Call(To(1), Residual, second, h).value();
      // A result that nobody uses: the reference's backward hangs here.
      ASSERT_THAT(pass.Call(second, &Layer::Forward, h).status(), IsOk());
      const Variable y = MatMul(r, *head);
      ASSERT_THAT(pass.Backward(Sum(Mul(y, y))), IsOk());
      ASSERT_THAT((*optimizer)->Step(pass), IsOk());

      const Variable lh = Tanh(MatMul(Variable(x), w1));
      const Variable ly = MatMul(Add(Tanh(MatMul(lh, w2)), lh), w3);
      Sum(Mul(ly, ly)).Backward();
      ASSERT_THAT((*local)->Step(), IsOk());
      (*local)->ZeroGrad();
    }
    const auto expect_equal = [](const Tensor& a, const Tensor& b) {
      ASSERT_EQ(a.numel(), b.numel());
      for (int64_t i = 0; i < a.numel(); ++i) {
        // Sums of two contributions commute, so the bits are the same.
        EXPECT_EQ(a.Contiguous().data<double>()[i],
                  b.Contiguous().data<double>()[i]);
      }
    };
    expect_equal(rref::Call(first, &Layer::Value).value(), w1.value());
    expect_equal(rref::Call(second, &Layer::Value).value(), w2.value());
    expect_equal(head->value(), w3.value());
  }
}

TEST_F(DistributedOptimizerTest, StepWithoutBackwardChangesNothing) {
  const auto layer = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
  auto optimizer = DistributedOptimizer::Create(
      ranks_[0], SgdOptions{0.1}, {rref::Call(layer, &Layer::Weight).value()});
  ASSERT_THAT(optimizer.status(), IsOk());
  const Tensor before = rref::Call(layer, &Layer::Value).value();
  const dist_autograd::Scope pass(*contexts_[0]);
  EXPECT_THAT((*optimizer)->Step(pass),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Backward"));
  EXPECT_EQ(rref::Call(layer, &Layer::Value).value().ToVector<double>(),
            before.ToVector<double>());
}

TEST_F(DistributedOptimizerTest, GradientThatIsNotFiniteChangesNoOwner) {
  const auto good = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
  const auto bad = rref::Make<Layer>(To(2), 5, 1, 0.5).value();
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1},
                                   {rref::Call(good, &Layer::Weight).value(),
                                    rref::Call(bad, &Layer::Weight).value()});
  ASSERT_THAT(optimizer.status(), IsOk());
  const Tensor before = rref::Call(good, &Layer::Value).value();
  const dist_autograd::Scope pass(*contexts_[0]);
  const Variable h =
      pass.Call(good, &Layer::Forward, Variable(InitialWeight(4, 3, 1)))
          .value();
  const Variable y = pass.Call(bad, &Layer::Forward, h).value();
  dist_autograd::PassOptions options;
  options.seeds = {Tensor::Full({4, 1}, std::numeric_limits<double>::infinity(),
                                DType::kF64)};
  ASSERT_THAT(pass.Backward(y, options), IsOk());
  EXPECT_THAT((*optimizer)->Step(pass),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const Tensor after = rref::Call(good, &Layer::Value).value();
  for (int64_t i = 0; i < before.numel(); ++i) {
    EXPECT_EQ(before.data<double>()[i], after.data<double>()[i]);
  }
}

// Steps the context of its caller by an optimizer of its own.
absl::Status StepHere(rpc::CallContext& call,
                      const rref::RRef<Variable>& weight) {
  const auto scope = dist_autograd::Scope::Within(call).value();
  return DistributedOptimizer::Create(call.agent(), SgdOptions{1.0}, {weight})
      .value()
      ->Step(scope);
}
WEFT_RPC(StepHere);

// A worker that was called in it, and has no part in the pass.
TEST_F(DistributedOptimizerTest, ContextIsNotSteppedByOneThatHasNoPartInIt) {
  const auto layer = rref::Make<Layer>(To(1), 3, 2, 0.5).value();
  const auto weight = rref::Call(layer, &Layer::Weight).value();
  const auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{1.0}, {weight});
  ASSERT_THAT(optimizer.status(), IsOk());
  const dist_autograd::Scope pass(*contexts_[0]);
  const Variable x(InitialWeight(4, 3, 1.0));
  const Variable y = pass.Call(layer, &Layer::Forward, x).value();
  ASSERT_THAT(pass.Backward(Sum(y)), IsOk());
  const auto before = rref::Call(layer, &Layer::Value)->ToVector<double>();
  EXPECT_THAT(pass.Call(To(2), StepHere, weight),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "took part in no pass of it"));
  EXPECT_EQ(rref::Call(layer, &Layer::Value)->ToVector<double>(), before);
  EXPECT_THAT((*optimizer)->Step(pass), IsOk());
  EXPECT_NE(rref::Call(layer, &Layer::Value)->ToVector<double>(), before);
}

TEST_F(DistributedOptimizerTest, NoParametersAndEmptyOnesAreRefused) {
  EXPECT_THAT(
      DistributedOptimizer::Create(ranks_[0], SgdOptions{}, {}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "no parameters"));
  EXPECT_THAT(DistributedOptimizer::Create(ranks_[0], SgdOptions{},
                                           {rref::RRef<Variable>()})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef"));
}

// Parameters that Optimizer::Create refuses, at the owner that is called.
rref::RRef<Variable> UnfitWeight(rpc::CallContext& call, bool is_frozen) {
  const Tensor value = InitialWeight(3, 5, 1.0);
  return rref::MakeLocal(call.agent(),
                         std::make_shared<Variable>(
                             is_frozen ? Variable(value)
                                       : Variable(value.Transpose(0, 1), true)))
      .value();
}
WEFT_RPC(UnfitWeight);

TEST_F(DistributedOptimizerTest, WhatAnOptimizerRefusesIsRefusedAtAllOwners) {
  const auto here = rref::MakeLocal(
      ranks_[0], std::make_shared<Variable>(InitialWeight(2, 2, 1.0)));
  const absl::Status refused =
      DistributedOptimizer::Create(
          ranks_[0], SgdOptions{0.1},
          {rpc::Call(To(1), UnfitWeight, true).value(), *here,
           rpc::Call(To(2), UnfitWeight, false).value()})
          .status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                "wanted a contiguous leaf"));
  for (const char* owner : {"at w0: ", "at w1: ", "at w2: "}) {
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(owner));
  }
  // One parameter twice, and a rule that cannot be.
  const auto layer = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
  const auto weight = rref::Call(layer, &Layer::Weight).value();
  EXPECT_THAT(DistributedOptimizer::Create(
                  ranks_[0], SgdOptions{0.1},
                  {weight, rref::Call(layer, &Layer::Weight).value()})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "updated twice"));
  EXPECT_THAT(DistributedOptimizer::Create(ranks_[0], SgdOptions{-1}, {weight})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DistributedOptimizer::Create(
                  ranks_[0], {DistributedGroup{SgdOptions{0.1}, {weight}},
                              DistributedGroup{SgdOptions{-1}, {}}})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A peer makes what no DistributedOptimizer does.
TEST_F(DistributedOptimizerTest, ShardWithoutParametersServesNothing) {
  const dist_autograd::Scope pass(*contexts_[0]);
  const dist_autograd::Contexts& contexts = *contexts_[0];
  OptimizerShard none({}, {}, {});
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, "no param");
  EXPECT_THAT(none.status(), refused);
  EXPECT_THAT(none.SaveState().status(), refused);
  EXPECT_THAT(none.StageState({}), refused);
  EXPECT_THAT(none.LoadStaged(), refused);
  EXPECT_THAT(none.CheckIn(contexts, pass.id(), -1).status(), refused);
  EXPECT_THAT(none.ApplyIn(contexts, pass.id(), 1.0, 1.0), refused);
  OptimizerShard empty({ToSpec(SgdOptions{0.1})}, {0},
                       {{0, 0, rref::RRef<Variable>()}});
  EXPECT_THAT(empty.SaveState().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef"));
}

// ------------------------------------------------------------ what it adds

// What each trainer sees of one weight at w1: its gradient is 1 in each pass.
class Sum1 {
 public:
  explicit Sum1(double start)
      : w_(std::make_shared<Variable>(Tensor::Full({64}, start, DType::kF64),
                                      true)) {}
  Variable Forward() { return Sum(*w_); }
  rref::RRef<Variable> Weight(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), w_).value();
  }
  Tensor Value() { return w_->value().Clone(); }

 private:
  std::shared_ptr<Variable> w_;
};
WEFT_RPC_CLASS(Sum1, double);
WEFT_RPC_METHOD(Sum1, Forward);
WEFT_RPC_METHOD(Sum1, Weight);
WEFT_RPC_METHOD(Sum1, Value);

TEST_F(DistributedOptimizerTest, HogwildTrainersLoseNoUpdate) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a forward reads weights while others update them";
#endif
  constexpr int kTrainers = 8;
  constexpr int kSteps = 25;
  const auto sum = rref::Make<Sum1>(To(1), 0.0).value();
  const auto weight = rref::Call(sum, &Sum1::Weight).value();
  std::vector<std::thread> trainers;
  for (int t = 0; t < kTrainers; ++t) {
    trainers.emplace_back([&] {
      // Its own optimizer of the same weight.
      auto optimizer =
          DistributedOptimizer::Create(ranks_[0], SgdOptions{0.5}, {weight});
      ASSERT_THAT(optimizer.status(), IsOk());
      for (int step = 0; step < kSteps; ++step) {
        const dist_autograd::Scope pass(*contexts_[0]);
        const auto loss = pass.Call(sum, &Sum1::Forward);
        ASSERT_THAT(loss.status(), IsOk());
        ASSERT_THAT(pass.Backward(*loss), IsOk());
        ASSERT_THAT((*optimizer)->Step(pass), IsOk());
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  const Tensor value = rref::Call(sum, &Sum1::Value).value();
  for (int64_t i = 0; i < value.numel(); ++i) {
    EXPECT_EQ(value.data<double>()[i], -0.5 * kTrainers * kSteps);
  }
}

// Two layers made at servers, trained as in one process.
class Net : public nn::Module {
 public:
  explicit Net(double scale) {
    w_ = AddParameter("w", InitialWeight(3, 3, scale));
  }
  Variable Forward(const Variable& x) { return Tanh(MatMul(x, w_)); }

 private:
  Variable w_;
};
WEFT_RPC_MODULE(Net, double);

// The natural module: it uses its weights as they are.
TEST_F(DistributedOptimizerTest, BackwardUsesTheWeightsOfItsOwnForward) {
  const auto layer = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
  const auto weight = rref::Call(layer, &Layer::Weight).value();
  // Two trainers, each with its own optimizer of the layer's weight.
  auto one_trainer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1, 0.9}, {weight});
  auto other =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.2, 0.9}, {weight});
  ASSERT_THAT(one_trainer.status(), IsOk());
  ASSERT_THAT(other.status(), IsOk());
  const Variable local(InitialWeight(3, 5, 0.5), true);
  auto first = Optimizer::Create({{SgdOptions{0.1, 0.9}, {{"w", local}}}});
  auto second = Optimizer::Create({{SgdOptions{0.2, 0.9}, {{"w", local}}}});
  ASSERT_THAT(first.status(), IsOk());
  ASSERT_THAT(second.status(), IsOk());
  for (int step = 0; step < 4; ++step) {
    const Variable a(InitialWeight(4, 3, 1.0 + step));
    const Variable b(InitialWeight(4, 3, 2.0 + step));
    const dist_autograd::Scope one(*contexts_[0]);
    const dist_autograd::Scope two(*contexts_[0]);
    const Variable y1 = one.Call(layer, &Layer::Forward, a).value();
    const Variable y2 = two.Call(layer, &Layer::Forward, b).value();
    ASSERT_THAT(one.Backward(Sum(Mul(y1, y1))), IsOk());
    ASSERT_THAT((*one_trainer)->Step(one), IsOk());
    // Through the other's step, with the weights of before.
    ASSERT_THAT(two.Backward(Sum(Mul(y2, y2))), IsOk());
    ASSERT_THAT((*other)->Step(two), IsOk());

    const Variable before(local.value().Clone(), true);
    const auto gradient = [&](const Variable& x) {
      before.ClearGradient();
      const Variable y = Tanh(MatMul(x, before));
      Sum(Mul(y, y)).Backward();
      return before.gradient();
    };
    ASSERT_THAT((*first)->Apply([&](const Parameter&) { return gradient(a); }),
                IsOk());
    ASSERT_THAT((*second)->Apply([&](const Parameter&) { return gradient(b); }),
                IsOk());
    EXPECT_EQ(dist_autograd::ValueOf(weight).value().ToVector<double>(),
              local.value().ToVector<double>());
  }
}

TEST_F(DistributedOptimizerTest, RemoteModulesTrainAsLocalOnes) {
  using dist_autograd::RemoteModule;
  const auto first = RemoteModule<Net>::Create(To(1), 0.5).value();
  const auto second = RemoteModule<Net>::Create(To(2), 0.25).value();
  std::vector<rref::RRef<Variable>> weights;
  for (const auto& module : {first, second}) {
    const auto own = module.RemoteParameters().value();
    weights.insert(weights.end(), own.begin(), own.end());
  }
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], AdamOptions{0.05}, weights);
  ASSERT_THAT(optimizer.status(), IsOk());
  Net one(0.5), two(0.25);
  auto own = Optimizer::Create(
      {{AdamOptions{0.05},
        {{"1", one.Parameters()[0]}, {"2", two.Parameters()[0]}},
        false}});
  ASSERT_THAT(own.status(), IsOk());
  const Variable x(InitialWeight(4, 3, 1.0));
  for (int step = 0; step < 4; ++step) {
    const dist_autograd::Scope pass(*contexts_[0]);
    const Variable y =
        second.Forward(pass, first.Forward(pass, x).value()).value();
    ASSERT_THAT(pass.Backward(Sum(Mul(y, y))), IsOk());
    ASSERT_THAT((*optimizer)->Step(pass), IsOk());
    const Variable ly = two.Forward(one.Forward(x));
    Sum(Mul(ly, ly)).Backward();
    ASSERT_THAT((*own)->Step(), IsOk());
    (*own)->ZeroGrad();
  }
  const auto state = (*optimizer)->SaveState().value();
  const Tensor& w1 = state.at("group0.parameter0/value");
  const Tensor local = one.Parameters()[0].value();
  for (int64_t i = 0; i < w1.numel(); ++i) {
    EXPECT_EQ(w1.data<double>()[i], local.data<double>()[i]);
  }
}

}  // namespace
}  // namespace weft::optimizer
