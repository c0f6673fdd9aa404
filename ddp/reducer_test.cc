#include "weft/ddp/reducer.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

using Body = std::function<absl::Status(int rank, collectives::ProcessGroup&)>;

std::vector<absl::Status> RunGroups(int size, const Body& body,
                                    absl::Duration timeout = absl::Minutes(1)) {
  collectives::LocalWorld world(size);
  return RunRanks(size, [&](int rank) {
    collectives::GroupOptions options;
    options.timeout = timeout;
    const auto group =
        collectives::ProcessGroup::Create(world.Connect(rank), options);
    return body(rank, *group);
  });
}

std::vector<ReducerParameter> TwoParameters() {
  return {{"weight", {2, 3}}, {"bias", {3}}};
}

// Each parameter in a bucket of its own.
ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

std::vector<float> Values(const Reducer& reducer, int parameter) {
  return reducer.gradient(parameter).ToVector<float>();
}

TEST(Reducer, GradientsOfAllRanksAreTheirMeanAfterFinish) {
  for (const ReducerOptions& options : {ReducerOptions(), SmallBuckets()}) {
    const auto statuses = RunGroups(
        3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(
              auto reducer, Reducer::Create(group, TwoParameters(), options));
          for (int step = 1; step <= 3; ++step) {
            WEFT_RETURN_IF_ERROR(reducer->Begin());
            // Ranks come in different orders.
            for (const int k : {0, 1}) {
              const int i = (k + rank) % 2;
              reducer->gradient(i).Fill(step * (3 * rank + i));
              WEFT_RETURN_IF_ERROR(reducer->MarkReady(i));
            }
            WEFT_RETURN_IF_ERROR(reducer->Finish());
            EXPECT_THAT(Values(*reducer, 0), Each(step * 3));
            EXPECT_THAT(Values(*reducer, 1), Each(step * 4));
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(Reducer, LastParametersAreInTheFirstBucket) {
  const auto statuses =
      RunGroups(1, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(
            auto reducer,
            Reducer::Create(group, TwoParameters(), SmallBuckets()));
        EXPECT_THAT(reducer->buckets(),
                    ElementsAre(ElementsAre(1), ElementsAre(0)));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, UnusedParameterCountsAsZeroWhereAnotherRankUsesIt) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        reducer->gradient(0).Fill(8);
        WEFT_RETURN_IF_ERROR(rank == 0 ? reducer->MarkReady(0)
                                       : reducer->MarkUnused(0));
        WEFT_RETURN_IF_ERROR(reducer->MarkUnused(1));
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_THAT(Values(*reducer, 0), Each(4));
        EXPECT_TRUE(reducer->is_used(0));
        EXPECT_FALSE(reducer->is_used(1));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, UnchangedParameterIsRestoredBitForBitIfNoRankUsesIt) {
  const auto statuses =
      RunGroups(3, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        // Three times this, divided by three, is another number.
        const float value = std::numeric_limits<float>::max() / 2;
        reducer->gradient(0).Fill(value);
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        WEFT_RETURN_IF_ERROR(reducer->MarkUnchanged(0));
        WEFT_RETURN_IF_ERROR(reducer->MarkUnused(1));
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_THAT(Values(*reducer, 0), Each(value));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, WeightedGradientsAreDividedByTheTotalWeight) {
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters(), options));
        // 1, 3 and 0 samples; the gradient of none is NaN.
        const double weights[] = {1, 3, 0};
        const double gradients[] = {4, 8,
                                    std::numeric_limits<double>::quiet_NaN()};
        WEFT_RETURN_IF_ERROR(reducer->Begin(weights[rank]));
        for (const int i : {1, 0}) {
          reducer->gradient(i).Fill(gradients[rank]);
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(i));
        }
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_EQ(reducer->total_weight(), 4);
        EXPECT_THAT(Values(*reducer, 0), Each(7));
        // Nobody has data left.
        WEFT_RETURN_IF_ERROR(reducer->Begin(0));
        for (const int i : {1, 0}) {
          WEFT_RETURN_IF_ERROR(reducer->MarkUnused(i));
        }
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_EQ(reducer->total_weight(), 0);
        EXPECT_FALSE(reducer->is_used(0));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, ParametersThatDifferAreNamedWithBothShapesOnEveryRank) {
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        std::vector<ReducerParameter> parameters = TwoParameters();
        if (rank == 2) parameters[0].shape = {2, 4};
        return Reducer::Create(group, parameters).status();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "rank 0 has parameter weight f32[2, 3], rank 2 has "
                            "parameter weight f32[2, 4]")));
}

