// The whole path over three agents: references made at two servers, passed on,
// used in a recorded forward, one backward, one distributed step; equal to the
// same model trained in one process.

#include "weft/optimizer/distributed_optimizer.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

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
      SgdOptions{0.1, 0.9}, AdamOptions{0.05}, AdamWOptions{0.05},
      AdagradOptions{0.1}, FtrlOptions{0.1}};
  return *kRules;
}

TEST_F(DistributedOptimizerTest, TrainsAsOneProcessDoesByEveryRule) {
  const Tensor x = InitialWeight(4, 3, 1.0);
  for (const RuleOptions& rule : Rules()) {
    SCOPED_TRACE(RuleName(rule));
    // Distributed: one layer at each server and one here.
    const auto first = rref::Make<Layer>(To(1), 3, 5, 0.5).value();
    const auto second = rref::Make<Layer>(To(2), 5, 5, 0.3).value();
    const auto head =
        std::make_shared<Variable>(InitialWeight(5, 1, 0.7), true);
    auto optimizer = DistributedOptimizer::Create(
        ranks_[0], rule,
        {rref::Call(first, &Layer::Weight).value(),
         rref::Call(second, &Layer::Weight).value(),
         rref::MakeLocal(ranks_[0], head).value()});
    ASSERT_THAT(optimizer.status(), IsOk());
    EXPECT_EQ((*optimizer)->owners(), 3);
    // The same in one process.
    const Variable w1(InitialWeight(3, 5, 0.5), true);
    const Variable w2(InitialWeight(5, 5, 0.3), true);
    const Variable w3(InitialWeight(5, 1, 0.7), true);
    auto local = Optimizer::Create(
        {{rule, {{"w1", w1}, {"w2", w2}, {"w3", w3}}, /*lazy=*/false}});
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
  const dist_autograd::Scope pass(*contexts_[0]);
  EXPECT_THAT((*optimizer)->Step(pass),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Backward"));
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

}  // namespace
}  // namespace weft::optimizer
