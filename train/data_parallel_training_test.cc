// Ranks as threads of one process.

#include "weft/train/data_parallel_training.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/input/device_batches.h"
#include "weft/input/sharded_sampler.h"
#include "weft/nn/layers.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Points of the plane: whether they lie within a circle.
class Points : public input::Dataset {
 public:
  explicit Points(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<input::Example> Get(int64_t index) const override {
    const double angle = 2.4 * static_cast<double>(index);
    const double radius = std::sqrt(static_cast<double>(index % 50) / 25);
    return input::Example{Tensor::FromVector<float>(
                              {static_cast<float>(radius * std::cos(angle)),
                               static_cast<float>(radius * std::sin(angle))}),
                          Tensor::Scalar<int64_t>(radius < 1 ? 1 : 0)};
  }

 private:
  const int64_t size_;
};

class Net : public nn::Module {
 public:
  explicit Net(Generator& random, double dropout)
      : hidden_(2, 16, random),
        dropout_(dropout, random),
        output_(16, 2, random) {
    AddModule("hidden", hidden_);
    AddModule("dropout", dropout_);
    AddModule("output", output_);
  }
  Variable Forward(const Variable& x) {
    return output_.Forward(dropout_.Forward(Tanh(hidden_.Forward(x))));
  }

 private:
  nn::Linear hidden_;
  nn::Dropout dropout_;
  nn::Linear output_;
};

struct TestOptions : Options {
  double learning_rate = 2e-3;
  uint64_t seed = 1;
  int64_t batch_size = 8;
  double dropout = 0;
  int virtual_shards = 0;
  Device device;  // of the model
};

class DataParallelTrainingTest : public ::testing::Test {
 protected:
  // The outcome of one run.
  struct Run {
    std::vector<absl::Status> statuses;  // by rank
    std::vector<Result> results;         // by rank
    std::vector<double> losses;          // by step, as rank 0 reports them
    int64_t first_step = 0;              // of losses; 0: there are none
  };

  DataParallelTrainingTest() {
    options_.epochs = 2;
    options_.progress = telemetry::Progress::Style::kQuiet;
  }

  void WritePoints(int64_t train) { points_ = std::make_unique<Points>(train); }

  absl::StatusOr<Result> TrainRank(collectives::ProcessGroup& group,
                                   TestOptions options) {
    Generator generator(options.seed);
    Net net(generator, options.dropout);
    net.To(options.device);
    std::shared_ptr<input::DeviceBatches> batches;
    if (!options.device.is_cpu()) {
      WEFT_ASSIGN_OR_RETURN(batches,
                            input::DeviceBatches::Create(options.device));
    }
    optimizer::AdamOptions adam;
    adam.lr = options.learning_rate;
    WEFT_ASSIGN_OR_RETURN(
        const auto optimizer,
        optimizer::Optimizer::Create({{adam, net.NamedParameters()}}));
    const auto load =
        [&](int shard,
            int shards) -> absl::StatusOr<std::unique_ptr<input::DataLoader>> {
      input::ShardedSampler::Options order;
      order.size = points_->size();
      order.shard = shard;
      order.shards = shards;
      order.seed = options.seed;
      WEFT_ASSIGN_OR_RETURN(const auto sampler,
                            input::ShardedSampler::Create(order));
      input::DataLoader::Options loading;
      loading.batch_size = options.batch_size;
      loading.device_batches = batches;
      return input::DataLoader::Create(*points_, sampler, loading);
    };
    WEFT_ASSIGN_OR_RETURN(const auto loader, load(group.rank(), group.size()));
    DataParallelTraining::Parts parts;
    parts.model = &net;
    parts.optimizer = optimizer.get();
    if (options.virtual_shards == 0) {
      parts.loader = loader.get();
    } else {
      parts.virtual_shards = options.virtual_shards;
      parts.make_loader = load;
    }
    parts.generator = &generator;
    parts.score = [&]() -> absl::StatusOr<double> {
      const NoGradScope no_grad;
      net.Eval();
      const Points all(50);
      std::vector<int64_t> indices(50);
      std::iota(indices.begin(), indices.end(), 0);
      WEFT_ASSIGN_OR_RETURN(const auto batch, all.GetBatch(indices));
      const double loss =
          CrossEntropy(net.Forward(Variable(batch[0].To(options.device))),
                       batch[1].To(options.device))
              .value()
              .item<float>();
      net.Train();
      return -loss;
    };
    options.settings.fixed = {{"--seed", absl::StrCat(options.seed)}};
    WEFT_ASSIGN_OR_RETURN(const auto training, DataParallelTraining::Create(
                                                   group, telemetry::Silent(),
                                                   std::move(parts), options));
    for (;;) {
      WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
      if (!batch.has_value()) break;
      WEFT_RETURN_IF_ERROR(training->Step(
          CrossEntropy(net.Forward(Variable((*batch)[0])), (*batch)[1])));
    }
    return training->Finish();
  }

