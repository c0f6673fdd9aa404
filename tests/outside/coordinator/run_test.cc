// The coordinator that `weft run` starts, in clumsy and hostile hands. Each
// expectation is a sentence of docs/rendezvous.md ("A coordinator of its own")
// or docs/cli.md ("weft run"), which is quoted above it.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/outside/coordinator/job_of_ranks.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Longer than a coordinator waits for its workers in the end.
constexpr absl::Duration kGrace = absl::Seconds(30);

class OwnCoordinator : public JobOfRanks {
 protected:
  static void Kill(pid_t pid, int signal = SIGKILL) {
    ASSERT_GT(pid, 0);
    ASSERT_EQ(kill(pid, signal), 0) << strerror(errno);
  }
  static void AwaitOutput(Process& process, const std::string& text) {
    ASSERT_THAT(process.WaitForOutput(text, kLong), IsOk());
  }
};

// ---- Programs that are no workers.

// "The exit code of `weft run` is that of the rank that failed first, ... else
// 0"; "The directory in which the ranks met is removed in the end".
TEST_F(OwnCoordinator, IsInNobodysWayWhereNoRankIsAWorker) {
  for (int i = 0; i < 10; ++i) {
    const Ended ended = Do({"weft", "run", "--nproc-per-node=2", "true"});
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(ended.output, "");
    EXPECT_LT(ended.took, kGrace);
    EXPECT_THAT(Running(), IsEmpty());
  }
  const Ended failed = Do({"weft", "run", "sh", "-c", "exit 9"});
  EXPECT_EQ(failed.code, 9) << failed.output;
  // "one block names the first that failed".
  EXPECT_THAT(failed.output, HasSubstr("trainer0 failed first"));
  EXPECT_THAT(failed.output, Not(HasSubstr("coordinator0")));
  EXPECT_EQ(Left(), Words{Path("run/weft")});
}

// "SIGINT, SIGTERM, ... are passed on".
TEST_F(OwnCoordinator, EndsWithASignalThatComesAtAnyMoment) {
  for (int milliseconds = 0; milliseconds < 300; milliseconds += 40) {
    const auto run = Start({"weft", "run", "sleep", "1000"});
    absl::SleepFor(absl::Milliseconds(milliseconds));
    run->Signal(milliseconds % 80 == 0 ? SIGTERM : SIGINT);
    const Ended ended = Finish(*run);
    EXPECT_THAT(ended.code, AnyOf(128 + SIGTERM, 128 + SIGINT)) << ended.output;
    EXPECT_LT(ended.took, kGrace);
    EXPECT_THAT(ended.output, Not(HasSubstr("failed first")));
  }
  for (const std::string& left : Left()) EXPECT_EQ(left, Path("run/weft"));
}

// "if `weft run` itself is killed, all groups are"; the directory is removed
// "also if `weft run` is killed".
TEST_F(OwnCoordinator, EndsWithALauncherThatIsKilledAtAnyMoment) {
  for (int milliseconds = 0; milliseconds < 400; milliseconds += 50) {
    const auto run = Run({}, {"await:" + Path("never")});
    absl::SleepFor(absl::Milliseconds(milliseconds));
    run->Signal(SIGKILL);
    EXPECT_EQ(Finish(*run).code, 128 + SIGKILL);
  }
  const auto run = Run({}, {"await:" + Path("never")});
  AwaitOutput(*run, "[trainer1] joined");
  run->Signal(SIGKILL);
  EXPECT_TRUE(Becomes([&] { return Running().empty(); }));
  EXPECT_TRUE(Becomes([&] {
    return Left().empty() || Left() == Words{Path("run/weft")};
  })) << ::testing::PrintToString(Left());
}

// ---- Killed, stopped, asked to end.

