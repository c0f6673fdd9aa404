// Launcher as `weft run` uses it: real ranks, real signals, real deaths.

#include "weft/launch/run/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(60);

// Runs `weft` with these arguments.
std::unique_ptr<testing::Process> Weft(std::vector<std::string> arguments) {
  testing::Command command;
  command.argv = {testing::RunfilePath("launch/weft")};
  for (std::string& a : arguments) command.argv.push_back(std::move(a));
  auto process = testing::Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return process.ok() ? *std::move(process) : nullptr;
}

// A role whose ranks run this shell script.
std::string Role(const std::string& role, int count,
                 const std::string& script) {
  return absl::StrCat("--role=", role, "=", count, ":sh -c '", script, "'");
}

// Waits until no process has this id, which is somebody's grandchild.
bool HasEnded(pid_t pid) {
  const absl::Time deadline = absl::Now() + kLong;
  while (kill(pid, 0) == 0 || errno != ESRCH) {
    // A zombie is as good as gone: its parent is, and the system's first
    // process may take its time.
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    std::string text;
    std::getline(stat, text);  // fails, and no more, if it goes meanwhile
    const size_t paren = text.rfind(')');
    if (paren != std::string::npos && text.substr(paren, 3) == ") Z") break;
    if (absl::Now() > deadline) return false;
    usleep(1000);
  }
  return true;
}

// The number in the line of `output` that begins with `label`.
pid_t PidIn(const std::string& output, const std::string& label) {
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t at = line.find(label);
    int pid = 0;
    if (at != absl::string_view::npos &&
        absl::SimpleAtoi(line.substr(at + label.size()), &pid)) {
      return pid;
    }
  }
  ADD_FAILURE() << label << " is not in: " << output;
  return -1;
}

TEST(WeftRun, PrefixesOutputByRoleAndRankAndEndsWithZero) {
  auto run = Weft({"run", Role("ps", 1, "echo from $WEFT_ROLE"),
                   Role("trainer", 2,
                        "echo number $RANK of $WORLD_SIZE; "
                        "printf tail")});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("[ps0] from ps\n"));
  EXPECT_THAT(run->output(), HasSubstr("[trainer1] number 1 of 2\n"));
  EXPECT_THAT(run->output(), HasSubstr("[trainer0] tail\n"));
}

TEST(WeftRun, TakesTorchrunsSpellings) {
  auto run =
      Weft({"run", "--standalone", "--nnodes=1", "--nproc_per_node=2", "sh",
            "-c", "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE:$0", "--nproc_per_node"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("[trainer1] 1/2:--nproc_per_node\n"));
}

TEST(WeftRun, NamesTheFirstThatFailedWithItsLastLinesAndEndsTheOthers) {
  testing::TempDir dir;
  // trainer0 waits for trainer1's end before it fails itself.
  const std::string script = absl::StrCat(
      "if [ $RANK = 1 ]; then i=0; while [ $i -lt 30 ]; do echo line $i; "
      "i=$((i+1)); done; exit 3; fi; echo here; sleep 1000");
  auto run = Weft({"run", Role("trainer", 2, script)});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3)) << run->output();
  const std::string output = run->output();
  EXPECT_THAT(output, HasSubstr("---- trainer1 failed first"));
  EXPECT_THAT(output, HasSubstr("exit code 3 (configuration)"));
  EXPECT_THAT(output, HasSubstr("    | line 29\n"));
  EXPECT_THAT(output, HasSubstr("    | line 10\n"));
  EXPECT_THAT(output, Not(HasSubstr("    | line 9\n")));
  EXPECT_THAT(output, ContainsRegex(
                          "trainer0 .*killed by SIGTERM .*ended by weft run"));
}