  // `adapt(rank, options)` changes the options of a rank; `asked_to_stop(rank)`
  // is called after each of its steps.
  using Adapt = std::function<void(int rank, TestOptions& options)>;
  Run Train(
      int ranks, const Adapt& adapt = [](int, TestOptions&) {},
      const std::function<bool(int rank)>& asked_to_stop =
          [](int) { return false; }) {
    Run run;
    run.results.resize(ranks);
    collectives::LocalWorld world(ranks);
    run.statuses = testing::RunRanks(ranks, [&](int rank) {
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      TestOptions options = options_;
      adapt(rank, options);
      options.on_loss = [&](int64_t step, double loss) {
        EXPECT_EQ(rank, 0);
        if (run.losses.empty()) run.first_step = step;
        EXPECT_EQ(step,
                  run.first_step + static_cast<int64_t>(run.losses.size()));
        run.losses.push_back(loss);
      };
      options.asked_to_stop = [&, rank] { return asked_to_stop(rank); };
      absl::StatusOr<Result> result =
          CatchToStatus([&] { return TrainRank(*group, options); });
      if (result.ok()) run.results[rank] = *result;
      return result.status();
    });
    return run;
  }

  // Saves one epoch of two ranks in `directory`.
  Run TrainAndSave(const std::string& directory) {
    return Train(2, [&](int, TestOptions& options) {
      options.epochs = 1;
      options.checkpoint_dir = directory;
    });
  }
  static Adapt ResumeFrom(const std::string& directory) {
    return [directory](int, TestOptions& options) {
      options.checkpoint_dir = directory;
      options.resume = true;
    };
  }

  testing::TempDir dir_;
  TestOptions options_;
  std::unique_ptr<Points> points_ = std::make_unique<Points>(64);
};

// The bytes of all tensors of all checkpoints in `directory`, by step and name.
std::map<std::string, std::string> AllSaved(const std::string& directory) {
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

// They are written while the device goes on with the next steps.
TEST_F(DataParallelTrainingTest, CheckpointsOfADeviceAreThoseOfTheCpu) {
  const auto save_all = [](TestOptions& options, const std::string& directory) {
    options.checkpoint_dir = directory;
    options.checkpoint_every_steps = 3;
    options.keep = 100;
    options.keep_best = true;
  };
  const Run cpu = Train(1, [&](int, TestOptions& options) {
    save_all(options, dir_.path() + "/cpu");
  });
  ASSERT_THAT(cpu.statuses, Each(IsOk()));
  const auto wanted = AllSaved(dir_.path() + "/cpu");
  EXPECT_EQ(wanted.count("3 hidden.weight"), 1u);
  EXPECT_EQ(wanted.count("16 hidden.weight"), 1u);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    device::testing::SimulatedDevices devices(seed);
    const std::string directory = absl::StrCat(dir_.path(), "/", seed);
    const Run found = Train(1, [&](int, TestOptions& options) {
      save_all(options, directory);
      options.device = Device(devices.context(), 0);
    });
    ASSERT_THAT(found.statuses, Each(IsOk()));
    EXPECT_EQ(found.losses, cpu.losses);
    EXPECT_EQ(AllSaved(directory), wanted) << "seed " << seed;
    EXPECT_EQ(found.results[0].score, cpu.results[0].score);
    EXPECT_TRUE(std::filesystem::exists(found.results[0].checkpoint));
  }
}

TEST_F(DataParallelTrainingTest, DeviceStateThatIsNotFiniteIsNotSaved) {
  device::testing::SimulatedDevices devices(1);
  const std::string directory = dir_.path() + "/saved";
  const Run run = Train(1, [&](int, TestOptions& options) {
    options.checkpoint_dir = directory;
    options.checkpoint_every_steps = 3;
    options.retry_last_save_for = absl::ZeroDuration();
    options.learning_rate = 1e38;
    options.allow_non_finite = true;
    options.device = Device(devices.context(), 0);
  });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(16));  // it trains on without them
  EXPECT_THAT(run.results[0].saved, Not(IsOk()));
  EXPECT_THAT(AllSaved(directory), SizeIs(0));
}