// "If it ends before the ranks it is started again from its log at once:
// members wait for it".
TEST_F(OwnCoordinator, KilledWhileRanksMeetIsStartedAgainAndTheyMeet) {
  const auto run = Start(
      {"weft", "run", "--nproc-per-node=2", "sh", "-c",
       "[ $RANK = 0 ] || while ! [ -e $0 ]; do sleep 0.05; done; exec \"$@\"",
       Path("go"), "rank", "barrier:a"});
  const pid_t first = CoordinatorOf(*run);
  // trainer0 has joined: it is shown.
  const std::string at = "--coordinator=unix:";
  ASSERT_TRUE(Becomes([&] {
    for (const std::string& left : Left()) {
      if (absl::EndsWith(left, "/coordinator.sock")) {
        const std::string job =
            std::filesystem::path(left).parent_path().filename();
        return absl::StrContains(
            Do({"weft", "status", at + left, "--job=" + job}).output,
            "trainer0     0@");
      }
    }
    return false;
  })) << run->output();
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  Touch("go");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("coordinator0 has ended: killed by "
                                      "SIGKILL; starting it again"));
  EXPECT_THAT(ended.output, HasSubstr("[trainer1] done barrier:a"));
}

// "members wait for it, no call between them ends".
TEST_F(OwnCoordinator, KilledAtABarrierAndUnderCallsChangesNothing) {
  const auto run =
      Run({}, {"0/barrier:early", "calls:" + Path("stop"), "barrier:late"});
  // trainer0 stays at its barrier over a kill, trainer1 calls it meanwhile.
  AwaitOutput(*run, "[trainer1] joined");
  const pid_t first = CoordinatorOf(*run);
  Kill(first);
  const pid_t second = CoordinatorOf(*run, first);
  absl::SleepFor(absl::Seconds(3));
  Kill(second);
  EXPECT_NE(CoordinatorOf(*run, second), 0);
  Touch("stop");
  AwaitOutput(*run, "[trainer1] done calls:");
  run->Signal(SIGTERM);  // trainer0 waits for a barrier that is its own
  EXPECT_EQ(Finish(*run).code, 128 + SIGTERM) << run->output();
  EXPECT_THAT(run->output(), Not(HasSubstr("error: ")));
}

// The same; "which barriers have opened" is in the log.
TEST_F(OwnCoordinator, ABarrierOpensOverTheDeathsOfTheCoordinator) {
  const auto run = Run({}, {"1/await:" + Path("go"), "barrier:a",
                            "0/await:" + Path("on"), "barrier:b"});
  AwaitOutput(*run, "[trainer1] joined");
  AwaitOutput(*run, "[trainer0] joined");
  const pid_t first = CoordinatorOf(*run);
  absl::SleepFor(absl::Milliseconds(200));  // trainer0 arrives
  Kill(first);
  Touch("go");
  AwaitOutput(*run, "[trainer1] done barrier:a");
  AwaitOutput(*run, "[trainer0] done barrier:a");
  Kill(CoordinatorOf(*run, first));
  Touch("on");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
}

// "ends it after all workers of the job have left": its death meanwhile is no
// failure of the job. "The exit code of `weft run` is that of the rank that
// failed first ... else 0".
TEST_F(OwnCoordinator, KilledWhileTheRanksEndChangesNoExitCode) {
  for (int i = 0; i < 6; ++i) {
    const std::string file = absl::StrCat("end", i);
    const auto run = Run({}, {"barrier:a", "await:" + Path(file)});
    AwaitOutput(*run, "[trainer0] done barrier:a");
    AwaitOutput(*run, "[trainer1] done barrier:a");
    const pid_t coordinator = CoordinatorOf(*run);
    Touch(file);
    absl::SleepFor(absl::Milliseconds(15 * i));
    kill(coordinator, SIGKILL);
    const Ended ended = Finish(*run);
    EXPECT_EQ(ended.code, 0) << i << ended.output;
    EXPECT_LT(ended.took, kGrace) << ended.output;
  }
}

