#include "weft/ddp/distributed_data_parallel.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/data_parallel_fixture.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class DistributedDataParallelSizes : public ::testing::TestWithParam<int> {};

TEST_P(DistributedDataParallelSizes, EndsWithTheWeightsOfOneProcess) {
  const int size = GetParam();
  const std::vector<float> wanted = WeightsOfOneProcess();
  std::vector<std::vector<float>> weights(size);
  const auto statuses = RunGroups(
      size, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1 + rank);  // rank 0's weights count
        ReducerOptions options;
        options.first_bucket_bytes = options.bucket_bytes = 32;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        EXPECT_GT(ddp->reducer().buckets().size(), 2u);
        const int64_t share = kBatch / size;
        for (int step = 0; step < kSteps; ++step) {
          Backward(net, SamplesOf(step, rank * share, (rank + 1) * share));
          StepAndClear(net);
        }
        weights[rank] = Flat(net);
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (const std::vector<float>& found : weights) {
    EXPECT_EQ(found, weights[0]);
    EXPECT_THAT(found, Pointwise(FloatNear(kTolerance), wanted));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DistributedDataParallelSizes,
                         ::testing::Values(1, 2, 3, 4));

TEST(DistributedDataParallel, UnevenBatchesByWeightGiveTheWeightsOfOneProcess) {
  const std::vector<float> wanted = WeightsOfOneProcess();
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        // 3 and 9 samples; the third rank has none.
        const int64_t begins[] = {0, 3, kBatch, kBatch};
        for (int step = 0; step < kSteps; ++step) {
          if (rank == 2) {
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
          } else {
            WEFT_RETURN_IF_ERROR(ddp->SetWeight(
                static_cast<double>(begins[rank + 1] - begins[rank])));
            Backward(net, SamplesOf(step, begins[rank], begins[rank + 1]));
          }
          EXPECT_EQ(ddp->total_weight(), kBatch);
          StepAndClear(net);
        }
        EXPECT_THAT(Flat(net), Pointwise(FloatNear(kTolerance), wanted));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, UnclearedGradientsGrowByTheMean) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4), /*with_spare=*/true);
  Backward(alone, SamplesOf(1, 0, 4));
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 2 * rank, 2 * rank + 2),
                 /*with_spare=*/true);
        const std::vector<float> spare = GradientOf(net, "spare.weight");
        Backward(net, SamplesOf(1, 2 * rank, 2 * rank + 2));
        EXPECT_EQ(GradientOf(net, "spare.weight"), spare);
        for (const char* name : {"hidden.weight", "spare.weight"}) {
          EXPECT_THAT(
              GradientOf(net, name),
              Pointwise(FloatNear(kTolerance), GradientOf(alone, name)));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, ParameterThatNoRankUsesStaysWithoutGradient) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 0, 4));
        EXPECT_THAT(GradientOf(net, "spare.weight"), ElementsAre());
        EXPECT_EQ(GradientOf(net, "output.bias").size(), size_t{kClasses});
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, RankThatDoesNotUseAParameterGetsTheOthersMean) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4), /*with_spare=*/true);
  std::vector<float> wanted = GradientOf(alone, "spare.weight");
  for (float& value : wanted) value /= 2;
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 1);
        EXPECT_THAT(GradientOf(net, "spare.weight"),
                    Pointwise(FloatNear(kTolerance), wanted));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientsAreViewsIntoBuckets) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/true);
        const std::vector<Variable> parameters = net.Parameters();
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_EQ(parameters[i].grad().raw(),
                    ddp->reducer().gradient(static_cast<int>(i)).raw());
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel,
     CreateGivesAllRanksTheParametersAndBuffersOfRank0) {
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1 + rank);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        EXPECT_EQ(Flat(net), Flat(Net(1)));
        EXPECT_THAT(net.seen.tensor().ToVector<float>(), ElementsAre(1, 1));
        net.seen.tensor().Fill(rank + 5);
        WEFT_RETURN_IF_ERROR(ddp->BroadcastBuffers());
        EXPECT_THAT(net.seen.tensor().ToVector<float>(), ElementsAre(5, 5));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, ModelsThatDifferAreNamedOnEveryRank) {
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1, /*hidden=*/rank == 1 ? 8 : 7);
        return DistributedDataParallel::Create(net, group).status();
      });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    "rank 0 has parameter hidden.weight f32[7, 5], rank 1 has "
                    "parameter hidden.weight f32[8, 5]")));
}

