// The whole path over three agents: references made at two servers, passed on,
// used in a recorded forward, one backward, one distributed step; equal to the
// same model trained in one process.

#include "weft/optimizer/distributed_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/remote_module.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/optimizer/schedule.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::optimizer {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Tensor InitialWeight(int64_t rows, int64_t columns, double scale) {
  Tensor w = Tensor::Zeros({rows, columns}, DType::kF64);
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<double>()[i] = scale * std::sin(1.0 + 3.0 * static_cast<double>(i));
  }
  return w;
}

// tanh(x w), with w at the worker that has the layer.
class Layer {
 public:
  Layer(int64_t inputs, int64_t outputs, double scale)
      : w_(std::make_shared<Variable>(InitialWeight(inputs, outputs, scale),
                                      /*requires_grad=*/true)) {}
  Variable Forward(const Variable& x) { return Tanh(MatMul(x, *w_)); }
  rref::RRef<Variable> Weight(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), w_).value();
  }
  Tensor Value() { return w_->value().Clone(); }

 private:
  std::shared_ptr<Variable> w_;
};
WEFT_RPC_CLASS(Layer, int64_t, int64_t, double);
WEFT_RPC_METHOD(Layer, Forward);
WEFT_RPC_METHOD(Layer, Weight);
WEFT_RPC_METHOD(Layer, Value);

// Runs a layer that a third worker owns, and adds its input.
Variable Residual(rpc::CallContext& call, const rref::RRef<Layer>& layer,
                  const Variable& x) {
  const auto scope = dist_autograd::Scope::Within(call).value();
  return Add(scope.Call(layer, &Layer::Forward, x).value(), x);
}
WEFT_RPC(Residual);

class DistributedOptimizerTest : public ::testing::Test {
 protected:
  DistributedOptimizerTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(ranks_[i]).value());
      contexts_.push_back(dist_autograd::Contexts::Open(ranks_[i]).value());
    }
  }
  ~DistributedOptimizerTest() override {
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
  }
  rpc::Target To(int rank) { return ranks_[0].To(absl::StrCat("w", rank)); }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<dist_autograd::Contexts>> contexts_;
};

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

// One weight at w1, one at w2 and one here, each used once.
class ThreeOwnersTest : public DistributedOptimizerTest {
 protected:
  ThreeOwnersTest() {
    for (int i = 1; i <= 2; ++i) {
      layers_.push_back(rref::Make<Layer>(To(i), 3, 3, 0.5 / i).value());
      weights_.push_back(rref::Call(layers_.back(), &Layer::Weight).value());
    }
    head_ = std::make_shared<Variable>(InitialWeight(3, 1, 0.7), true);
    weights_.push_back(rref::MakeLocal(ranks_[0], head_).value());
  }

  // A recorded forward and its backward.
  absl::Status Train(const dist_autograd::Scope& pass) {
    Variable h(InitialWeight(4, 3, 1.0));
    for (const auto& layer : layers_) {
      WEFT_ASSIGN_OR_RETURN(h, pass.Call(layer, &Layer::Forward, h));
    }
    const Variable y = MatMul(h, *head_);
    return pass.Backward(Sum(Mul(y, y)));
  }
  std::vector<Tensor> Values() {
    std::vector<Tensor> values;
    for (const auto& layer : layers_) {
      values.push_back(rref::Call(layer, &Layer::Value).value());
    }
    values.push_back(head_->value().Clone());
    return values;
  }

  // The same in one process.
  struct Local {
    Variable w1{InitialWeight(3, 3, 0.5), true};
    Variable w2{InitialWeight(3, 3, 0.25), true};
    Variable w3{InitialWeight(3, 1, 0.7), true};
    std::vector<Variable> all() const { return {w1, w2, w3}; }
    void Train() const {
      const Variable h = Tanh(
          MatMul(Tanh(MatMul(Variable(InitialWeight(4, 3, 1.0)), w1)), w2));
      const Variable y = MatMul(h, w3);
      Sum(Mul(y, y)).Backward();
    }
    std::vector<Tensor> Values() const {
      return {w1.value(), w2.value(), w3.value()};
    }
  };

  static void ExpectEqual(const std::vector<Tensor>& a,
                          const std::vector<Tensor>& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t t = 0; t < a.size(); ++t) {
      ASSERT_EQ(a[t].numel(), b[t].numel());
      for (int64_t i = 0; i < a[t].numel(); ++i) {
        EXPECT_NEAR(a[t].Contiguous().data<double>()[i],
                    b[t].Contiguous().data<double>()[i], tolerance)
            << "tensor " << t << " element " << i;
      }
    }
  }

  std::vector<rref::RRef<Layer>> layers_;
  std::shared_ptr<Variable> head_;
  std::vector<rref::RRef<Variable>> weights_;
};

