#include "weft/ps/embedding/lookups.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/reduce.h"
#include "weft/autograd/ops/shape.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;

Tensor Ids(const std::vector<int64_t>& ids) { return Tensor::FromVector(ids); }
Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return Tensor::FromVector(ids, shape);
}

v1::TableSpec Named(const std::string& name, v1::TableSpec spec) {
  spec.set_name(name);
  return spec;
}

// Two servers and one trainer, with two tables whose rows are 0 at first and
// change by minus their gradient.
class LookupsTest : public ::testing::TestWithParam<v1::TableSpec::Mode> {
 protected:
  LookupsTest() {
    users_ = *client_->Sparse(Named("users", SparseSpec(GetParam(), 1)));
    items_ = *client_->Sparse(Named("items", SparseSpec(GetParam(), 1)));
  }

  std::vector<float> Rows(SparseTable& table, const std::vector<int64_t>& ids) {
    return table.Pull(Ids(ids)).Wait(kTimeout)->ToVector<float>();
  }

  TestJob job_{2, 1};
  std::unique_ptr<Client> client_ = job_.MakeClient(0);
  std::unique_ptr<SparseTable> users_, items_;
};

INSTANTIATE_TEST_SUITE_P(Modes, LookupsTest, ::testing::Values(kSync, kAsync),
                         [](const auto& info) {
                           return v1::TableSpec::Mode_Name(info.param);
                         });

TEST_P(LookupsTest, GradientsOfALookUpAddUpByRow) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({7, 3, 7, 9, 7, 3}, {2, 3}));
  ASSERT_THAT(e.status(), IsOk());
  EXPECT_EQ(e->shape(), (Shape{2, 3, 2}));
  EXPECT_THAT(e->value().ToVector<float>(), Each(0));
  const Tensor weights = Tensor::FromVector<float>(
      {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, {2, 3, 2});
  Sum(*e * Variable(weights)).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(Rows(*users_, {3, 7, 9}), ElementsAre(-8, -80, -9, -90, -4, -40));
}

TEST_P(LookupsTest, ManyTablesAndATableTwiceArePushedTogether) {
  Lookups lookups;
  const auto all = lookups.Embeddings({{users_.get(), Ids({1, 2})},
                                       {items_.get(), Ids({1})},
                                       {users_.get(), Ids({2, 3})}});
  ASSERT_THAT(all.status(), IsOk());
  Variable loss = Sum((*all)[0]) + Sum((*all)[1]) * 5.0 + Sum((*all)[2]) * 3.0;
  loss.Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(Rows(*users_, {1, 2, 3}), ElementsAre(-1, -1, -4, -4, -3, -3));
  EXPECT_THAT(Rows(*items_, {1}), ElementsAre(-5, -5));
}

TEST_P(LookupsTest, BagsAreSumsAndMeansOfRows) {
  ASSERT_THAT(users_
                  ->Push(Ids({1, 2}),
                         Tensor::FromVector<float>({-1, -2, -3, -4}, {2, 2}))
                  .Wait(kTimeout),
              IsOk());
  Lookups lookups;
  const auto sum =
      lookups.EmbeddingBag(*users_, Ids({1, 2, 2, 2}, {2, 2}), BagMode::kSum);
  const auto mean =
      lookups.EmbeddingBag(*users_, Ids({1, 2, 2, 2}, {2, 2}), BagMode::kMean);
  ASSERT_THAT(sum.status(), IsOk());
  ASSERT_THAT(mean.status(), IsOk());
  EXPECT_EQ(sum->shape(), (Shape{2, 2}));
  EXPECT_THAT(sum->value().ToVector<float>(), ElementsAre(4, 6, 6, 8));
  EXPECT_THAT(mean->value().ToVector<float>(), ElementsAre(2, 3, 3, 4));
  (Sum(*sum) + Sum(*mean) * 4.0).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  // Row 1 has the gradients 1 and 4 / 2; row 2 has three times that.
  EXPECT_THAT(Rows(*users_, {1, 2}), ElementsAre(-2, -1, -6, -5));
}