TEST(Reducer, MissingParameterAndOtherOptionsAreNamedOnEveryRank) {
  auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        std::vector<ReducerParameter> parameters = TwoParameters();
        if (rank == 1) parameters.pop_back();
        return Reducer::Create(group, parameters).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "rank 0 has parameter bias f32[3], rank "
                                      "1 has nothing")));
  statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        if (rank == 1) options.divisor = Divisor::kTotalWeight;
        return Reducer::Create(group, TwoParameters(), options).status();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "rank 1 has options: division by the total")));
}

TEST(Reducer, BadArgumentsOfOneRankFailCreateOnEveryRank) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        std::vector<ReducerParameter> parameters;
        if (rank == 0) parameters = TwoParameters();
        return Reducer::Create(group, parameters).status();
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "rank 1 cannot train: there is no parameter")));
}

TEST(Reducer, MisuseIsRefusedAndNamesTheParameter) {
  const auto statuses =
      RunGroups(1, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        EXPECT_THAT(reducer->MarkReady(0), StatusIs(kFailed, "weight"));
        EXPECT_THAT(reducer->Finish(), StatusIs(kFailed, "no step is open"));
        EXPECT_THAT(reducer->Begin(2),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             "Divisor::kTotalWeight"));
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        EXPECT_THAT(reducer->Begin(), StatusIs(kFailed, "is open"));
        EXPECT_THAT(
            reducer->MarkReady(2),
            StatusIs(absl::StatusCode::kInvalidArgument, "below 2, found 2"));
        WEFT_RETURN_IF_ERROR(reducer->MarkReady(1));
        EXPECT_THAT(reducer->MarkReady(1),
                    StatusIs(kFailed, "bias was marked twice"));
        EXPECT_THAT(reducer->Finish(), StatusIs(kFailed, "no mark for weight"));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

absl::Status Step(Reducer& reducer) {
  WEFT_RETURN_IF_ERROR(reducer.Begin());
  for (const int i : {1, 0}) WEFT_RETURN_IF_ERROR(reducer.MarkReady(i));
  return reducer.Finish();
}

TEST(Reducer, RankThatStaysAwayIsNamedOnEveryRankAtTheDeadline) {
  const auto statuses = RunGroups(
      3,
      [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        WEFT_RETURN_IF_ERROR(Step(*reducer));
        if (rank == 1) {
          testing::Becomes([&] { return !group.health().ok(); });
        }
        return Step(*reducer);
      },
      absl::Seconds(6));  // the others are never so late
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1")));
}

TEST(Reducer, RankThatCannotFinishFailsTheOthersWithItsReason) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        if (rank == 0) return Step(*reducer);
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        reducer->Abandon(absl::DataLossError("image 17 is damaged"));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kCancelled, "image 17 is damaged"));
}

// Marks parameters in this order; gradient i is `value` times i + 1.
absl::Status StepInOrder(Reducer& reducer, const std::vector<int>& order,
                         double value) {
  WEFT_RETURN_IF_ERROR(reducer.Begin());
  for (const int i : order) {
    reducer.gradient(i).Fill(value * (i + 1));
    WEFT_RETURN_IF_ERROR(reducer.MarkReady(i));
  }
  return reducer.Finish();
}