TEST_F(ThreeOwnersTest, ScheduleScalesTheLearningRatesOfAllOwners) {
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], AdamOptions{0.05}, weights_);
  ASSERT_THAT(optimizer.status(), IsOk());
  const Local local;
  auto own =
      Optimizer::Create({{AdamOptions{0.05},
                          {{"1", local.w1}, {"2", local.w2}, {"3", local.w3}},
                          /*lazy=*/false}});
  ASSERT_THAT(own.status(), IsOk());
  const Schedule schedule = CosineDecay(6);
  for (int step = 0; step < 6; ++step) {
    const dist_autograd::Scope pass(*contexts_[0]);
    ASSERT_THAT(Train(pass), IsOk());
    StepOptions options;
    options.learning_rate_scale = schedule(step);
    const auto report = (*optimizer)->Step(pass, options);
    ASSERT_THAT(report.status(), IsOk());
    EXPECT_EQ(report->updated, 3);
    local.Train();
    ASSERT_THAT((*own)->SetLearningRateScale(schedule(step)), IsOk());
    ASSERT_THAT((*own)->Step(), IsOk());
    (*own)->ZeroGrad();
  }
  ExpectEqual(Values(), local.Values(), 0);
}

TEST_F(ThreeOwnersTest, GlobalNormIsClippedOverAllOwners) {
  for (const Norm norm : {Norm::kEuclidean, Norm::kLargest, Norm::kSum}) {
    auto optimizer =
        DistributedOptimizer::Create(ranks_[0], SgdOptions{1.0}, weights_);
    ASSERT_THAT(optimizer.status(), IsOk());
    const std::vector<Tensor> before = Values();
    const dist_autograd::Scope pass(*contexts_[0]);
    ASSERT_THAT(Train(pass), IsOk());
    StepOptions options;
    options.largest_norm = 1e-3;
    options.norm = norm;
    const auto report = (*optimizer)->Step(pass, options);
    ASSERT_THAT(report.status(), IsOk());
    EXPECT_GT(report->gradient_norm, 1e-3);
    // By a learning rate of 1 the step is the gradient.
    const std::vector<Tensor> after = Values();
    double sum = 0, largest = 0, magnitudes = 0;
    for (size_t t = 0; t < after.size(); ++t) {
      for (int64_t i = 0; i < after[t].numel(); ++i) {
        const double d = std::abs(after[t].Contiguous().data<double>()[i] -
                                  before[t].Contiguous().data<double>()[i]);
        sum += d * d;
        largest = std::max(largest, d);
        magnitudes += d;
      }
    }
    const double found = norm == Norm::kEuclidean ? std::sqrt(sum)
                         : norm == Norm::kLargest ? largest
                                                  : magnitudes;
    EXPECT_NEAR(found, 1e-3, 2e-6);
  }
}

TEST_F(ThreeOwnersTest, ClippedStepEqualsThatOfOneProcess) {
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.5, 0.9}, weights_);
  ASSERT_THAT(optimizer.status(), IsOk());
  const Local local;
  auto own =
      Optimizer::Create({{SgdOptions{0.5, 0.9},
                          {{"1", local.w1}, {"2", local.w2}, {"3", local.w3}},
                          /*lazy=*/false}});
  ASSERT_THAT(own.status(), IsOk());
  for (int step = 0; step < 4; ++step) {
    const dist_autograd::Scope pass(*contexts_[0]);
    ASSERT_THAT(Train(pass), IsOk());
    StepOptions options;
    options.largest_norm = 0.1;
    const auto report = (*optimizer)->Step(pass, options);
    ASSERT_THAT(report.status(), IsOk());
    local.Train();
    const auto norm = ClipGradNorm(local.all(), 0.1);
    ASSERT_THAT(norm.status(), IsOk());
    EXPECT_NEAR(report->gradient_norm, *norm, 1e-12);
    ASSERT_THAT((*own)->Step(), IsOk());
    (*own)->ZeroGrad();
  }
  // The norm is summed in another order.
  ExpectEqual(Values(), local.Values(), 1e-12);
}