TEST(DistributedDataParallel, RankWithOtherWeightsIsFound) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        if (rank == 1) Mul_(net.Parameters()[3].value(), 1.5);
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDataLoss,
                                      "rank 1 has parameter output.bias")));
}

TEST(DistributedDataParallel, RankThatSkipsItsBackwardIsNamedOnEveryRank) {
  const auto statuses = RunGroups(
      3,
      [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        for (int step = 0; step < 3; ++step) {
          if (rank == 1 && step == 1) continue;
          Backward(net, SamplesOf(step, 0, 4));
          StepAndClear(net);
        }
        // Still there, as a program that does something else meanwhile.
        testing::Becomes([&] { return !group.health().ok(); });
        return CatchToStatus([&] { Backward(net, SamplesOf(3, 0, 4)); });
      },
      absl::Seconds(6));  // the others are never so late
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1")));
}

TEST(DistributedDataParallel, RankThatEndsIsNamedWithoutWaitingForTheDeadline) {
  const auto statuses = RunGroups(
      3,
      [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        if (rank == 2) return absl::OkStatus();
        return CatchToStatus([&] { Backward(net, SamplesOf(0, 0, 4)); });
      },
      absl::Hours(1));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
}

TEST(DistributedDataParallel, PassThatFailsOnOneRankFailsOnAllWithTheReason) {
  const auto statuses = RunGroups(
      2,
      [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        if (rank == 1) {
          net.Parameters()[0].AddHook([](Gradient) -> Gradient {
            throw Error(absl::DataLossError("gradient check failed"));
          });
        }
        const absl::Status passed =
            CatchToStatus([&] { Backward(net, SamplesOf(0, 0, 4)); });
        for (const Variable& parameter : net.Parameters()) {
          EXPECT_FALSE(parameter.has_grad());
        }
        return passed;
      },
      absl::Hours(1));
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kCancelled, "gradient check failed"));
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kDataLoss, "gradient check failed"));
}

TEST(DistributedDataParallel, PassWithAStoreHandsItTheMeans) {
  Net alone(1);
  Backward(alone, SamplesOf(1, 0, 4));
  const std::vector<float> wanted = GradientOf(alone, "hidden.weight");
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 0, 4));
        const std::vector<float> own = GradientOf(net, "hidden.weight");
        Store store;
        BackwardOptions options;
        options.sink = &store;
        const Batch batch = SamplesOf(1, 2 * rank, 2 * rank + 2);
        CrossEntropy(net.Forward(Variable(batch.x)), batch.labels)
            .Backward(options);
        EXPECT_EQ(GradientOf(net, "hidden.weight"), own);
        EXPECT_EQ(store.gradients.size(), 4u);  // not the spare layer's two
        const Leaf* leaf = net.Parameters()[0].edge().node->leaf();
        EXPECT_THAT(store.gradients.at(leaf).ToVector<float>(),
                    Pointwise(FloatNear(kTolerance), wanted));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, FrozenParametersAreBroadcastButNotReduced) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1 + rank);
        const std::vector<nn::NamedParameter> named = net.NamedParameters();
        named[0].variable.SetRequiresGrad(false);
        EXPECT_EQ(named[0].name, "hidden.weight");
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        EXPECT_EQ(ddp->reducer().size(), 5);
        const std::vector<float> before = Flat(net);
        EXPECT_EQ(before, Flat(Net(1)));
        Backward(net, SamplesOf(rank, 0, 4));
        EXPECT_TRUE(GradientOf(net, "hidden.weight").empty());
        // Frozen later, on all ranks: as one that is not used.
        named[1].variable.SetRequiresGrad(false);
        net.ClearGradients();
        Backward(net, SamplesOf(rank, 0, 4));
        EXPECT_TRUE(GradientOf(net, "hidden.bias").empty());
        EXPECT_FALSE(GradientOf(net, "output.bias").empty());
        StepAndClear(net);
        WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
        // Unfrozen, where this knows it.
        named[1].variable.SetRequiresGrad(true);
        Backward(net, SamplesOf(rank, 0, 4));
        EXPECT_FALSE(GradientOf(net, "hidden.bias").empty());
        // Where it does not, ranks would drift.
        net.Unfreeze();
        const absl::Status refused =
            CatchToStatus([&] { Backward(net, SamplesOf(rank, 0, 4)); });
        EXPECT_THAT(refused.message(),
                    ::testing::HasSubstr("hidden.weight was frozen when"));
        return refused;
      });
  // The code of the rank that comes first; the others may hear it from there.
  EXPECT_THAT(statuses, ::testing::Contains(
                            StatusIs(absl::StatusCode::kFailedPrecondition)));
}