TEST_P(LookupsTest, ALookUpWithoutAGradientChangesNoRow) {
  Lookups lookups;
  const auto used = lookups.Embedding(*users_, Ids({1}));
  const auto unused = lookups.Embedding(*items_, Ids({1}));
  ASSERT_THAT(unused.status(), IsOk());
  Sum(*used).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(Rows(*users_, {1}), Each(-1));
  EXPECT_THAT(Rows(*items_, {1}), Each(0));
}

TEST_P(LookupsTest, OfAnAbortedPassNothingIsEverSeen) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({1, 2}));
  ASSERT_THAT(e.status(), IsOk());
  Sum(*e).Backward();
  lookups.Abort();
  EXPECT_EQ(lookups.recorded(), 0);
  const auto next = lookups.Embedding(*users_, Ids({2}));
  ASSERT_THAT(next.status(), IsOk());
  (Sum(*next) * 2.0).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(Rows(*users_, {1, 2}), ElementsAre(0, 0, -2, -2));
  EXPECT_THAT(CatchToStatus([&] { Sum(*e).Backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was aborted"));
}

TEST_P(LookupsTest, ABackwardPassThatFailsLeavesNoGradient) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({1}));
  const Variable other(Tensor::Ones({1, 2}), /*requires_grad=*/true);
  ASSERT_THAT(e.status(), IsOk());
  const Variable sum = *e * 3.0 + other;
  other.AddHook([](Gradient) -> Gradient {
    throw Error(absl::DataLossError("on purpose"));
  });
  EXPECT_THAT(CatchToStatus([&] { Sum(sum).Backward(); }),
              StatusIs(absl::StatusCode::kDataLoss, "on purpose"));
  EXPECT_THAT(lookups.Commit(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Backward"));
  lookups.Abort();
  EXPECT_THAT(Rows(*users_, {1}), Each(0));
}

TEST_P(LookupsTest, TwoBackwardPassesAddUp) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({1}));
  ASSERT_THAT(e.status(), IsOk());
  const Variable loss = Sum(*e);
  BackwardOptions retain;
  retain.retain_graph = true;
  loss.Backward(retain);
  loss.Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(Rows(*users_, {1}), Each(-2));
}

