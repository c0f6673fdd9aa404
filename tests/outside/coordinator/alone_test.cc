// `weft coordinator` without `weft run`, in clumsy and hostile hands. Each
// expectation is a sentence of docs/cli.md ("weft coordinator") or
// docs/rendezvous.md, which is quoted above it.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

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

using ::testing::HasSubstr;
using ::testing::Not;

class AloneCoordinator : public JobOfRanks {
 protected:
  std::unique_ptr<Process> Host(const Words& more = {}) const {
    Words words = {"weft", "coordinator", "--job=alone", at_};
    words.insert(words.end(), more.begin(), more.end());
    return Start(std::move(words));
  }
  Ended HostFails(const Words& more) const {
    const auto host = Host(more);
    return Finish(*host);
  }
  std::unique_ptr<Process> Rank(int rank, const Words& more) const {
    Words words = {"rank",
                   "--job=alone",
                   at_,
                   "--coordinator-host=coordinator0",
                   absl::StrCat("--rank=", rank),
                   "--trainers=2",
                   "--dump-dir=" + Path("")};
    words.insert(words.end(), more.begin(), more.end());
    return Start(std::move(words));
  }
  // "It prints where it listens."
  static void AwaitHost(Process& host) {
    ASSERT_THAT(host.WaitForOutput("meets at ", kLong), IsOk());
  }
  static void AwaitOutput(Process& process, const std::string& text) {
    ASSERT_THAT(process.WaitForOutput(text, kLong), IsOk());
  }
  void ExpectEnd(Process& process, int code) const {
    EXPECT_EQ(Finish(process).code, code) << process.output();
  }
  std::string Log() const { return "--coordinator-log=" + Path("log"); }

  const std::string at_ = "--coordinator=unix:" + Path("c.sock");
};

// ---- Its end.

// "Hosts where a job meets until SIGTERM or Ctrl-C, and then until its workers
// have left, for `--grace` at most".
TEST_F(AloneCoordinator, AskedToEndServesUntilItsWorkersHaveLeft) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string go = absl::StrCat("go", signal);
    const auto host = Host({"--grace=90s"});
    AwaitHost(*host);
    const auto first = Rank(0, {"await:" + Path(go), "barrier:a"});
    const auto second = Rank(1, {"await:" + Path(go), "barrier:a"});
    AwaitOutput(*first, "joined");
    AwaitOutput(*second, "joined");
    host->Signal(signal);
    EXPECT_THAT(host->Wait(absl::Seconds(3)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    Touch(go);
    ExpectEnd(*first, 0);
    ExpectEnd(*second, 0);
    const Ended ended = Finish(*host);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.took, absl::Seconds(20));
  }
}

// "for `--grace` at most (at once with a second signal)".
TEST_F(AloneCoordinator, GraceAndASecondSignalEndItsWait) {
  for (const bool by_signal : {false, true}) {
    const auto host = Host({by_signal ? "--grace=90s" : "--grace=2s"});
    AwaitHost(*host);
    const auto first = Rank(0, {"await:" + Path("never")});
    const auto second = Rank(1, {"await:" + Path("never")});
    AwaitOutput(*first, "joined");
    AwaitOutput(*second, "joined");
    const absl::Time asked = absl::Now();
    host->Signal(SIGTERM);
    absl::SleepFor(absl::Seconds(1));
    if (by_signal) {
      EXPECT_THAT(host->Wait(absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded));
      host->Signal(SIGTERM);
    }
    Finish(*host);
    EXPECT_GE(absl::Now() - asked, absl::Seconds(by_signal ? 1 : 2));
    EXPECT_LT(absl::Now() - asked, absl::Seconds(20));
    EXPECT_FALSE(IsThere("c.sock"));  // it ended in good order
  }
}

// ---- Killed.

// "With a log it may be killed and started again while they run."
TEST_F(AloneCoordinator, KilledAgainAndAgainWhileRanksMeetAndGoOn) {
  auto host = Host({Log()});
  AwaitHost(*host);
  const auto again = [&] {
    host->Signal(SIGKILL);
    ExpectEnd(*host, 128 + SIGKILL);
    host = Host({Log()});
  };
  const Words words = {"barrier:a", "calls:" + Path("stop"), "barrier:b"};
  const auto first = Rank(0, words);
  again();
  again();
  AwaitHost(*host);
  const auto second = Rank(1, words);
  for (int i = 0; i < 6; ++i) {
    absl::SleepFor(absl::Milliseconds(100 * i));
    again();
  }
  Touch("stop");
  ExpectEnd(*first, 0);
  ExpectEnd(*second, 0);
  AwaitHost(*host);
  host->Signal(SIGTERM);
  ExpectEnd(*host, 0);
}

// The same: no moment of its death leaves what the next cannot use.
TEST_F(AloneCoordinator, KilledAtAnyMomentOfItsStartLeavesNothingInTheWay) {
  for (int milliseconds = 0; milliseconds < 250; milliseconds += 25) {
    const auto host = Host({Log()});
    absl::SleepFor(absl::Milliseconds(milliseconds));
    host->Signal(SIGKILL);
    ExpectEnd(*host, 128 + SIGKILL);
  }
  const auto host = Host({Log()});
  AwaitHost(*host);
  host->Signal(SIGTERM);
  ExpectEnd(*host, 0);
}

