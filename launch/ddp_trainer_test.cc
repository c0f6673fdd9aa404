// Ranks as threads of one process, on a data set that the test writes.

#include "weft/launch/ddp_trainer.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class DdpTrainerTest : public ::testing::Test {
 protected:
  // The outcome of one run.
  struct Run {
    std::vector<absl::Status> statuses;   // by rank
    std::vector<TrainingResult> results;  // by rank
    std::vector<double> losses;           // by step, as rank 0 reports them
    int64_t first_step = 0;               // of losses; 0: there are none
  };

  DdpTrainerTest() { WriteImages(/*train=*/64); }

  void WriteImages(int64_t train) {
    testing::WriteIdxImages(dir_.Path("train"), train);
    testing::WriteIdxImages(dir_.Path("t10k"), 20);
    options_.data = dir_.path();
    options_.epochs = 2;
    options_.batch_size = 8;
    options_.progress = telemetry::Progress::Style::kQuiet;
    data_ = LoadImageData(options_).value();
  }

  // `adapt(rank, options)` changes the options of a rank; `asked_to_stop(rank)`
  // is called after each of its steps.
  using Adapt = std::function<void(int rank, ImageTrainerOptions& options)>;
  Run Train(
      int ranks, const Adapt& adapt = [](int, ImageTrainerOptions&) {},
      const std::function<bool(int rank)>& asked_to_stop =
          [](int) { return false; }) {
    Run run;
    run.results.resize(ranks);
    collectives::LocalWorld world(ranks);
    run.statuses = testing::RunRanks(ranks, [&](int rank) {
      const auto group = collectives::ProcessGroup::Create(world.Connect(rank));
      ImageTrainerOptions options = options_;
      adapt(rank, options);
      options.on_loss = [&](int64_t step, double loss) {
        EXPECT_EQ(rank, 0);
        if (run.losses.empty()) run.first_step = step;
        EXPECT_EQ(step,
                  run.first_step + static_cast<int64_t>(run.losses.size()));
        run.losses.push_back(loss);
      };
      DdpTrainer trainer(*group, data_, telemetry::Silent(), options,
                         [&, rank] { return asked_to_stop(rank); });
      absl::StatusOr<TrainingResult> result = trainer.Run();
      if (result.ok()) run.results[rank] = *result;
      return result.status();
    });
    return run;
  }

  // Saves one epoch of two ranks in `directory`.
  Run TrainAndSave(const std::string& directory) {
    return Train(2, [&](int, ImageTrainerOptions& options) {
      options.epochs = 1;
      options.checkpoint_dir = directory;
    });
  }
  static Adapt ResumeFrom(const std::string& directory) {
    return [directory](int, ImageTrainerOptions& options) {
      options.checkpoint_dir = directory;
      options.resume = true;
    };
  }

  testing::TempDir dir_;
  ImageTrainerOptions options_;
  ImageData data_;
};

TEST_F(DdpTrainerTest, TwoRanksHaveTheLossesOfOneWithTheWholeBatch) {
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

TEST_F(DdpTrainerTest, OnlyRankZeroReportsTheAccuracy) {
  const Run run = Train(2);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_TRUE(run.results[0].test_accuracy.has_value());
  EXPECT_GE(*run.results[0].test_accuracy, 0);
  EXPECT_LE(*run.results[0].test_accuracy, 1);
  EXPECT_FALSE(run.results[1].test_accuracy.has_value());
  EXPECT_GT(run.results[1].samples_per_s, 0);
  EXPECT_EQ(run.results[0].checkpoint, "");
}

TEST_F(DdpTrainerTest, DataSetSmallerThanTheRanksGivesEachRankOneImageAnEpoch) {
  WriteImages(/*train=*/2);
  const Run run = Train(4);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(2));  // one step an epoch
  for (const TrainingResult& result : run.results) {
    EXPECT_FALSE(result.was_stopped);
  }
}

TEST_F(DdpTrainerTest, LastBatchThatIsNotFullCountsOnEveryRank) {
  WriteImages(/*train=*/37);
  const Run run = Train(3);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(4));  // 13 a rank and epoch: 8 and 5
}

