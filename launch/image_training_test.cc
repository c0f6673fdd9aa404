// Workers of one process, which meet over sockets, on a data set that the test
// writes.

#include "weft/launch/image_training.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/nccl/simulated_nccl.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/launch/serve_tables.h"
#include "weft/ps/server.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/settings.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using ::testing::Each;
using ::testing::EndsWith;
using ::testing::Gt;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

class ImageTrainingTest : public ::testing::Test {
 protected:
  struct Run {
    std::map<std::string, absl::Status> statuses;  // by worker
    std::map<std::string, train::Result> results;
    std::vector<double> losses;  // by step, of trainer0
    int64_t first_step = 0;      // of losses
  };

  ImageTrainingTest() {
    WriteImages(/*train=*/64);
    options_.data = dir_.path();
    options_.epochs = 2;
    options_.batch_size = 8;
    options_.progress = telemetry::Progress::Style::kQuiet;
  }

  void WriteImages(int64_t train) {
    testing::WriteIdxImages(dir_.Path("train"), train);
    testing::WriteIdxImages(dir_.Path("t10k"), 20);
  }

  // Runs a job of one server and `trainers` trainers to its end.
  // `asked_to_stop` is called after each step of each trainer.
  Run Train(
      int trainers,
      const std::function<bool()>& asked_to_stop = [] { return false; }) {
    Run run;
    Mutex mu;
    ps::Server server({.checkpoint_dir = dir_.path()});
    worker::TestWorkers::Options job;
    job.servers = 1;
    job.trainers = trainers;
    const auto workers = worker::TestWorkers::Start(job);
    EXPECT_THAT(workers, IsOk());
    if (!workers.ok()) return run;
    const ImageData data = LoadImageData(options_).value();
    const absl::Status ran = (*workers)->Run([&](worker::Worker& worker) {
      const std::string& name = worker.self().name;
      absl::Status status;
      if (worker.options().role == "ps") {
        status = ServeTables(
            worker, server, [] { return 0; }, absl::Seconds(20));
      } else {
        ImageTrainingOptions options = options_;
        options.on_loss = [&](int64_t step, double loss) {
          // The next trainer reports steps too, once trainer0 has left.
          if (name != "trainer0") return;
          MutexLock lock(mu);
          if (run.losses.empty()) run.first_step = step;
          run.losses.push_back(loss);
        };
        options.asked_to_stop = asked_to_stop;
        options.settings = SettingsOf(options, data);
        const auto result = TrainWithServers(worker, data, options);
        status = result.status();
        MutexLock lock(mu);
        if (result.ok()) run.results[name] = *result;
      }
      if (worker.options().role != "ps") {
        EXPECT_THAT(worker.membership().Leave(absl::Seconds(30)), IsOk());
      }
      MutexLock lock(mu);
      run.statuses[name] = status;
      return absl::OkStatus();
    });
    EXPECT_THAT(ran, IsOk());
    return run;
  }

  testing::TempDir dir_;
  ImageTrainingOptions options_;
};

TEST_F(ImageTrainingTest, MissingImageFileIsNamed) {
  options_.data = dir_.Path("nowhere");
  EXPECT_THAT(LoadImageData(options_),
              StatusIs(absl::StatusCode::kNotFound,
                       options_.data + "/train-images-idx3-ubyte"));
}

TEST_F(ImageTrainingTest, ImagesOfUnequalSizesAreRefusedWithBoth) {
  testing::WriteIdxImages(dir_.Path("t10k"), 20, /*side=*/9);
  EXPECT_THAT(LoadImageData(options_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "images to train on are 8x8, those to test on 9x9"));
}