TEST(WeftRun, ARankKilledBySignalIsNamedSo) {
  auto run = Weft({"run", Role("ps", 1, "sleep 1000"),
                   Role("trainer", 1, "echo pid $$; sleep 1000")});
  ASSERT_THAT(run->WaitForOutput("[trainer0] pid ", kLong), IsOk());
  ASSERT_THAT(run->WaitForOutput("\n", kLong), IsOk());
  kill(PidIn(run->output(), "[trainer0] pid "), SIGKILL);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("trainer0 failed first"));
  EXPECT_THAT(run->output(), HasSubstr("killed by SIGKILL"));
}

// The one that loses a stopped rank ends first, and is not the one to be named.
// What is stopped ends when it is asked to.
TEST(WeftRun, NamesARankThatIsStoppedBeforeThoseThatLostIt) {
  testing::TempDir dir;
  const std::string events = dir.Path("events");
  auto run = Weft(
      {"run", "--events=" + events, Role("ps", 1, "echo pid $$; sleep 1000"),
       Role(
           "trainer", 1,
           absl::StrCat("while ! [ -e ", dir.Path("go"),
                        " ]; do sleep 0.02; done; "
                        "echo \"error: ps0: is gone (peer lost)\"; exit 10"))});
  ASSERT_THAT(run->WaitForOutput("[ps0] pid ", kLong), IsOk());
  ASSERT_THAT(run->WaitForOutput("\n", kLong), IsOk());
  kill(PidIn(run->output(), "[ps0] pid "), SIGSTOP);
  std::ofstream(dir.Path("go")) << "\n";
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(10)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("---- ps0 failed first"));
  EXPECT_THAT(run->output(), HasSubstr("how: stopped by a signal"));
  EXPECT_THAT(run->output(), HasSubstr("trainer0 names it: error: ps0: is"));
  std::ifstream file(events);
  const std::string told{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(told, HasSubstr(R"("event":"rank_started","rank":"ps0")"));
  EXPECT_THAT(told, HasSubstr(R"("event":"job_failed","first":"trainer0")"));
  EXPECT_THAT(told, HasSubstr(R"("exit_code":10,"root_cause":"ps0")"));
}

// The launcher alone, in a process of its own, with a script for the
// coordinator and one for the rank.
class OwnCoordinator : public ::testing::Test {
 protected:
  int RunWith(const std::string& coordinator, const std::string& rank) {
    LaunchOptions options;
    options.job = "j";
    options.coordinator = "unix:/d/c.sock";
    options.coordinator_host = "coordinator0";
    options.coordinator_argv = {"sh", "-c", coordinator};
    options.shutdown_timeout = shutdown_timeout_;
    options.roles = {{"trainer", 1, {"sh", "-c", rank}}};
    options.environment["DIR"] = dir_.Path("");
    options.out = &output_;
    options.err = &output_;
    const absl::StatusOr<int> code = launch::Run(options);
    EXPECT_THAT(code, IsOk());
    return code.value_or(-1);
  }
  std::string output() const { return output_.str(); }

  absl::Duration shutdown_timeout_ = absl::Seconds(20);

 private:
  const testing::TempDir dir_;
  std::ostringstream output_;
};

TEST_F(OwnCoordinator, BeginsBeforeTheRanksAndEndsAfterThem) {
  EXPECT_EQ(RunWith("trap 'echo asked to end; exit 0' TERM; "
                    "echo of $WEFT_JOB at $WEFT_COORDINATOR; touch $DIR/up; "
                    "while :; do sleep 0.02; done",
                    "while ! [ -e $DIR/up ]; do sleep 0.02; done; "
                    "echo host $WEFT_COORDINATOR_HOST; exit 7"),
            7);
  EXPECT_THAT(output(), HasSubstr("[coordinator0] of j at unix:/d/c.sock"));
  EXPECT_THAT(output(), HasSubstr("[trainer0] host coordinator0"));
  EXPECT_THAT(output(), HasSubstr("[coordinator0] asked to end"));
  EXPECT_THAT(output(), HasSubstr("trainer0 failed first"));
}

