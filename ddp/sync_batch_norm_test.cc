#include "weft/ddp/sync_batch_norm.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::Pointwise;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;

constexpr int64_t kFeatures = 5, kChannels = 4, kClasses = 3, kBatch = 12;
constexpr int kSteps = 5;
// Moments are summed in another order, and divided by a variance.
constexpr float kTolerance = 1e-5f;

// A layer, a normalisation of [n, kChannels, 2], another layer.
class Net : public nn::Module {
 public:
  explicit Net(std::unique_ptr<nn::Layer> norm)
      : random_(3),
        hidden_(kFeatures, 2 * kChannels, random_),
        norm_(std::move(norm)),
        output_(2 * kChannels, kClasses, random_) {
    AddModule("hidden", hidden_);
    AddModule("norm", *norm_);
    AddModule("output", output_);
  }
  bool is_checkpointed = false;

  Variable Forward(const Variable& x) {
    const auto layers = [this](absl::Span<const Variable> in) {
      const int64_t n = in[0].size(0);
      const Variable h = Reshape(hidden_.Forward(in[0]), {n, kChannels, 2});
      return output_.Forward(
          Reshape(Relu(norm_->Forward(h)), {n, 2 * kChannels}));
    };
    return is_checkpointed ? Checkpoint(layers, {x}) : layers({x});
  }
  // Samples [begin, end) of step `step`.
  void Backward(int step, int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const Tensor x = Tensor::Empty({n, kFeatures});
    const Tensor labels = Tensor::Empty({n}, DType::kI64);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t f = 0; f < kFeatures; ++f) {
        x.data<float>()[i * kFeatures + f] =
            static_cast<float>((7 * (begin + i) + 3 * f + 5 * step) % 11) / 11;
      }
      labels.data<int64_t>()[i] = (begin + i + step) % kClasses;
    }
    CrossEntropy(Forward(Variable(x)), labels).Backward();
  }
  void StepAndClear() {
    for (const Variable& parameter : Parameters()) {
      if (parameter.has_grad()) {
        Axpy_(parameter.value(), -0.5, parameter.grad());
      }
      parameter.ClearGradient();
    }
  }
  // Parameters and running statistics.
  std::vector<float> Values() const {
    std::vector<float> all;
    for (const auto& [name, tensor] : StateDict()) {
      const Tensor f32 = tensor.To(DType::kF32);
      for (const float v : f32.ToVector<float>()) all.push_back(v);
    }
    return all;
  }

 private:
  Generator random_;
  nn::Linear hidden_;
  const std::unique_ptr<nn::Layer> norm_;
  nn::Linear output_;
};

std::vector<float> ValuesOfOneProcess() {
  Net net(std::make_unique<nn::BatchNorm>(kChannels));
  for (int step = 0; step < kSteps; ++step) {
    net.Backward(step, 0, kBatch);
    net.StepAndClear();
  }
  return net.Values();
}

using Body = std::function<absl::Status(int rank, collectives::ProcessGroup&)>;

std::vector<absl::Status> RunGroups(int size, const Body& body) {
  collectives::LocalWorld world(size);
  return RunRanks(size, [&](int rank) {
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    return body(rank, *group);
  });
}

// Trains on samples [begins[rank], begins[rank + 1]).
absl::Status TrainRank(int rank, collectives::ProcessGroup& group,
                       const std::vector<int64_t>& begins, Divisor divisor,
                       const std::vector<float>& wanted) {
  WEFT_ASSIGN_OR_RETURN(const auto own, group.Split(0));
  SyncBatchNormOptions options;
  options.divisor = divisor;
  Net net(std::make_unique<SyncBatchNorm>(kChannels, *own, options));
  ReducerOptions reducing;
  reducing.divisor = divisor;
  reducing.first_bucket_bytes = reducing.bucket_bytes = 1;
  WEFT_ASSIGN_OR_RETURN(auto ddp,
                        DistributedDataParallel::Create(net, group, reducing));
  for (int step = 0; step < kSteps; ++step) {
    if (divisor == Divisor::kTotalWeight) {
      WEFT_RETURN_IF_ERROR(
          ddp->SetWeight(static_cast<double>(begins[rank + 1] - begins[rank])));
    }
    net.Backward(step, begins[rank], begins[rank + 1]);
    net.StepAndClear();
  }
  EXPECT_THAT(net.Values(), Pointwise(FloatNear(kTolerance), wanted));
  return ddp->CheckInSync();
}

TEST(SyncBatchNorm, TrainingEqualsThatOfOneProcessWithTheWholeBatch) {
  const std::vector<float> wanted = ValuesOfOneProcess();
  for (const Divisor divisor : {Divisor::kWorldSize, Divisor::kTotalWeight}) {
    for (const std::vector<int64_t>& begins :
         {std::vector<int64_t>{0, 12}, {0, 6, 12}, {0, 4, 8, 12}}) {
      EXPECT_THAT(RunGroups(static_cast<int>(begins.size()) - 1,
                            [&](int rank, collectives::ProcessGroup& group) {
                              return TrainRank(rank, group, begins, divisor,
                                               wanted);
                            }),
                  Each(IsOk()));
    }
  }
}

