// weft's commands as careless users call them: flags that are wrong, empty,
// doubled or contradict each other; standard streams that are closed or full, a
// directory that is gone, signals at any moment. What is promised is quoted
// from docs/cli.md.

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(60);
// docs/cli.md, "Exit codes".
constexpr int kUsage = 2, kConfig = 3, kPeerLost = 10, kAuth = 12,
              kResource = 13;

struct Ended {
  int code = -1;
  std::string output;
};

class Launch : public ::testing::Test {
 protected:
  Launch() {
    WriteIdxImages(dir_.Path("train"), 96);
    WriteIdxImages(dir_.Path("t10k"), 16);
    fs::create_directory(dir_.Path("run"));
    fs::permissions(dir_.Path("run"), fs::perms::owner_all);
  }
  std::unique_ptr<Process> Start(std::vector<std::string> words,
                                 const std::string& runtime = "") {
    const std::string directory = runtime.empty() ? dir_.Path("run") : runtime;
    auto process =
        Process::Start({std::move(words), {"XDG_RUNTIME_DIR=" + directory}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  Ended Finish(Process& process) {
    const auto code = process.Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process.output();
    return {code.ok() ? *code : -1, process.output()};
  }
  Ended Weft(std::vector<std::string> words) {
    words.insert(words.begin(), RunfilePath("launch/weft"));
    return Finish(*Start(std::move(words)));
  }
  // Runs `weft run` and its program by this line of a shell, in which $weft and
  // $train are words.
  Ended Shell(const std::string& line, const std::string& epochs = "1") {
    const std::string path = dir_.Path("script");
    std::ofstream(path) << "#!/bin/bash\nweft=" << RunfilePath("launch/weft")
                        << "\ntrain='" << RunfilePath("launch/trainer")
                        << " --strategy=ddp --batch-size=8 --data="
                        << dir_.path() << " --epochs=" << epochs << "'\n"
                        << line << "\n";
    chmod(path.c_str(), 0700);
    return Finish(*Start({path}));
  }
  std::string Read(const std::string& name) {
    std::ifstream file(dir_.Path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Directories of jobs that were given no name: all are removed in the end.
  std::vector<std::string> OwnJobs() {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(dir_.Path("run") + "/weft", error)) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "run-")) found.push_back(name);
    }
    return found;
  }
  TempDir dir_;
};

// "2 usage: the command line itself is wrong: an unknown flag, a value that it
// cannot have, two flags that contradict each other": nothing is started.
TEST_F(Launch, CommandLinesThatAreWrongAreUsageErrors) {
  const std::string mark = dir_.Path("started");
  const std::vector<std::string> touch = {"touch", mark};
  const std::vector<std::vector<std::string>> all = {
      {"--nproc-per-node=0"},
      {"--nproc-per-node=-1"},
      {"--nproc-per-node=1.5"},
      {"--nproc-per-node=99999999999999999999"},
      {"--nproc-per-node="},
      {"--nproc-per-node=1", "--role=ps=1:true"},
      {"--nproc-per-node=1", "--job="},
      {"--nproc-per-node=1", "--job=Upper"},
      {"--nproc-per-node=1", "--job=" + std::string(64, 'a')},
      {"--nproc-per-node=1", "--elastic=3:2"},
      {"--nproc-per-node=1", "--elastic=0:2"},
      {"--nproc-per-node=3", "--elastic=1:2"},
      {"--nproc-per-node=1", "--elastic=1:65537"},
      {"--nproc-per-node=1", "--elastic=1:2", "--allow-trainer-exits=1"},
      {"--nproc-per-node=1", "--max-restarts=-1"},
      {"--nproc-per-node=1", "--replicas=3"},
      {"--nproc-per-node=1", "--nnodes=2"},
      {"--nproc-per-node=1", "--node-rank=1"},
      {"--nproc-per-node=1", "--insecure", "--certs=certs"},
      {"--nproc-per-node=1", "--coordinator=unix:/c", "--init=file:///f"},
      {"--nproc-per-node=1", "--silence=1ms"},
      {"--nproc-per-node=1", "--shutdown-timeout=-1s"},
      {"--nproc-per-node=1", "--rebalance=maybe"},
      {"--nproc-per-node=1", "--master-port=65536"},
      {"--nproc-per-nod=1"},
      {"-m"},
  };
  for (std::vector<std::string> words : all) {
    const std::string last = words.back();
    words.insert(words.begin(), "run");
    words.insert(words.end(), touch.begin(), touch.end());
    const Ended ended = Weft(std::move(words));
    EXPECT_EQ(ended.code, kUsage) << last << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("error: ")) << last;
    EXPECT_FALSE(fs::exists(mark)) << last;
  }
  for (const char* role :
       {"", "ps", "ps=1", "ps:true", "ps=0:true", "ps=-1:true",
        "ps=1:", "ps=1:  ", "ps=1:'true", "coordinator=1:true", "p s=1:true"}) {
    const Ended ended = Weft({"run", absl::StrCat("--role=", role)});
    EXPECT_EQ(ended.code, kUsage) << role << ": " << ended.output;
  }
  EXPECT_EQ(OwnJobs(), std::vector<std::string>());
}