TEST_F(ThreeOwnersTest, StepNamesEachOwnerThatFails) {
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{1.0}, weights_);
  ASSERT_THAT(optimizer.status(), IsOk());
  const std::vector<Tensor> before = Values();
  const dist_autograd::Scope pass(*contexts_[0]);
  Variable h(InitialWeight(4, 3, 1.0));
  for (const auto& layer : layers_) {
    h = pass.Call(layer, &Layer::Forward, h).value();
  }
  dist_autograd::PassOptions options;
  options.seeds = {Tensor::Full({4, 1}, std::numeric_limits<double>::infinity(),
                                DType::kF64)};
  ASSERT_THAT(pass.Backward(MatMul(h, *head_), options), IsOk());
  const absl::Status failed = (*optimizer)->Step(pass);
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kInvalidArgument, "infinite"));
  for (const char* owner : {"at w0: ", "at w1: ", "at w2: "}) {
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr(owner));
  }
  ExpectEqual(Values(), before, 0);
}

// The owner that is called checks and applies at once.
TEST_F(ThreeOwnersTest, StepOverOneOtherOwnerEqualsThatOfOneProcess) {
  for (const bool has_local : {true, false}) {
    SCOPED_TRACE(has_local);
    std::vector<rref::RRef<Variable>> weights = {weights_[0]};
    if (has_local) weights.push_back(weights_[2]);
    auto optimizer =
        DistributedOptimizer::Create(ranks_[0], SgdOptions{0.5, 0.9}, weights);
    ASSERT_THAT(optimizer.status(), IsOk());
    const Local local;
    const std::vector<Tensor> begin = Values();
    local.w1.value().CopyFrom(begin[0]);
    local.w3.value().CopyFrom(begin[2]);
    ParameterGroup group{SgdOptions{0.5, 0.9}, {{"1", local.w1}}, false};
    std::vector<Variable> clipped = {local.w1};
    if (has_local) {
      group.parameters.push_back({"3", local.w3});
      clipped.push_back(local.w3);
    }
    auto own = Optimizer::Create({group});
    ASSERT_THAT(own.status(), IsOk());
    for (int step = 0; step < 4; ++step) {
      const dist_autograd::Scope pass(*contexts_[0]);
      ASSERT_THAT(Train(pass), IsOk());
      StepOptions options;
      options.learning_rate_scale = 1.0 / (1 + step);
      if (step > 0) options.largest_norm = 0.1;
      const auto report = (*optimizer)->Step(pass, options);
      ASSERT_THAT(report.status(), IsOk());
      EXPECT_EQ(report->updated, has_local ? 2 : 1);
      local.Train();
      if (step > 0) {
        const auto norm = ClipGradNorm(clipped, 0.1);
        ASSERT_THAT(norm.status(), IsOk());
        EXPECT_NEAR(report->gradient_norm, *norm, 1e-12);
      }
      ASSERT_THAT((*own)->SetLearningRateScale(options.learning_rate_scale),
                  IsOk());
      ASSERT_THAT((*own)->Step(), IsOk());
      for (const Variable& each : local.all()) each.ClearGradient();
    }
    ExpectEqual(Values(), {local.w1.value(), begin[1], local.w3.value()},
                1e-12);
  }
}

TEST_F(ThreeOwnersTest, StepOverOneOtherOwnerThatIsRefusedChangesNothing) {
  auto optimizer = DistributedOptimizer::Create(ranks_[0], SgdOptions{1.0},
                                                {weights_[0], weights_[2]});
  ASSERT_THAT(optimizer.status(), IsOk());
  const std::vector<Tensor> before = Values();
  {
    const dist_autograd::Scope pass(*contexts_[0]);
    EXPECT_THAT((*optimizer)->Step(pass),
                StatusIs(absl::StatusCode::kFailedPrecondition, "Backward"));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  // Gradients of both, or of one alone, are not finite.
  for (const bool head_too : {true, false}) {
    const dist_autograd::Scope pass(*contexts_[0]);
    const Variable h =
        pass.Call(layers_[0], &Layer::Forward, Variable(InitialWeight(4, 3, 1)))
            .value();
    dist_autograd::PassOptions options;
    options.seeds = {
        Tensor::Full({4, head_too ? 1 : 3}, infinity, DType::kF64)};
    ASSERT_THAT(pass.Backward(head_too ? MatMul(h, *head_) : h, options),
                IsOk());
    const absl::Status failed = (*optimizer)->Step(pass);
    EXPECT_THAT(failed,
                StatusIs(absl::StatusCode::kInvalidArgument, "infinite"));
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("at w1: "));
    if (head_too) {
      EXPECT_THAT(std::string(failed.message()),
                  ::testing::HasSubstr("at w0: "));
    }
    ExpectEqual(Values(), before, 0);
  }
}

