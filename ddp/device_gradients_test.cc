// Gradients on simulated devices, under 20 orders of what is not ordered: each
// rank gets the bits that the CPU gives, on each way of device_groups.h.

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/device_groups.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/hooks/bf16_compression.h"
#include "weft/ddp/hooks/f16_compression.h"
#include "weft/ddp/reducer.h"
#include "weft/ddp/sync_batch_norm.h"
#include "weft/ddp/virtual_shards.h"
#include "weft/nn/layers.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::Each;
using ::weft::ddp::testing::AllWays;
using ::weft::ddp::testing::Rank;
using ::weft::ddp::testing::RunGroups;
using ::weft::ddp::testing::Way;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class DeviceGradients : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceGradients,
                         ::testing::ValuesIn(AllWays()));

// Sums of them depend on the order of addition.
Tensor GradientOf(int rank, int step, int parameter, const Shape& shape) {
  const Tensor result = Tensor::Empty(shape);
  for (int64_t i = 0; i < result.numel(); ++i) {
    result.data<float>()[i] =
        1.0f / static_cast<float>(3 + i + 7 * rank + 5 * step + parameter);
  }
  return result;
}

std::vector<ReducerParameter> ParametersOn(Device a, Device b) {
  return {{"w1", {20, 30}, DType::kF32, a},
          {"b1", {30}, DType::kF32, b},
          {"w2", {30, 5}, DType::kF32, a},
          {"table", {6, 3}, DType::kF32, b},
          {"late", {4, 4}, DType::kF32, a}};
}

constexpr int kTable = 3, kLate = 4;

// What the parameters become by the gradients of some steps.
absl::StatusOr<std::vector<std::vector<float>>> Train(
    collectives::ProcessGroup& group, Device a, Device b,
    const ReducerOptions& options) {
  WEFT_ASSIGN_OR_RETURN(auto reducer,
                        Reducer::Create(group, ParametersOn(a, b), options));
  const int rank = group.rank();
  std::vector<Tensor> results;
  for (int step = 0; step < 5; ++step) {
    const bool by_weight = options.divisor == Divisor::kTotalWeight;
    WEFT_RETURN_IF_ERROR(reducer->Begin(by_weight ? 3 + rank + step : 1));
    for (int k = 0; k < reducer->size(); ++k) {
      // Ranks come in different orders.
      const int i = rank == 0 ? reducer->size() - 1 - k : k;
      const ReducerParameter& parameter = reducer->parameters()[i];
      if (i == kTable) {
        SparseRows rows;
        rows.rows = 6;
        rows.indices = Tensor::FromVector<int64_t>({1, 3 + rank});
        rows.values = GradientOf(rank, step, i, {2, 3}).To(parameter.device);
        WEFT_RETURN_IF_ERROR(reducer->MarkRows(i, rows));
        continue;
      }
      if (i == kLate && (step < 2 || rank == 1)) {
        WEFT_RETURN_IF_ERROR(reducer->MarkUnused(i));
        continue;
      }
      // Comes to the device when its stream comes to it.
      reducer->gradient(i).CopyFrom(
          GradientOf(rank, step, i, parameter.shape).To(parameter.device));
      WEFT_RETURN_IF_ERROR(reducer->MarkReady(i));
    }
    WEFT_RETURN_IF_ERROR(reducer->Finish());
    for (int i = 0; i < reducer->size(); ++i) {
      if (!reducer->is_used(i)) continue;
      if (reducer->is_sparse(i)) {
        results.push_back(reducer->rows(i).values);
      } else {
        EXPECT_EQ(reducer->gradient(i).device(), i == 1 || i == kTable ? b : a);
        results.push_back(reducer->gradient(i).Clone());
      }
    }
  }
  std::vector<std::vector<float>> found;
  for (const Tensor& result : results) {
    found.push_back(result.ToVector<float>());
  }
  return found;
}

// Options for one bucket for each device, for many buckets, for each hook, and
// for weights.
std::vector<ReducerOptions> AllOptions() {
  std::vector<ReducerOptions> all(5);
  all[1].first_bucket_bytes = all[1].bucket_bytes = 1;
  all[2].hook = std::make_shared<F16CompressionHook>();
  all[3].hook = std::make_shared<Bf16CompressionHook>();
  all[3].rebuilds_buckets = false;
  all[4].divisor = Divisor::kTotalWeight;
  return all;
}