TEST_F(OwnCoordinator, IsStartedAgainWhenItEnds) {
  EXPECT_EQ(RunWith("if [ -e $DIR/first ]; then touch $DIR/again; sleep 1000; "
                    "fi; touch $DIR/first; kill -9 $$",
                    "while ! [ -e $DIR/again ]; do sleep 0.02; done"),
            0);
  EXPECT_THAT(output(), HasSubstr("coordinator0 has ended: killed by SIGKILL; "
                                  "starting it again"));
}

TEST_F(OwnCoordinator, ThatCannotStayIsWhatHasFailed) {
  EXPECT_EQ(RunWith("echo no memory; exit 13", "sleep 1000"), 13);
  EXPECT_THAT(output(), HasSubstr("coordinator0 failed first"));
  EXPECT_THAT(output(), HasSubstr("| no memory"));
  EXPECT_EQ(RunWith("exit 0", "sleep 1000"), 1);  // it has not run the job
}

TEST_F(OwnCoordinator, ThatIsConfiguredWronglyIsNotStartedAgain) {
  EXPECT_EQ(RunWith("exit 3", "sleep 1000"), 3);
  EXPECT_EQ(RunWith("exit 12", "sleep 1000"), 12);
  EXPECT_THAT(output(), Not(HasSubstr("starting it again")));
}

TEST_F(OwnCoordinator, ThatIgnoresItsEndIsKilled) {
  shutdown_timeout_ = absl::Seconds(2);
  EXPECT_EQ(RunWith("trap '' TERM; touch $DIR/up; while :; do sleep 0.02; done",
                    "while ! [ -e $DIR/up ]; do sleep 0.02; done"),
            0);
}

// The launcher alone, with a script for two servers and one for the trainer,
// and a shell function `await FILE` in both.
class Replicas : public ::testing::Test {
 protected:
  int RunWith(const std::string& server, const std::string& trainer) {
    const std::string await =
        "await() { while ! [ -e $DIR/$1 ]; do sleep 0.02; done; }; ";
    LaunchOptions options;
    options.job = "j";
    options.replicas = replicas_;
    options.shutdown_timeout = absl::Seconds(20);
    options.directory = dir_.Path("");
    options.roles = {{"ps", 2, {"sh", "-c", await + server}},
                     {"trainer", trainers_, {"sh", "-c", await + trainer}}};
    options.environment["DIR"] = dir_.Path("");
    options.out = &output_;
    options.err = &output_;
    options.on_exit = [&](const Child& child, const Exit&) {
      ended_.push_back(child.name());
    };
    const absl::StatusOr<int> code = launch::Run(options);
    EXPECT_THAT(code, IsOk());
    return code.value_or(-1);
  }
  std::string output() const { return output_.str(); }
  int CountOf(const std::string& text) const {
    return static_cast<int>(
        std::vector<std::string>(absl::StrSplit(output(), text)).size() - 1);
  }

  int replicas_ = 2;
  int trainers_ = 1;
  std::vector<std::string> ended_;

 private:
  const testing::TempDir dir_;
  std::ostringstream output_;
};

constexpr char kPs1DiesOnce[] =
    "echo start $WEFT_RANK of $WEFT_REPLICAS rejoin=$WEFT_REJOIN; "
    "if [ $WEFT_RANK = 1 ] && ! [ -e $DIR/died ]; then "
    "touch $DIR/died; kill -9 $$; fi; "
    "touch $DIR/up$WEFT_RANK; await trained";

TEST_F(Replicas, ServerThatDiesIsStartedAgainAloneAndTheOthersGoOn) {
  EXPECT_EQ(RunWith(kPs1DiesOnce,
                    "echo training; await up0; await up1; touch $DIR/trained"),
            0);
  EXPECT_THAT(output(), HasSubstr("weft: ps1 has ended: killed by SIGKILL; "
                                  "starting it again, and the others go on"));
  EXPECT_THAT(output(), HasSubstr("[ps1] start 1 of 2 rejoin=\n"));
  EXPECT_THAT(output(), HasSubstr("[ps1] start 1 of 2 rejoin=true\n"));
  EXPECT_EQ(CountOf("[ps0] start 0 of 2 rejoin=\n"), 1);
  EXPECT_EQ(CountOf("[trainer0] training\n"), 1);
  EXPECT_EQ(CountOf("starting it again"), 1);
  EXPECT_THAT(ended_, UnorderedElementsAre("ps1", "ps1", "ps0", "trainer0"));
}