// "Silence is counted only while the coordinator itself was running: after a
// pause it suspects no member for the time of the pause"; members of one with a
// log wait 60 s.
TEST_F(OwnCoordinator, StoppedForLongAndContinuedDeclaresNobodyGone) {
  const auto run = Run({}, {"calls:" + Path("stop"), "barrier:a"});
  AwaitOutput(*run, "[trainer0] joined");
  AwaitOutput(*run, "[trainer1] joined");
  const pid_t coordinator = CoordinatorOf(*run);
  Kill(coordinator, SIGSTOP);
  absl::SleepFor(absl::Seconds(13));  // silence is death after 10
  Kill(coordinator, SIGCONT);
  Touch("stop");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr(" is gone")));
}

// "`--shutdown-timeout`: between asking ranks to end and killing them".
TEST_F(OwnCoordinator, StoppedForGoodDelaysTheEndByTheTimeoutAtMost) {
  const auto run =
      Start({"weft", "run", "--shutdown-timeout=2s", "sh", "-c",
             "while ! [ -e $0 ]; do sleep 0.05; done", Path("end")});
  Kill(CoordinatorOf(*run), SIGSTOP);
  Touch("end");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_LT(ended.took, absl::Seconds(20));
}

// A rank's failure is the rank's, whatever its coordinator does meanwhile: "one
// block names the first that failed".
TEST_F(OwnCoordinator, AStoppedOneHidesNoFailureOfARank) {
  const auto run =
      Run({"--shutdown-timeout=3s"},
          {"await:" + Path("end"), "1/exit:9", "0/await:" + Path("never")});
  AwaitOutput(*run, "[trainer0] joined");
  AwaitOutput(*run, "[trainer1] joined");
  Kill(CoordinatorOf(*run), SIGSTOP);
  Touch("end");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 9) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("trainer1 failed first"));
  EXPECT_LT(ended.took, absl::Seconds(25));
}

// "Hosts where a job meets until SIGTERM or Ctrl-C, and then until its workers
// have left"; "If it ends before the ranks it is started again".
TEST_F(OwnCoordinator, AskedToEndByAStrangerDoesNotEndTheJob) {
  const auto run = Run({}, {"await:" + Path("go"), "barrier:a"});
  AwaitOutput(*run, "[trainer0] joined");
  AwaitOutput(*run, "[trainer1] joined");
  Kill(CoordinatorOf(*run), SIGTERM);
  absl::SleepFor(absl::Seconds(1));
  Touch("go");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
}

// "Three ends within 2 s of their starts ... end the job in its name."
TEST_F(OwnCoordinator, KilledOnceAtItsStartIsNoFailureThreeTimesIs) {
  {
    const auto run = Run({}, {"barrier:a"});
    Kill(CoordinatorOf(*run));
    EXPECT_EQ(Finish(*run).code, 0) << run->output();
  }
  const auto run = Run({}, {"barrier:a", "await:" + Path("never")});
  // More than three only where it was older than 2 s before it was found.
  pid_t last = 0;
  EXPECT_TRUE(Becomes([&] {
    if (run->Wait(absl::ZeroDuration()).ok()) return true;
    if (const pid_t next = CoordinatorNow(*run, last); next != 0) {
      kill(last = next, SIGKILL);
    }
    return false;
  })) << run->output();
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("coordinator0 failed first"));
}

// "the coordinator's records are kept in FILE when `weft run` ends", "If it
// ends before the ranks it is started again from its log", also where somebody
// has removed the file meanwhile.
TEST_F(OwnCoordinator, GoesOnFromALogThatWasRemoved) {
  const auto run = Run({"--job=logged", "--coordinator-log=" + Path("log")},
                       {"barrier:a", "await:" + Path("go"), "barrier:b",
                        "await:" + Path("end"), "barrier:c"});
  AwaitOutput(*run, "[trainer0] done barrier:a");
  AwaitOutput(*run, "[trainer1] done barrier:a");
  std::filesystem::remove(Path("log"));
  Touch("go");
  AwaitOutput(*run, "[trainer0] done barrier:b");
  AwaitOutput(*run, "[trainer1] done barrier:b");
  EXPECT_TRUE(IsThere("log"));
  const pid_t first = CoordinatorOf(*run);
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  Touch("end");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(IsThere("log"));
}

