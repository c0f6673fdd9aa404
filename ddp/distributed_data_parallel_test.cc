#include "weft/ddp/distributed_data_parallel.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int64_t kFeatures = 5;
constexpr int64_t kClasses = 3;

// Two layers, one more that is used on demand, and a buffer.
class Net : public nn::Module {
 public:
  explicit Net(uint64_t seed, int64_t hidden = 7)
      : random_(seed),
        hidden_(kFeatures, hidden, random_),
        output_(hidden, kClasses, random_),
        spare_(kClasses, kClasses, random_) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
    AddModule("spare", spare_);
    seen = AddBuffer("seen", Tensor::Full({2}, static_cast<double>(seed)));
  }
  Variable Forward(const Variable& x, bool with_spare = false) {
    const Variable y = output_.Forward(Relu(hidden_.Forward(x)));
    return with_spare ? spare_.Forward(y) : y;
  }

  nn::Buffer seen;

 private:
  Generator random_;
  nn::Linear hidden_, output_, spare_;
};

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

// Samples [begin, end) of step `step`.
struct Batch {
  Tensor x;       // f32 [n, kFeatures]
  Tensor labels;  // i64 [n]
};
Batch SamplesOf(int step, int64_t begin, int64_t end) {
  std::vector<float> x;
  std::vector<int64_t> labels;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t f = 0; f < kFeatures; ++f) {
      x.push_back(static_cast<float>((7 * i + 3 * f + 5 * step) % 11) / 11);
    }
    labels.push_back((i + step) % kClasses);
  }
  const int64_t n = end - begin;
  return {Tensor::FromVector<float>(x, {n, kFeatures}),
          Tensor::FromVector<int64_t>(labels)};
}

void Backward(Net& net, const Batch& batch, bool with_spare = false) {
  CrossEntropy(net.Forward(Variable(batch.x), with_spare), batch.labels)
      .Backward();
}

// Gradient descent, which leaves parameters without gradient alone.
void StepAndClear(const Net& net) {
  for (const Variable& parameter : net.Parameters()) {
    if (parameter.has_grad()) Axpy_(parameter.value(), -0.5, parameter.grad());
    parameter.ClearGradient();
  }
}

std::vector<float> Flat(const Net& net) {
  std::vector<float> all;
  for (const Variable& parameter : net.Parameters()) {
    for (const float v : parameter.value().ToVector<float>()) all.push_back(v);
  }
  return all;
}

std::vector<float> GradientOf(const Net& net, const std::string& name) {
  for (const nn::NamedParameter& parameter : net.NamedParameters()) {
    if (parameter.name != name) continue;
    if (!parameter.variable.has_grad()) return {};
    return parameter.variable.grad().ToVector<float>();
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

constexpr int kSteps = 5;
constexpr int64_t kBatch = 12;

// What one process learns of whole batches.
std::vector<float> WeightsOfOneProcess() {
  Net net(1);
  for (int step = 0; step < kSteps; ++step) {
    Backward(net, SamplesOf(step, 0, kBatch));
    StepAndClear(net);
  }
  return Flat(net);
}

// Sums are of other orders: a few units in the last place of values below 1.
constexpr float kTolerance = 1e-6f;

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

TEST(DistributedDataParallel, NoSyncAddsUpAndTheNextPassReducesAll) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4));
  Backward(alone, SamplesOf(1, 0, 4));
  const std::vector<float> wanted = GradientOf(alone, "hidden.weight");
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 2 * rank, 2 * rank + 2),
                   /*with_spare=*/false);
        }
        EXPECT_EQ(ddp->reducer().step(), 0u);
        Backward(net, SamplesOf(1, 2 * rank, 2 * rank + 2));
        EXPECT_EQ(ddp->reducer().step(), 1u);
        EXPECT_THAT(GradientOf(net, "hidden.weight"),
                    Pointwise(FloatNear(kTolerance), wanted));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncIsReducedByAPassWithoutIt) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        std::vector<float> own;
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
          own = GradientOf(net, "spare.bias");
        }
        Backward(net, SamplesOf(1, 0, 4));
        const std::vector<float> found = GradientOf(net, "spare.bias");
        EXPECT_EQ(found.size(), size_t{kClasses});
        for (size_t i = 0; rank == 0 && i < own.size(); ++i) {
          EXPECT_NE(own[i], 0);
          EXPECT_FLOAT_EQ(found[i], own[i] / 2) << i;
        }
        return absl::OkStatus();
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
        while (group.health().ok()) absl::SleepFor(absl::Milliseconds(5));
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