TEST_P(DeviceGradients, AreReducedToTheBitsOfTheCpu) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device cpu = Device::Cpu();
    for (const ReducerOptions& options : AllOptions()) {
      WEFT_ASSIGN_OR_RETURN(const auto wanted,
                            Train(rank.group, cpu, cpu, options));
      WEFT_ASSIGN_OR_RETURN(const auto found, Train(rank.group, rank.device(),
                                                    rank.device(), options));
      EXPECT_EQ(found, wanted);
      // One rank on the CPU.
      const Device own = rank.group.rank() == 0 ? rank.device() : cpu;
      WEFT_ASSIGN_OR_RETURN(const auto mixed,
                            Train(rank.group, own, own, options));
      EXPECT_EQ(mixed, wanted);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroups(2, GetParam(), body), Each(IsOk()));
}

TEST_P(DeviceGradients, OfTwoDevicesAreInBucketsOfEach) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device cpu = Device::Cpu();
    WEFT_ASSIGN_OR_RETURN(const auto wanted, Train(rank.group, cpu, cpu, {}));
    WEFT_ASSIGN_OR_RETURN(const auto found, Train(rank.group, rank.device(0),
                                                  rank.device(1), {}));
    EXPECT_EQ(found, wanted);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroups(2, GetParam(), body), Each(IsOk()));
}

// Their buckets would not be the same.
TEST(DeviceGradientAgreement, DevicesThatAreDividedOtherwiseAreNamed) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const Device other = rank.device(rank.group.rank());
    return Reducer::Create(rank.group, ParametersOn(rank.device(), other))
        .status();
  };
  EXPECT_THAT(RunGroups(2, Way{1}, body),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "parameter b1 f32[30] on device 2 of these")));
}

// A device that fails fails the step on all ranks, with its name.
TEST_P(DeviceGradients, FailureOfADeviceFailsTheStepOnAllRanks) {
  const auto body = [](const Rank& rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        auto reducer,
        Reducer::Create(rank.group, {{"w", {8}, DType::kF32, rank.device()}}));
    for (int step = 0; step < 3; ++step) {
      if (step == 2 && rank.group.rank() == 1) {
        rank.devices.runtime().FailKernel(rank.device().id(), "Fill");
      }
      WEFT_RETURN_IF_ERROR(reducer->Begin());
      reducer->gradient(0).Fill(step);
      WEFT_RETURN_IF_ERROR(reducer->MarkReady(0));
      WEFT_RETURN_IF_ERROR(reducer->Finish());
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroups(2, GetParam(), body),
              Each(StatusIs(absl::StatusCode::kInternal, "simulated:0")));
}

// ----- models

constexpr int64_t kFeatures = 5, kHidden = 7, kClasses = 3, kSamples = 6;

class TwoLayers : public nn::Module {
 public:
  // With `group` there is a batch norm between the two.
  explicit TwoLayers(uint64_t seed, collectives::ProcessGroup* group = nullptr)
      : random_(seed),
        hidden_(kFeatures, kHidden, random_),
        output_(kHidden, kClasses, random_) {
    AddModule("hidden", hidden_);
    AddModule("output", output_);
    if (group != nullptr) {
      norm_ = std::make_unique<SyncBatchNorm>(kHidden, *group);
      AddModule("norm", *norm_);
    }
    seen_ = AddBuffer("seen", Tensor::Full({2}, static_cast<double>(seed)));
  }
  Variable Forward(const Variable& x) {
    Variable y = hidden_.Forward(x);
    if (norm_ != nullptr) y = norm_->Forward(y);
    return output_.Forward(Relu(y));
  }
  const Tensor& seen() const { return seen_.tensor(); }

 private:
  Generator random_;
  nn::Linear hidden_, output_;
  std::unique_ptr<SyncBatchNorm> norm_;
  nn::Buffer seen_;
};

Tensor InputOf(int rank, int step) {
  const Tensor x = Tensor::Empty({kSamples, kFeatures});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] =
        static_cast<float>((7 * i + 3 * rank + 5 * step) % 11) / 11;
  }
  return x;
}

Tensor LabelsOf(int rank, int step) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kSamples; ++i) {
    labels.push_back((i + rank + step) % kClasses);
  }
  return Tensor::FromVector<int64_t>(labels);
}

// The parameters and buffers.
std::vector<std::vector<float>> ValuesOf(const nn::Module& model) {
  std::vector<std::vector<float>> found;
  for (const auto& [name, tensor] : model.StateDict()) {
    if (tensor.dtype() == DType::kF32)
      found.push_back(tensor.ToVector<float>());
  }
  return found;
}

void StepAndClear(const nn::Module& model) {
  for (const Variable& parameter : model.Parameters()) {
    EXPECT_EQ(parameter.grad().device(), parameter.value().device());
    Axpy_(parameter.value(), -0.5, parameter.grad());
    parameter.ClearGradient();
  }
}