TEST_F(Launch, QuestionsThatAreWrongAreUsageErrors) {
  const std::vector<std::vector<std::string>> all = {
      {"nosuch"},
      {"status", "word"},
      {"status", "--job="},
      {"status", "--page="},
      {"status", "--timeout=-1s"},
      {"status", "--timeout=soon"},
      {"status", "--coordinator=unix:/c", "--init=file:///f"},
      {"servers"},
      {"servers", "lists"},
      {"servers", "list", "ps0"},
      {"servers", "drain"},
      {"servers", "drain", "ps0", "--dry-run"},
      {"servers", "balance", "ps0"},
      {"servers", "balance", "--wait=-1s"},
      {"dump"},
      {"dump", "--job=j", "file"},
      {"dump", "--out=d", "file"},
      {"dump", "--job=j", "--events=-1"},
      {"coordinator", "word"},
      {"coordinator", "--job="},
      {"coordinator", "--rank=1"},
      {"coordinator", "--role=ps"},
      {"coordinator", "--servers=1"},
      {"coordinator", "--grace=-1s"},
      {"coordinator", "--coordinator=garbage"},
      {"coordinator", "--coordinator=unix:/" + std::string(200, 'x')},
  };
  for (const std::vector<std::string>& words : all) {
    const Ended ended = Weft(words);
    EXPECT_EQ(ended.code, kUsage)
        << words[0] << " " << words.back() << ": " << ended.output;
  }
  for (const char* command : {"status", "servers", "dump"}) {
    std::vector<std::string> words = {command, "--job=nobody"};
    if (words[0] == "servers") words.insert(words.begin() + 1, "list");
    const Ended ended = Weft(words);
    EXPECT_EQ(ended.code, kPeerLost) << command << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("--job=nobody")) << command;
  }
  for (const char* path : {"/dev/null", "/dev/zero", "/nonexistent", "/etc"}) {
    EXPECT_EQ(Weft({"dump", path}).code, kConfig) << path;
  }
}

// Addresses at which the coordinator cannot be, of ranks that would never ask.
TEST_F(Launch, CoordinatorThatCannotBeEndsTheRanks) {
  const Ended garbage = Weft(
      {"run", "--coordinator=garbage", "--nproc-per-node=2", "sleep", "60"});
  EXPECT_EQ(garbage.code, kUsage) << garbage.output;
  const Ended open = Weft({"run", "--coordinator=127.0.0.1:1",
                           "--nproc-per-node=2", "sleep", "60"});
  EXPECT_EQ(open.code, kAuth) << open.output;
  EXPECT_THAT(open.output, HasSubstr("weft certs init"));
}

TEST_F(Launch, ProgramsThatCannotBeRunAreConfiguration) {
  const std::string file = dir_.Path("text");
  std::ofstream(file) << "text";
  for (const std::string& program :
       {std::string(), std::string("/no/such"), std::string("no-such-command"),
        std::string("/tmp"), file}) {
    const Ended ended = Weft({"run", "--nproc-per-node=2", program});
    EXPECT_EQ(ended.code, kConfig) << program << ": " << ended.output;
  }
  const std::vector<std::string> places = {
      "--log-dir=" + file, "--log-dir=/proc/none", "--events=/tmp",
      "--events=/no/such"};
  for (const std::string& flag : places) {
    const Ended ended = Weft({"run", flag, "--nproc-per-node=1", "true"});
    EXPECT_EQ(ended.code, kConfig) << flag << ": " << ended.output;
  }
  EXPECT_EQ(OwnJobs(), std::vector<std::string>());
}

// replication.md, "A power loss": "The name of the job ... must be the same."
// One that `weft run` has drawn is none that another start has.
TEST_F(Launch, RecordsOfAJobWithoutANameAreWarnedOf) {
  const std::string log = "--coordinator-log=" + dir_.Path("log");
  const Ended drawn = Weft({"run", log, "--nproc-per-node=1", "true"});
  EXPECT_EQ(drawn.code, 0) << drawn.output;
  EXPECT_THAT(drawn.output, HasSubstr("warning: --coordinator-log without "
                                      "--job"));
  const Ended named =
      Weft({"run", "--job=mine", log + "2", "--nproc-per-node=1", "true"});
  EXPECT_EQ(named.code, 0) << named.output;
  EXPECT_THAT(named.output, Not(HasSubstr("warning: --coordinator-log")));
}