TEST_P(LookupsTest, ABackwardPassAfterItsCommitIsRefused) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({1}));
  ASSERT_THAT(e.status(), IsOk());
  const Variable loss = Sum(*e);
  BackwardOptions retain;
  retain.retain_graph = true;
  loss.Backward(retain);
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(CatchToStatus([&] { loss.Backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was committed"));
}

TEST_P(LookupsTest, ABackwardPassAfterTheEndOfLookupsIsRefused) {
  Variable loss;
  {
    Lookups lookups;
    const auto e = lookups.Embedding(*users_, Ids({1}));
    ASSERT_THAT(e.status(), IsOk());
    loss = Sum(*e);
  }
  EXPECT_THAT(CatchToStatus([&] { loss.Backward(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "has ended"));
}

TEST_P(LookupsTest, WithoutGradModeNothingIsRecorded) {
  Lookups lookups;
  const NoGradScope no_grad;
  const auto e = lookups.Embedding(*users_, Ids({1}));
  ASSERT_THAT(e.status(), IsOk());
  EXPECT_FALSE(e->requires_grad());
  EXPECT_EQ(lookups.recorded(), 0);
}

TEST_P(LookupsTest, EmptyIdsAreNoRows) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({}));
  ASSERT_THAT(e.status(), IsOk());
  EXPECT_EQ(e->shape(), (Shape{0, 2}));
  const auto bags =
      lookups.EmbeddingBag(*users_, Ids({}, {3, 0}), BagMode::kSum);
  ASSERT_THAT(bags.status(), IsOk());
  EXPECT_THAT(bags->value().ToVector<float>(), ElementsAre(0, 0, 0, 0, 0, 0));
  // There is no row whose gradient would be missed.
  EXPECT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(
      lookups.EmbeddingBag(*users_, Ids({}, {3, 0}), BagMode::kMean).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "a row at least"));
}

TEST_P(LookupsTest, IdsThatDoNotFitAreRefusedAndNothingIsRecorded) {
  Lookups lookups;
  const auto refused = [&](const LookUp& look_up) {
    return lookups.Embeddings({{users_.get(), Ids({1})}, look_up}).status();
  };
  EXPECT_THAT(refused({users_.get(), Tensor::Zeros({3})}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table 'users': wanted ids i64 of any shape, on the "
                       "CPU, found f32[3]"));
  EXPECT_THAT(refused({users_.get(), Tensor()}),
              StatusIs(absl::StatusCode::kInvalidArgument, "no tensor"));
  EXPECT_THAT(refused({users_.get(), Ids({4, -2})}),
              StatusIs(absl::StatusCode::kInvalidArgument, "-2 at place 1"));
  EXPECT_THAT(refused({nullptr, Ids({4})}),
              StatusIs(absl::StatusCode::kInvalidArgument, "null pointer"));
  EXPECT_THAT(refused({users_.get(), Ids({4}, {}), BagMode::kSum}),
              StatusIs(absl::StatusCode::kInvalidArgument, "i64[..., n]"));
  EXPECT_THAT(lookups.Prefetch({{users_.get(), Ids({-1})}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "-1 at place 0"));
  EXPECT_THAT(lookups.Prefetch({{users_.get(), Ids({1})}}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 0"));
  EXPECT_THAT(lookups.Prefetch({{users_.get(), Ids({1})}}, 9),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 9"));
  EXPECT_EQ(lookups.recorded(), 0);
}

TEST_P(LookupsTest, CommitWithoutALookUpOrTwiceIsRefused) {
  Lookups lookups;
  EXPECT_THAT(lookups.Commit(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "CommitNothing"));
  const auto e = lookups.Embedding(*users_, Ids({1}));
  ASSERT_THAT(e.status(), IsOk());
  EXPECT_THAT(lookups.Commit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "none of 1 look-ups has a gradient"));
  EXPECT_THAT(
      lookups.CommitNothing(),
      StatusIs(absl::StatusCode::kFailedPrecondition, "Commit or Abort them"));
  Sum(*e).Backward();
  const int64_t round = users_->round();
  ASSERT_THAT(lookups.Commit(), IsOk());
  EXPECT_THAT(lookups.Commit(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "CommitNothing"));
  EXPECT_EQ(users_->round() - round, GetParam() == kSync ? 1 : 0);
  ASSERT_THAT(lookups.CommitNothing(), IsOk());
  EXPECT_EQ(users_->round() - round, GetParam() == kSync ? 2 : 0);
  EXPECT_THAT(Rows(*users_, {1}), Each(-1));
}

TEST_P(LookupsTest, AGradientThatIsNotFiniteIsRefusedBeforeAnythingIsSent) {
  Lookups lookups;
  const auto all = lookups.Embeddings(
      {{users_.get(), Ids({1})}, {items_.get(), Ids({4, 5})}});
  ASSERT_THAT(all.status(), IsOk());
  const Variable factors(Tensor::FromVector<float>(
      {1, 1, 1, std::numeric_limits<float>::infinity()}, {2, 2}));
  (Sum((*all)[0]) + Sum((*all)[1] * factors)).Backward();
  EXPECT_THAT(lookups.Check(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "table 'items': the gradient of row 5"));
  const int64_t round = users_->round();
  EXPECT_THAT(lookups.Commit(),
              StatusIs(absl::StatusCode::kInvalidArgument, "in column 1"));
  EXPECT_EQ(users_->round(), round);
  EXPECT_EQ(lookups.recorded(), 2);
  lookups.Abort();
  EXPECT_THAT(Rows(*users_, {1}), Each(0));
  EXPECT_THAT(Rows(*items_, {4, 5}), Each(0));
}

TEST_P(LookupsTest, TablesOfTwoClientsAreRefusedTogetherAndNothingIsSent) {
  const auto other = job_.MakeClient(0);
  const auto theirs = other->Sparse(Named("theirs", SparseSpec(GetParam(), 1)));
  ASSERT_THAT(theirs.status(), IsOk());
  Lookups lookups;
  EXPECT_THAT(
      lookups.Embeddings({{users_.get(), Ids({1})}, {theirs->get(), Ids({1})}})
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "two clients"));
  EXPECT_EQ(lookups.recorded(), 0);
}

TEST_P(LookupsTest, ATableWhoseServerEndedIsRefusedAndNothingIsRecorded) {
  Lookups lookups;
  const auto e = lookups.Embedding(*users_, Ids({1, 2, 3, 4, 5, 6, 7, 8}));
  ASSERT_THAT(e.status(), IsOk());
  Sum(*e).Backward();
  job_.RestartServer(0);
  EXPECT_THAT(lookups.Commit(),
              StatusIs(absl::StatusCode::kUnavailable, "ps0"));
  lookups.Abort();
  EXPECT_THAT(lookups.Embedding(*users_, Ids({1})).status(),
              StatusIs(absl::StatusCode::kUnavailable, "ps0"));
  EXPECT_EQ(lookups.recorded(), 0);
}

// The example of docs/parameter_server.md, "Embedding", line by line.
absl::Status Example(SparseTable* users, SparseTable* items) {
  const Tensor user_ids = Ids({1, 2}), next_user_ids = Ids({2, 3});
  const Tensor item_ids = Ids({1, 2, 2, 3}, {2, 2}), next_item_ids = item_ids;

  ps::Lookups lookups;
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<Variable> e,
      lookups.Embeddings(
          {{users, user_ids}, {items, item_ids, BagMode::kMean}}));
  WEFT_RETURN_IF_ERROR(lookups.Prefetch(
      {{users, next_user_ids}, {items, next_item_ids}}));  // of the next pass
  Sum(e[0] + e[1]).Backward();
  WEFT_RETURN_IF_ERROR(lookups.Commit());
  return absl::OkStatus();
}

TEST_P(LookupsTest, TheExampleOfTheDocumentation) {
  ASSERT_THAT(Example(users_.get(), items_.get()), IsOk());
  EXPECT_THAT(Rows(*users_, {1, 2, 3}), ElementsAre(-1, -1, -1, -1, 0, 0));
  EXPECT_THAT(Rows(*items_, {1, 2}), ElementsAre(-0.5, -0.5, -1, -1));
}

// Each trainer has a part in each round of each table that it knows.
TEST(LookupsOfTwo, PartsOfOnePassAreOfOneRound) {
  TestJob job(2, 2);
  constexpr int kPasses = 20;
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto users = *client->Sparse(Named("users", SparseSpec(kSync, 2)));
    const auto items = *client->Sparse(Named("items", SparseSpec(kSync, 2)));
    Lookups lookups({kTimeout, {users.get(), items.get()}});
    for (int pass = 0; pass < kPasses; ++pass) {
      // Trainer 1 has no data for some passes, and no item in others.
      if (trainer == 1 && pass % 5 == 4) {
        ASSERT_THAT(lookups.CommitNothing(), IsOk());
        continue;
      }
      const bool both = trainer == 0 || pass % 3 != 0;
      const auto u = lookups.Embedding(*users, Ids({1, 2}));
      ASSERT_THAT(u.status(), IsOk());
      Variable loss = Sum(*u);
      if (both) {
        const auto i = lookups.Embedding(*items, Ids({3}));
        ASSERT_THAT(i.status(), IsOk());
        loss = loss + Sum(*i);
        // Both tables are at the same pass.
        int expected = 0, of_items = 0;
        for (int p = 0; p < pass; ++p) {
          expected += 1 + (p % 5 != 4);
          of_items += 1 + (p % 5 != 4 && p % 3 != 0);
        }
        EXPECT_THAT(u->value().ToVector<float>(), Each(-expected));
        EXPECT_THAT(i->value().ToVector<float>(), Each(-of_items));
      }
      loss.Backward();
      ASSERT_THAT(lookups.Commit(), IsOk());
    }
    EXPECT_EQ(users->round(), kPasses);
    EXPECT_EQ(items->round(), kPasses);
  });
}

}  // namespace
}  // namespace weft::ps