TEST_F(Replicas, OfOneTheDeathOfAServerEndsTheJob) {
  replicas_ = 1;
  EXPECT_EQ(RunWith(kPs1DiesOnce, "exec sleep 1000"), 128 + SIGKILL);
  EXPECT_THAT(output(), HasSubstr("---- ps1 failed first"));
  EXPECT_EQ(CountOf("starting it again"), 0);
}

TEST_F(Replicas, ServersThatDieTogetherAreBothStartedAgain) {
  EXPECT_EQ(RunWith("if mkdir $DIR/first$WEFT_RANK; then "
                    "await first0; await first1; exit 10; fi; "
                    "touch $DIR/up$WEFT_RANK; await trained",
                    "await up0; await up1; touch $DIR/trained"),
            0);
  EXPECT_EQ(CountOf("starting it again"), 2);
}

TEST_F(Replicas, ServerThatCannotStayEndsTheJob) {
  EXPECT_EQ(RunWith("[ $WEFT_RANK = 0 ] && exec sleep 1000; "
                    "echo no memory; exit 13",
                    "exec sleep 1000"),
            13);
  EXPECT_EQ(CountOf("starting it again"), 2);
  EXPECT_THAT(output(), HasSubstr("---- ps1 failed first"));
  EXPECT_THAT(output(), HasSubstr("| no memory"));
}

// It says that it has what it lost, and dies at once, four times: what it had
// the others serve meanwhile.
TEST_F(Replicas, ServerThatDiesAfterItHasServedIsStartedAgainAfterPauses) {
  EXPECT_EQ(RunWith("if [ $WEFT_RANK = 1 ]; then for i in 1 2 3 4; do "
                    "if mkdir $DIR/death$i 2>$DIR/none; then "
                    "echo I ps1 holds partitions of tables from now on "
                    "partitions=64; kill -9 $$; fi; done; fi; "
                    "touch $DIR/up$WEFT_RANK; await trained",
                    "await up0; await up1; touch $DIR/trained"),
            0);
  EXPECT_EQ(CountOf("ps1 has ended: killed by SIGKILL"), 4);
  EXPECT_THAT(output(),
              HasSubstr("before it had been there for 2s, 3 times in a row; "
                        "starting it again in 1s, and the others go on"));
  EXPECT_THAT(output(), HasSubstr("4 times in a row; starting it again in 2s"));
  EXPECT_THAT(output(), Not(HasSubstr("failed first")));
}

// The pause of a server ends with the job.
TEST_F(Replicas, NobodyWaitsForTheNextStartOfAServerOnceTheTrainersAreGone) {
  const absl::Time begun = absl::Now();
  EXPECT_EQ(
      RunWith("if [ $WEFT_RANK = 1 ]; then "
              "while [ -e $DIR/up1 ]; do sleep 0.02; done; "
              "echo I ps1 holds partitions of tables from now on "
              "partitions=64; echo $$ >$DIR/pid; mv $DIR/pid $DIR/up1; "
              "kill -9 $$; fi; await trained",
              "for i in 1 2 3 4 5; do await up1; pid=$(cat $DIR/up1); "
              "rm $DIR/up1; while kill -0 $pid 2>$DIR/none; do sleep 0.02; "
              "done; done; touch $DIR/trained"),
      0);
  EXPECT_EQ(CountOf("starting it again in"), 3);  // 1, 2 and 4 s
  EXPECT_LT(absl::Now() - begun, kLong);
}