// Paths of sockets have 107 bytes at most: where those of a job would be longer
// nothing is started, and the user, who has chosen none of them, is told what
// to shorten.
TEST_F(Launch, JobWhoseSocketsHaveTooLongPathsSaysWhatToShorten) {
  const std::string mark = dir_.Path("started");
  const std::string deep = dir_.Path(std::string(60, 'd'));
  fs::create_directory(deep);
  fs::permissions(deep, fs::perms::owner_all);
  const std::string long_name = "--job=" + std::string(63, 'j');
  const auto expect = [&](const std::string& runtime,
                          std::vector<std::string> words) {
    const Ended ended = Finish(*Start(std::move(words), runtime));
    EXPECT_EQ(ended.code, kConfig) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("XDG_RUNTIME_DIR"));
    EXPECT_THAT(ended.output, HasSubstr("107"));
    EXPECT_FALSE(fs::exists(mark));
  };
  const std::string weft = RunfilePath("launch/weft");
  expect(deep, {weft, "run", "--nproc-per-node=1", "touch", mark});
  const std::string less = deep.substr(0, deep.size() - 30);
  fs::create_directory(less);
  fs::permissions(less, fs::perms::owner_all);
  expect(less, {weft, "run", long_name, "--nproc-per-node=1", "touch", mark});
  expect(less, {weft, "status", long_name});
  expect(less, {weft, "coordinator", long_name});
  expect(less, {RunfilePath("launch/trainer"), long_name, "--trainers=1",
                "--strategy=ddp", "--data=" + dir_.path()});
  // Elsewhere it may meet.
  const Ended elsewhere = Finish(
      *Start({weft, "run", "--coordinator=unix:" + dir_.Path("run/c.sock"),
              "--nproc-per-node=1", "true"},
             deep));
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.output;
}

// "Of several that start the coordinator of the same job on a host one runs":
// the others end before they start anything, and harm it in nothing.
TEST_F(Launch, OfTwoOfTheSameJobStartedAtOnceOneRuns) {
  for (int pair = 0; pair < 10; ++pair) {
    const std::string job = absl::StrCat("pair", pair);
    SCOPED_TRACE(job);
    // It is not over before the other has tried.
    const std::string train = absl::StrCat(
        RunfilePath("launch/trainer"),
        " --strategy=ddp --epochs=1 --batch-size=8 --data=", dir_.path(),
        " && sleep 2");
    const auto start = [&] {
      return Start({RunfilePath("launch/weft"), "run", "--job=" + job,
                    "--nproc-per-node=2", "sh", "-c", train});
    };
    const auto one = start();
    const auto other = start();
    Ended runs = Finish(*one), ends = Finish(*other);
    if (runs.code != 0) std::swap(runs, ends);
    EXPECT_EQ(runs.code, 0) << runs.output;
    EXPECT_EQ(ends.code, kConfig) << ends.output;
    EXPECT_THAT(ends.output, HasSubstr("job " + job + " runs already"));
    EXPECT_THAT(ends.output, HasSubstr("--job of its own"));
    EXPECT_THAT(ends.output, Not(HasSubstr("[trainer")));
    EXPECT_FALSE(fs::exists(dir_.Path("run/weft/" + job)));
  }
}

// "128 + signal if it was asked to end": at any moment of the start; nothing is
// left.
TEST_F(Launch, SignalAtAnyMomentOfTheStartEndsAll) {
  int milliseconds = 0;
  for (int i = 0; i < 24; ++i) {
    const int signal = i % 4 == 0   ? SIGTERM
                       : i % 4 == 1 ? SIGINT
                       : i % 4 == 2 ? SIGHUP
                                    : SIGQUIT;
    const auto run =
        Start({RunfilePath("launch/weft"), "run", "--nproc-per-node=2",
               RunfilePath("launch/trainer"), "--strategy=ddp",
               "--epochs=100000", "--batch-size=8", "--data=" + dir_.path()});
    absl::SleepFor(absl::Milliseconds(milliseconds));
    run->Signal(signal);
    const Ended ended = Finish(*run);
    EXPECT_EQ(ended.code, 128 + signal)
        << "after " << milliseconds << " ms: " << ended.output;
    milliseconds += 1 + milliseconds / 4;
  }
  EXPECT_EQ(OwnJobs(), std::vector<std::string>());
}

