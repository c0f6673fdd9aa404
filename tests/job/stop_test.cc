// Trainers that are asked to stop while servers are gone that nobody has taken
// the place of: they end in seconds, though an operation on a table waits for
// those servers and cannot end.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kTerminated = 128 + SIGTERM;
// An operation would go on for 2 minutes, and a good-bye that waited for it for
// 30 s.
constexpr absl::Duration kSoon = absl::Seconds(15);

// A job of one trainer, whose coordinator outlives its servers.
class StopTest : public ::testing::Test {
 protected:
  explicit StopTest(int servers) {
    job_.servers = servers;
    job_.trainers = 1;
    job_.flags = {"--replicas=2", "--coordinator-host=coordinator0"};
    coordinator_ =
        StartProcess({Program("weft"), "coordinator", "--job=" + job_.name,
                      "--coordinator=" + job_.coordinator});
    EXPECT_THAT(coordinator_->WaitForOutput("meets at", kLong), IsOk());
  }

  void Kill(const Processes& servers, int count) {
    for (int i = 0; i < count; ++i) kill(servers[i]->pid(), SIGKILL);
    for (int i = 0; i < count; ++i) {
      EXPECT_THAT(servers[i]->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    }
  }

  void ExpectStops(Process& trainer) {
    kill(trainer.pid(), SIGTERM);
    EXPECT_THAT(trainer.Wait(kSoon), IsOkAndHolds(kTerminated))
        << trainer.output();
  }

  Job job_;
  std::unique_ptr<Process> coordinator_;
};

class StopWithoutServers : public StopTest {
 protected:
  StopWithoutServers() : StopTest(2) {}

  void ExpectTrainerGivesUp(const std::string& mode) {
    const std::string saved = job_.Path("saved");
    const Processes servers = job_.StartServers();
    const auto trainer =
        job_.StartTrainer(0, {kForLong, "--checkpoint-dir=" + saved, mode});
    ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
        << trainer->output();
    Kill(servers, 2);
    ExpectStops(*trainer);
    EXPECT_THAT(trainer->output(), HasSubstr("gave up waiting for server"));
  }
};

TEST_F(StopWithoutServers, SynchronousTrainerGivesUpOnThem) {
  ExpectTrainerGivesUp("--sync");
}

TEST_F(StopWithoutServers, AsynchronousTrainerGivesUpOnThem) {
  ExpectTrainerGivesUp("--async");
}

class StopWithOneServer : public StopTest {
 protected:
  StopWithOneServer() : StopTest(3) {}
};

// Its step ends at once, but what it has pulled ahead waits for the two.
TEST_F(StopWithOneServer, RecommenderWhoseRowsAreInLogsDoesNotWaitForThem) {
  Processes servers;
  for (int i = 0; i < 3; ++i) {
    servers.push_back(job_.StartServer(
        i, {absl::StrCat("--table-log-dir=", job_.Path("logs"))}));
  }
  Flags command = {RunfilePath("examples/ctr/recommender"),
                   "--rank=0",
                   "--servers=3",
                   "--trainers=1",
                   "--job=" + job_.name,
                   "--coordinator=" + job_.coordinator,
                   "--tables=2",
                   "--rows=1024000000",
                   "--test-rows=4096",
                   "--durability=logged"};
  command.insert(command.end(), job_.flags.begin(), job_.flags.end());
  const auto trainer = StartProcess(std::move(command));
  ASSERT_THAT(trainer->WaitForOutput("\"round\":", kLong), IsOk());
  Kill(servers, 2);
  ExpectStops(*trainer);
}

}  // namespace
}  // namespace weft::testing