// ---- Ranks that end one by one.

// "ends it after all workers of the job have left".
TEST_F(OwnCoordinator, StaysForARankThatOutlivesTheOthers) {
  const auto run =
      Run({"--job=late"}, {"barrier:a", "0/leave", "1/await:" + Path("end")});
  AwaitOutput(*run, "[trainer0] done leave");
  AwaitOutput(*run, "[trainer1] done barrier:a");
  const pid_t first = CoordinatorOf(*run);
  absl::SleepFor(absl::Seconds(1));
  const Ended status = Do({"weft", "status", "--job=late"});
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("trainer1"));
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  Touch("end");
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_LT(ended.took, kGrace);
}

// The same, over two nodes: "all workers of the job".
TEST_F(OwnCoordinator, OfTwoNodesStaysForTheRanksOfTheOther) {
  const std::string at = absl::StrCat("--coordinator=127.0.0.1:", FreePort());
  const auto node = [&](int k) {
    return Start({"weft", "run", "--nnodes=2", absl::StrCat("--node-rank=", k),
                  "--job=two", at, "--insecure", "--nproc-per-node=1", "rank",
                  "--dump-dir=" + Path(""), "barrier:a", "0/leave",
                  "1/await:" + Path("end")});
  };
  const auto first = node(0);
  const auto second = node(1);
  AwaitOutput(*first, "[trainer0] done leave");
  AwaitOutput(*second, "[trainer1] done barrier:a");
  absl::SleepFor(absl::Seconds(2));
  const Ended status = Do({"weft", "status", "--job=two", at, "--insecure"});
  EXPECT_EQ(status.code, 0) << status.output << first->output();
  EXPECT_THAT(status.output, HasSubstr("trainer1"));
  const absl::Time asked = absl::Now();
  Touch("end");
  EXPECT_EQ(Finish(*second).code, 0) << second->output();
  EXPECT_EQ(Finish(*first).code, 0) << first->output();
  EXPECT_LT(absl::Now() - asked, absl::Seconds(20));
}

// ---- Restarts.

// "Each start of all ranks (`--max-restarts`) has a coordinator and a log of
// its own."
TEST_F(OwnCoordinator, OfEachStartIsAnotherThoughBothDieAtOnce) {
  const auto run =
      Run({"--max-restarts=1"},
          {"barrier:a", "first/0/await:" + Path("die"), "first/0/exit:7",
           "first/1/await:" + Path("never"), "barrier:b"});
  AwaitOutput(*run, "[trainer0] done barrier:a");
  const pid_t first = CoordinatorOf(*run);
  Touch("die");
  kill(first, SIGKILL);
  AwaitOutput(*run, "restart 1 of 1");
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("[trainer1] done barrier:b"));
}

// The same, with a variable that names one log for all.
TEST_F(OwnCoordinator, LogOfTheUsersEnvironmentDoesNotJoinTwoStarts) {
  const auto run =
      Run({"--max-restarts=1"}, {"barrier:a", "first/0/exit:7", "barrier:b"},
          {"WEFT_COORDINATOR_LOG=" + Path("log")});
  const Ended ended = Finish(*run);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("restart 1 of 1"));
}

// ---- Addresses.

// "all output of each rank also goes to `DIR/trainer0.log` and so on".
TEST_F(OwnCoordinator, WritesToTheLogDirectoryToo) {
  const std::string at = absl::StrCat("--coordinator=127.0.0.1:", FreePort());
  const auto run =
      Run({"--log-dir=" + Path("logs"), at, "--insecure"}, {"barrier:a"});
  EXPECT_EQ(Finish(*run).code, 0) << run->output();
  EXPECT_THAT(ReadBytes(Path("logs/coordinator0.log")),
              HasSubstr("--insecure"));
  EXPECT_TRUE(IsThere("logs/trainer1.log"));
}

