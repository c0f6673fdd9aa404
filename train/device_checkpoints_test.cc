// Checkpoints of a training whose model is on a device: saved from it, and
// loaded to it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::train {
namespace {

using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;

constexpr int64_t kExamples = 16;
constexpr int64_t kBatch = 4;

// Example i is {f32 [inputs], its class}.
class Examples final : public input::Dataset {
 public:
  explicit Examples(int64_t inputs) : inputs_(inputs) {}
  int64_t size() const override { return kExamples; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    std::vector<float> values(inputs_);
    for (int64_t i = 0; i < inputs_; ++i) {
      values[i] = static_cast<float>((index * 7 + i * 3) % 11) - 5;
    }
    return input::Example{Tensor::FromVector<float>(values),
                          Tensor::Scalar<int64_t>(index % 3)};
  }

 private:
  const int64_t inputs_;
};

struct Outcome {
  std::vector<double> losses;
  Result result;
};

class DeviceCheckpoints : public ::testing::Test {
 protected:
  // Trains [inputs] to [outputs] on `device`, from the newest checkpoint of
  // `directory` if there is one. `before` is called when all but the training
  // is made.
  absl::StatusOr<Outcome> Train(
      const std::string& directory, int epochs, Device device,
      const std::function<void()>& before = [] {}) {
    Outcome outcome;
    collectives::LocalWorld world(1);
    const auto group = collectives::ProcessGroup::Create(world.Connect(0));
    Generator generator(1);
    nn::Linear net(inputs_, outputs_, generator);
    net.To(device);
    WEFT_ASSIGN_OR_RETURN(
        const auto optimizer,
        optimizer::Optimizer::Create(
            {{optimizer::AdamOptions(), net.NamedParameters()}}));
    const Examples examples(inputs_);
    input::ShardedSampler::Options order;
    order.size = kExamples;
    WEFT_ASSIGN_OR_RETURN(const auto sampler,
                          input::ShardedSampler::Create(order));
    input::DataLoader::Options loading;
    loading.batch_size = kBatch;
    WEFT_ASSIGN_OR_RETURN(const auto loader, input::DataLoader::Create(
                                                 examples, sampler, loading));
    DataParallelTraining::Parts parts;
    parts.model = &net;
    parts.optimizer = optimizer.get();
    parts.loader = loader.get();
    Options options;
    options.epochs = epochs;
    options.checkpoint_dir = directory;
    options.resume = true;
    options.keep = 100;
    options.retry_last_save_for = absl::ZeroDuration();
    options.progress = telemetry::Progress::Style::kQuiet;
    options.asked_to_stop = [] { return false; };
    options.on_loss = [&](int64_t, double loss) {
      outcome.losses.push_back(loss);
    };
    before();
    WEFT_ASSIGN_OR_RETURN(const auto training, DataParallelTraining::Create(
                                                   *group, telemetry::Silent(),
                                                   std::move(parts), options));
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
      if (!batch.has_value()) break;
      WEFT_RETURN_IF_ERROR(training->Step(
          CrossEntropy(net.Forward(Variable((*batch)[0].To(device))),
                       (*batch)[1].To(device))));
    }
    WEFT_ASSIGN_OR_RETURN(outcome.result, training->Finish());
    return outcome;
  }
  absl::StatusOr<Outcome> TrainCatching(
      const std::string& directory, int epochs, Device device,
      const std::function<void()>& before = [] {}) {
    return CatchToStatus(
        [&] { return Train(directory, epochs, device, before); });
  }

  // The bytes of all tensors of all checkpoints, by step and name.
  static std::map<std::string, std::string> Saved(
      const std::string& directory) {
    std::map<std::string, std::string> all;
    const auto opened = checkpoint::CheckpointDirectory::Open({directory});
    const auto names = (*opened)->List();
    EXPECT_THAT(names, IsOk());
    for (const std::string& name : names.value()) {
      const auto loaded = (*opened)->Load(name);
      EXPECT_THAT(loaded, IsOk()) << name;
      if (!loaded.ok()) continue;
      for (const auto& [key, tensor] : loaded->tensors) {
        all[absl::StrCat(loaded->manifest.step, " ", key)] =
            std::string(static_cast<const char*>(tensor.raw()), tensor.bytes());
      }
    }
    return all;
  }