TEST_F(Replicas, ServerThatNoRestartCanHelpEndsTheJobAtOnce) {
  EXPECT_EQ(RunWith("exit 2", "exec sleep 1000"), 2);
  EXPECT_EQ(RunWith("exit 3", "exec sleep 1000"), 3);
  EXPECT_EQ(RunWith(": > $WEFT_NO_RESTART_FILE; exit 12", "exec sleep 1000"),
            12);
  EXPECT_EQ(CountOf("starting it again"), 0);
}

TEST_F(Replicas, TrainerThatFailsEndsTheJobAndNoServerIsStartedAgain) {
  trainers_ = 2;
  EXPECT_EQ(RunWith("trap \"exit 5\" TERM; touch $DIR/up$WEFT_RANK; "
                    "while :; do sleep 0.02; done",
                    "[ $WEFT_RANK = 0 ] && exec sleep 1000; "
                    "await up0; await up1; exit 7"),
            7);
  EXPECT_EQ(CountOf("starting it again"), 0);
  EXPECT_EQ(ended_.size(), 4u);
}

// kill finds the trainer until the launcher has seen its end.
TEST_F(Replicas, ServerThatFailsAfterTheTrainersIsNotStartedAgain) {
  EXPECT_EQ(RunWith("await pid; while kill -0 $(cat $DIR/pid); do sleep 0.02; "
                    "done; [ $WEFT_RANK = 0 ] || exit 10",
                    "echo $$ > $DIR/own; mv $DIR/own $DIR/pid"),
            10);
  EXPECT_EQ(CountOf("starting it again"), 0);
  EXPECT_THAT(output(), HasSubstr("---- ps1 failed first"));
}

TEST_F(Replicas, ServerThatEndsWithZeroHasDoneItsWork) {
  EXPECT_EQ(RunWith("touch $DIR/up$WEFT_RANK", "await up0; await up1"), 0);
  EXPECT_EQ(CountOf("starting it again"), 0);
}

TEST(WeftRun, ReplicasOfTheFlagReachTheRanksAndNoServerIsStartedInAStop) {
  auto run = Weft(
      {"run", "--replicas=2",
       Role("ps", 2,
            "trap \"exit 5\" TERM; echo replicas $WEFT_REPLICAS; "
            "while :; do sleep 0.05; done"),
       Role("trainer", 1, "echo replicas $WEFT_REPLICAS; exec sleep 1000")});
  for (const char* rank : {"[ps0]", "[ps1]", "[trainer0]"}) {
    ASSERT_THAT(run->WaitForOutput(absl::StrCat(rank, " replicas 2"), kLong),
                IsOk());
  }
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
  EXPECT_THAT(run->output(), Not(HasSubstr("starting it again")));
}

TEST(WeftRun, ForwardsSigtermAndKillsRemainingChildren) {
  auto run = Weft({"run", "--shutdown-timeout=6s",
                   Role("ps", 1,
                        "trap \"echo bye; exit 0\" TERM; echo ready; "
                        "while :; do sleep 0.05; done"),
                   Role("trainer", 1,
                        "trap \"\" TERM; echo ready; "
                        "while :; do sleep 0.05; done")});
  ASSERT_THAT(run->WaitForOutput("[ps0] ready", kLong), IsOk());
  ASSERT_THAT(run->WaitForOutput("[trainer0] ready", kLong), IsOk());
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("[ps0] bye"));
  EXPECT_THAT(run->output(), Not(HasSubstr("failed first")));
}

TEST(WeftRun, ASecondInterruptKillsAtOnce) {
  auto run = Weft({"run", Role("ps", 1,
                               "trap \"\" INT TERM; echo ready; "
                               "while :; do sleep 0.05; done")});
  ASSERT_THAT(run->WaitForOutput("[ps0] ready", kLong), IsOk());
  run->Signal(SIGINT);
  ASSERT_THAT(
      run->WaitForOutput(
          "passing SIGINT on to all ranks; Ctrl-C again kills them", kLong),
      IsOk());
  run->Signal(SIGINT);
  EXPECT_THAT(run->Wait(absl::Seconds(20)), IsOkAndHolds(128 + SIGINT));
}

