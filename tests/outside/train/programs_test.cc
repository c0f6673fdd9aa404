// Programs around train::Run that misuse it, as processes. What is expected is
// what train/run.h, train/stop_signal.h and docs/cli.md say; a sentence of
// theirs stands above each test.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr int kInternal = 1;
constexpr int kUsage = 2;
constexpr int kConfig = 3;
constexpr int kPeerLost = 10;
constexpr int kTimeout = 11;
constexpr int kResource = 13;
constexpr int kBySigterm = 128 + SIGTERM;
constexpr int kBySigint = 128 + SIGINT;

struct Ended {
  int code = -1;
  std::string output;
  friend void PrintTo(const Ended& ended, std::ostream* out) {
    *out << "code " << ended.code << ": " << ended.output;
  }
};
MATCHER_P(EndedWith, code, "") { return arg.code == code; }
MATCHER_P2(EndedWith, code, words, "") {
  return arg.code == code && arg.output.find(words) != std::string::npos;
}

class Programs : public ::testing::TestWithParam<int> {
 protected:
  using Processes = std::vector<std::unique_ptr<Process>>;

  std::string Path(const std::string& name) const { return dir_.Path(name); }

  std::unique_ptr<Process> StartOne(int rank, int ranks, const Words& more,
                                    const std::string& job = "job") {
    fs::create_directory(Path(job));
    fs::permissions(Path(job), fs::perms::owner_all);
    Command command;
    command.argv = {RunfilePath("tests/outside/train/clumsy"),
                    absl::StrCat("--rank=", rank),
                    absl::StrCat("--trainers=", ranks),
                    "--job=" + job,
                    "--coordinator=unix:" + Path(job + "/c.sock"),
                    "--dump-dir=" + Path(job),
                    "--epochs=2",
                    "--until=" + Path("until")};
    command.argv.insert(command.argv.end(), more.begin(), more.end());
    auto started = Process::Start(std::move(command));
    EXPECT_THAT(started, IsOk());
    return *std::move(started);
  }
  Processes Start(int ranks, const Words& more,
                  const std::string& job = "job") {
    Processes all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(StartOne(rank, ranks, more, job));
    return all;
  }
  static Ended Await(Process& process) {
    const auto code = process.Wait(absl::Seconds(90));
    EXPECT_THAT(code, IsOk()) << process.output();
    return {code.ok() ? *code : -1, process.output()};
  }
  static std::vector<Ended> Await(const Processes& all) {
    std::vector<Ended> ended;
    for (const auto& one : all) ended.push_back(Await(*one));
    return ended;
  }
  std::vector<Ended> Run(int ranks, const Words& more) {
    return Await(Start(ranks, more));
  }
  static void AwaitWords(const Processes& all, const std::string& words) {
    for (const auto& one : all)
      EXPECT_THAT(one->WaitForOutput(words, kPatience), IsOk());
  }
  void EndPauses() const { std::ofstream(Path("until")) << "now"; }
  int Checkpoints() const {
    int count = 0;
    if (!fs::exists(Path("saved"))) return 0;
    for (const auto& entry : fs::directory_iterator(Path("saved")))
      count += entry.path().filename().string().rfind("ckpt-", 0) == 0;
    return count;
  }
  Words Saving(Words more = {}) const {
    more.push_back("--checkpoint-dir=" + Path("saved"));
    return more;
  }

  TempDir dir_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, Programs, ::testing::Values(1, 2, 4));
class Trainers : public Programs {};
INSTANTIATE_TEST_SUITE_P(Two, Trainers, ::testing::Values(2));

// "Joins the job as a trainer, runs `train`, and leaves the job." That it never
// comes to a group is its own affair.
TEST_P(Programs, ThatTrainNothingAreComplete) {
  EXPECT_THAT(Run(GetParam(), {"--misuse=none of it"}),
              Each(EndedWith(0, "printed: complete")));
}