// "Exit code 3: the address is in use". The first of a name is not harmed.
TEST_F(OwnCoordinator, OfASecondJobOfTheNameIsRefusedAndTheFirstGoesOn) {
  const auto first =
      Run({"--job=same"}, {"barrier:a", "await:" + Path("end"), "barrier:b"});
  AwaitOutput(*first, "[trainer0] done barrier:a");
  for (int i = 0; i < 2; ++i) {
    const auto second = Run({"--job=same"}, {"barrier:a"});
    const Ended ended = Finish(*second);
    EXPECT_EQ(ended.code, 3) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("job same runs already"));
  }
  // What the second swept was not the first's.
  const pid_t coordinator = CoordinatorOf(*first);
  EXPECT_EQ(Do({"weft", "status", "--job=same"}).code, 0);
  Kill(coordinator);
  EXPECT_NE(CoordinatorOf(*first, coordinator), 0);
  Touch("end");
  EXPECT_EQ(Finish(*first).code, 0) << first->output();
}

// The same, of addresses that a stranger has.
TEST_F(OwnCoordinator, AtAnAddressOfAStrangerIsConfiguration) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(fd, general, size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, general, &size), 0);
  const Ended taken =
      Do({"weft", "run", "--insecure",
          absl::StrCat("--coordinator=127.0.0.1:", ntohs(address.sin_port)),
          "sleep", "1000"});
  close(fd);
  EXPECT_EQ(taken.code, 3) << taken.output;
  EXPECT_THAT(taken.output, HasSubstr("coordinator0 failed first"));
  EXPECT_THAT(taken.output, HasSubstr("in use"));

  std::ofstream(Path("thesis")) << "years of work";
  const Ended file = Do(
      {"weft", "run", "--coordinator=unix:" + Path("thesis"), "sleep", "1000"});
  EXPECT_EQ(file.code, 3) << file.output;
  EXPECT_EQ(ReadBytes(Path("thesis")), "years of work");
  for (const std::string& nowhere : {Path("none/c.sock")}) {
    const Ended ended =
        Do({"weft", "run", "--coordinator=unix:" + nowhere, "sleep", "1000"});
    EXPECT_EQ(ended.code, 3) << ended.output;
  }
}

// "no port 0 where others are to find it".
TEST_F(OwnCoordinator, AtPortZeroIsAUsageError) {
  const Ended ended = Do({"weft", "run", "--insecure",
                          "--coordinator=127.0.0.1:0", "sleep", "1000"});
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("port"));
}

// "a socket in this user's directory for the job", where there can be none.
TEST_F(OwnCoordinator, WhereNothingCanBeWrittenIsConfiguration) {
  const Ended ended = Do({"/usr/bin/env", "XDG_RUNTIME_DIR=/proc",
                          RunfilePath("launch/weft"), "run", "sleep", "1000"});
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("/proc"));
}

// ---- Who hosts it.

// "`--no-own-coordinator`: rank 0 hosts the coordinator"; "Rank 0 hosts it ...
// with `weft run --no-own-coordinator`, and with `--init`", whatever a `weft
// run` around this one has left in the environment.
TEST_F(OwnCoordinator, IsNotAwaitedWhereRankZeroHostsIt) {
  for (const std::string& by_rank :
       {std::string("--no-own-coordinator"), "--init=file://" + Path("meet")}) {
    const auto run = Run({by_rank}, {"--join-timeout=60s", "barrier:a"},
                         {"WEFT_COORDINATOR_HOST=coordinator0"});
    EXPECT_EQ(Finish(*run).code, 0) << run->output();
  }
}