TEST_F(DataParallelTrainingTest, TwoRanksHaveTheLossesOfOneWithTheWholeBatch) {
  const Run two = Train(2);
  options_.batch_size = 16;
  const Run one = Train(1);
  ASSERT_THAT(two.statuses, Each(IsOk()));
  ASSERT_THAT(one.statuses, Each(IsOk()));
  ASSERT_THAT(one.losses, SizeIs(8));  // 2 epochs of 64 / 16 steps
  ASSERT_THAT(two.losses, SizeIs(8));
  EXPECT_LT(one.losses[7], one.losses[0]);
  // Sums of another order, and Adam divides by the gradient's size.
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(one.losses[i], two.losses[i], 1e-3);
}

TEST_F(DataParallelTrainingTest, OnlyRankZeroReportsTheScore) {
  const Run run = Train(2);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_TRUE(run.results[0].score.has_value());
  EXPECT_LT(*run.results[0].score, 0);
  EXPECT_FALSE(run.results[1].score.has_value());
  EXPECT_GT(run.results[1].samples_per_s, 0);
  EXPECT_EQ(run.results[0].checkpoint, "");
}

TEST_F(DataParallelTrainingTest,
       DataSetSmallerThanTheRanksGivesEachRankOneExampleAnEpoch) {
  WritePoints(/*train=*/2);
  const Run run = Train(4);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(2));  // one step an epoch
  for (const Result& result : run.results) {
    EXPECT_FALSE(result.was_stopped);
  }
}

TEST_F(DataParallelTrainingTest, LastBatchThatIsNotFullCountsOnEveryRank) {
  WritePoints(/*train=*/37);
  const Run run = Train(3);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(4));  // 13 a rank and epoch: 8 and 5
}

TEST_F(DataParallelTrainingTest, StopOfOneRankEndsAllAfterTheSameStep) {
  std::vector<int> steps(2, 0);
  const Run run = Train(
      2, [](int, TestOptions& options) { options.epochs = 1000; },
      [&](int rank) { return ++steps[rank] == 3 && rank == 1; });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(steps, ElementsAre(3, 3));
  EXPECT_THAT(run.losses, SizeIs(3));
  for (const Result& result : run.results) {
    EXPECT_TRUE(result.was_stopped);
  }
}