TEST(SyncBatchNorm, UnevenBatchesByWeightEqualOneProcess) {
  const std::vector<float> wanted = ValuesOfOneProcess();
  for (const std::vector<int64_t>& begins :
       {std::vector<int64_t>{0, 3, 12}, {0, 7, 8, 12}}) {
    EXPECT_THAT(RunGroups(static_cast<int>(begins.size()) - 1,
                          [&](int rank, collectives::ProcessGroup& group) {
                            return TrainRank(rank, group, begins,
                                             Divisor::kTotalWeight, wanted);
                          }),
                Each(IsOk()));
  }
}

// The reducer sees one pass, in which the layers are computed again.
TEST(SyncBatchNorm, CheckpointedModelBelowDdpGivesTheSameBits) {
  constexpr int kRanks = 3;
  std::vector<std::vector<float>> values(2);
  for (const bool is_checkpointed : {false, true}) {
    EXPECT_THAT(
        RunGroups(
            kRanks,
            [&](int rank, collectives::ProcessGroup& group) -> absl::Status {
              WEFT_ASSIGN_OR_RETURN(const auto own, group.Split(0));
              Net net(std::make_unique<SyncBatchNorm>(kChannels, *own));
              net.is_checkpointed = is_checkpointed;
              ReducerOptions reducing;
              reducing.first_bucket_bytes = reducing.bucket_bytes = 1;
              WEFT_ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create(
                                                  net, group, reducing));
              constexpr int64_t kPart = kBatch / kRanks;
              for (int step = 0; step < kSteps; ++step) {
                net.Backward(step, rank * kPart, (rank + 1) * kPart);
                net.StepAndClear();
              }
              if (rank == 0) values[is_checkpointed] = net.Values();
              return ddp->CheckInSync();
            }),
        Each(IsOk()));
  }
  EXPECT_EQ(values[1], values[0]);
}

TEST(SyncBatchNorm, RankWithAnEmptyBatchTakesPart) {
  // x on rank 0 only: what it gets is what BatchNorm makes of it.
  Generator random(5);
  const Tensor whole = Normal({6, kChannels, 3}, 1.0, 2.0, random);
  const Tensor seed = Normal({6, kChannels, 3}, 0.0, 1.0, random);
  nn::BatchNorm plain(kChannels);
  Variable x(whole.Clone(), /*requires_grad=*/true);
  const Variable wanted = plain.Forward(x);
  Sum(Mul(wanted, Variable(seed))).Backward();
  EXPECT_THAT(
      RunGroups(2,
                [&](int rank, collectives::ProcessGroup& group) {
                  SyncBatchNorm norm(kChannels, group);
                  const int64_t n = rank == 0 ? 6 : 0;
                  Variable part(whole.Slice(0, 0, n).Clone(), true);
                  const Variable y = norm.Forward(part);
                  Sum(Mul(y, Variable(seed.Slice(0, 0, n).Clone()))).Backward();
                  if (rank != 0) return absl::OkStatus();
                  EXPECT_THAT(y.value().ToVector<float>(),
                              Pointwise(FloatNear(kTolerance),
                                        wanted.value().ToVector<float>()));
                  EXPECT_THAT(part.grad().ToVector<float>(),
                              Pointwise(FloatNear(kTolerance),
                                        x.grad().ToVector<float>()));
                  return absl::OkStatus();
                }),
      Each(IsOk()));
}

TEST(SyncBatchNorm, EvaluationUsesRunningStatisticsWithoutCommunication) {
  EXPECT_THAT(
      RunGroups(
          2,
          [&](int rank, collectives::ProcessGroup& group) {
            SyncBatchNorm norm(1, group);
            norm.Eval();
            if (rank == 1) return absl::OkStatus();
            const Variable y = norm.Forward(Variable(Tensor::Full({2, 1}, 3)));
            EXPECT_THAT(y.value().ToVector<float>(), Each(FloatNear(3, 1e-4f)));
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(SyncBatchNorm, BadInputIsRefusedWithWhatWasWanted) {
  const auto statuses =
      RunGroups(2, [&](int, collectives::ProcessGroup& group) -> absl::Status {
        SyncBatchNorm norm(3, group);
        EXPECT_THAT(
            CatchToStatus([&] {
              (void)norm.Forward(Variable(Tensor::Zeros({2, 4})));
            }),
            StatusIs(absl::StatusCode::kInvalidArgument, "wanted [n, 3, ...]"));
        return CatchToStatus([&] {
          (void)norm.Forward(Variable(Tensor::Zeros({0, 3})));
        });
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "have no variance; wanted 2 or more")));
}

}  // namespace
}  // namespace weft::ddp
