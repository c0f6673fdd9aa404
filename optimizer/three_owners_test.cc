// A distributed step over three owners: schedules, clipping, groups, state.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/optimizer/distributed_optimizer_fixture.h"
#include "weft/optimizer/schedule.h"
#include "weft/rpc/call.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::optimizer {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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

}  // namespace
}  // namespace weft::optimizer