TEST_F(DataParallelTrainingTest,
       ResumedRunHasTheLossesOfOneThatWasNotInterrupted) {
  const Run whole = Train(2);
  ASSERT_THAT(whole.losses, SizeIs(8));
  const std::string saved = dir_.Path("saved");
  const Run first = TrainAndSave(saved);
  ASSERT_THAT(first.statuses, Each(IsOk()));
  EXPECT_THAT(first.results[0].checkpoint, ::testing::StartsWith(saved));
  EXPECT_EQ(first.results[1].checkpoint, "");
  // Rank 1 does not see the files of rank 0.
  const std::string none = dir_.Path("none");
  const Run second = Train(2, [&](int rank, TestOptions& options) {
    ResumeFrom(rank == 0 ? saved : none)(rank, options);
  });
  ASSERT_THAT(second.statuses, Each(IsOk()));
  EXPECT_EQ(second.first_step, 5);
  EXPECT_EQ(second.losses,
            std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
}

// --- Virtual shards. ---------------------------------------------------------

// What `result` says is saved: the hash of each file, without which run it was.
std::string HashesOf(const std::string& checkpoint) {
  std::ifstream file(absl::StrCat(checkpoint, "/manifest.json"));
  std::stringstream text;
  text << file.rdbuf();
  const auto manifest = checkpoint::ParseManifest(text.str(), checkpoint);
  EXPECT_THAT(manifest.status(), IsOk());
  std::string hashes = absl::StrCat("step ", manifest->step);
  for (const auto& file : manifest->files) {
    absl::StrAppend(&hashes, " ", file.digest.sha256);
  }
  return hashes;
}

TEST_F(DataParallelTrainingTest, VirtualShardsGiveTheSameBitsOnAnyRanks) {
  WritePoints(/*train=*/61);  // not a multiple of anything
  options_.virtual_shards = 8;
  options_.batch_size = 3;
  options_.dropout = 0.4;
  std::vector<double> losses;
  std::string hashes;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const Run run = Train(ranks, [&](int rank, TestOptions& options) {
      if (rank == 0) options.checkpoint_dir = dir_.Path(absl::StrCat(ranks));
    });
    ASSERT_THAT(run.statuses, Each(IsOk())) << ranks;
    ASSERT_THAT(run.losses, SizeIs(6));  // 8 a shard and epoch: 3, 3 and 2
    const std::string found = HashesOf(run.results[0].checkpoint);
    if (losses.empty()) {
      losses = run.losses;
      hashes = found;
    }
    EXPECT_EQ(run.losses, losses) << ranks;
    EXPECT_EQ(found, hashes) << ranks;
    EXPECT_EQ(run.results[0].was_stopped, false);
  }
  // It is the shards that make it so: others give other bits.
  options_.virtual_shards = 4;
  options_.batch_size = 6;
  const Run other = Train(2);
  ASSERT_THAT(other.statuses, Each(IsOk()));
  EXPECT_NE(other.losses, losses);
}

// 8 ranks, then 3, then 5, then 8: one epoch each, the third in two parts.
TEST_F(DataParallelTrainingTest, VirtualShardsKeepTheBitsWhereRanksChange) {
  options_.virtual_shards = 8;
  options_.batch_size = 2;
  options_.dropout = 0.4;
  options_.epochs = 4;
  const auto save_in = [&](const std::string& name, int epochs) {
    return [this, name, epochs](int, TestOptions& options) {
      options.checkpoint_dir = dir_.Path(name);
      options.resume = true;
      options.epochs = epochs;
    };
  };
  const Run whole = Train(2, save_in("whole", 4));
  ASSERT_THAT(whole.statuses, Each(IsOk()));
  std::vector<double> losses;
  Run run;
  const auto go_on = [&](int ranks, int epochs, int stop_after = 1000) {
    std::vector<int> steps(ranks, 0);
    run = Train(ranks, save_in("parts", epochs), [&](int rank) {
      return ++steps[rank] >= stop_after && rank == 0;
    });
    ASSERT_THAT(run.statuses, Each(IsOk())) << ranks;
    losses.insert(losses.end(), run.losses.begin(), run.losses.end());
  };
  go_on(8, 1);
  go_on(3, 2);
  go_on(5, 3, /*stop_after=*/2);
  EXPECT_TRUE(run.results[0].was_stopped);
  go_on(1, 3);
  go_on(8, 4);
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(HashesOf(run.results[0].checkpoint),
            HashesOf(whole.results[0].checkpoint));
}

TEST_F(DataParallelTrainingTest, OtherVirtualShardsAreRefused) {
  options_.virtual_shards = 6;
  EXPECT_THAT(
      Train(2).statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument, "power of two")));
  options_.virtual_shards = 2;
  EXPECT_THAT(Train(3).statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            "for each of 3 ranks, found 2")));
  options_.virtual_shards = 4;
  const std::string saved = dir_.Path("saved");
  ASSERT_THAT(TrainAndSave(saved).statuses, Each(IsOk()));
  for (const int shards : {0, 8}) {
    options_.virtual_shards = shards;
    EXPECT_THAT(Train(2, ResumeFrom(saved)).statuses,
                Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                              "--virtual-shards")));
  }
}

TEST_F(DataParallelTrainingTest, ResumeOfAFinishedRunTakesNoStepAndTests) {
  const std::string saved = dir_.Path("saved");
  const Run first = TrainAndSave(saved);
  const Run again = Train(2, [&](int rank, TestOptions& options) {
    ResumeFrom(saved)(rank, options);
    options.epochs = 1;
  });
  ASSERT_THAT(again.statuses, Each(IsOk()));
  EXPECT_THAT(again.losses, SizeIs(0));
  EXPECT_EQ(again.results[0].score, first.results[0].score);
  EXPECT_EQ(again.results[0].checkpoint, first.results[0].checkpoint);
}

