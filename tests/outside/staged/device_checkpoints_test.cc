// Trainings whose model is on a simulated device, and their checkpoints: one
// after each step, into directories that fail, resumed elsewhere. What is
// expected is what train/data_parallel_training.h and docs/devices.md
// ("Checkpoints") say; a sentence of theirs stands above each test.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/outside/train/toy.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/data_parallel_training.h"

namespace weft::outside {
namespace {

namespace fs = std::filesystem;
using device::testing::SimulatedDevices;
using ::testing::Each;
using ::testing::SizeIs;
using train::DataParallelTraining;
using weft::testing::IsOk;
using weft::testing::StatusIs;
using weft::testing::TempDir;

// Called before the step that would be the `steps`-th, from 0.
using Before = std::function<void(int64_t steps)>;

// Trains the toy of this rank on `device` to its end, on batches of it.
absl::StatusOr<train::Result> TrainOn(Toy& toy, Device device,
                                      train::Options options,
                                      const Before& before = nullptr) {
  toy.net().To(device);
  WEFT_ASSIGN_OR_RETURN(const auto training, toy.Create(std::move(options)));
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
    if (!batch.has_value()) return training->Finish();
    if (before != nullptr) before(training->steps());
    WEFT_RETURN_IF_ERROR(training->Step(
        toy.Loss({(*batch)[0].To(device), (*batch)[1].To(device)})));
  }
}

// One checkpoint after each of the 16 steps, all of which stay.
train::Options EachStep(const std::string& path) {
  train::Options options = QuietOptions(path);
  options.checkpoint_every_steps = 1;
  options.keep = 100;
  return options;
}

std::string BytesAt(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("ckpt-", 0) == 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}
// Of each checkpoint, by "step-N", which may be there more than once.
std::multimap<std::string, std::string> Saved(const std::string& path) {
  std::multimap<std::string, std::string> saved;
  for (const std::string& name : Names(path)) {
    saved.emplace(name.substr(name.find("step-")),
                  BytesAt(path + "/" + name + "/shard-00000.safetensors"));
  }
  return saved;
}

class DeviceCheckpoints : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.Path(name); }
  // One on the CPU that nobody touches.
  std::multimap<std::string, std::string> OfTheCpu(int ranks) {
    EXPECT_THAT(RunToys(ranks,
                        [&](Toy& toy) {
                          return TrainOn(toy, Device::Cpu(),
                                         EachStep(Path("cpu")))
                              .status();
                        }),
                Each(IsOk()));
    return Saved(Path("cpu"));
  }

  TempDir dir_;
};

// "copied to pinned memory on another stream, behind the step that is over";
// "A save that is due waits for the one before it": with one after each step.
TEST_F(DeviceCheckpoints, AfterEachStepHaveTheBitsOfTheCpu) {
  for (const int ranks : {1, 2}) {
    fs::remove_all(Path("cpu"));
    const auto wanted = OfTheCpu(ranks);
    ASSERT_THAT(wanted, SizeIs(::testing::Ge(16u / ranks)));
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(absl::StrCat("ranks ", ranks, ", seed ", seed));
      fs::remove_all(Path("device"));
      EXPECT_THAT(RunToys(ranks,
                          [&](Toy& toy) -> absl::Status {
                            SimulatedDevices devices(seed);
                            WEFT_ASSIGN_OR_RETURN(
                                const auto result,
                                TrainOn(toy, Device(devices.context(), 0),
                                        EachStep(Path("device"))));
                            return result.saved;
                          }),
                  Each(IsOk()));
      EXPECT_TRUE(Saved(Path("device")) == wanted);
    }
  }
}

// "Checkpoints know no device: what was saved on one is loaded on another", and
// goes on with the bits of one that was never interrupted.
TEST_F(DeviceCheckpoints, AreResumedOnAnotherDeviceOrTheCpu) {
  const auto wanted = OfTheCpu(1).find("step-16")->second;
  for (const int64_t stop : {1, 7, 8, 15}) {
    SCOPED_TRACE(stop);
    fs::remove_all(Path("moved"));
    int runs = 0;
    // The device, the CPU and another device, each for a few steps.
    for (const int where : {0, 1, 2}) {
      EXPECT_THAT(
          RunToys(1,
                  [&](Toy& toy) -> absl::Status {
                    SimulatedDevices devices(where);
                    train::Options options = EachStep(Path("moved"));
                    options.resume = where > 0;
                    int64_t steps = 0;
                    if (where == 0) {
                      options.asked_to_stop = [&] { return ++steps >= stop; };
                    } else if (where == 1) {
                      options.asked_to_stop = [&] { return true; };
                    }
                    const Device device = where == 1
                                              ? Device::Cpu()
                                              : Device(devices.context(), 0);
                    ++runs;
                    return TrainOn(toy, device, options).status();
                  }),
          Each(IsOk()));
    }
    EXPECT_EQ(runs, 3);
    const auto saved = Saved(Path("moved"));
    ASSERT_EQ(saved.count("step-16") > 0, true);
    EXPECT_TRUE(saved.find("step-16")->second == wanted);
  }
}