TEST_F(ThreeOwnersTest, GroupsHaveTheirOwnRules) {
  auto optimizer = DistributedOptimizer::Create(
      ranks_[0], {{SgdOptions{0.1}, {weights_[0], weights_[2]}, false},
                  {AdamOptions{0.05}, {weights_[1]}, false}});
  ASSERT_THAT(optimizer.status(), IsOk());
  const Local local;
  auto own = Optimizer::Create(
      {{SgdOptions{0.1}, {{"1", local.w1}, {"3", local.w3}}, false},
       {AdamOptions{0.05}, {{"2", local.w2}}, false}});
  ASSERT_THAT(own.status(), IsOk());
  for (int step = 0; step < 3; ++step) {
    const dist_autograd::Scope pass(*contexts_[0]);
    ASSERT_THAT(Train(pass), IsOk());
    ASSERT_THAT((*optimizer)->Step(pass), IsOk());
    local.Train();
    ASSERT_THAT((*own)->Step(), IsOk());
    (*own)->ZeroGrad();
  }
  ExpectEqual(Values(), local.Values(), 0);
}

TEST_F(ThreeOwnersTest, StateGoesThroughACheckpointAndTrainingGoesOn) {
  const testing::TempDir folder;
  auto directory = checkpoint::CheckpointDirectory::Open({folder.path()});
  ASSERT_THAT(directory.status(), IsOk());
  const auto train = [&](DistributedOptimizer& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      const dist_autograd::Scope pass(*contexts_[0]);
      ASSERT_THAT(Train(pass), IsOk());
      ASSERT_THAT(optimizer.Step(pass), IsOk());
    }
  };
  auto first =
      DistributedOptimizer::Create(ranks_[0], AdamOptions{0.05}, weights_);
  ASSERT_THAT(first.status(), IsOk());
  train(**first, 3);
  const auto state = (*first)->SaveState();
  ASSERT_THAT(state.status(), IsOk());
  EXPECT_EQ(state->count("group0.parameter2/value"), 1u);
  ASSERT_THAT((*directory)->Save(3, *state, {}).status(), IsOk());
  train(**first, 2);
  const std::vector<Tensor> wanted = Values();

  // Another optimizer, whose weights have moved on.
  auto second =
      DistributedOptimizer::Create(ranks_[0], AdamOptions{0.05}, weights_);
  ASSERT_THAT(second.status(), IsOk());
  const auto loaded = (*directory)->LoadLatest();
  ASSERT_THAT(loaded.status(), IsOk());
  ASSERT_THAT((*second)->LoadState(loaded->tensors), IsOk());
  train(**second, 2);
  ExpectEqual(Values(), wanted, 0);
}

TEST_F(ThreeOwnersTest, StateThatDoesNotFitChangesNoOwner) {
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], AdamOptions{0.05}, weights_);
  ASSERT_THAT(optimizer.status(), IsOk());
  auto state = (*optimizer)->SaveState().value();
  const std::vector<Tensor> before = Values();
  for (auto& [name, tensor] : state) {
    if (tensor.dtype() == DType::kF64)
      tensor = Tensor::Zeros(tensor.shape(), DType::kF64);
  }
  auto missing = state;
  missing.erase("group0.parameter1/value");
  EXPECT_THAT(
      (*optimizer)->LoadState(missing),
      StatusIs(absl::StatusCode::kInvalidArgument, "group0.parameter1/value"));
  auto unknown = state;
  unknown["group7.parameter0/value"] = Tensor::Zeros({1});
  EXPECT_THAT(
      (*optimizer)->LoadState(unknown),
      StatusIs(absl::StatusCode::kInvalidArgument, "group7.parameter0/value"));
  auto reshaped = state;
  reshaped["group0.parameter0/value"] = Tensor::Zeros({2}, DType::kF64);
  EXPECT_THAT((*optimizer)->LoadState(reshaped),
              StatusIs(absl::StatusCode::kInvalidArgument, "the optimizer at"));
  ExpectEqual(Values(), before, 0);
}

TEST_F(ThreeOwnersTest, ImpossibleOptionsAreRefused) {
  auto optimizer =
      DistributedOptimizer::Create(ranks_[0], SgdOptions{0.1}, weights_);
  ASSERT_THAT(optimizer.status(), IsOk());
  const dist_autograd::Scope pass(*contexts_[0]);
  ASSERT_THAT(Train(pass), IsOk());
  StepOptions options;
  options.learning_rate_scale = -1;
  EXPECT_THAT(
      (*optimizer)->Step(pass, options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "learning_rate_scale"));
  options.learning_rate_scale = 1;
  options.largest_norm = 0.0;
  EXPECT_THAT((*optimizer)->Step(pass, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "largest_norm"));
}

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
