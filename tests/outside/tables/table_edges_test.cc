// Tables at the edges of what ps/client.h, ps/server.h and
// docs/parameter_server.md promise: too many pushes, a save while pushes go
// on, servers that die and come back, rates that change, paths that lead
// elsewhere.

#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"
#include "weft/base/future.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/rpc/function.h"
#include "weft/tests/outside/tables/cluster.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// ---- The 65th opening.

TEST(TableOpenings, SixtyFifthOfAWorkerClosesItsOldestAndNobodyElses) {
  Cluster cluster(1, 2);
  const auto client = cluster.MakeClient(0), other = cluster.MakeClient(1);
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  auto others = other->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(others, IsOk());
  std::vector<std::unique_ptr<SparseTable>> tables;
  for (int i = 0; i < 64; ++i) {
    auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(table, IsOk());
    tables.push_back(*std::move(table));
  }
  for (const auto& table : tables) {
    ASSERT_THAT(table->Push(keys, ones).Wait(kLong), IsOk());
  }
  auto one_more = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(one_more, IsOk());
  EXPECT_THAT(tables[0]->Push(keys, ones).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tables[0]->Pull(keys).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tables[1]->Push(keys, ones).Wait(kLong), IsOk());
  EXPECT_THAT((*others)->Push(keys, ones).Wait(kLong), IsOk());
  EXPECT_THAT((*one_more)->Pull(keys).Wait(kLong)->ToVector<float>(),
              Each(-66.0f));
}

// ---- Learning rates.

class Rates : public ::testing::TestWithParam<int> {
 protected:
  static const optimizer::RuleOptions& Rule() {
    static const auto* const kRules = new std::vector<optimizer::RuleOptions>{
        optimizer::SgdOptions{0.1, 0.9, 0.0, 0.01, true},
        optimizer::AdamOptions{0.05, 0.9, 0.99, 1e-8, 0.01},
        optimizer::AdamWOptions{0.05}, optimizer::AdagradOptions{0.1, 0.01},
        optimizer::FtrlOptions{0.1, 1.0, 0.01, 0.01}};
    return (*kRules)[GetParam()];
  }
  static Tensor GradientOf(int64_t elements, int shard, int64_t round) {
    std::vector<float> values(elements);
    for (int64_t i = 0; i < elements; ++i) {
      values[i] = std::sin(0.7f * i + 1.3f * shard + 0.1f * round);
    }
    return Tensor::FromVector(values);
  }
  static double ScaleOf(int64_t round) {
    constexpr double kScales[] = {1.0, 0.25, 0.1, 3.0, 1e-3, 0.7};
    return kScales[round % 6];
  }
};

TEST_P(Rates, ChangedByRoundGiveTheBitsOfALocalOptimizer) {
  constexpr int64_t kElements = 2 * kMinSliceElements + 7;
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  for (const v1::TableSpec::Reduction reduction :
       {v1::TableSpec::SUM, v1::TableSpec::MEAN}) {
    v1::TableSpec spec = Dense(v1::TableSpec::SYNC, 2, kElements);
    spec.set_name(absl::StrCat("d", reduction));
    spec.set_reduction(reduction);
    *spec.mutable_rule() = optimizer::ToSpec(Rule());
    auto table = client->Dense(spec);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Ones({kElements})).Wait(kLong),
                IsOk());
    const Variable w(Tensor::Ones({kElements}), true);
    auto local = optimizer::Optimizer::Create({{Rule(), {{"w", w}}}});
    ASSERT_THAT(local, IsOk());
    for (int64_t round = 0; round < 8; ++round) {
      if (round != 0) {
        ASSERT_THAT((*table)->SetLearningRateScale(ScaleOf(round)).Wait(kLong),
                    IsOk());
        // The same again, as by another worker.
        ASSERT_THAT(
            (*table)->SetLearningRateScale(ScaleOf(round), round).Wait(kLong),
            IsOk());
      }
      std::vector<float> sum =
          GradientOf(kElements, 0, round).ToVector<float>();
      const auto other = GradientOf(kElements, 1, round).ToVector<float>();
      for (int64_t i = 0; i < kElements; ++i) {
        sum[i] += other[i];
        if (reduction == v1::TableSpec::MEAN) sum[i] /= 2;
      }
      ASSERT_THAT((*local)->SetLearningRateScale(ScaleOf(round)), IsOk());
      ASSERT_THAT((*local)->Apply([&](const optimizer::Parameter&) {
        return Gradient(Tensor::FromVector(sum));
      }),
                  IsOk());
      for (const int shard : {1, 0}) {
        ASSERT_THAT((*table)
                        ->PushShard({shard, round, /*take_over=*/true},
                                    GradientOf(kElements, shard, round))
                        .Wait(kLong),
                    IsOk());
      }
      (*table)->EndRound();
      const auto values = (*table)->Pull().Wait(kLong);
      ASSERT_THAT(values, IsOk());
      ASSERT_EQ(values->ToVector<float>(), w.value().ToVector<float>())
          << optimizer::RuleName(Rule()) << " round " << round;
    }
  }
}