TEST_F(DdpTrainerTest, StopOfOneRankEndsAllAfterTheSameStep) {
  std::vector<int> steps(2, 0);
  const Run run = Train(
      2, [](int, ImageTrainerOptions& options) { options.epochs = 1000; },
      [&](int rank) { return ++steps[rank] == 3 && rank == 1; });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(steps, ElementsAre(3, 3));
  EXPECT_THAT(run.losses, SizeIs(3));
  for (const TrainingResult& result : run.results) {
    EXPECT_TRUE(result.was_stopped);
  }
}

TEST_F(DdpTrainerTest, ResumedRunHasTheLossesOfOneThatWasNotInterrupted) {
  const Run whole = Train(2);
  ASSERT_THAT(whole.losses, SizeIs(8));
  const std::string saved = dir_.Path("saved");
  const Run first = TrainAndSave(saved);
  ASSERT_THAT(first.statuses, Each(IsOk()));
  EXPECT_THAT(first.results[0].checkpoint, ::testing::StartsWith(saved));
  EXPECT_EQ(first.results[1].checkpoint, "");
  // Rank 1 does not see the files of rank 0.
  const std::string none = dir_.Path("none");
  const Run second = Train(2, [&](int rank, ImageTrainerOptions& options) {
    ResumeFrom(rank == 0 ? saved : none)(rank, options);
  });
  ASSERT_THAT(second.statuses, Each(IsOk()));
  EXPECT_EQ(second.first_step, 5);
  EXPECT_EQ(second.losses,
            std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
}

TEST_F(DdpTrainerTest, ResumeOfAFinishedRunTakesNoStepAndTests) {
  const std::string saved = dir_.Path("saved");
  const Run first = TrainAndSave(saved);
  const Run again = Train(2, [&](int rank, ImageTrainerOptions& options) {
    ResumeFrom(saved)(rank, options);
    options.epochs = 1;
  });
  ASSERT_THAT(again.statuses, Each(IsOk()));
  EXPECT_THAT(again.losses, SizeIs(0));
  EXPECT_EQ(again.results[0].test_accuracy, first.results[0].test_accuracy);
  EXPECT_EQ(again.results[0].checkpoint, first.results[0].checkpoint);
}

TEST_F(DdpTrainerTest, ResumeFromAnEmptyDirectoryBeginsAnew) {
  const Run run = Train(2, ResumeFrom(dir_.Path("empty")));
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_EQ(run.first_step, 1);
}

TEST_F(DdpTrainerTest, CheckpointOfAnotherSeedIsRefusedOnEveryRank) {
  const std::string saved = dir_.Path("saved");
  ASSERT_THAT(TrainAndSave(saved).statuses, Each(IsOk()));
  const Run run = Train(2, [&](int rank, ImageTrainerOptions& options) {
    ResumeFrom(saved)(rank, options);
    options.seed = 9;
  });
  EXPECT_THAT(run.statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                          "--seed is 1 there and 9 now")));
  for (const absl::Status& status : run.statuses) {
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kConfig);
  }
}

TEST_F(DdpTrainerTest, DamagedCheckpointsFailEveryRankAsBadCheckpoint) {
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

TEST_F(DdpTrainerTest, LossThatIsNotFiniteEndsEveryRankAsDiverged) {
  const std::string saved = dir_.Path("saved");
  const Run run = Train(2, [&](int, ImageTrainerOptions& options) {
    options.learning_rate = 1e30;
    options.epochs = 50;
    options.checkpoint_dir = saved;
  });
  for (const absl::Status& status : run.statuses) {
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kDiverged)
        << status;
  }
}

TEST_F(DdpTrainerTest, CheckpointThatCannotBeSavedIsReportedAndTrainingGoesOn) {
  const std::string file = dir_.Path("file");
  std::ofstream(file) << "no directory";
  const Run run = Train(2, [&](int, ImageTrainerOptions& options) {
    options.checkpoint_dir = file;
  });
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.losses, SizeIs(8));
  EXPECT_FALSE(run.results[0].saved.ok());
  EXPECT_EQ(run.results[0].checkpoint, "");
}

}  // namespace
}  // namespace weft::launch