// WEFT_COORDINATOR_HOST is "for the address in WEFT_COORDINATOR": it "does not
// count where another address is given".
TEST_F(OwnCoordinator, IsIgnoredByRanksThatMeetElsewhere) {
  const std::string at = "--coordinator=unix:" + Path("own.sock");
  const auto run =
      Run({}, {at, "--join-timeout=60s", "barrier:a", "await:" + Path("end")});
  AwaitOutput(*run, "[trainer1] done barrier:a");
  Kill(CoordinatorOf(*run));  // it is of no use to them
  Touch("end");
  EXPECT_EQ(Finish(*run).code, 0) << run->output();
}

// "The role of a process that hosts the job's coordinator and is none of its
// workers" (worker/options.h); roles are "ps, trainer or admin" (docs/cli.md).
TEST_F(OwnCoordinator, HasItsNameForItself) {
  const Ended ended = Do({"weft", "run", "--role=coordinator=1:true",
                          absl::StrCat("--role=trainer=1:sleep 2")});
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr("starting it again")));
}

// An elastic job "begins with MIN workers, others come and go".
TEST_F(OwnCoordinator, HostsAnElasticJobOverItsDeath) {
  const auto run = Start({"weft", "run", "--job=elastic", "--nproc-per-node=2",
                          "rank", "--workers=1:4", "--dump-dir=" + Path(""),
                          "0/leave", "1/await:" + Path("end")});
  AwaitOutput(*run, "[trainer0] done leave");
  AwaitOutput(*run, "[trainer1] joined");
  const pid_t first = CoordinatorOf(*run);
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  const std::string at =
      "--coordinator=unix:" + Path("run/weft/elastic/coordinator.sock");
  const Ended third =
      Do({"rank", "--job=elastic", at, "--coordinator-host=coordinator0",
          "--rank=2", "--workers=1:4", "leave"});
  EXPECT_EQ(third.code, 0) << third.output;
  Touch("end");
  EXPECT_EQ(Finish(*run).code, 0) << run->output();
}

// The group is of those who are in the job: one is killed, another comes. The
// coordinator is killed meanwhile.
TEST_F(OwnCoordinator, HostsTheGroupsOfAnElasticJob) {
  const auto run = Start({"weft", "run", "--job=grows", "--nproc-per-node=3",
                          "--allow-trainer-exits=1", "rank", "--workers=2:8",
                          "--dump-dir=" + Path(""), "groups:" + Path("end")});
  for (const char* one :
       {"[trainer0] group of 3 as 0", "[trainer1] group of 3 as 1",
        "[trainer2] group of 3 as 2"}) {
    AwaitOutput(*run, one);
  }
  const pid_t first = CoordinatorOf(*run);
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  Kill(RankOf(*run, 1));
  AwaitOutput(*run, "[trainer0] group of 2 as 0");
  AwaitOutput(*run, "[trainer2] group of 2 as 1");
  const auto fourth =
      Start({"rank", "--job=grows",
             "--coordinator=unix:" + Path("run/weft/grows/coordinator.sock"),
             "--coordinator-host=coordinator0", "--rank=3", "--workers=2:8",
             "--dump-dir=" + Path(""), "groups:" + Path("end")});
  AwaitOutput(*fourth, "group of 3 as 2");
  Touch("end");
  EXPECT_EQ(Finish(*fourth).code, 0) << fourth->output();
  EXPECT_EQ(Finish(*run).code, 0) << run->output();
}

// ---- Questions.