TEST_P(Rates, ChangedByRoundGiveTheBitsOfALocalLazyOptimizerOfRows) {
  constexpr int64_t kRows = 40;
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  v1::TableSpec spec = Sparse(v1::TableSpec::SYNC, 1);
  *spec.mutable_rule() = optimizer::ToSpec(Rule());
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Variable w(Tensor::Zeros({kRows, 2}), true);
  auto local = optimizer::Optimizer::Create({{Rule(), {{"w", w}}, true}});
  ASSERT_THAT(local, IsOk());
  const Tensor keys = Tensor::Arange(kRows, DType::kI64);
  for (int64_t round = 0; round < 7; ++round) {
    const Tensor gradient = GradientOf(2 * kRows, 0, round).View({kRows, 2});
    ASSERT_THAT((*table)->SetLearningRateScale(ScaleOf(round)).Wait(kLong),
                IsOk());
    ASSERT_THAT((*local)->SetLearningRateScale(ScaleOf(round)), IsOk());
    ASSERT_THAT((*local)->Apply([&](const optimizer::Parameter&) {
      return Gradient(gradient);
    }),
                IsOk());
    const auto rows = (*table)->PushPull(keys, gradient, keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    ASSERT_EQ(rows->ToVector<float>(), w.value().ToVector<float>())
        << optimizer::RuleName(Rule()) << " round " << round;
  }
}

// 0 is allowed: the end of a cosine.
TEST_P(Rates, ScaleOfZeroLeavesFiniteWeights) {
  Cluster cluster(1, 1);
  const auto client = cluster.MakeClient(0);
  v1::TableSpec spec = Sparse(v1::TableSpec::ASYNC);
  *spec.mutable_rule() = optimizer::ToSpec(Rule());
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(4, DType::kI64);
  for (const double scale : {1.0, 0.0, 0.0, 1.0}) {
    ASSERT_THAT((*table)->SetLearningRateScale(scale).Wait(kLong), IsOk());
    const auto rows =
        (*table)->PushPull(keys, Tensor::Ones({4, 2}), keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    for (const float x : rows->ToVector<float>()) {
      EXPECT_TRUE(std::isfinite(x))
          << optimizer::RuleName(Rule()) << " at scale " << scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Rates, ::testing::Range(0, 5));

TEST(RateChangesOfATable, WhatCannotBeIsRefusedAndChangesNothing) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::SYNC, 1));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  for (const double bad :
       {-1.0, -1e-300, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT((*table)->SetLearningRateScale(bad).Wait(kLong),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
  }
  ASSERT_THAT((*table)->Push(keys, ones).Wait(kLong), IsOk());
  ASSERT_THAT((*table)->Pull(keys).Wait(kLong), IsOk());
  EXPECT_THAT((*table)->SetLearningRateScale(0.5, 0).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT((*table)->SetLearningRateScale(0.5, -1).Wait(kLong),
              ::testing::AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition),
                               StatusIs(absl::StatusCode::kInvalidArgument)));
  ASSERT_THAT((*table)->SetLearningRateScale(0.5, 3).Wait(kLong), IsOk());
  ASSERT_THAT((*table)->SetLearningRateScale(0.5, 3).Wait(kLong), IsOk());
  EXPECT_THAT((*table)->SetLearningRateScale(0.25, 3).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  std::vector<Future<void>> changes;
  for (int64_t i = 0; i < 4200; ++i) {
    changes.push_back((*table)->SetLearningRateScale(0.25, 10 + i));
  }
  int refused = 0;
  for (const auto& change : changes) {
    const absl::Status status = change.Wait(kLong);
    if (status.ok()) continue;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    ++refused;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 200);
  // Rounds 1 and 2 at the old rate, from round 3 at half of it.
  float wanted = -1;
  for (const float step : {1.0f, 1.0f, 0.5f}) {
    wanted -= step;
    const auto rows = (*table)->PushPull(keys, ones, keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(wanted));
  }
}

// ---- Other edges of a table.

TEST(TableEdges, EmptyAndStrangeKeysAreTakenOrNamed) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  const Tensor none = Tensor::Empty({0}, DType::kI64);
  const auto rows = (*table)->Pull(none).Wait(kLong);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->shape(), (Shape{0, 2}));
  EXPECT_THAT((*table)->Push(none, Tensor::Empty({0, 2})).Wait(kLong), IsOk());
  const Tensor extreme =
      Tensor::FromVector<int64_t>({std::numeric_limits<int64_t>::min(), -1, 0,
                                   std::numeric_limits<int64_t>::max(), -1});
  ASSERT_THAT((*table)->Push(extreme, Tensor::Ones({5, 2})).Wait(kLong),
              IsOk());
  EXPECT_EQ((*table)->Pull(extreme).Wait(kLong)->ToVector<float>(),
            (std::vector<float>{-1, -1, -2, -2, -1, -1, -1, -1, -2, -2}));
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT((*table)->Push(extreme, Tensor::Ones({4, 2})).Wait(kLong),
              invalid);
  EXPECT_THAT((*table)->Push(extreme, Tensor::Ones({5, 3})).Wait(kLong),
              invalid);
  EXPECT_THAT((*table)->Push(extreme, Tensor()).Wait(kLong), invalid);
  EXPECT_THAT((*table)->Push(Tensor(), Tensor::Ones({5, 2})).Wait(kLong),
              invalid);
  EXPECT_THAT(
      (*table)->Pull(Tensor::Ones({2, 2}, DType::kI64)).Wait(kLong).status(),
      invalid);
  // Views in any strides.
  const Tensor wide = Tensor::Ones({2, 5}).Transpose(0, 1);
  const Tensor steps =
      Tensor::FromVector<int64_t>({0, 9, 1, 9, 2, 9, 3, 9, 4, 9}, {5, 2})
          .Select(1, 0);
  EXPECT_THAT((*table)->Push(steps, wide).Wait(kLong), IsOk());
  EXPECT_THAT((*table)
                  ->Pull(Tensor::FromVector<int64_t>({1, 2, 3, 4}))
                  .Wait(kLong)
                  ->ToVector<float>(),
              Each(-1.0f));
}

TEST(TableEdges, PartsOfRoundsThatCannotBeAreRefusedAndTheRoundGoesOn) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::SYNC, 2));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  for (const RoundPart& bad :
       {RoundPart{2, 0}, RoundPart{-1, 0}, RoundPart{INT_MAX, 0},
        RoundPart{0, -1}, RoundPart{0, 100},
        RoundPart{0, std::numeric_limits<int64_t>::max()}}) {
    EXPECT_THAT((*table)->PushShard(bad, keys, ones).Wait(kLong), Not(IsOk()))
        << bad.shard << " " << bad.round;
  }
  for (const int shard : {0, 1}) {
    const RoundPart part{shard, 0, true};
    ASSERT_THAT((*table)->PushShard(part, keys, ones).Wait(kLong), IsOk());
    // Late and twice: it counts once.
    ASSERT_THAT((*table)->PushShard(part, keys, ones).Wait(kLong), IsOk());
  }
  (*table)->EndRound();
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(), Each(-2.0f));
  // A part that comes after its round was closed does not count.
  (*table)->PushShard({0, 0, true}, keys, ones).Wait(kLong).IgnoreError();
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(), Each(-2.0f));
}

}  // namespace
}  // namespace weft::ps