TEST_P(Programs, ThatAreUsedWellAreComplete) {
  for (const Ended& ended : Run(GetParam(), Saving())) {
    EXPECT_THAT(ended, EndedWith(0, absl::StrCat("steps ", 16 / GetParam())));
    EXPECT_THAT(ended.output, HasSubstr("printed: complete"));
  }
  EXPECT_EQ(Checkpoints(), 2);
}

// "an error ... of `train`, whose exceptions become one; of another trainer,
// where that is why this one failed". ExitCode: kInternal is "an error without
// a code of its own".
TEST_P(Programs, ThatThrowEndAll) {
  for (const char* what : {"throw", "throw a number"}) {
    const std::vector<Ended> ended =
        Run(GetParam(), {absl::StrCat("--misuse=", what), "--who=0"});
    EXPECT_THAT(ended.front(), EndedWith(kInternal)) << what;
    // Where they had not met as a group yet, the others lose the coordinator,
    // which the first of them hosts.
    EXPECT_THAT(ended, Each(AnyOf(EndedWith(kInternal), EndedWith(kPeerLost))))
        << what;
  }
}
TEST_P(Programs, ThatFailEndAll) {
  const int who = GetParam() - 1;
  const std::vector<Ended> ended =
      Run(GetParam(),
          {"--misuse=fail", "--join-timeout=20s", absl::StrCat("--who=", who)});
  EXPECT_THAT(ended.back(), EndedWith(kResource, "out of luck"));
  // One that joins after it has left waits for it.
  EXPECT_THAT(ended,
              Each(AnyOf(EndedWith(kResource, "out of luck"),
                         EndedWith(kTimeout, absl::StrCat("trainer", who)))));
}

// "of the last save"; docs/cli.md: "the last checkpoint of a training could not
// be saved" is 1.
TEST_P(Programs, ThatCouldNotSaveSaySo) {
  EXPECT_THAT(Run(GetParam(), {"--misuse=not saved"}),
              Each(AnyOf(EndedWith(kInternal, "out of disk"),
                         EndedWith(kResource, "out of disk"))));
}

// "or of `print`, which runs after a training that ended in good order, once
// this worker has left."
TEST_P(Programs, WhosePrintFailsEndWithIt) {
  EXPECT_THAT(Run(GetParam(), {"--misuse=fail in print"}),
              Each(EndedWith(kResource, "no paper")));
}
TEST_P(Programs, WhosePrintThrowsEndWithIt) {
  EXPECT_THAT(Run(GetParam(), {"--misuse=throw in print"}),
              Each(EndedWith(kInternal, "no paper")));
}

// "EndedBySignal if its result was_stopped, by SIGTERM where the signal came to
// another trainer".
TEST_P(Programs, StoppedByNobodyEndAsBySigterm) {
  EXPECT_THAT(Run(GetParam(), {"--misuse=stopped by nobody"}),
              Each(EndedWith(kBySigterm)));
}

// "kInvalidArgument, with ExitCode kUsage, if the worker is no trainer"; of
// JoinGroup "in an elastic job".
TEST_F(Programs, OfServersAreRefused) {
  EXPECT_THAT(Await(*StartOne(0, 1, {"--misuse=be a server"})),
              EndedWith(kUsage));
}
TEST_F(Programs, OfElasticJobsAreRefused) {
  Command command;
  command.argv = {RunfilePath("tests/outside/train/clumsy"), "--workers=1:2",
                  "--coordinator=unix:" + Path("c.sock"),
                  "--dump-dir=" + Path("")};
  const auto process = Process::Start(std::move(command));
  ASSERT_THAT(process, IsOk());
  EXPECT_THAT(Await(**process), EndedWith(kUsage));
}

// Run may be called again, once it has returned: nothing says otherwise.
TEST_P(Programs, ThatRunTwiceAreCompleteTwice) {
  for (const Ended& ended : Run(GetParam(), {"--misuse=run twice"})) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    const size_t first = ended.output.find("printed: complete");
    ASSERT_NE(first, std::string::npos) << ended.output;
    EXPECT_NE(ended.output.find("printed: complete", first + 1),
              std::string::npos)
        << ended.output;
  }
}