TEST(Reducer, BucketsAreRebuiltInTheOrderInWhichRank0WasReady) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(
            auto reducer,
            Reducer::Create(group, {{"a", {2}}, {"b", {3}}, {"c", {4}}},
                            SmallBuckets()));
        const std::vector<int> order =
            rank == 0 ? std::vector<int>{1, 0, 2} : std::vector<int>{2, 0, 1};
        WEFT_RETURN_IF_ERROR(StepInOrder(*reducer, order, rank));
        EXPECT_THAT(Values(*reducer, 2), Each(1.5));
        EXPECT_FALSE(reducer->is_settled());
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        EXPECT_TRUE(reducer->is_settled());
        EXPECT_THAT(
            reducer->buckets(),
            ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(2)));
        // The older gradients were kept.
        EXPECT_THAT(Values(*reducer, 2), Each(1.5));
        for (const int i : {0, 1, 2}) {
          WEFT_RETURN_IF_ERROR(reducer->MarkUnchanged(i));
        }
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_THAT(Values(*reducer, 2), Each(1.5));
        WEFT_RETURN_IF_ERROR(StepInOrder(*reducer, order, 2 * rank));
        EXPECT_THAT(Values(*reducer, 0), Each(1));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, BucketsStayWhereRebuildingIsSwitchedOff) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options = SmallBuckets();
        options.rebuilds_buckets = false;
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters(), options));
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(StepInOrder(*reducer, {0, 1}, step));
          EXPECT_THAT(reducer->buckets(),
                      ElementsAre(ElementsAre(1), ElementsAre(0)));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, StaticGraphGivesMeansAndNamesAParameterThatChanges) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        options.is_static_graph = true;
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters(), options));
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(StepInOrder(*reducer, {1, 0}, rank * step));
          EXPECT_THAT(Values(*reducer, 1), Each(step));
          EXPECT_TRUE(reducer->is_used(0));
        }
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        WEFT_RETURN_IF_ERROR(reducer->MarkReady(1));
        if (rank == 0) {
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
          return reducer->Finish();
        }
        const absl::Status marked = reducer->MarkUnused(0);
        reducer->Abandon(marked);
        return marked;
      });
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "parameter weight has no gradient in step 4 of rank 1"));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kCancelled,
                                    "is_static_graph: switch it off"));
}

// Rows of a table [4, 2].
SparseRows Rows(const std::vector<int64_t>& indices, double value) {
  SparseRows rows;
  rows.rows = 4;
  rows.indices = Tensor::FromVector<int64_t>(indices);
  rows.values = Tensor::Full({static_cast<int64_t>(indices.size()), 2}, value);
  return rows;
}