TEST_F(DataParallelTrainingTest, ResumeFromAnEmptyDirectoryBeginsAnew) {
  const Run run = Train(2, ResumeFrom(dir_.Path("empty")));
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_EQ(run.first_step, 1);
}

TEST_F(DataParallelTrainingTest, CheckpointOfAnotherSeedIsRefusedOnEveryRank) {
  const std::string saved = dir_.Path("saved");
  ASSERT_THAT(TrainAndSave(saved).statuses, Each(IsOk()));
  const Run run = Train(2, [&](int rank, TestOptions& options) {
    ResumeFrom(saved)(rank, options);
    options.seed = 9;
  });
  EXPECT_THAT(run.statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                          "--seed is 1 there and 9 now")));
  for (const absl::Status& status : run.statuses) {
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kConfig);
  }
}

TEST_F(DataParallelTrainingTest,
       DamagedCheckpointsFailEveryRankAsBadCheckpoint) {
  const std::string saved = dir_.Path("saved");
  const Run first = TrainAndSave(saved);
  ASSERT_THAT(first.statuses, Each(IsOk()));
  for (const auto& file :
       std::filesystem::directory_iterator(first.results[0].checkpoint)) {
    if (file.path().extension() == ".safetensors") {
      std::filesystem::resize_file(file.path(), file.file_size() / 2);
    }
  }
  const Run run = Train(2, ResumeFrom(saved));
  for (const absl::Status& status : run.statuses) {
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kBadCheckpoint)
        << status;
  }
}

TEST_F(DataParallelTrainingTest, LossThatIsNotFiniteEndsEveryRankAsDiverged) {
  const std::string saved = dir_.Path("saved");
  const Run run = Train(2, [&](int, TestOptions& options) {
    options.learning_rate = 1e38;
    options.epochs = 50;
    options.checkpoint_dir = saved;
  });
  for (const absl::Status& status : run.statuses) {
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kDiverged)
        << status;
  }
}

TEST_F(DataParallelTrainingTest,
       CheckpointThatCannotBeSavedIsReportedAndTrainingGoesOn) {
  const std::string saved = dir_.Path("saved");
  const Run run = Train(
      2, [&](int, TestOptions& options) { options.checkpoint_dir = saved; },
      [&](int rank) {
        if (rank == 0) {
          std::filesystem::remove_all(saved);
          std::ofstream(saved) << "no directory";
        }
        return false;
      });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(8));
  EXPECT_FALSE(run.results[0].saved.ok());
  EXPECT_EQ(run.results[0].checkpoint, "");
}