// "what must be the same for all (kFailedPrecondition, with ExitCode kConfig,
// names what differs)"
TEST_P(Trainers, OfOtherSettingsAreNamed) {
  EXPECT_THAT(Run(2, {"--misuse=other settings"}),
              Each(EndedWith(kConfig, "--lr")));
}

// Nobody comes to the group: JoinGroup, "kDeadlineExceeded names the members
// that did not come", or another trainer that has gone. It ends in any case.
TEST_P(Trainers, ThatNobodyJoinsEnd) {
  const auto ended =
      Run(2, {"--misuse=none of it", "--who=1", "--join-timeout=5s"});
  // It waits for the other to begin to end, for 30 s at most.
  EXPECT_THAT(ended[1], AnyOf(EndedWith(0), EndedWith(kTimeout, "trainer0")));
  EXPECT_THAT(ended[0], AnyOf(EndedWith(kTimeout, "trainer1"),
                              EndedWith(kPeerLost, "trainer1"),
                              EndedWith(kConfig, "trainer1")));
}

// "An error on one rank ends all"; ExitCode kPeerLost: "another worker is
// gone".
TEST_P(Programs, OfWhichOneDiesEndAll) {
  if (GetParam() == 1) GTEST_SKIP() << "there are no others";
  const int dies = GetParam() - 1;
  const auto ended =
      Run(GetParam(), {"--misuse=die", absl::StrCat("--who=", dies)});
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(ended[rank].code, rank == dies ? 9 : kPeerLost)
        << ended[rank].output;
    if (rank != dies) {
      EXPECT_THAT(ended[rank].output, HasSubstr(absl::StrCat("rank ", dies)));
    }
  }
}

// --- Signals. ----------------------------------------------------------------

// "A signal that comes before all workers have joined ends it with
// worker::EndedBySignal, and leaves none of the worker's sockets behind."
TEST_F(Programs, ThatWaitForOthersEndByASignal) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    fs::remove_all(Path("job"));
    const auto alone = StartOne(0, 2, {});
    EXPECT_TRUE(Becomes([&] { return fs::exists(Path("job/c.sock")); }));
    alone->Signal(signal);
    EXPECT_THAT(Await(*alone), EndedWith(128 + signal));
    for (const auto& entry : fs::directory_iterator(Path("job")))
      EXPECT_FALSE(entry.is_socket()) << entry.path();
  }
}

// JoinGroup: "A signal ends the wait for the others (EndedBySignal), and this
// worker leaves the job."
TEST_P(Trainers, ThatWaitForAGroupEndByASignal) {
  const auto all = Start(2, {"--misuse=pause before the group", "--who=0"});
  EXPECT_THAT(all[0]->WaitForOutput("pauses", kPatience), IsOk());
  all[1]->Signal(SIGTERM);
  EXPECT_THAT(Await(*all[1]), EndedWith(kBySigterm));
  // The other waits for one in its place, until it is asked to stop, too.
  EndPauses();
  all[0]->Signal(SIGTERM);
  EXPECT_THAT(Await(*all[0]), EndedWith(kBySigterm));
}

// "where the training is asked to stop, rank 0 saves a checkpoint"; docs/cli:
// "A trainer that was stopped ends with 128 + signal".
TEST_P(Programs, StoppedInAStepSaveAndEnd) {
  const auto all = Start(GetParam(), Saving({"--misuse=pause in a step"}));
  AwaitWords(all, "pauses");
  all.back()->Signal(SIGTERM);
  all.back()->Signal(SIGTERM);  // twice is as once
  EXPECT_THAT(all.back()->WaitForOutput("asked to stop", kPatience), IsOk());
  EndPauses();
  const auto ended = Await(all);
  EXPECT_THAT(ended.back(), EndedWith(kBySigterm, "printed: stopped"));
  EXPECT_THAT(ended, Each(EndedWith(kBySigterm, "steps 2\n")));
  EXPECT_EQ(Checkpoints(), 1);
  // What it saved is good.
  EXPECT_THAT(Run(GetParam(), Saving({"--resume"})),
              Each(EndedWith(0, absl::StrCat("steps ", 16 / GetParam()))));
}