// "A checkpoint that cannot be saved is logged and reported by Finish; training
// goes on without it." "a failure is logged then, or by Finish".
TEST_F(DeviceCheckpoints, ThatCannotBeWrittenCostNoTraining) {
  for (const bool mends : {false, true}) {
    SCOPED_TRACE(mends);
    fs::remove_all(Path("gone"));
    int64_t steps = 0;
    train::Result result;
    EXPECT_THAT(
        RunToys(1,
                [&](Toy& toy) -> absl::Status {
                  SimulatedDevices devices(1);
                  WEFT_ASSIGN_OR_RETURN(
                      result,
                      TrainOn(toy, Device(devices.context(), 0),
                              EachStep(Path("gone")), [&](int64_t before) {
                                steps = before + 1;
                                if (before == 3) {
                                  // The save of step 3 may be under way.
                                  std::error_code ignored;
                                  fs::rename(Path("gone"), Path("away"),
                                             ignored);
                                  std::ofstream(Path("gone")) << "no directory";
                                }
                                if (before == 12 && mends) {
                                  fs::remove(Path("gone"));
                                  fs::rename(Path("away"), Path("gone"));
                                }
                              }));
                  return absl::OkStatus();
                }),
        Each(IsOk()));
    EXPECT_EQ(steps, 16);
    if (mends) {
      EXPECT_THAT(result.saved, IsOk());
      EXPECT_EQ(Saved(Path("gone")).count("step-16"), 1u);
    } else {
      EXPECT_FALSE(result.saved.ok());
      EXPECT_TRUE(result.checkpoint.empty() ||
                  result.checkpoint.find("step-16") == std::string::npos)
          << result.checkpoint;
      // What was saved before is whole.
      const auto early = Saved(Path("away"));
      ASSERT_EQ(early.count("step-1"), 1u);
      fs::remove(Path("gone"));
      fs::remove_all(Path("away"));
    }
  }
}

// "What was saved before" outlives a device that is lost with a save under way;
// the training ends with the device's error.
TEST_F(DeviceCheckpoints, OfALostDeviceAreThoseBefore) {
  const auto wanted = OfTheCpu(1);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    fs::remove_all(Path("lost"));
    EXPECT_THAT(RunToys(1,
                        [&](Toy& toy) {
                          SimulatedDevices devices(seed);
                          return TrainOn(toy, Device(devices.context(), 0),
                                         EachStep(Path("lost")),
                                         [&](int64_t steps) {
                                           if (steps != 5) return;
                                           devices.runtime().LoseDevice(
                                               devices.context().device(0));
                                         })
                              .status();
                        }),
                Each(StatusIs(absl::StatusCode::kUnavailable)));
    const auto saved = Saved(Path("lost"));
    EXPECT_GE(saved.size(), 4u);
    for (const auto& [step, bytes] : saved) {
      EXPECT_TRUE(wanted.find(step)->second == bytes) << step;
    }
    // It goes on elsewhere.
    train::Options options = EachStep(Path("lost"));
    options.resume = true;
    EXPECT_THAT(RunToys(1,
                        [&](Toy& toy) {
                          return TrainOn(toy, Device::Cpu(), options).status();
                        }),
                Each(IsOk()));
    EXPECT_TRUE(Saved(Path("lost")).find("step-16")->second ==
                wanted.find("step-16")->second);
  }
}

// "kDataLoss: every checkpoint is damaged"; of half a checkpoint the one before
// counts.
TEST_F(DeviceCheckpoints, ThatAreHalfAreLeftForTheOneBefore) {
  const auto wanted = OfTheCpu(1).find("step-16")->second;
  fs::remove_all(Path("cpu/LATEST"));
  std::vector<std::string> names = Names(Path("cpu"));
  while (names.size() > 2) {
    fs::remove_all(Path("cpu/" + names.front()));
    names.erase(names.begin());
  }
  const auto halve = [&](const std::string& name) {
    const std::string shard = Path("cpu/" + name + "/shard-00000.safetensors");
    fs::resize_file(shard, fs::file_size(shard) / 2);
  };
  const auto resume = [&](int64_t* began) {
    train::Options options = EachStep(Path("cpu"));
    options.resume = true;
    return RunToys(1, [&](Toy& toy) {
      SimulatedDevices devices(2);
      return TrainOn(toy, Device(devices.context(), 0), options,
                     [&](int64_t steps) { *began = std::min(*began, steps); })
          .status();
    });
  };
  halve(names[1]);
  int64_t began = 100;
  EXPECT_THAT(resume(&began), Each(IsOk()));
  EXPECT_LE(began, 15);
  const auto saved = Saved(Path("cpu"));
  bool is_there = false;
  for (const auto& [step, bytes] : saved) {
    is_there = is_there || (step == "step-16" && bytes == wanted);
  }
  EXPECT_TRUE(is_there);
  for (const std::string& name : Names(Path("cpu"))) halve(name);
  EXPECT_THAT(resume(&began), Each(StatusIs(absl::StatusCode::kDataLoss)));
}

// Memory of the device that runs short at a resume is an error, no crash.
TEST_F(DeviceCheckpoints, ForWhichTheDeviceHasNoMemoryAreErrors) {
  (void)OfTheCpu(1);
  for (const int count : {1, 1000}) {
    const auto ended = RunToys(1, [&](Toy& toy) -> absl::Status {
      SimulatedDevices devices(2);
      const Device device(devices.context(), 0);
      toy.net().To(device);
      devices.runtime().FailAllocations(devices.context().device(0), count);
      train::Options options = EachStep(Path("cpu"));
      options.resume = true;
      return toy.Create(options).status();
    });
    EXPECT_THAT(ended,
                Each(::testing::AnyOf(
                    IsOk(), StatusIs(absl::StatusCode::kResourceExhausted))));
  }
}

}  // namespace
}  // namespace weft::outside
