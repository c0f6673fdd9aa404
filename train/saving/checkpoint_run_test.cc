#include "weft/train/saving/checkpoint_run.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class CheckpointRunTest : public ::testing::Test {
 protected:
  CheckpointRunTest()
      : directory_(checkpoint::CheckpointDirectory::Open({dir_.Path("saved")})
                       .value()) {}

  // Returns the name of the checkpoint.
  std::string Save(const CheckpointRun& run, int64_t step) {
    checkpoint::Metadata metadata;
    AddRun(run, &metadata);
    return directory_->Save(step, {{"w", Tensor::Zeros({2})}}, metadata)
        .value();
  }

  CheckpointRun Begin(bool is_resumed) {
    return BeginRun(*directory_, is_resumed).value();
  }

  testing::TempDir dir_;
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
};

TEST_F(CheckpointRunTest, RunSavesBesideItsOwnCheckpoints) {
  const CheckpointRun run = Begin(/*is_resumed=*/false);
  EXPECT_THAT(CheckRun(*directory_, run), IsOk());
  Save(run, 1);
  EXPECT_THAT(CheckRun(*directory_, run), IsOk());
}

TEST_F(CheckpointRunTest, SecondOfTwoRunsThatBeganTogetherIsRefused) {
  const CheckpointRun first = Begin(/*is_resumed=*/false);
  const CheckpointRun second = Begin(/*is_resumed=*/false);
  const std::string saved = Save(first, 1);
  EXPECT_THAT(CheckRun(*directory_, second),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       saved + " was saved by another run since this one "
                               "began; give each run a --checkpoint-dir"));
  EXPECT_THAT(CheckRun(*directory_, first), IsOk());
}

TEST_F(CheckpointRunTest, ResumedRunSavesBesideCheckpointsThatWereThere) {
  const CheckpointRun former = Begin(/*is_resumed=*/false);
  Save(former, 1);
  const CheckpointRun resumed = Begin(/*is_resumed=*/true);
  EXPECT_THAT(CheckRun(*directory_, resumed), IsOk());
  Save(former, 2);  // it has not ended
  EXPECT_THAT(CheckRun(*directory_, resumed),
              StatusIs(absl::StatusCode::kAlreadyExists, "another run"));
}

TEST_F(CheckpointRunTest, RunRoundTripsThroughText) {
  for (const std::string before : {"", "ckpt-000001-step-7"}) {
    const CheckpointRun run = ParseRun(FormatRun({"0123abcd", before}));
    EXPECT_EQ(run.id, "0123abcd");
    EXPECT_EQ(run.before, before);
  }
}

}  // namespace
}  // namespace weft::train