// Dropout draws from the generator, which goes on where it was.
TEST_F(DataParallelTrainingTest, ResumedRunDrawsAsOneThatWasNotInterrupted) {
  options_.dropout = 0.5;
  const Run whole = Train(2);
  ASSERT_THAT(whole.statuses, Each(IsOk()));
  const std::string saved = dir_.Path("saved");
  ASSERT_THAT(TrainAndSave(saved).statuses, Each(IsOk()));
  const Run second = Train(2, ResumeFrom(saved));
  ASSERT_THAT(second.statuses, Each(IsOk()));
  EXPECT_EQ(second.losses,
            std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
}

// One rank fails in the second epoch; what was saved within it is the newest.
TEST_F(DataParallelTrainingTest, RunThatEndsWithinAnEpochIsResumedWithinIt) {
  options_.dropout = 0.5;
  const Run whole = Train(2);
  ASSERT_THAT(whole.losses, SizeIs(8));
  const std::string saved = dir_.Path("saved");
  int steps = 0;
  const Run first = Train(
      2,
      [&](int, TestOptions& options) {
        options.checkpoint_dir = saved;
        options.checkpoint_every_steps = 3;
      },
      [&](int rank) -> bool {
        if (rank == 1 && ++steps == 8) throw std::runtime_error("it is over");
        return false;
      });
  EXPECT_THAT(first.statuses, Each(Not(IsOk())));
  EXPECT_EQ(first.losses.size(), 7);
  const Run second = Train(2, ResumeFrom(saved));
  ASSERT_THAT(second.statuses, Each(IsOk()));
  EXPECT_EQ(second.first_step, 7);
  EXPECT_EQ(second.losses,
            std::vector<double>(whole.losses.begin() + 6, whole.losses.end()));
}

TEST_F(DataParallelTrainingTest, CheckpointOfTheBestScoreIsKept) {
  const std::string saved = dir_.Path("saved");
  const Run run = Train(2, [&](int rank, TestOptions& options) {
    options.epochs = 4;
    options.keep = 1;
    options.keep_best = true;
    options.learning_rate = 3;  // so that the model gets worse
    if (rank == 0) options.checkpoint_dir = saved;  // the only one that saves
  });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  const auto directory = checkpoint::CheckpointDirectory::Open({saved}).value();
  const auto best = directory->Named("best");
  ASSERT_THAT(best, IsOk());
  EXPECT_TRUE(std::filesystem::exists(saved + "/" + *best + "/manifest.json"));
}

class OneRank : public DataParallelTrainingTest {
 protected:
  OneRank() {
    EXPECT_THAT(input::ShardedSampler::Create({64}), IsOk());
    options_.epochs = 1;
  }

  collectives::LocalWorld world_{1};
  std::unique_ptr<collectives::ProcessGroup> group_ =
      collectives::ProcessGroup::Create(world_.Connect(0));
  Generator generator_{1};
  Net net_{generator_, 0};
  std::unique_ptr<optimizer::Optimizer> optimizer_ =
      optimizer::Optimizer::Create(
          {{optimizer::SgdOptions{0.5}, net_.NamedParameters()}})
          .value();
  std::unique_ptr<input::DataLoader> loader_ =
      input::DataLoader::Create(
          *points_, input::ShardedSampler::Create({64}).value(), {16})
          .value();
};

TEST_F(OneRank, MissingPartIsRefused) {
  EXPECT_THAT(
      DataParallelTraining::Create(*group_, telemetry::Silent(),
                                   {&net_, nullptr, loader_.get()}, options_),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "wanted a model, an optimizer and a loader"));
}

TEST_F(OneRank, ResumeWithoutADirectoryIsRefused) {
  options_.resume = true;
  EXPECT_THAT(
      DataParallelTraining::Create(*group_, telemetry::Silent(),
                                   {&net_, optimizer_.get(), loader_.get()},
                                   options_),
      StatusIs(absl::StatusCode::kInvalidArgument, "needs a checkpoint_dir"));
}

TEST_F(OneRank, StepWithoutABackwardIsRefusedAndBackwardMayComeTwice) {
  const auto training = DataParallelTraining::Create(
                            *group_, telemetry::Silent(),
                            {&net_, optimizer_.get(), loader_.get()}, options_)
                            .value();
  EXPECT_THAT(training->Step(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted a Backward since the last step"));
  double losses = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const auto batch = training->Next().value().value();
    const Variable loss =
        CrossEntropy(net_.Forward(Variable(batch[0])), batch[1]);
    losses += loss.value().item<float>();
    ASSERT_THAT(training->Backward(loss), IsOk());
  }
  ASSERT_THAT(training->Step(), IsOk());
  EXPECT_EQ(training->steps(), 1);
  EXPECT_DOUBLE_EQ(training->mean_loss(), losses / 2);
  EXPECT_THAT(training->Step(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  // A loss without a graph.
  EXPECT_FALSE(training->Backward(Variable(Tensor::Scalar(1.0f))).ok());
}

TEST_F(OneRank, NextAfterTheLastEpochGivesNothing) {
  const auto training = DataParallelTraining::Create(
                            *group_, telemetry::Silent(),
                            {&net_, optimizer_.get(), loader_.get()}, options_)
                            .value();
  for (int batch = 0; batch < 4; ++batch) {
    EXPECT_TRUE(training->Next().value().has_value());
  }
  for (int again = 0; again < 3; ++again) {
    EXPECT_FALSE(training->Next().value().has_value());
  }
  EXPECT_EQ(training->epoch(), 1);
  const auto result = training->Finish();
  ASSERT_THAT(result, IsOk());
  EXPECT_FALSE(result->score.has_value());
}

}  // namespace
}  // namespace weft::train