// "a second SIGINT kills."
TEST_F(Launch, SecondInterruptKillsRanksThatDoNotEnd) {
  for (const int second : {SIGINT, SIGTERM}) {
    const auto run = Start(
        {RunfilePath("launch/weft"), "run", "--nproc-per-node=2",
         second == SIGINT ? "--shutdown-timeout=10m" : "--shutdown-timeout=1s",
         "bash", "-c", "trap '' INT TERM; echo deaf; sleep 1000"});
    for (const char* rank : {"[trainer0] deaf", "[trainer1] deaf"}) {
      ASSERT_THAT(run->WaitForOutput(rank, kLong), IsOk());
    }
    run->Signal(SIGINT);
    ASSERT_THAT(run->WaitForOutput("passing SIGINT on", kLong), IsOk());
    run->Signal(second);
    EXPECT_EQ(Finish(*run).code, 128 + SIGINT);
  }
  EXPECT_EQ(OwnJobs(), std::vector<std::string>());
}

// Without standard input, output or error, each and together, a job trains.
// "13 resource: output that cannot be written."
TEST_F(Launch, StandardStreamsMayBeClosedOrFull) {
  for (const char* streams : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const Ended ended = Shell(
        absl::StrCat("$weft run --nproc-per-node=2 $train --checkpoint-dir=",
                     dir_.Path(absl::StrCat("saved", streams[0] == '<' ? 0 : 1,
                                            std::string(streams).size())),
                     " ", streams));
    EXPECT_EQ(ended.code, 0) << streams << ": " << ended.output;
  }
  for (const char* program :
       {"$weft run --nproc-per-node=2 $train --json >/dev/full",
        "$train --job=alone --trainers=1 --json >/dev/full",
        "$weft run --nproc-per-node=2 $train --json >/dev/full 2>/dev/full"}) {
    const Ended ended = Shell(program);
    EXPECT_EQ(ended.code, kResource) << program << ": " << ended.output;
  }
  // Nobody reads: SIGPIPE, as of any program, and no rank stays.
  const Ended piped = Shell(absl::StrCat(
      "$weft run --nproc-per-node=2 $train --json 2>&1 | true; echo "
      "${PIPESTATUS[0]} >",
      dir_.Path("code")));
  EXPECT_EQ(piped.code, 0);
  EXPECT_THAT(Read("code"), AnyOf("141\n", "0\n"));
  // Who removes its directory outlives it.
  const absl::Time until = absl::Now() + absl::Seconds(30);
  while (!OwnJobs().empty() && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(OwnJobs(), std::vector<std::string>());
}

// A directory that was removed under it matters only to paths within it.
TEST_F(Launch, DirectoryThatIsGoneIsNoHindrance) {
  const std::string gone = dir_.Path("gone");
  const auto from = [&](const std::string& line) {
    fs::create_directory(gone);
    return Shell("cd " + gone + "; rmdir " + gone + "; " + line);
  };
  const Ended plain = from("$weft run --nproc-per-node=2 $train");
  EXPECT_EQ(plain.code, 0) << plain.output;
  const Ended logs = from("$weft run --nproc-per-node=2 --log-dir=logs $train");
  EXPECT_EQ(logs.code, kConfig) << logs.output;
  EXPECT_THAT(logs.output, HasSubstr("--log-dir=logs"));
  const Ended saved =
      from("$weft run --nproc-per-node=1 $train --checkpoint-dir=saved");
  EXPECT_EQ(saved.code, kConfig) << saved.output;
  EXPECT_THAT(saved.output, HasSubstr("--checkpoint-dir=saved"));
  EXPECT_THAT(saved.output, Not(HasSubstr("internal error")));
}

// "--checkpoint-every: with --strategy=ddp, [...] after how many steps, counted
// over all epochs": what it cannot be is a usage error.
TEST_F(Launch, CheckpointsWithinAnEpochWantANumberAndADirectory) {
  const std::string saved = " --checkpoint-dir=" + dir_.Path("saved");
  for (const char* every : {"-1", "-9223372036854775808", "9223372036854775808",
                            "1.5", "1e3", "abc", "", "0x10"}) {
    const Ended ended =
        Shell(absl::StrCat("$train --trainers=1 --job=every", saved,
                           " --checkpoint-every=", every));
    EXPECT_EQ(ended.code, kUsage) << every << ": " << ended.output;
  }
  EXPECT_EQ(Shell("$train --trainers=1 --job=every --checkpoint-every=1").code,
            kUsage);
  EXPECT_EQ(Shell("$train --strategy=ps --trainers=1 --servers=1 --job=every "
                  "--checkpoint-every=1" +
                  saved)
                .code,
            kUsage);
  EXPECT_FALSE(fs::exists(dir_.Path("saved")));
  const Ended ended = Shell(
      "$train --trainers=1 --job=every --keep=100"
      " --checkpoint-every=9223372036854775807" +
          saved,
      "2");
  EXPECT_EQ(ended.code, 0) << ended.output;
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(dir_.Path("saved"))) {
    checkpoints += absl::StartsWith(entry.path().filename().string(), "ckpt-");
  }
  EXPECT_EQ(checkpoints, 2);
}

}  // namespace
}  // namespace weft::testing