// What a model on `device` becomes in some steps of gradient descent. The
// host waits for the device only at the end.
absl::StatusOr<std::vector<std::vector<float>>> TrainModel(
    collectives::ProcessGroup& group, Device device,
    const DistributedDataParallelOptions& options, bool has_norm = false) {
  const int rank = group.rank();
  // All become that of rank 0.
  TwoLayers model(rank + 1, has_norm ? &group : nullptr);
  model.To(device);
  WEFT_ASSIGN_OR_RETURN(auto ddp,
                        DistributedDataParallel::Create(model, group, options));
  for (int step = 0; step < 5; ++step) {
    const auto pass = [&] {
      const Variable x(InputOf(rank, step).To(device));
      CrossEntropy(model.Forward(x), LabelsOf(rank, step).To(device))
          .Backward();
    };
    if (step == 2) {
      DistributedDataParallel::NoSyncScope no_sync(*ddp);
      pass();
    }
    pass();
    StepAndClear(model);
    model.seen().Fill(step + rank);  // becomes that of rank 0
  }
  WEFT_RETURN_IF_ERROR(ddp->BroadcastBuffers());
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  return ValuesOf(model);
}

TEST_P(DeviceGradients, ModelEndsWithTheBitsOfTheCpu) {
  const auto body = [](const Rank& rank) -> absl::Status {
    DistributedDataParallelOptions small;
    small.reducer.first_bucket_bytes = small.reducer.bucket_bytes = 1;
    for (const DistributedDataParallelOptions& options :
         {DistributedDataParallelOptions(), small}) {
      WEFT_ASSIGN_OR_RETURN(const auto wanted,
                            TrainModel(rank.group, Device::Cpu(), options));
      WEFT_ASSIGN_OR_RETURN(const auto found,
                            TrainModel(rank.group, rank.device(), options));
      EXPECT_EQ(found, wanted);
      const Device own = rank.group.rank() == 1 ? rank.device() : Device::Cpu();
      WEFT_ASSIGN_OR_RETURN(const auto mixed,
                            TrainModel(rank.group, own, options));
      EXPECT_EQ(mixed, wanted);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroups(2, GetParam(), body), Each(IsOk()));
}

TEST_P(DeviceGradients, NormOverAllRanksHasTheBitsOfTheCpu) {
  const auto body = [](const Rank& rank) -> absl::Status {
    const auto train = [&](Device device) {
      return TrainModel(rank.group, device, {}, /*has_norm=*/true);
    };
    WEFT_ASSIGN_OR_RETURN(const auto wanted, train(Device::Cpu()));
    WEFT_ASSIGN_OR_RETURN(const auto found, train(rank.device()));
    EXPECT_EQ(found, wanted);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunGroups(2, GetParam(), body), Each(IsOk()));
}

absl::StatusOr<std::vector<std::vector<float>>> TrainByShards(
    collectives::ProcessGroup& group, Device device) {
  TwoLayers model(1);
  model.To(device);
  WEFT_ASSIGN_OR_RETURN(auto shards, VirtualShards::Create(model, group, {}));
  for (int step = 0; step < 3; ++step) {
    for (int s = shards->own().begin; s < shards->own().end; ++s) {
      WEFT_RETURN_IF_ERROR(shards->Begin(s));
      const Variable x(InputOf(s, step).To(device));
      CrossEntropy(model.Forward(x), LabelsOf(s, step).To(device)).Backward();
      model.seen().Fill(s + step);
      WEFT_RETURN_IF_ERROR(shards->End());
    }
    WEFT_RETURN_IF_ERROR(shards->Finish());
    StepAndClear(model);
  }
  return ValuesOf(model);
}

TEST_P(DeviceGradients, VirtualShardsHaveTheBitsOfTheCpu) {
  for (const int size : {1, 2}) {
    const auto body = [](const Rank& rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto wanted,
                            TrainByShards(rank.group, Device::Cpu()));
      WEFT_ASSIGN_OR_RETURN(const auto found,
                            TrainByShards(rank.group, rank.device()));
      EXPECT_EQ(found, wanted);
      return absl::OkStatus();
    };
    EXPECT_THAT(RunGroups(size, GetParam(), body), Each(IsOk()));
  }
}

// A rank whose parameters are others on its device is found.
TEST(DeviceModels, RankWithOtherWeightsIsNamed) {
  const auto body = [](const Rank& rank) -> absl::Status {
    TwoLayers model(1);
    model.To(rank.device());
    WEFT_ASSIGN_OR_RETURN(auto ddp,
                          DistributedDataParallel::Create(model, rank.group));
    if (rank.group.rank() == 1) model.Parameters()[0].value().Fill(1);
    return ddp->CheckInSync();
  };
  EXPECT_THAT(RunGroups(2, Way{1}, body),
              Each(StatusIs(absl::StatusCode::kDataLoss, "hidden.weight")));
}

}  // namespace
}  // namespace weft::ddp