// At this signal workers write their flight recorders.
TEST(WeftRun, PassesSigusr2OnAndGoesOn) {
  auto run = Weft({"run", Role("ps", 1,
                               "trap \"echo written\" USR2; echo ready; "
                               "while :; do sleep 0.05; done")});
  ASSERT_THAT(run->WaitForOutput("[ps0] ready", kLong), IsOk());
  run->Signal(SIGUSR2);
  EXPECT_THAT(run->WaitForOutput("[ps0] written", kLong), IsOk());
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
}

TEST(WeftRun, AHangUpEndsAllUnlessItIsIgnored) {
  const std::string role =
      Role("ps", 1, "echo ready; while :; do sleep 0.05; done");
  auto run = Weft({"run", role});
  ASSERT_THAT(run->WaitForOutput("[ps0] ready", kLong), IsOk());
  run->Signal(SIGHUP);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGHUP)) << run->output();

  const auto before = signal(SIGHUP, SIG_IGN);  // as nohup does
  run = Weft({"run", role});
  signal(SIGHUP, before);
  ASSERT_THAT(run->WaitForOutput("[ps0] ready", kLong), IsOk());
  run->Signal(SIGHUP);
  EXPECT_THAT(run->Wait(absl::Seconds(1)),
              ::weft::testing::StatusIs(absl::StatusCode::kDeadlineExceeded));
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
}

TEST(WeftRun, LeavesNoOrphanWhenItIsKilled) {
  // sleep is a child of the rank's shell: nobody but the keeper knows it.
  auto run =
      Weft({"run", Role("ps", 1, "sleep 1000 & echo sleeper $!; wait"),
            Role("trainer", 1, "echo shell $$; sleep 1000; echo never")});
  ASSERT_THAT(run->WaitForOutput("[ps0] sleeper ", kLong), IsOk());
  ASSERT_THAT(run->WaitForOutput("[trainer0] shell ", kLong), IsOk());
  const pid_t sleeper = PidIn(run->output(), "[ps0] sleeper ");
  const pid_t shell = PidIn(run->output(), "[trainer0] shell ");
  run->Signal(SIGKILL);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_TRUE(HasEnded(sleeper));
  EXPECT_TRUE(HasEnded(shell));
}

TEST(WeftRun, ARanksChildrenEndWithIt) {
  auto run = Weft({"run", Role("ps", 1, "sleep 1000 & echo sleeper $!")});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_TRUE(HasEnded(PidIn(run->output(), "[ps0] sleeper ")));
}

// A process in a session of its own is in no group that the launcher knows.
TEST(WeftRun, GrandchildInItsOwnSessionEndsWithItsRank) {
  auto process = Weft({"run", "--no-prefix",
                       Role("trainer", 1,
                            "setsid sleep 1000 >/dev/null 2>&1 & "
                            "echo grandchild $!; sleep 0.1")});
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0)) << process->output();
  EXPECT_TRUE(HasEnded(PidIn(process->output(), "grandchild ")));
}

TEST(WeftRun, GrandchildInItsOwnSessionEndsWithAKilledLauncher) {
  auto process = Weft({"run", "--no-prefix",
                       Role("trainer", 1,
                            "setsid sleep 1000 >/dev/null 2>&1 & "
                            "echo grandchild $!; echo ready; sleep 1000")});
  ASSERT_THAT(process->WaitForOutput("ready", kLong), IsOk());
  process->Signal(SIGKILL);
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_TRUE(HasEnded(PidIn(process->output(), "grandchild ")));
}

// The names in the directory of the sockets of all jobs below `runtime`.
std::vector<std::string> RunDirectories(const std::string& runtime) {
  std::vector<std::string> names;
  std::error_code none_yet;
  for (const auto& entry :
       std::filesystem::directory_iterator(runtime + "/weft", none_yet)) {
    names.push_back(entry.path());
  }
  return names;
}