TEST_F(ImageTrainingTest, EmptyAndTinyImagesAreRefused) {
  testing::WriteIdxImages(dir_.Path("train"), 0);
  EXPECT_THAT(LoadImageData(options_),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 0 of 8x8"));
  testing::WriteIdxImages(dir_.Path("train"), 5, /*side=*/3);
  EXPECT_THAT(LoadImageData(options_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted images of at least 4x4, found 5 of 3x3"));
}

TEST_F(ImageTrainingTest, CountsOfPartsAddUpToThatOfAllImages) {
  const ImageData data = LoadImageData(options_).value();
  Generator generator(1);
  ImageModel model(8, 8, 10, generator);
  const auto all = CountRight(model, *data.train, 0, 64);
  ASSERT_THAT(all, IsOk());
  EXPECT_GT(*all, 0);
  EXPECT_LT(*all, 64);
  const auto first = CountRight(model, *data.train, 0, 30);
  const auto rest = CountRight(model, *data.train, 30, 64);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(rest, IsOk());
  EXPECT_EQ(*first + *rest, *all);
  EXPECT_THAT(CountRight(model, *data.train, 10, 10), IsOkAndHolds(0));
}

TEST_F(ImageTrainingTest, TrainersLearnAndTheFirstReportsTheAccuracy) {
  const Run run = Train(2);
  for (const auto& [name, status] : run.statuses) {
    EXPECT_THAT(status, IsOk()) << name;
  }
  EXPECT_THAT(run.statuses, SizeIs(3));
  ASSERT_THAT(run.losses, SizeIs(8));  // 2 epochs of 64 / (2 x 8) steps
  EXPECT_EQ(run.first_step, 1);
  EXPECT_LT(run.losses.back(), run.losses.front());
  ASSERT_THAT(run.results, SizeIs(2));
  EXPECT_TRUE(run.results.at("trainer0").score.has_value());
}

// Each rank with a simulated device of its own: the bits of the checkpoint are
// those of ranks on the CPU, whatever the order of what is not ordered.
TEST_F(ImageTrainingTest, WithoutServersDevicesHaveTheBitsOfTheCpu) {
  const ImageData data = LoadImageData(options_).value();
  options_.strategy = "ddp";
  const auto train = [&](int ranks, int virtual_shards,
                         absl::optional<uint64_t> seed) {
    testing::TempDir checkpoints;
    collectives::LocalWorld world(ranks);
    const auto statuses = testing::RunRanks(ranks, [&](int rank) {
      std::unique_ptr<device::testing::SimulatedDevices> devices;
      ImageTrainingOptions options = options_;
      options.virtual_shards = virtual_shards;
      options.checkpoint_dir = checkpoints.path();
      if (seed.has_value()) {
        devices =
            std::make_unique<device::testing::SimulatedDevices>(*seed + rank);
        options.device = Device(devices->context(), 0);
      }
      options.settings = SettingsOf(options, data);
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      return TrainTogether(*group, telemetry::Silent(), data, options).status();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
    const auto directory =
        checkpoint::CheckpointDirectory::Open({.path = checkpoints.path()});
    const auto saved = (*directory)->LoadLatest();
    EXPECT_THAT(saved, IsOk());
    std::map<std::string, std::string> tensors;
    if (!saved.ok()) return tensors;
    for (const auto& [name, tensor] : saved->tensors) {
      tensors[name] = testing::BytesOf(tensor);
    }
    return tensors;
  };
  for (const int virtual_shards : {0, 4}) {
    for (const int ranks : {2, 4}) {
      const auto wanted = train(ranks, virtual_shards, absl::nullopt);
      EXPECT_THAT(wanted, SizeIs(Gt(12)));
      for (uint64_t seed = 0; seed < 5; ++seed) {
        EXPECT_TRUE(train(ranks, virtual_shards, 100 * seed) == wanted)
            << ranks << " ranks, " << virtual_shards << " virtual shards, seed "
            << seed;
      }
    }
  }
}

// As the program: trainers of a job, with a (simulated) NCCL, learn what they
// learn over the host.
TEST_F(ImageTrainingTest, TrainersWithADeviceEachUseNccl) {
  const ImageData data = LoadImageData(options_).value();
  options_.strategy = "ddp";
  const auto train = [&](const std::string& backend) {
    collectives::SimulatedNccl nccl(3);
    worker::TestWorkers::Options job;
    job.trainers = 2;
    const auto workers = worker::TestWorkers::Start(job);
    EXPECT_THAT(workers, IsOk());
    double score = -1;
    EXPECT_THAT((*workers)->Run([&](worker::Worker& worker) -> absl::Status {
      const int rank = worker.options().rank;
      device::testing::SimulatedDevices devices(rank);
      ImageTrainingOptions options = options_;
      options.devices = devices.context().shared_from_this();
      options.device = Device(devices.context(), 0);
      options.backend.name = backend;
      options.backend.nccl = nccl.Library(rank);
      options.settings = SettingsOf(options, data);
      train::Job own(worker, options);
      WEFT_ASSIGN_OR_RETURN(const train::Result result,
                            TrainTogether(own, data, options));
      if (rank == 0) score = result.score.value_or(-1);
      return absl::OkStatus();
    }),
                IsOk());
    return score;
  };
  const double over_host = train("host");
  EXPECT_GE(over_host, 0);
  EXPECT_EQ(train("nccl"), over_host);
  EXPECT_EQ(train("auto"), over_host);
}

// The mean loss of each step of `ranks` trainers without servers.
std::vector<double> LossesOf(int ranks, const ImageTrainingOptions& options,
                             const ImageData& data) {
  collectives::LocalWorld world(ranks);
  std::vector<double> losses;
  const auto statuses = testing::RunRanks(ranks, [&](int rank) {
    ImageTrainingOptions own = options;
    if (rank == 0) {
      own.on_loss = [&](int64_t, double loss) { losses.push_back(loss); };
    }
    own.settings = SettingsOf(own, data);
    const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
    return TrainTogether(*group, telemetry::Silent(), data, own).status();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  return losses;
}

double MeanOfLast(const std::vector<double>& losses, size_t n) {
  EXPECT_GE(losses.size(), n);
  double sum = 0;
  for (size_t i = losses.size() - n; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(n);
}

// f16 may skip steps at the start.
TEST_F(ImageTrainingTest, LowPrecisionLearnsAsF32Does) {
  const ImageData data = LoadImageData(options_).value();
  options_.strategy = "ddp";
  options_.epochs = 12;
  for (const int virtual_shards : {0, 2}) {
    options_.virtual_shards = virtual_shards;
    options_.precision = std::nullopt;
    const std::vector<double> f32 = LossesOf(2, options_, data);
    EXPECT_LT(MeanOfLast(f32, 4), 0.7 * f32.front());
    for (const DType precision : {DType::kF16, DType::kBF16}) {
      options_.precision = precision;
      const std::vector<double> low = LossesOf(2, options_, data);
      ASSERT_THAT(low, SizeIs(f32.size()));
      EXPECT_NEAR(MeanOfLast(low, 4), MeanOfLast(f32, 4), 0.1 * f32.front())
          << Name(precision) << ", virtual shards: " << virtual_shards;
    }
  }
}

TEST_F(ImageTrainingTest, LowPrecisionLearnsWithServers) {
  options_.epochs = 6;
  const Run f32 = Train(2);
  options_.precision = DType::kBF16;
  const Run low = Train(2);
  EXPECT_THAT(low.statuses.at("trainer0"), IsOk());
  EXPECT_NEAR(MeanOfLast(low.losses, 4), MeanOfLast(f32.losses, 4),
              0.1 * f32.losses.front());
}

// The scale, too, goes on where it was.
TEST_F(ImageTrainingTest, ResumedRunInF16HasTheLossesOfOneNotInterrupted) {
  const ImageData data = LoadImageData(options_).value();
  options_.strategy = "ddp";
  options_.precision = DType::kF16;
  const std::vector<double> whole = LossesOf(2, options_, data);
  options_.checkpoint_dir = dir_.Path("saved");
  options_.epochs = 1;
  const std::vector<double> first = LossesOf(2, options_, data);
  options_.epochs = 2;
  options_.resume = true;
  const std::vector<double> second = LossesOf(2, options_, data);
  std::vector<double> both = first;
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(both, whole);
  const auto directory =
      checkpoint::CheckpointDirectory::Open({options_.checkpoint_dir});
  const auto saved = (*directory)->LoadLatest();
  ASSERT_THAT(saved, IsOk());
  EXPECT_EQ(saved->tensors.count("optimizer/grad_scaler/scale"), 1u);
  // Another precision is another training.
  options_.precision = DType::kBF16;
  options_.settings = SettingsOf(options_, data);
  collectives::LocalWorld world(1);
  const auto group = collectives::ProcessGroup::Create(world.Connect(0));
  EXPECT_THAT(TrainTogether(*group, telemetry::Silent(), data, options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "--precision is f16 there and bf16 now"));
}

TEST_F(ImageTrainingTest, DataSetSmallerThanTheTrainersIsTrainedOn) {
  WriteImages(/*train=*/2);
  const Run run = Train(3);
  for (const auto& [name, status] : run.statuses) {
    EXPECT_THAT(status, IsOk()) << name;
  }
  EXPECT_THAT(run.losses, SizeIs(2));  // one step an epoch
}

TEST_F(ImageTrainingTest, ResumedRunHasTheLossesOfOneThatWasNotInterrupted) {
  const Run whole = Train(1);
  ASSERT_THAT(whole.losses, SizeIs(16));
  options_.checkpoint_dir = dir_.Path("saved");
  options_.epochs = 1;
  const Run first = Train(1);
  ASSERT_THAT(first.statuses.at("trainer0"), IsOk());
  EXPECT_THAT(first.results.at("trainer0").checkpoint,
              StartsWith(options_.checkpoint_dir));
  options_.epochs = 2;
  options_.resume = true;
  const Run second = Train(1);  // with a new server
  ASSERT_THAT(second.statuses.at("trainer0"), IsOk());
  EXPECT_EQ(second.first_step, 9);
  EXPECT_EQ(second.losses,
            std::vector<double>(whole.losses.begin() + 8, whole.losses.end()));
  const auto directory =
      std::filesystem::directory_iterator(options_.checkpoint_dir);
  EXPECT_EQ(std::count_if(begin(directory), end(directory),
                          [](const auto& entry) {
                            return entry.path().filename().string().rfind(
                                       "ckpt-", 0) == 0;
                          }),
            2);  // one an epoch
}

TEST_F(ImageTrainingTest, AsynchronousStepsAreCountedAcrossAResume) {
  options_.is_sync = false;
  options_.checkpoint_dir = dir_.Path("saved");
  options_.epochs = 1;
  const Run first = Train(1);
  ASSERT_THAT(first.statuses.at("trainer0"), IsOk());
  EXPECT_EQ(first.first_step, 1);
  EXPECT_THAT(first.losses, SizeIs(8));
  EXPECT_THAT(first.results.at("trainer0").checkpoint, EndsWith("-step-8"));
  options_.epochs = 2;
  options_.resume = true;
  const Run second = Train(1);
  ASSERT_THAT(second.statuses.at("trainer0"), IsOk());
  EXPECT_EQ(second.first_step, 9);
  EXPECT_THAT(second.results.at("trainer0").checkpoint, EndsWith("-step-16"));
}

// This happens when two jobs are started into one directory at the same time.
TEST_F(ImageTrainingTest, CheckpointThatAnotherRunSavedMeanwhileStays) {
  options_.checkpoint_dir = dir_.Path("saved");
  options_.keep = 1;
  std::string others;
  const Run run = Train(1, [&] {
    if (!others.empty()) return false;
    others = checkpoint::CheckpointDirectory::Open({dir_.Path("saved")})
                 .value()
                 ->Save(1, {}, {})
                 .value();
    return false;
  });
  EXPECT_THAT(run.results.at("trainer0").saved,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       others + " was saved by another run"));
  EXPECT_TRUE(
      std::filesystem::exists(dir_.Path("saved/" + others + "/manifest.json")));
}

// Any trainer may get the duty to save.
TEST_F(ImageTrainingTest, WhereAndWhatIsSavedMustBeEqualWithServers) {
  const ImageData data = LoadImageData(options_).value();
  ImageTrainingOptions other = options_;
  other.checkpoint_dir = "/elsewhere";
  other.keep_as = "mine";
  other.keep = 5;
  other.allow_non_finite = true;
  const auto compare = [&] {
    return train::CompareSettings("trainer0", SettingsOf(options_, data).All(),
                                  "trainer1", SettingsOf(other, data).All());
  };
  for (const char* difference :
       {"--checkpoint-dir is none at trainer0 and /elsewhere at trainer1",
        "--keep-as is none at trainer0 and mine at trainer1",
        "--keep is 3 at trainer0 and 5 at trainer1",
        "--allow-non-finite is off at trainer0 and on at trainer1"}) {
    EXPECT_THAT(compare(),
                StatusIs(absl::StatusCode::kFailedPrecondition, difference));
  }
  // Without servers rank 0 alone saves: the others need not see its files.
  options_.strategy = other.strategy = "ddp";
  other.allow_non_finite = false;
  EXPECT_THAT(compare(), IsOk());
}

TEST_F(ImageTrainingTest, TrainersThatDifferInReplicasAreRefused) {
  worker::TestWorkers::Options job;
  job.servers = 2;
  job.trainers = 2;
  job.configure = [](worker::Options& own) {
    own.replicas = own.name() == "trainer1" ? 2 : 1;
  };
  const auto workers = worker::TestWorkers::Start(job);
  ASSERT_THAT(workers, IsOk());
  const ImageData data = LoadImageData(options_).value();
  EXPECT_THAT((*workers)->Run([&](worker::Worker& worker) {
    if (worker.options().role == "ps") return absl::OkStatus();
    ImageTrainingOptions options = options_;
    options.settings = SettingsOf(options, data);
    EXPECT_THAT(
        TrainWithServers(worker, data, options),
        StatusIs(absl::StatusCode::kFailedPrecondition, "--replicas is "));
    return absl::OkStatus();
  }),
              IsOk());
}

TEST_F(ImageTrainingTest, StoppedTrainerEndsAfterItsStepAndSaves) {
  options_.epochs = 1000;
  options_.checkpoint_dir = dir_.Path("saved");
  int steps = 0;
  const Run run = Train(1, [&] { return ++steps == 3; });
  ASSERT_THAT(run.statuses.at("trainer0"), IsOk());
  EXPECT_THAT(run.losses, SizeIs(3));
  const train::Result& result = run.results.at("trainer0");
  EXPECT_TRUE(result.was_stopped);
  EXPECT_THAT(result.checkpoint, StartsWith(options_.checkpoint_dir));
}

TEST_F(ImageTrainingTest, LossThatIsNotFiniteEndsTheTrainerAsDiverged) {
  options_.rule = optimizer::AdamOptions{1e30};
  options_.epochs = 50;
  const Run run = Train(1);
  const absl::Status& status = run.statuses.at("trainer0");
  EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kDiverged) << status;
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kOutOfRange, "trainer0, step"));
}

TEST_F(ImageTrainingTest, CheckpointOfAnotherSeedIsRefusedWithBothSeeds) {
  options_.checkpoint_dir = dir_.Path("saved");
  options_.epochs = 1;
  ASSERT_THAT(Train(1).statuses.at("trainer0"), IsOk());
  options_.resume = true;
  options_.seed = 9;
  const Run run = Train(1);
  EXPECT_THAT(run.statuses.at("trainer0"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "--seed is 1 there and 9 now"));
}

}  // namespace
}  // namespace weft::launch