// The same in the middle of a save, of which the score is a part.
TEST_P(Programs, StoppedInASaveSaveAndEnd) {
  const auto all =
      Start(GetParam(), Saving({"--misuse=pause in the score", "--keep-best"}));
  AwaitWords(all, "pauses");
  for (const auto& one : all) one->Signal(SIGHUP);
  AwaitWords(all, "asked to stop");
  EndPauses();
  EXPECT_THAT(Await(all), Each(EndedWith(128 + SIGHUP, "printed: stopped")));
  EXPECT_GE(Checkpoints(), 1);
  EXPECT_THAT(Run(GetParam(), Saving({"--resume"})),
              Each(EndedWith(0, absl::StrCat("steps ", 16 / GetParam()))));
}

// "A SIGINT that comes after one of them ends the process at once".
TEST_F(Programs, ThatAreInterruptedTwiceEndAtOnce) {
  for (const int first : {SIGINT, SIGTERM, SIGHUP}) {
    const auto one = StartOne(0, 1, Saving({"--misuse=pause in a step"}));
    EXPECT_THAT(one->WaitForOutput("pauses", kPatience), IsOk());
    one->Signal(first);
    // The first must have been taken before the second is sent: signals of two
    // kinds that are pending at once have no order.
    EXPECT_THAT(one->WaitForOutput("asked to stop", kPatience), IsOk());
    one->Signal(SIGINT);
    EXPECT_THAT(Await(*one), EndedWith(kBySigint));
    EXPECT_EQ(Checkpoints(), 0);
  }
}

// --- What others hold. -------------------------------------------------------

// "without `resume`, that no former run has left its own"; ExitCode kConfig.
TEST_P(Programs, InTheDirectoryOfAFormerRunAreRefused) {
  EXPECT_THAT(Run(GetParam(), Saving()), Each(EndedWith(0)));
  const auto ended = Run(GetParam(), Saving({"--join-timeout=5s"}));
  EXPECT_THAT(ended[0], EndedWith(kConfig, "--resume"));
  EXPECT_EQ(Checkpoints(), 2);
}

// docs/cli.md: "a run saves nothing where another has saved since it began, and
// ends with 3".
TEST_P(Trainers, OfTwoJobsInOneDirectoryOneSaves) {
  const auto late = Start(2, Saving({"--misuse=pause in a step"}), "late");
  AwaitWords(late, "pauses");
  EXPECT_THAT(Await(Start(2, Saving(), "early")), Each(EndedWith(0)));
  EXPECT_EQ(Checkpoints(), 2);
  EndPauses();
  EXPECT_THAT(Await(late)[0], EndedWith(kConfig));
  EXPECT_EQ(Checkpoints(), 2);
}

// ExitCode kConfig: "a port in use".
TEST_F(Programs, WhoseMetricsHaveNoPlaceSaySo) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size),
            0);
  const int port = ntohs(address.sin_port);
  EXPECT_THAT(Await(*StartOne(0, 1, {absl::StrCat("--metrics-port=", port)})),
              EndedWith(kConfig, absl::StrCat(port)));
  close(taken);
}

// A trace that cannot be written is told at the start, or costs no training.
TEST_F(Programs, WhoseTraceHasNoPlaceLoseNoTraining) {
  const Ended ended =
      Await(*StartOne(0, 1, Saving({"--trace=" + Path("none/trace.json")})));
  EXPECT_THAT(ended.output, HasSubstr("none/trace.json"));
  if (ended.code == 0) {
    EXPECT_EQ(Checkpoints(), 2);
  } else {
    EXPECT_EQ(ended.code, kConfig) << ended.output;
    EXPECT_EQ(Checkpoints(), 0);
  }
}

}  // namespace
}  // namespace weft::testing