// The store of a pass, as a distributed pass has one.
class Store : public GradientSink {
 public:
  void Accept(const BackwardPass&, Leaf& leaf, Gradient gradient) override {
    gradients[&leaf] = gradient.ToDense();
  }
  std::map<const Leaf*, Tensor> gradients;
};

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

ReducerOptions WithHook(std::shared_ptr<CommunicationHook> hook) {
  ReducerOptions options;
  options.hook = std::move(hook);
  return options;
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

// A table of which each batch uses some rows, and a layer on them.
class TableNet : public nn::Module {
 public:
  explicit TableNet(TableGradient gradient)
      : random_(7), table_(20, 4, random_, {gradient}), output_(4, 3, random_) {
    AddModule("table", table_);
    AddModule("output", output_);
  }
  void Backward(int step, int64_t begin, int64_t end) {
    std::vector<int64_t> rows, labels;
    for (int64_t i = begin; i < end; ++i) {
      rows.push_back((3 * i + step) % 7);
      labels.push_back((i + step) % 3);
    }
    CrossEntropy(
        output_.Forward(table_.Forward(Tensor::FromVector<int64_t>(rows))),
        Tensor::FromVector<int64_t>(labels))
        .Backward();
  }
  // Gradient descent on dense and sparse gradients.
  void StepAndClear() {
    for (const Variable& parameter : Parameters()) {
      const Gradient gradient = parameter.gradient();
      if (!gradient.defined()) continue;
      Axpy_(parameter.value(), -0.5, gradient.ToDense());
      parameter.ClearGradient();
    }
  }
  std::vector<float> Values() const {
    std::vector<float> all;
    for (const Variable& parameter : Parameters()) {
      for (const float v : parameter.value().ToVector<float>()) {
        all.push_back(v);
      }
    }
    return all;
  }
  Gradient GradientOfTable() const { return table_.weight().gradient(); }

 private:
  Generator random_;
  nn::Embedding table_;
  nn::Linear output_;
};

TEST(DistributedDataParallel, SparseGradientsAreReducedAsRows) {
  TableNet alone(TableGradient::kDense);
  for (int step = 0; step < 4; ++step) {
    alone.Backward(step, 0, 12);
    alone.StepAndClear();
  }
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        for (int step = 0; step < 4; ++step) {
          if (step == 3) {
            // Rows of a pass that is not reduced are so by the next.
            const DistributedDataParallel::NoSyncScope local(*ddp);
            net.Backward(step, 6 * rank, 6 * rank + 6);
            EXPECT_TRUE(net.GradientOfTable().is_sparse());
            net.ClearGradients();
          }
          net.Backward(step, 6 * rank, 6 * rank + 6);
          // Agreed before the first reduction.
          EXPECT_TRUE(net.GradientOfTable().is_sparse()) << step;
          net.StepAndClear();
        }
        EXPECT_THAT(ddp->GetLog().sparse, ElementsAre("table.weight"));
        EXPECT_THAT(net.Values(),
                    Pointwise(FloatNear(kTolerance), alone.Values()));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Those of which there is a gradient; none of a whole one.
std::vector<int64_t> RowsOf(const Gradient& gradient) {
  if (!gradient.is_sparse()) return {};
  return Coalesce(gradient.sparse()).indices.ToVector<int64_t>();
}

TEST(DistributedDataParallel, FirstPassOfANewOneHasRowsOfUsedRowsOnly) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        // As a job that resumes or shrinks again and again.
        for (int start = 0; start < 3; ++start) {
          WEFT_ASSIGN_OR_RETURN(auto ddp,
                                DistributedDataParallel::Create(net, group));
          net.Backward(/*step=*/0, 2 * rank, 2 * rank + 2);
          // (3 * i) % 7 for i below 4.
          EXPECT_THAT(RowsOf(net.GradientOfTable()), ElementsAre(0, 2, 3, 6));
          net.StepAndClear();
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, RowsOfNoSyncBeforeTheFirstPassStayRows) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          net.Backward(/*step=*/0, rank, rank + 1);
        }
        net.Backward(/*step=*/0, rank + 2, rank + 3);
        EXPECT_THAT(RowsOf(net.GradientOfTable()), ElementsAre(0, 2, 3, 6));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncCountsInAPassWithoutDataHere) {
  Net first(1), second(1);
  Backward(first, SamplesOf(0, 0, 4), /*with_spare=*/true);
  Backward(second, SamplesOf(1, 0, 4));
  std::vector<float> spare = GradientOf(first, "spare.weight");
  for (float& value : spare) value *= 3.0f / 8;
  std::vector<float> hidden = GradientOf(first, "hidden.weight");
  const std::vector<float> other = GradientOf(second, "hidden.weight");
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = (3 * hidden[i] + 5 * other[i]) / 8;
  }
  for (const bool is_first_pass : {true, false}) {
    for (const bool runs_a_pass : {true, false}) {
      const auto statuses = RunGroups(
          2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
            Net net(1);
            ReducerOptions options;
            options.divisor = Divisor::kTotalWeight;
            WEFT_ASSIGN_OR_RETURN(
                auto ddp, DistributedDataParallel::Create(net, group, options));
            if (!is_first_pass) {
              Backward(net, SamplesOf(3, 0, 4));
              net.ClearGradients();
            }
            if (rank == 0) {
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(3));
              {
                const DistributedDataParallel::NoSyncScope local(*ddp);
                Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/true);
              }
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(0));
              if (runs_a_pass) {
                Backward(net, SamplesOf(2, 0, 4));
              } else {
                WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
              }
            } else {
              WEFT_RETURN_IF_ERROR(ddp->SetWeight(5));
              Backward(net, SamplesOf(1, 0, 4));
            }
            EXPECT_EQ(ddp->total_weight(), 8);
            EXPECT_THAT(GradientOf(net, "spare.weight"),
                        Pointwise(FloatNear(kTolerance), spare));
            EXPECT_THAT(GradientOf(net, "hidden.weight"),
                        Pointwise(FloatNear(kTolerance), hidden));
            StepAndClear(net);
            WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
            // It counted once.
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
            EXPECT_EQ(ddp->total_weight(), 0);
            EXPECT_TRUE(GradientOf(net, "spare.weight").empty());
            return absl::OkStatus();
          });
      EXPECT_THAT(statuses, Each(IsOk())) << is_first_pass << runs_a_pass;
    }
  }
}

