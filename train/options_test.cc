#include "weft/train/options.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::train {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using worker::ExitCode;

class OptionsTest : public ::testing::Test {
 protected:
  // Reads the flags and resolves the options, as trainer `rank`.
  absl::Status Read(std::vector<std::string> flags, int rank = 0,
                    int servers = 0) {
    options_ = Options();
    worker::Flags parser("test", "A test.");
    options_.AddTo(parser);
    std::vector<const char*> argv = {"test"};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    WEFT_RETURN_IF_ERROR(
        parser.Parse(static_cast<int>(argv.size()), argv.data()));
    worker::Options worker;
    worker.rank = rank;
    worker.servers = servers;
    return options_.Resolve(worker);
  }

  testing::TempDir dir_;
  Options options_;
};

TEST_F(OptionsTest, WrongValueNamesTheFlagAndWhatIsWanted) {
  for (const auto& [flags, error] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--epochs=-1"}, "--epochs=-1: wanted a number of at least 0"},
           {{"--keep=0"}, "--keep=0: wanted at least 1 checkpoint"},
           {{"--resume"}, "--resume needs --checkpoint-dir=DIR"},
           {{"--keep-best"}, "need --checkpoint-dir=DIR to keep it in"},
           {{"--keep-as=best", "--keep-best", "--checkpoint-dir=c"},
            "--keep-as=best is the name that --keep-best gives"},
           {{"--keep-as=../x", "--checkpoint-dir=c"},
            "--keep-as=../x: wanted a name of at most 63 of [a-z0-9-]"},
           {{"--snapshot-every=1s"}, "--snapshot-every needs --checkpoint-dir"},
           {{"--checkpoint-every=-1"}, "wanted a number of steps"},
           {{"--checkpoint-every=5"},
            "--checkpoint-every=5 needs --checkpoint-dir=DIR"},
           {{"--full-snapshot-every=0"}, "wanted 1 to 1000"},
           {{"--full-snapshot-every=9"}, "wanted --snapshot-every=TIME"},
           {{"--snapshot-every=1s", "--checkpoint-dir=c"},
            "--snapshot-every is of trainings with parameter servers"},
       }) {
    const absl::Status status = Read(flags);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, error));
    EXPECT_EQ(worker::ExitCodeFor(status), ExitCode::kUsage);
  }
}

// Servers save while training goes on, by time.
TEST_F(OptionsTest, EverySoManyStepsIsOfDataParallelTrainings) {
  const std::vector<std::string> flags = {"--checkpoint-every=5",
                                          "--checkpoint-dir=" + dir_.path()};
  ASSERT_THAT(Read(flags), IsOk());
  EXPECT_EQ(options_.checkpoint_every_steps, 5);
  EXPECT_THAT(Read(flags, /*rank=*/0, /*servers=*/1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "wanted --snapshot-every=TIME"));
}

TEST_F(OptionsTest, DirectoryIsMadeAbsolute) {
  ASSERT_THAT(Read({"--checkpoint-dir=some/../where"}, /*rank=*/1), IsOk());
  EXPECT_EQ(options_.checkpoint_dir.front(), '/');
  EXPECT_EQ(options_.checkpoint_dir.find(".."), std::string::npos);
}

TEST_F(OptionsTest, RestartedJobResumesWhereItSaves) {
  ASSERT_THAT(Read({"--restart-count=1"}), IsOk());
  EXPECT_FALSE(options_.resume);
  ASSERT_THAT(Read({"--restart-count=1", "--checkpoint-dir=" + dir_.path()}),
              IsOk());
  EXPECT_TRUE(options_.resume);
}

TEST_F(OptionsTest, RankZeroLooksWhetherTheDirectoryCanBeUsed) {
  const std::string flag = "--checkpoint-dir=" + dir_.Path("saved");
  ASSERT_THAT(Read({flag}), IsOk());
  const auto directory =
      checkpoint::CheckpointDirectory::Open({dir_.Path("saved")});
  ASSERT_THAT(directory, IsOk());
  ASSERT_THAT((*directory)->Save(1, {}, {}), IsOk());
  const absl::Status used = Read({flag});
  EXPECT_THAT(used, StatusIs(absl::StatusCode::kFailedPrecondition,
                             "give --resume to go on from it"));
  EXPECT_EQ(worker::ExitCodeFor(used), ExitCode::kConfig);
  EXPECT_THAT(Read({flag, "--resume"}), IsOk());
  EXPECT_THAT(Read({flag}, /*rank=*/1), IsOk());
}

TEST_F(OptionsTest, FunctionOfTheCallersOwnMayAskToStop) {
  EXPECT_FALSE(options_.IsAskedToStop());
  options_.asked_to_stop = [] { return true; };
  EXPECT_TRUE(options_.IsAskedToStop());
}

}  // namespace
}  // namespace weft::train