TEST(WeftRun, KilledLauncherLeavesNoSocketDirectory) {
  const testing::TempDir temp;
  testing::Command command;
  command.env = {"XDG_RUNTIME_DIR=" + temp.path()};
  command.argv = {testing::RunfilePath("launch/weft"), "run",
                  Role("trainer", 1, "echo ready; sleep 1000")};
  auto process = *testing::Process::Start(std::move(command));
  ASSERT_THAT(process->WaitForOutput("ready", kLong), IsOk());
  EXPECT_EQ(RunDirectories(temp.path()).size(), 1u);
  process->Signal(SIGKILL);
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_TRUE(
      testing::Becomes([&] { return RunDirectories(temp.path()).empty(); }));
}

TEST(WeftRun, FlightRecordingsOfItsRanksAreKeptAndNamed) {
  const testing::TempDir temp;
  testing::Command command;
  command.env = {"XDG_RUNTIME_DIR=" + temp.path()};
  command.argv = {testing::RunfilePath("launch/weft"), "run",
                  Role("trainer", 1,
                       "d=${WEFT_COORDINATOR#unix:}; d=${d%/*}; "
                       "echo events > $d/x.flight; touch $d/socket; exit 10")};
  auto process = *testing::Process::Start(std::move(command));
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(10));
  const auto directories = RunDirectories(temp.path());
  ASSERT_EQ(directories.size(), 1u);
  const std::string kept = directories[0] + "/x.flight";
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_FALSE(std::filesystem::exists(directories[0] + "/socket"));
  EXPECT_THAT(process->output(),
              HasSubstr("a flight recording is kept: " + kept));
}

TEST(WeftRun, LogDirectoryHasAllOutputOfEachRankOfAllRestarts) {
  const testing::TempDir temp;
  const std::string logs = temp.Path("logs/of/job");
  auto process = Weft({"run", "--log-dir=" + logs, "--max-restarts=1",
                       Role("trainer", 2,
                            "seq 1 3000; echo to stderr >&2; printf end; "
                            "exit $((1 - TORCHELASTIC_RESTART_COUNT))")});
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0));
  for (const char* name : {"/trainer0.log", "/trainer1.log"}) {
    std::ifstream file(logs + name);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_THAT(text, HasSubstr("\n2999\n3000\n"));
    EXPECT_THAT(text, HasSubstr("to stderr\n"));
    EXPECT_THAT(text, HasSubstr("end"));
  }
  std::ofstream(temp.Path("file")) << "text";
  auto refused = Weft(
      {"run", "--log-dir=" + temp.Path("file"), Role("trainer", 1, "true")});
  EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(3)) << refused->output();
  EXPECT_THAT(refused->output(), HasSubstr("wanted a directory to write in"));
}

TEST(WeftRun, RunsWithItsStandardStreamsClosed) {
  testing::TempDir dir;
  const std::string ran = dir.Path("ran");
  auto started = testing::Process::Start(
      {{"/bin/sh", "-c",
        "\"$0\" run --nproc-per-node=1 sh -c \"echo said; touch $1\" <&- >&- "
        "2>&-",
        testing::RunfilePath("launch/weft"), ran},
       {}});
  ASSERT_THAT(started, IsOk());
  EXPECT_THAT((*started)->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(access(ran.c_str(), F_OK), 0);
}

TEST(WeftRun, ALimitOfOpenFilesIsNamed) {
  auto started = testing::Process::Start(
      {{"/bin/sh", "-c",
        "ulimit -n 24; exec \"$0\" run --nproc-per-node=24 sleep 1000",
        testing::RunfilePath("launch/weft")},
       {}});
  ASSERT_THAT(started, IsOk());
  EXPECT_THAT((*started)->Wait(kLong), IsOkAndHolds(13));
  EXPECT_THAT((*started)->output(),
              AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
}

TEST(WeftRun, FailedRanksAreAllStartedAgainAndFindTheNumberOfRestarts) {
  // Fails on rank 0 until the third start.
  const std::string script =
      "echo start $TORCHELASTIC_RESTART_COUNT; "
      "[ $WEFT_RANK = 1 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 7";
  auto run = Weft({"run", "--max-restarts=2", Role("trainer", 2, script)});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), AllOf(HasSubstr("[trainer0] start 2"),
                                   HasSubstr("restart 2 of 2")));
  run = Weft({"run", "--max-restarts=1", Role("trainer", 2, script)});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(7)) << run->output();
  EXPECT_THAT(run->output(), Not(HasSubstr("restart 2")));
}

