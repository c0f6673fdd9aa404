#include "weft/ps/embedding/context_lookups.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/reduce.h"
#include "weft/autograd/variable.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/lookups.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Tensor Ids(const std::vector<int64_t>& ids) { return Tensor::FromVector(ids); }

// What a worker looks rows up with.
struct Embedder {
  std::unique_ptr<Client> client;
  std::unique_ptr<SparseTable> table;
  std::unique_ptr<ContextLookups> lookups;
};

Variable Embed(rpc::CallContext& call, const Tensor& ids) {
  const auto scope = dist_autograd::Scope::Within(call).value();
  Embedder& here = *call.Local<Embedder>();
  return here.lookups->Embedding(scope, *here.table, ids).value();
}
WEFT_RPC(Embed);

// Rows times a weight that lives there.
class Scale {
 public:
  explicit Scale(double by)
      : by_(std::make_shared<Variable>(Tensor::Full({}, by), true)) {}
  Variable Forward(const Variable& x) { return x * *by_; }
  rref::RRef<Variable> By(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), by_).value();
  }
  double Value() { return by_->value().item<float>(); }

 private:
  std::shared_ptr<Variable> by_;
};
WEFT_RPC_CLASS(Scale, double);
WEFT_RPC_METHOD(Scale, Forward);
WEFT_RPC_METHOD(Scale, By);
WEFT_RPC_METHOD(Scale, Value);

// A server of tables and three workers: 0 trains, 1 embeds, 2 has a weight.
class ContextLookupsTest
    : public ::testing::TestWithParam<v1::TableSpec::Mode> {
 protected:
  ContextLookupsTest() {
    for (int i = 0; i < 3; ++i) {
      references_.push_back(rref::References::Open(job_.trainer(i)).value());
      contexts_.push_back(
          dist_autograd::Contexts::Open(job_.trainer(i)).value());
    }
    embedder_ = std::make_shared<Embedder>();
    embedder_->client = job_.MakeClient(1);
    v1::TableSpec spec = SparseSpec(GetParam(), 2);
    spec.set_orphans(v1::TableSpec::RETIRE);
    if (GetParam() == v1::TableSpec::SYNC) spec.set_shards(2);
    embedder_->table = *embedder_->client->Sparse(spec);
    embedder_->lookups = std::make_unique<ContextLookups>(kTimeout);
    job_.trainer(1).SetLocal(embedder_);
    other_client_ = job_.MakeClient(0);
    other_ = *other_client_->Sparse(spec);
    scale_ = rref::Make<Scale>(To(2), 3.0).value();
    parameter_ = rref::Call(scale_, &Scale::By).value();
    optimizer_ = optimizer::DistributedOptimizer::Create(
                     job_.trainer(0), optimizer::SgdOptions{0.5}, {parameter_})
                     .value();
  }
  ~ContextLookupsTest() override {
    optimizer_.reset();
    parameter_ = {};
    scale_ = {};
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
    job_.trainer(1).SetLocal(std::shared_ptr<Embedder>());
  }

  rpc::Target To(int i) {
    return job_.trainer(0).To(absl::StrCat("trainer", i));
  }
  // SYNC: the part of the other shard of the open round.
  void OthersPart() {
    if (GetParam() != v1::TableSpec::SYNC) return;
    ASSERT_THAT(
        other_->Push(Tensor::Empty({0}, DType::kI64), Tensor::Empty({0, 2}))
            .Wait(kTimeout),
        IsOk());
  }
  std::vector<float> Rows(const std::vector<int64_t>& ids) {
    return other_->Pull(Ids(ids)).Wait(kTimeout)->ToVector<float>();
  }
  double Scaled() { return rref::Call(scale_, &Scale::Value).value(); }

  TestJob job_{1, 3};
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<dist_autograd::Contexts>> contexts_;
  std::shared_ptr<Embedder> embedder_;
  std::unique_ptr<Client> other_client_;
  std::unique_ptr<SparseTable> other_;
  rref::RRef<Scale> scale_;
  rref::RRef<Variable> parameter_;
  std::unique_ptr<optimizer::DistributedOptimizer> optimizer_;
};

INSTANTIATE_TEST_SUITE_P(Modes, ContextLookupsTest,
                         ::testing::Values(v1::TableSpec::SYNC,
                                           v1::TableSpec::ASYNC),
                         [](const auto& info) {
                           return v1::TableSpec::Mode_Name(info.param);
                         });

// The embedding worker has no parameter, so the step has to look for it.
TEST_P(ContextLookupsTest, TheStepOfAContextPushesItsLookUpsOnce) {
  dist_autograd::Scope pass(*contexts_[0]);
  const auto rows = pass.Call(To(1), Embed, Ids({4, 5, 4}));
  ASSERT_THAT(rows.status(), IsOk());
  const auto scaled = pass.Call(scale_, &Scale::Forward,
                                *rows + Variable(Tensor::Ones({3, 2})));
  ASSERT_THAT(scaled.status(), IsOk());
  ASSERT_THAT(pass.Backward(Sum(*scaled)), IsOk());
  const auto stepped = optimizer_->Step(pass, {});
  ASSERT_THAT(stepped.status(), IsOk());
  EXPECT_EQ(stepped->updated, 2);
  OthersPart();
  EXPECT_THAT(Rows({4, 5}), ElementsAre(-6, -6, -3, -3));
  EXPECT_EQ(Scaled(), 0.0);  // 3 - 0.5 * 6
  // Again: parameters step as ever, the look-ups' pushes are made once.
  ASSERT_THAT(optimizer_->Step(pass, {}).status(), IsOk());
  EXPECT_EQ(embedder_->table->round(),
            GetParam() == v1::TableSpec::SYNC ? 1 : 0);
  EXPECT_THAT(Rows({4, 5}), ElementsAre(-6, -6, -3, -3));
  EXPECT_EQ(Scaled(), -3.0);
}