// "they wait 10 s for one without a log".
TEST_F(AloneCoordinator, KilledWithoutALogEndsItsMembersByName) {
  const auto host = Host();
  AwaitHost(*host);
  const auto first = Rank(0, {"barrier:a", "barrier:b"});
  const auto second =
      Rank(1, {"barrier:a", "await:" + Path("go"), "barrier:b"});
  AwaitOutput(*first, "done barrier:a");
  AwaitOutput(*second, "done barrier:a");
  host->Signal(SIGKILL);
  const Ended ended = Finish(*first);
  EXPECT_EQ(ended.code, 10) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("coordinator0"));
  EXPECT_LT(ended.took, absl::Seconds(20));
  Touch("go");
  ExpectEnd(*second, 10);
}

// ---- Logs and addresses that cannot be.

// "Exit code 3: the address is in use or the log cannot be used".
TEST_F(AloneCoordinator, TwoOnOneLogOrOneAddressAreRefusedByName) {
  const auto host = Host({Log()});
  AwaitHost(*host);
  const Ended log = Do({"weft", "coordinator", "--job=alone", Log(),
                        "--coordinator=unix:" + Path("other.sock")});
  EXPECT_EQ(log.code, 3) << log.output;
  EXPECT_THAT(log.output, HasSubstr(Path("log")));
  const Ended address = HostFails({"--coordinator-log=" + Path("other")});
  EXPECT_EQ(address.code, 3) << address.output;
  EXPECT_THAT(address.output, HasSubstr("c.sock"));
  const Ended job = Do({"weft", "coordinator", "--job=another", at_});
  EXPECT_EQ(job.code, 3) << job.output;
  // None of them harmed it.
  EXPECT_EQ(Do({"weft", "status", "--job=alone", at_}).code, 0);
  host->Signal(SIGTERM);
  ExpectEnd(*host, 0);
  const Ended foreign =
      Do({"weft", "coordinator", "--job=another", at_, Log()});
  EXPECT_EQ(foreign.code, 3) << foreign.output;
  EXPECT_THAT(foreign.output, HasSubstr("alone"));
}

// The same; "other damage is an error, not a guess" (G13).
TEST_F(AloneCoordinator, LogsThatAreNoneAreRefusedAndStayAsTheyAre) {
  std::ofstream(Path("thesis")) << "years of work";
  ASSERT_EQ(mkdir(Path("folder").c_str(), 0700), 0);
  for (const std::string& log :
       {Path("thesis"), Path("folder"), Path("none/log"),
        std::string("/proc/x"), std::string("/dev/full"),
        std::string("/dev/null")}) {
    const Ended ended = HostFails({"--coordinator-log=" + log});
    EXPECT_EQ(ended.code, 3) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(log));
    EXPECT_FALSE(IsThere("c.sock")) << log;
  }
  EXPECT_EQ(ReadBytes(Path("thesis")), "years of work");
}

// "2: the command line itself is wrong: ... a value that it cannot have, two
// flags that contradict each other"; "It takes the flags of a worker".
TEST_F(AloneCoordinator, FlagsThatItCannotHaveAreUsageErrors) {
  for (const char* flag :
       {"--grace=-1s", "--grace=soon", "--workers=9:3", "--epochs=3", "word",
        "--coordinator-host=", "--init=env://", "--advertise=nonsense"}) {
    const auto host = Host({flag});
    const auto code = host->Wait(kLong);
    EXPECT_THAT(code, IsOkAndHolds(2)) << flag << host->output();
  }
}

// ---- Workers and questions.

// "a join that fails says whether the coordinator answered and who is missing"
// (G14).
TEST_F(AloneCoordinator, ThatIsNotThereIsNamedByTheWorkersThatWaitForIt) {
  const auto rank = Rank(0, {"--join-timeout=1s"});
  const Ended ended = Finish(*rank);
  EXPECT_EQ(ended.code, 11) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("coordinator0"));
}

// "Two hosts at one address: the later gets an error that names the first,
// within 5 s" (G23).
TEST_F(AloneCoordinator, NamesItselfToAWorkerThatWouldHostInItsPlace) {
  const auto host = Host();
  AwaitHost(*host);
  const auto rank =
      Start({"rank", "--job=alone", at_, "--rank=0", "--trainers=2"});
  const Ended ended = Finish(*rank);
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_LT(ended.took, absl::Seconds(15));
  EXPECT_THAT(ended.output, HasSubstr("coordinator0"));
  EXPECT_THAT(ended.output, Not(HasSubstr("trainer0 is in job")));
}