TEST(WeftRun, RanksThatNoRestartCanHelpAreNotStartedAgain) {
  const auto run =
      Weft({"run", "--max-restarts=2", Role("trainer", 1, "exit 3")});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3)) << run->output();
  EXPECT_THAT(run->output(), Not(HasSubstr("starting all ranks again")));
}

TEST(WeftRun, RankThatSaysSoIsNotStartedAgainWhateverItsExitCode) {
  const auto run = Weft({"run", "--max-restarts=2",
                         Role("trainer", 2,
                              "[ $RANK = 0 ] && exec sleep 1000; "
                              ": > $WEFT_NO_RESTART_FILE; exit 1")});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(1)) << run->output();
  EXPECT_THAT(run->output(), Not(HasSubstr("starting all ranks again")));
  const auto other =
      Weft({"run", "--max-restarts=1", Role("trainer", 1, "exit 1")});
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(1)) << other->output();
  EXPECT_THAT(other->output(), HasSubstr("starting all ranks again"));
}

TEST(WeftRun, GoesOnWithoutAsManyTrainersAsItMay) {
  // The others end once both are gone.
  testing::TempDir dir;
  const std::string script =
      absl::StrCat("d=", dir.path(),
                   "; case $RANK in 1) touch $d/1; kill -9 $$;; "
                   "2) touch $d/2; exit 10;; esac; "
                   "while [ ! -e $d/1 ] || [ ! -e $d/2 ]; do sleep 0.05; done; "
                   "sleep 0.5; echo done");
  const auto run =
      Weft({"run", "--allow-trainer-exits=2", Role("trainer", 4, script)});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(),
              AllOf(HasSubstr("trainer1 failed: killed by SIGKILL; the others "
                              "go on without it"),
                    HasSubstr("trainer2 failed: exit code 10"),
                    HasSubstr("failure 2 of the 2 that --allow-trainer-exits"),
                    HasSubstr("[trainer0] done"), HasSubstr("[trainer3] done"),
                    Not(HasSubstr("failed first"))));
}

TEST(WeftRun, OneTrainerMoreThanMayFailEndsTheJobAndTheFirstIsNamed) {
  const auto run = Weft({"run", "--allow-trainer-exits=1",
                         Role("trainer", 3,
                              "case $RANK in 1) exit 7;; 2) sleep 1; exit 10;; "
                              "esac; sleep 1000")});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(7)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("---- trainer1 failed first"));
}

TEST(WeftRun, EndsWithTheLastTrainerAServerAndWhatEveryTrainerWouldFailBy) {
  for (const auto& [ps, trainer, code] :
       std::vector<std::tuple<std::string, std::string, int>>{
           {"sleep 1000", "exit 7", 7},
           {"exit 5", "sleep 1000", 5},
           {"sleep 1000", "[ $RANK = 0 ] || exit 3; sleep 1000", 3}}) {
    const auto run = Weft({"run", "--allow-trainer-exits=5", Role("ps", 1, ps),
                           Role("trainer", code == 7 ? 1 : 2, trainer)});
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(code)) << run->output();
  }
  const auto refused =
      Weft({"run", "--allow-trainer-exits=-1", Role("trainer", 1, "true")});
  EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(2)) << refused->output();
}

}  // namespace
}  // namespace weft::launch
