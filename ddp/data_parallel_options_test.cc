// DistributedDataParallel by each option, with hooks, buffers and ranks whose
// data end early.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/data_parallel_fixture.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// One rank and several end with the same weights, whatever the options.
struct OptionsCase {
  std::string name;
  std::function<ReducerOptions()> make;
  float tolerance = kTolerance;
};

class DistributedDataParallelWithOptions
    : public ::testing::TestWithParam<OptionsCase> {};

TEST_P(DistributedDataParallelWithOptions, EndsWithTheWeightsOfOneProcess) {
  const std::vector<float> wanted = WeightsOfOneProcess();
  const auto statuses = RunGroups(
      3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create(
                                            net, group, GetParam().make()));
        const int64_t share = kBatch / 3;
        for (int step = 0; step < kSteps; ++step) {
          Backward(net, SamplesOf(step, rank * share, (rank + 1) * share));
          StepAndClear(net);
        }
        EXPECT_THAT(Flat(net),
                    Pointwise(FloatNear(GetParam().tolerance), wanted));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(
    Options, DistributedDataParallelWithOptions,
    ::testing::Values(
        OptionsCase{"Defaults", [] { return ReducerOptions(); }},
        OptionsCase{"SmallBuckets",
                    [] {
                      ReducerOptions options;
                      options.first_bucket_bytes = options.bucket_bytes = 1;
                      return options;
                    }},
        OptionsCase{"WithoutRebuilding",
                    [] {
                      ReducerOptions options;
                      options.rebuilds_buckets = false;
                      return options;
                    }},
        OptionsCase{"StaticGraph",
                    [] {
                      ReducerOptions options;
                      options.is_static_graph = true;
                      return options;
                    }},
        OptionsCase{"TotalWeight",
                    [] {
                      ReducerOptions options;
                      options.divisor = Divisor::kTotalWeight;
                      return options;
                    }},
        // Gradients below 1, of 11 and 8 bits of precision, five steps of half
        // their size.
        OptionsCase{
            "F16",
            [] { return WithHook(std::make_shared<F16CompressionHook>()); },
            2e-3f},
        OptionsCase{
            "Bf16",
            [] { return WithHook(std::make_shared<Bf16CompressionHook>()); },
            2e-2f}),
    [](const auto& info) { return info.param.name; });

TEST(DistributedDataParallel, IgnoredParametersAndBuffersStayEachRanksOwn) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1 + rank);
        const auto own = net.NamedParameters()[0].variable.value().Clone();
        DistributedDataParallelOptions options;
        options.ignored = {"hidden.weight", "seen"};
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        EXPECT_EQ(net.NamedParameters()[0].name, "hidden.weight");
        EXPECT_EQ(net.NamedParameters()[0].variable.value().ToVector<float>(),
                  own.ToVector<float>());
        EXPECT_THAT(net.seen.tensor().ToVector<float>(), Each(1 + rank));
        Backward(net, SamplesOf(rank, 0, 4));
        EXPECT_EQ(ddp->reducer().size(), 5);
        EXPECT_THAT(net.seen.tensor().ToVector<float>(), Each(1 + rank));
        EXPECT_FALSE(GradientOf(net, "hidden.weight").empty());
        WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
        options.ignored = {"hidden.wait"};
        return DistributedDataParallel::Create(net, group, options).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "ignored has hidden.wait")));
}

TEST(DistributedDataParallel, BuffersAreThoseOfTheFirstRankWithDataAfterAPass) {
  for (const bool broadcasts : {true, false}) {
    const auto statuses = RunGroups(
        3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          Net net(1);
          DistributedDataParallelOptions options;
          options.reducer.divisor = Divisor::kTotalWeight;
          options.broadcasts_buffers = broadcasts;
          WEFT_ASSIGN_OR_RETURN(
              auto ddp, DistributedDataParallel::Create(net, group, options));
          net.seen.tensor().Fill(10 + rank);
          if (rank == 0) {
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
          } else {
            Backward(net, SamplesOf(0, 0, 4));
          }
          EXPECT_THAT(net.seen.tensor().ToVector<float>(),
                      Each(broadcasts ? 11 : 10 + rank));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(DistributedDataParallel, JoinedRankTakesPartUntilNoRankHasData) {
  // Rank 0 has 2 batches, rank 1 has 5.
  const int batches[] = {2, 5};
  Net alone(1);
  for (int step = 0; step < 5; ++step) {
    Backward(alone, SamplesOf(step, 0, step < 2 ? 8 : 4));
    StepAndClear(alone);
  }
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        for (int step = 0; step < batches[rank]; ++step) {
          WEFT_RETURN_IF_ERROR(ddp->SetWeight(4));
          const int64_t begin = 4 * (1 - rank);
          Backward(net, SamplesOf(step, begin, begin + 4));
          StepAndClear(net);
        }
        WEFT_RETURN_IF_ERROR(ddp->Join([&] {
          StepAndClear(net);
          return absl::OkStatus();
        }));
        EXPECT_THAT(Flat(net), Pointwise(FloatNear(kTolerance), Flat(alone)));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, JoinDividesByTheInitialWorldSizeOrByThoseLeft) {
  const int batches[] = {2, 5, 3};
  for (const bool by_all : {true, false}) {
    Net alone(1);
    for (int step = 0; step < 5; ++step) {
      // The sum of the ranks' mean gradients, each of 4 samples.
      int left = 0;
      for (int rank = 0; rank < 3; ++rank) {
        if (step >= batches[rank]) continue;
        Backward(alone, SamplesOf(step, 4 * rank, 4 * rank + 4));
        ++left;
      }
      for (const Variable& parameter : alone.Parameters()) {
        if (!parameter.has_grad()) continue;
        Axpy_(parameter.value(), -0.5 / (by_all ? 3 : left), parameter.grad());
        parameter.ClearGradient();
      }
    }
    const auto statuses = RunGroups(
        3, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
          Net net(1);
          ReducerOptions options;
          if (!by_all) options.divisor = Divisor::kTotalWeight;
          WEFT_ASSIGN_OR_RETURN(
              auto ddp, DistributedDataParallel::Create(net, group, options));
          for (int step = 0; step < batches[rank]; ++step) {
            Backward(net, SamplesOf(step, 4 * rank, 4 * rank + 4));
            StepAndClear(net);
          }
          WEFT_RETURN_IF_ERROR(ddp->Join([&] {
            StepAndClear(net);
            return absl::OkStatus();
          }));
          EXPECT_THAT(Flat(net), Pointwise(FloatNear(kTolerance), Flat(alone)));
          return ddp->CheckInSync();
        });
    EXPECT_THAT(statuses, Each(IsOk())) << by_all;
  }
}

TEST(DistributedDataParallel, JoinOfAStaticGraphIsRefused) {
  const auto statuses =
      RunGroups(1, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.is_static_graph = true;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        return ddp->Join([] { return absl::OkStatus(); });
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "is_static_graph")));
}

}  // namespace
}  // namespace weft::ddp
