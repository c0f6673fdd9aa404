// Launcher with the trainers of an elastic job that die again and again.

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/run/launcher.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;

// Trainers of an elastic job, each of this shell script. $N is how often it was
// started before.
class ElasticRun : public ::testing::Test {
 protected:
  int RunWith(const std::string& workers, const std::string& script,
              int max_restarts = 0) {
    LaunchOptions options;
    options.max_restarts = max_restarts;
    options.job = "j";
    options.workers = workers;
    options.shutdown_timeout = absl::Seconds(20);
    options.roles = {
        {"trainer",
         3,
         {"sh", "-c",
          "N=0; while [ -e $DIR/life$RANK-$N ]; do N=$((N+1)); done; "
          "touch $DIR/life$RANK-$N; "
          "await() { while ! [ -e $DIR/$1 ]; do sleep 0.02; done; }; " +
              script}}};
    options.environment["DIR"] = dir_.Path("");
    options.events_file = dir_.Path("events");
    options.out = &output_;
    options.err = &output_;
    const absl::StatusOr<int> code = launch::Run(options);
    EXPECT_THAT(code, IsOk());
    return code.value_or(-1);
  }
  std::string output() const { return output_.str(); }
  std::string events() const {
    return [&] {
      std::ifstream file(dir_.Path("events"));
      return std::string(std::istreambuf_iterator<char>(file), {});
    }();
  }

 private:
  const testing::TempDir dir_;
  std::ostringstream output_;
};

// It lives for longer than one that cannot run at all, once, and by then the
// others are seen to run.
constexpr char kTrainer2DiesAtOnceFourTimes[] =
    "[ $RANK = 2 ] || { await done; exit 0; }; "
    "[ $N = 0 ] && { sleep 2.2; exit 7; }; [ $N -lt 5 ] && exit 7; "
    "touch $DIR/done";

TEST_F(ElasticRun, TrainerThatDiesAtOnceAgainAndAgainIsStartedAfterPauses) {
  EXPECT_EQ(RunWith("2:3", kTrainer2DiesAtOnceFourTimes), 0) << output();
  for (const char* pause : {"3 times in a row; starting it again in 1s",
                            "4 times in a row; starting it again in 2s",
                            "5 times in a row; starting it again in 4s"}) {
    EXPECT_THAT(output(),
                HasSubstr(absl::StrCat(
                    "weft: trainer2 has ended: exit code 7 (unknown), "
                    "before it had taken part for 2s, ",
                    pause, ", and the others go on")));
  }
  EXPECT_THAT(events(),
              HasSubstr(R"("event":"rank_backs_off","rank":"trainer2",)"
                        R"("futile_starts":3,"pause_s":1)"));
}

TEST_F(ElasticRun, TrainerWithoutWhichTooFewAreLeftEndsTheJob) {
  EXPECT_EQ(RunWith("3:3",
                    "[ $RANK = 2 ] || exec sleep 1000; "
                    "[ $N = 0 ] && sleep 2.2; exit 7"),
            7)
      << output();
  EXPECT_THAT(output(), HasSubstr("---- trainer2 failed first"));
}

// One dies alone, then all do, again and again.
TEST_F(ElasticRun, DeathsOfTrainersDoNotCountAgainstMaxRestarts) {
  EXPECT_EQ(RunWith("1:3",
                    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; "
                    "[ $RANK = 2 ] || { await done; exit 7; }; "
                    "[ $N = 0 ] && { sleep 2.2; exit 7; }; "
                    "touch $DIR/done; exit 7",
                    /*max_restarts=*/1),
            0)
      << output();
  EXPECT_THAT(output(),
              HasSubstr("trainer2 has ended: exit code 7 (unknown); starting "
                        "it again, and the others go on"));
  EXPECT_THAT(output(), HasSubstr("starting all ranks again, restart 1 of 1"));
}

TEST_F(ElasticRun, TrainersThatAllDieAtOnceEndTheJob) {
  EXPECT_EQ(RunWith("1:3", "exit 7"), 7) << output();
  EXPECT_THAT(output(), Not(HasSubstr("times in a row")));
}

}  // namespace
}  // namespace weft::launch