TEST(Reducer, RowsOfAllRanksAreReducedAsRowsFromTheFirstStepOn) {
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kTotalWeight}) {
    const auto statuses = RunGroups(
        2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          ReducerOptions options;
          options.divisor = divisor;
          WEFT_ASSIGN_OR_RETURN(
              auto reducer,
              Reducer::Create(group, {{"table", {4, 2}}, {"bias", {2}}},
                              options));
          // Row `rank` of each, and row 3 of both.
          const auto step = [&]() -> absl::Status {
            WEFT_RETURN_IF_ERROR(reducer->Begin());
            reducer->gradient(1).Fill(4 * rank);
            WEFT_RETURN_IF_ERROR(reducer->MarkReady(1));
            WEFT_RETURN_IF_ERROR(
                reducer->MarkRows(0, Rows({3, rank}, 2 + 2 * rank)));
            return reducer->Finish();
          };
          EXPECT_FALSE(reducer->has_form(0));
          for (int i = 0; i < 3; ++i) {
            WEFT_RETURN_IF_ERROR(step());
            EXPECT_TRUE(reducer->is_sparse(0));
            EXPECT_FALSE(reducer->gradient(0).defined());
            EXPECT_THAT(reducer->rows(0).indices.ToVector<int64_t>(),
                        ElementsAre(0, 1, 3));
            EXPECT_THAT(reducer->rows(0).values.ToVector<float>(),
                        ElementsAre(1, 1, 2, 2, 3, 3));
            EXPECT_THAT(Values(*reducer, 1), Each(2));
          }
          // Rank 1 has none.
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          WEFT_RETURN_IF_ERROR(reducer->MarkUnused(1));
          WEFT_RETURN_IF_ERROR(rank == 0 ? reducer->MarkRows(0, Rows({2}, 4))
                                         : reducer->MarkUnused(0));
          WEFT_RETURN_IF_ERROR(reducer->Finish());
          EXPECT_THAT(reducer->rows(0).indices.ToVector<int64_t>(),
                      ElementsAre(2));
          EXPECT_THAT(reducer->rows(0).values.ToVector<float>(), Each(2));
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          EXPECT_THAT(reducer->MarkReady(0),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               "table is reduced as rows"));
          for (const int p : {0, 1}) {
            WEFT_RETURN_IF_ERROR(reducer->MarkUnused(p));
          }
          return reducer->Finish();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(Reducer, RowsAreMadeDenseWhereOneRankHasAWholeGradient) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"table", {4, 2}}}));
        for (int step = 0; step < 2; ++step) {
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          if (rank == 0) {
            WEFT_RETURN_IF_ERROR(reducer->MarkRows(0, Rows({1}, 2)));
          } else {
            reducer->gradient(0).Fill(4);
            WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
          }
          WEFT_RETURN_IF_ERROR(reducer->Finish());
          EXPECT_FALSE(reducer->is_sparse(0));
          EXPECT_THAT(Values(*reducer, 0), ElementsAre(2, 2, 3, 3, 2, 2, 2, 2));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A parameter that no rank used in the first steps: rows, or whole.
TEST(Reducer, FormOfAParameterThatIsUsedLaterIsAgreedThen) {
  for (const bool rebuilds : {true, false}) {
    const auto statuses = RunGroups(
        2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          ReducerOptions options = SmallBuckets();
          options.rebuilds_buckets = rebuilds;
          WEFT_ASSIGN_OR_RETURN(
              auto reducer,
              Reducer::Create(
                  group, {{"rows", {4, 2}}, {"whole", {4, 2}}, {"bias", {2}}},
                  options));
          const auto step = [&](bool uses_tables) -> absl::Status {
            WEFT_RETURN_IF_ERROR(reducer->Begin());
            reducer->gradient(2).Fill(4 * rank);
            WEFT_RETURN_IF_ERROR(reducer->MarkReady(2));
            if (!uses_tables) {
              WEFT_RETURN_IF_ERROR(reducer->MarkUnused(0));
              WEFT_RETURN_IF_ERROR(reducer->MarkUnused(1));
              return reducer->Finish();
            }
            // One rank has none; one has rows where the other has all.
            WEFT_RETURN_IF_ERROR(rank == 0 ? reducer->MarkRows(0, Rows({2}, 4))
                                           : reducer->MarkUnused(0));
            if (rank == 0) {
              WEFT_RETURN_IF_ERROR(reducer->MarkRows(1, Rows({1}, 2)));
            } else {
              reducer->gradient(1).Fill(4);
              WEFT_RETURN_IF_ERROR(reducer->MarkReady(1));
            }
            return reducer->Finish();
          };
          for (int i = 0; i < 3; ++i) {
            WEFT_RETURN_IF_ERROR(step(false));
            EXPECT_FALSE(reducer->has_form(0) || reducer->has_form(1));
            EXPECT_THAT(Values(*reducer, 1), Each(0));
            EXPECT_THAT(Values(*reducer, 2), Each(2));
          }
          EXPECT_THAT(reducer->buckets(), ElementsAre(ElementsAre(2)));
          for (int i = 0; i < 3; ++i) {
            WEFT_RETURN_IF_ERROR(step(true));
            EXPECT_TRUE(reducer->is_sparse(0));
            EXPECT_FALSE(reducer->is_sparse(1));
            EXPECT_THAT(reducer->rows(0).indices.ToVector<int64_t>(),
                        ElementsAre(2));
            EXPECT_THAT(reducer->rows(0).values.ToVector<float>(), Each(2));
            EXPECT_THAT(Values(*reducer, 1),
                        ElementsAre(2, 2, 3, 3, 2, 2, 2, 2));
            EXPECT_THAT(Values(*reducer, 2), Each(2));
          }
          EXPECT_THAT(reducer->buckets(),
                      ElementsAre(ElementsAre(2), ElementsAre(1)));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(Reducer, OlderRowsJoinThoseOfTheFirstRankThatUsesTheParameter) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"table", {4, 2}}}));
        // No rank has a new one: nothing is agreed.
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        WEFT_RETURN_IF_ERROR(reducer->MarkUnchanged(0, Rows({1}, 2)));
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_FALSE(reducer->has_form(0));
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        WEFT_RETURN_IF_ERROR(rank == 0 ? reducer->MarkUnchanged(0, Rows({1}, 2))
                                       : reducer->MarkRows(0, Rows({3}, 4)));
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_TRUE(reducer->is_sparse(0));
        EXPECT_THAT(reducer->rows(0).indices.ToVector<int64_t>(),
                    ElementsAre(1, 3));
        EXPECT_THAT(reducer->rows(0).values.ToVector<float>(),
                    ElementsAre(1, 1, 2, 2));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, RowOutsideOfTheTableIsRefusedBeforeItIsSent) {
  const auto statuses =
      RunGroups(1, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, {{"table", {4, 2}}}));
        WEFT_RETURN_IF_ERROR(reducer->Begin());
        for (const int64_t row : {-1, 4}) {
          EXPECT_THAT(reducer->MarkRows(0, Rows({1, row}, 2)),
                      StatusIs(absl::StatusCode::kInvalidArgument,
                               "parameter table has 4 rows"));
        }
        WEFT_RETURN_IF_ERROR(reducer->MarkRows(0, Rows({1}, 2)));
        return reducer->Finish();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A hook whose Future never ends on rank 0.