// `weft health`: "exit code 0 if it serves, 10 if it does not"; "They end with
// 0 if there was an answer, ... 11 after `--timeout`".
TEST_F(OwnCoordinator, AnswersHealthAndStatusUnlessItIsStopped) {
  const auto run = Run({"--job=asked"}, {"barrier:a", "await:" + Path("end")});
  AwaitOutput(*run, "[trainer0] done barrier:a");
  const std::string at = "unix:" + Path("run/weft/asked/coordinator.sock");
  EXPECT_EQ(Do({"weft", "health", at}).code, 0);
  const Ended status =
      Do({"weft", "status", "--job=asked", "--calls", "--refs", "--passes"});
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("2/2 joined"));
  // "3 for a worker ... that is not there": it is none.
  const Ended call = Do({"weft", "call", "coordinator0", "--job=asked"});
  EXPECT_EQ(call.code, 3) << call.output;
  const pid_t coordinator = CoordinatorOf(*run);
  Kill(coordinator, SIGSTOP);
  for (const Words& words :
       {Words{"weft", "health", at, "--timeout=1s"},
        Words{"weft", "status", "--job=asked", "--timeout=1s"}}) {
    const Ended ended = Do(words);
    EXPECT_EQ(ended.code, 11) << ended.output;
  }
  Kill(coordinator, SIGCONT);
  Touch("end");
  EXPECT_EQ(Finish(*run).code, 0) << run->output();
}

// Bytes of a stranger at its address end the connection, not the job.
TEST_F(OwnCoordinator, OutlivesRubbishAndConnectionsThatSayNothing) {
  const auto run = Run({"--job=rubbish"},
                       {"barrier:a", "await:" + Path("end"), "barrier:b"});
  AwaitOutput(*run, "[trainer0] done barrier:a");
  const std::string path = Path("run/weft/rubbish/coordinator.sock");
  std::vector<int> open;
  for (int i = 0; i < 300; ++i) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    strcpy(address.sun_path, path.c_str());
    const int fd =
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    const std::string bytes(i % 3 * 5000, static_cast<char>(i));
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    open.push_back(fd);
  }
  Touch("end");
  const Ended ended = Finish(*run);
  for (const int fd : open) close(fd);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr("has ended")));
}

// ---- Certificates.

// "over TLS its certificate must be for that name"; "coordinator0 hosts the
// coordinator of a job that `weft run` started ...: give it then, as in
// `--name=coordinator0`".
TEST_F(OwnCoordinator, ShowsItsCertificateToRanksAndQuestions) {
  const Ended made = Do({"weft", "certs", "init", "--dir=" + Path("certs"),
                         "--job=safe", "--trainers=2"});
  ASSERT_EQ(made.code, 0) << made.output;
  const std::string certs = "--certs=" + Path("certs");
  const std::string at = absl::StrCat("--coordinator=127.0.0.1:", FreePort());
  const auto run = Run({"--job=safe", certs, at},
                       {"barrier:a", "await:" + Path("end"), "barrier:b"});
  AwaitOutput(*run, "[trainer0] done barrier:a");
  const auto ask = [&](const std::string& name) {
    return Do({"weft", "status", "--job=safe", certs, at, "--name=" + name});
  };
  EXPECT_EQ(ask("coordinator0").code, 0) << ask("coordinator0").output;
  EXPECT_EQ(ask("ps0").code, 12) << ask("ps0").output;
  const pid_t first = CoordinatorOf(*run);
  Kill(first);
  EXPECT_NE(CoordinatorOf(*run, first), 0);
  Touch("end");
  EXPECT_EQ(Finish(*run).code, 0) << run->output();

  // "12: no certificate of coordinator0 (`weft certs init` makes it)".
  std::filesystem::remove_all(Path("certs/coordinator0"));
  const auto none = Run({"--job=safe", certs, at}, {"barrier:a"});
  EXPECT_EQ(Finish(*none).code, 12) << none->output();
  EXPECT_THAT(none->output(), HasSubstr("coordinator0"));
  EXPECT_THAT(none->output(), HasSubstr("weft certs init"));
  // "Run it again in the same directory to add members".
  EXPECT_EQ(Do({"weft", "certs", "init", "--dir=" + Path("certs"), "--job=safe",
                "--trainers=2"})
                .code,
            0);
  const auto again = Run({"--job=safe", certs, at}, {"barrier:a"});
  EXPECT_EQ(Finish(*again).code, 0) << again->output();
}

}  // namespace
}  // namespace weft::testing