TEST_P(ContextLookupsTest, LookUpsOfTheTrainerItselfTakePart) {
  ContextLookups lookups(kTimeout);
  dist_autograd::Scope pass(*contexts_[0]);
  const auto rows = lookups.EmbeddingBag(
      pass, *other_, Tensor::FromVector<int64_t>({1, 2, 2, 3}, {2, 2}),
      BagMode::kSum);
  ASSERT_THAT(rows.status(), IsOk());
  const auto scaled = pass.Call(scale_, &Scale::Forward, *rows);
  ASSERT_THAT(scaled.status(), IsOk());
  ASSERT_THAT(pass.Backward(Sum(*scaled)), IsOk());
  ASSERT_THAT(optimizer_->Step(pass, {}).status(), IsOk());
  // A look-up after the step begins a new part.
  if (GetParam() == v1::TableSpec::SYNC) {
    ASSERT_THAT(
        embedder_->table
            ->Push(Tensor::Empty({0}, DType::kI64), Tensor::Empty({0, 2}))
            .Wait(kTimeout),
        IsOk());
  }
  const auto next = lookups.Embedding(pass, *other_, Ids({2}));
  ASSERT_THAT(next.status(), IsOk());
  EXPECT_THAT(next->value().ToVector<float>(), Each(-6));
  EXPECT_THAT(Rows({1, 2, 3}), ElementsAre(-3, -3, -6, -6, -3, -3));
  // What was looked up before it is of no use any more.
  EXPECT_THAT(pass.Backward(Sum(*rows)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "before the step of its context"));
}

TEST_P(ContextLookupsTest, WhatWasNotSteppedIsDroppedWithTheContext) {
  {
    dist_autograd::Scope pass(*contexts_[0]);
    const auto rows = pass.Call(To(1), Embed, Ids({4}));
    ASSERT_THAT(rows.status(), IsOk());
    ASSERT_THAT(pass.Backward(Sum(*rows)), IsOk());
  }
  ASSERT_TRUE(Becomes([&] { return contexts_[1]->counts().contexts == 0; }));
  EXPECT_EQ(embedder_->table->round(), 0);
  dist_autograd::Scope pass(*contexts_[0]);
  const auto rows = pass.Call(To(1), Embed, Ids({5}));
  ASSERT_THAT(rows.status(), IsOk());
  const auto scaled = pass.Call(scale_, &Scale::Forward, *rows);
  ASSERT_THAT(pass.Backward(Sum(*scaled)), IsOk());
  ASSERT_THAT(optimizer_->Step(pass, {}).status(), IsOk());
  OthersPart();
  EXPECT_THAT(Rows({4, 5}), ElementsAre(0, 0, -3, -3));
}

TEST_P(ContextLookupsTest, AnInfiniteGradientOfARowStepsNobody) {
  dist_autograd::Scope pass(*contexts_[0]);
  const auto rows = pass.Call(To(1), Embed, Ids({4}));
  ASSERT_THAT(rows.status(), IsOk());
  const auto scaled =
      pass.Call(scale_, &Scale::Forward, Variable(Tensor::Ones({1, 2})));
  ASSERT_THAT(scaled.status(), IsOk());
  const float infinite = std::numeric_limits<float>::infinity();
  ASSERT_THAT(pass.Backward(Sum(*scaled) + Sum(*rows * infinite)), IsOk());
  EXPECT_THAT(optimizer_->Step(pass, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "trainer1"));
  EXPECT_EQ(Scaled(), 3.0);
  EXPECT_EQ(embedder_->table->round(), 0);
  EXPECT_THAT(other_->Pull(Ids({4})).Wait(kTimeout)->ToVector<float>(),
              Each(0));
}

// The weight's gradient is infinite: the rows are not pushed either.
TEST_P(ContextLookupsTest, AnInfiniteGradientOfAParameterPushesNothing) {
  dist_autograd::Scope pass(*contexts_[0]);
  const auto rows = pass.Call(To(1), Embed, Ids({4}));
  ASSERT_THAT(rows.status(), IsOk());
  const float infinite = std::numeric_limits<float>::infinity();
  const auto scaled = pass.Call(scale_, &Scale::Forward,
                                Variable(Tensor::Full({1, 2}, infinite)));
  ASSERT_THAT(scaled.status(), IsOk());
  ASSERT_THAT(pass.Backward(Sum(*scaled) + Sum(*rows)), IsOk());
  EXPECT_THAT(optimizer_->Step(pass, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "trainer2"));
  EXPECT_EQ(embedder_->table->round(), 0);
  EXPECT_THAT(Rows({4}), Each(0));
}

TEST_P(ContextLookupsTest, ALookUpInAContextThatWasReleasedIsRefused) {
  ContextLookups lookups(kTimeout);
  dist_autograd::Scope pass(*contexts_[0]);
  contexts_[0]->Release(pass.id());
  EXPECT_THAT(lookups.Embedding(pass, *other_, Ids({1})).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was released"));
}

}  // namespace
}  // namespace weft::ps