TEST(DistributedDataParallel, ParameterFrozenOnOneRankOnlyIsNamedOnEveryRank) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        if (rank == 1) net.Parameters()[3].SetRequiresGrad(false);
        return DistributedDataParallel::Create(net, group).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "rank 1 has frozen parameter "
                                      "output.bias f32[3]")));
}

TEST(DistributedDataParallel,
     ParameterThatNeverGetsAGradientIsNamedWithAdvice) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        Backward(net, SamplesOf(0, 0, 4));
        EXPECT_THAT(
            ddp->CheckAllUsed(),
            StatusIs(absl::StatusCode::kFailedPrecondition,
                     "no rank has had a gradient of spare.weight, spare.bias"));
        EXPECT_THAT(ddp->CheckAllUsed(),
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             "DistributedDataParallelOptions::ignored"));
        // One rank is enough.
        Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 1);
        return ddp->CheckAllUsed();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, LogShowsBucketsHookAndTimes) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options =
            WithHook(std::make_shared<F16CompressionHook>());
        options.first_bucket_bytes = options.bucket_bytes = 1;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        for (int step = 0; step < 2; ++step) {
          Backward(net, SamplesOf(step, 0, 4));
          net.ClearGradients();
        }
        const auto log = ddp->GetLog();
        EXPECT_EQ(log.world_size, 2);
        EXPECT_EQ(log.hook, "f16");
        EXPECT_EQ(log.steps, 2);
        EXPECT_TRUE(log.is_rebuilt);
        EXPECT_EQ(log.buckets.size(), 5u);
        // The order in which a backward pass makes gradients; then what had
        // none. The spare weight might be reduced as rows: it is in no bucket
        // until it is used.
        EXPECT_THAT(log.buckets[0].parameters[0],
                    ::testing::StartsWith("output."));
        EXPECT_THAT(log.buckets[4].parameters, ElementsAre("spare.bias"));
        EXPECT_EQ(log.buckets[4].bytes, 4 * kClasses);
        EXPECT_GT(log.total.backward, absl::ZeroDuration());
        EXPECT_GT(log.total.communication, absl::ZeroDuration());
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, StaticGraphThatShrinksTellsAllRanksWhy) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.is_static_graph = true;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/true);
        return CatchToStatus(
            [&] { Backward(net, SamplesOf(1, 0, 4), rank == 0); });
      });
  const char* const reason =
      "parameter spare.weight has no gradient in step 2 of rank 1";
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kFailedPrecondition, reason));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kCancelled, reason));
}

}  // namespace
}  // namespace weft::ddp