// `weft status` "shows who is in the job, who is missing"; `weft health`: "exit
// code 0 if it serves, 10 if it does not".
TEST_F(AloneCoordinator, AnswersBeforeAnybodyHasJoined) {
  const std::string address = "unix:" + Path("c.sock");
  EXPECT_EQ(Do({"weft", "health", address}).code, 10);
  EXPECT_EQ(Do({"weft", "status", at_, "--job=alone"}).code, 10);
  const auto host = Host();
  AwaitHost(*host);
  EXPECT_EQ(Do({"weft", "health", address}).code, 0);
  const Ended status = Do({"weft", "status", at_, "--job=alone"});
  EXPECT_EQ(status.code, 0) << status.output;
  const auto first = Rank(0, {"barrier:a"});
  EXPECT_TRUE(Becomes([&] {
    const std::string shown = Do({"weft", "status", at_, "--job=alone"}).output;
    return absl::StrContains(shown, "trainer0") &&
           absl::StrContains(shown, "1/2 joined");
  })) << first->output();
  first->Signal(SIGKILL);
}

// "Coordinators ... elastic": workers come and go over its deaths, and the name
// of one that was killed comes back (G4).
TEST_F(AloneCoordinator, HostsAnElasticJobThatComesAndGoes) {
  auto host = Host({Log()});
  AwaitHost(*host);
  const auto worker = [&](int rank, const Words& more) {
    Words words = {"rank",
                   "--job=alone",
                   at_,
                   "--workers=1:8",
                   "--coordinator-host=coordinator0",
                   absl::StrCat("--rank=", rank),
                   "--dump-dir=" + Path("")};
    words.insert(words.end(), more.begin(), more.end());
    return Start(std::move(words));
  };
  const auto stays = worker(0, {"await:" + Path("end"), "leave"});
  AwaitOutput(*stays, "joined");
  for (int i = 0; i < 4; ++i) {
    const auto killed = worker(1, {"await:" + Path("never")});
    AwaitOutput(*killed, "joined");
    killed->Signal(SIGKILL);
    const auto leaves = worker(2, {"leave"});
    host->Signal(SIGKILL);
    ExpectEnd(*host, 128 + SIGKILL);
    host = Host({Log()});
    AwaitHost(*host);
    ExpectEnd(*leaves, 0);
  }
  Touch("end");
  ExpectEnd(*stays, 0);
  host->Signal(SIGTERM);
  ExpectEnd(*host, 0);
}

// `--init`: "the host leaves it in a file, which it holds locked while it lives
// and removes at its end"; "A file without that lock is stale: hosts and
// members say so, with the `rm` that removes it".
TEST_F(AloneCoordinator, MeetsByAFileThatItRemovesUnlessItIsKilled) {
  const std::string by_file = "--init=file://" + Path("meet");
  const auto host = [&] {
    return Start({"weft", "coordinator", "--job=alone", by_file});
  };
  const auto ranks = [&] {
    const auto start = [&](int rank) {
      return Start({"rank", "--job=alone", by_file, "--trainers=2",
                    "--coordinator-host=coordinator0",
                    absl::StrCat("--rank=", rank), "--join-timeout=20s",
                    "barrier:a"});
    };
    const auto first = start(0);
    const auto second = start(1);
    ExpectEnd(*first, 0);
    ExpectEnd(*second, 0);
  };
  const auto first = host();
  AwaitHost(*first);
  ranks();
  first->Signal(SIGTERM);
  ExpectEnd(*first, 0);
  EXPECT_FALSE(IsThere("meet"));

  const auto second = host();
  AwaitHost(*second);
  second->Signal(SIGKILL);
  ExpectEnd(*second, 128 + SIGKILL);
  const auto stale = host();
  const Ended ended = Finish(*stale);
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rm "));
  std::filesystem::remove(Path("meet"));
  const auto third = host();
  AwaitHost(*third);
  ranks();
  third->Signal(SIGTERM);
  ExpectEnd(*third, 0);
}

// "12: no certificate of coordinator0"; the address it prints has "the real
// port" (worker/coordinator_server.h).
TEST_F(AloneCoordinator, OverTcpWantsItsOwnCertificate) {
  ASSERT_EQ(Do({"weft", "certs", "init", "--dir=" + Path("certs"),
                "--job=alone", "--trainers=2"})
                .code,
            0);
  const auto start = [&](const Words& more) {
    Words words = {"weft", "coordinator", "--job=alone",
                   "--coordinator=127.0.0.1:0"};
    words.insert(words.end(), more.begin(), more.end());
    return Start(std::move(words));
  };
  const auto host = start({"--certs=" + Path("certs")});
  AwaitHost(*host);
  EXPECT_THAT(host->output(), Not(HasSubstr("127.0.0.1:0\n")));
  host->Signal(SIGTERM);
  ExpectEnd(*host, 0);
  std::filesystem::remove_all(Path("certs/coordinator0"));
  for (const Words& more : {Words{"--certs=" + Path("certs")}, Words{}}) {
    const auto refused = start(more);
    ExpectEnd(*refused, 12);
  }
  const auto both = start({"--certs=" + Path("certs"), "--insecure"});
  ExpectEnd(*both, 2);
}

}  // namespace
}  // namespace weft::testing