class EndlessHook final : public CommunicationHook {
 public:
  std::string name() const override { return "endless"; }
  Future<void> Reduce(collectives::ProcessGroup& group,
                      const GradientBucket& bucket) override {
    Future<void> reduced =
        group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call);
    if (group.rank() != 0) return reduced;
    promises_.push_back(MakePromise<void>());
    return promises_.back().second;
  }

 private:
  std::vector<std::pair<Promise<void>, Future<void>>> promises_;
};

TEST(Reducer, HookThatNeverEndsFailsAllRanksAtTwiceTheTimeout) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        ReducerOptions options;
        options.hook = std::make_shared<EndlessHook>();
        options.timeout = absl::Seconds(5);
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters(), options));
        WEFT_RETURN_IF_ERROR(StepInOrder(*reducer, {1, 0}, 1));
        // Rank 1 has its result; it fails where it needs rank 0 again.
        return StepInOrder(*reducer, {1, 0}, 1);
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    "hook endless has not ended"));
  EXPECT_FALSE(statuses[1].ok());
}

class ThrowingHook final : public CommunicationHook {
 public:
  explicit ThrowingHook(int calls) : calls_(calls) {}
  std::string name() const override { return "throwing"; }
  Future<void> Reduce(collectives::ProcessGroup& group,
                      const GradientBucket& bucket) override {
    if (calls_-- == 0) throw Error(absl::DataLossError("no memory left"));
    return group.AllReduceAsync(bucket.buffer, bucket.reduction, bucket.call);
  }

 private:
  int calls_;
};

TEST(Reducer, HookThatThrowsFailsTheStepOnAllRanks) {
  // The hook throws in Finish of the first step, and as a bucket is marked in
  // the second.
  for (const int calls : {0, 1}) {
    const auto statuses = RunGroups(
        2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          ReducerOptions options;
          options.hook =
              std::make_shared<ThrowingHook>(rank == 0 ? calls : 100);
          WEFT_ASSIGN_OR_RETURN(
              auto reducer, Reducer::Create(group, TwoParameters(), options));
          for (int step = 0; step < 2; ++step) {
            const absl::Status stepped = StepInOrder(*reducer, {1, 0}, 1);
            if (stepped.ok()) continue;
            reducer->Abandon(stepped);
            return stepped;
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kDataLoss, "no memory left"));
    EXPECT_THAT(statuses[1],
                StatusIs(absl::StatusCode::kCancelled, "no memory left"));
  }
}

TEST(Reducer, RankOfWeight0ContributesZerosToTheMeanOfAllRanks) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        WEFT_RETURN_IF_ERROR(reducer->Begin(rank));
        for (const int i : {1, 0}) {
          reducer->gradient(i).Fill(8);
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(i));
        }
        WEFT_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_THAT(Values(*reducer, 0), Each(4));
        EXPECT_EQ(reducer->total_weight(), 1);
        EXPECT_EQ(reducer->first_rank_with_data(), 1);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(Reducer, TimingCountsStepsAndParametersThatAreNeverUsed) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto reducer,
                              Reducer::Create(group, TwoParameters()));
        for (int step = 0; step < 4; ++step) {
          WEFT_RETURN_IF_ERROR(reducer->Begin());
          WEFT_RETURN_IF_ERROR(reducer->MarkReady(1));
          WEFT_RETURN_IF_ERROR(reducer->MarkUnused(0));
          WEFT_RETURN_IF_ERROR(reducer->Finish());
        }
        EXPECT_THAT(reducer->NeverUsed(), ElementsAre("weight"));
        const ReducerTiming& timing = reducer->timing();
        EXPECT_EQ(timing.steps(), 4);
        EXPECT_GT(timing.total().communication, absl::ZeroDuration());
        EXPECT_GE(timing.total().exposed, timing.last().exposed);
        EXPECT_GE(timing.total().exposed_share(), 0);
        EXPECT_LE(timing.total().exposed_share(), 1);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::ddp