TEST(DistributedDataParallel, RowsOfNoSyncCountInAPassWithoutDataHere) {
  TableNet alone(TableGradient::kDense);
  for (int step = 0; step < 3; ++step) {
    alone.Backward(step, 0, 12);
    alone.StepAndClear();
  }
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        TableNet net(TableGradient::kSparse);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(ddp->SetWeight(6));
          if (rank == 0) {
            {
              const DistributedDataParallel::NoSyncScope local(*ddp);
              net.Backward(step, 0, 6);
            }
            WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
          } else {
            net.Backward(step, 6, 12);
          }
          net.StepAndClear();
        }
        EXPECT_THAT(net.Values(),
                    Pointwise(FloatNear(kTolerance), alone.Values()));
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, PassOfWeight0UnderNoSyncAddsNothing) {
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        ReducerOptions options;
        options.divisor = Divisor::kTotalWeight;
        WEFT_ASSIGN_OR_RETURN(
            auto ddp, DistributedDataParallel::Create(net, group, options));
        WEFT_RETURN_IF_ERROR(ddp->SetWeight(rank));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
        }
        EXPECT_EQ(GradientOf(net, "hidden.weight").empty(), rank == 0);
        WEFT_RETURN_IF_ERROR(ddp->ContributeNothing());
        EXPECT_EQ(ddp->total_weight(), 1);
        EXPECT_TRUE(GradientOf(net, "spare.weight").empty());
        EXPECT_FALSE(GradientOf(net, "hidden.weight").empty());
        StepAndClear(net);
        return ddp->CheckInSync();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(DistributedDataParallel, GradientOfNoSyncOutlastsAPassWithAStore) {
  Net alone(1);
  Backward(alone, SamplesOf(0, 0, 4), /*with_spare=*/true);
  std::vector<float> wanted = GradientOf(alone, "spare.weight");
  for (float& value : wanted) value /= 2;
  const auto statuses = RunGroups(
      2, [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
        Net net(1);
        WEFT_ASSIGN_OR_RETURN(auto ddp,
                              DistributedDataParallel::Create(net, group));
        {
          const DistributedDataParallel::NoSyncScope local(*ddp);
          Backward(net, SamplesOf(0, 0, 4), /*with_spare=*/rank == 0);
        }
        Store store;
        BackwardOptions options;
        options.sink = &store;
        const Batch batch = SamplesOf(1, 0, 4);
        CrossEntropy(net.Forward(Variable(batch.x)), batch.labels)
            .Backward(options);
        Backward(net, SamplesOf(1, 0, 4));
        EXPECT_THAT(GradientOf(net, "spare.weight"),
                    Pointwise(FloatNear(kTolerance), wanted));
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