  int64_t inputs_ = 5, outputs_ = 3;
  testing::TempDir dir_;
};

TEST_F(DeviceCheckpoints, ResumedTrainingHasTheBitsOfTheCpu) {
  const std::string cpu = dir_.Path("cpu");
  WEFT_ASSERT_OK(TrainCatching(cpu, 1, Device::Cpu()));
  const auto wanted = TrainCatching(cpu, 3, Device::Cpu());
  WEFT_ASSERT_OK(wanted);
  ASSERT_EQ(wanted->losses.size(), 8u);  // of the second and third epoch
  for (int seed = 0; seed < 10; ++seed) {
    SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const std::string directory = dir_.Path(absl::StrCat(seed));
    WEFT_ASSERT_OK(TrainCatching(directory, 1, device));
    const auto found = TrainCatching(directory, 3, device);
    WEFT_ASSERT_OK(found);
    EXPECT_EQ(found->losses, wanted->losses) << "seed " << seed;
    EXPECT_EQ(Saved(directory), Saved(cpu)) << "seed " << seed;
    EXPECT_EQ(devices.runtime().pinned_blocks(), 0);
  }
}

// The first memory that a resume takes is that for the checkpoint. Tensors of
// more than 10 MiB are not in the cache of the device.
TEST_F(DeviceCheckpoints, DeviceWithoutRoomForACheckpointGetsItByWayOfTheCpu) {
  inputs_ = 1024;
  outputs_ = 2600;
  const std::string cpu = dir_.Path("cpu"), there = dir_.Path("there");
  WEFT_ASSERT_OK(TrainCatching(cpu, 1, Device::Cpu()));
  const auto wanted = TrainCatching(cpu, 2, Device::Cpu());
  WEFT_ASSERT_OK(wanted);
  SimulatedDevices devices(4);
  const Device device(devices.context(), 0);
  WEFT_ASSERT_OK(TrainCatching(there, 1, device));
  int64_t failures = 0;
  const auto found = TrainCatching(there, 2, device, [&] {
    device::CachingAllocator& memory = devices.context().allocator(0);
    WEFT_EXPECT_OK(memory.ReleaseCached());
    failures = memory.statistics().failures;
    // The usual segment, once more, and one of just this size.
    devices.runtime().FailAllocations(device.id(), 3);
  });
  WEFT_ASSERT_OK(found);
  EXPECT_EQ(devices.context().allocator(0).statistics().failures, failures + 1);
  EXPECT_EQ(found->losses, wanted->losses);
  EXPECT_TRUE(Saved(there) == Saved(cpu));
}

TEST_F(DeviceCheckpoints, LastSaveGoesThroughPinnedMemoryToo) {
  SimulatedDevices devices(5);
  const ScopedFailpoint staged("train/stage_state", "off");
  const auto found =
      TrainCatching(dir_.Path("a"), 2, Device(devices.context(), 0));
  WEFT_ASSERT_OK(found);
  WEFT_EXPECT_OK(found->result.saved);
  EXPECT_EQ(staged.hits(), 2);  // one for each epoch
}

TEST_F(DeviceCheckpoints, WithoutPinnedMemoryTheyAreSavedAllTheSame) {
  const std::string cpu = dir_.Path("cpu"), there = dir_.Path("there");
  WEFT_ASSERT_OK(TrainCatching(cpu, 2, Device::Cpu()));
  SimulatedDevices devices(6);
  const ScopedFailpoint no_memory("train/stage_state",
                                  "error(RESOURCE_EXHAUSTED)");
  const auto found = TrainCatching(there, 2, Device(devices.context(), 0));
  WEFT_ASSERT_OK(found);
  WEFT_EXPECT_OK(found->result.saved);
  EXPECT_EQ(Saved(there), Saved(cpu));
}

}  // namespace
}  // namespace weft::train
