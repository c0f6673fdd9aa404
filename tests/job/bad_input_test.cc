// Mistakes of users: each ends with one message that says what was wanted, what
// was found and what to do, and with the exit code of docs/cli.md.

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kInternal = 1;
constexpr int kUsage = 2;
constexpr int kConfig = 3;
constexpr int kTimeout = 11;
constexpr int kAuth = 12;
constexpr int kResource = 13;

// It ends with that code, and has said each of these.
void ExpectEnd(Process& process, int code, const Flags& said) {
  EXPECT_THAT(process.Wait(kLong), IsOkAndHolds(code)) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("error: "));
  for (const std::string& text : said) {
    EXPECT_THAT(process.output(), HasSubstr(text));
  }
}

TEST(BadInput, AMissingImageFileIsNamed) {
  Job job;
  job.data = job.Path("nowhere");
  ExpectEnd(*job.StartTrainer(0), kConfig,
            {job.data + "/train-images-idx3-ubyte", "No such file",
             "wanted --data=DIR"});
}

TEST(BadInput, ACutImageFileIsNamedWithItsSizes) {
  const Job job;
  const std::string file = job.data + "/train-images-idx3-ubyte";
  std::filesystem::resize_file(file, 5000);
  ExpectEnd(*job.StartTrainer(0), kConfig,
            {file, "wanted 16384 bytes", "found 4984", "the file is cut"});
}

TEST(BadInput, AServerThatIsNotThereIsWaitedForAndNamed) {
  const Job job;
  ExpectEnd(*job.StartTrainer(0, {"--join-timeout=300ms"}), kTimeout,
            {"waited 300ms", "no coordinator", job.coordinator,
             "is ps0 running, with this --coordinator?"});
}

TEST(BadInput, TheMissingAreNamed) {
  const Job job;
  const auto ps0 = job.StartServer(0, {"--join-timeout=30s"});
  ASSERT_THAT(ps0->WaitForOutput("ps0 joined", kLong), IsOk());
  const auto trainer = job.StartTrainer(1, {"--join-timeout=10s"});
  ExpectEnd(*trainer, kTimeout, {"2/4 joined, missing ps1, trainer0"});
  ExpectEnd(*ps0, kTimeout, {"missing ps1, trainer0"});
}

TEST(BadInput, AnUnknownFlagBringsTheNearestToMind) {
  const Job job;
  ExpectEnd(*job.StartTrainer(0, {"--epoch=3"}), kUsage,
            {"--epoch=3", "did you mean --epochs?"});
  ExpectEnd(*job.StartServer(0, {"--gracee=3s"}), kUsage,
            {"--gracee=3s", "did you mean --grace?"});
}

TEST(BadInput, ValuesThatCannotBeAreRefused) {
  Job job;
  ExpectEnd(*job.StartTrainer(0, {"--epochs=many"}), kUsage,
            {"--epochs", "many"});
  ExpectEnd(*job.StartTrainer(7), kConfig,
            {"--rank=7", "no trainer7", "2 trainers"});
  ExpectEnd(*job.StartTrainer(0, {"--sync", "--async"}), kUsage, {"both"});
  ExpectEnd(*job.StartTrainer(0, {"--resume"}), kUsage,
            {"--resume needs --checkpoint-dir=DIR"});
  for (const char* rate : {"nan", "inf", "-1", "0"}) {
    ExpectEnd(*job.StartTrainer(0, {absl::StrCat("--lr=", rate)}), kUsage,
              {absl::StrCat("--lr=", rate, ": wanted a number above 0")});
  }
  ExpectEnd(*job.StartTrainer(0, {"--device=cuda"}), kUsage,
            {"--device=cuda", "wanted --strategy=ddp"});
}

TEST(BadInput, TcpWithoutCertificatesNamesTheCommandThatMakesThem) {
  Job job;
  job.coordinator = "127.0.0.1:1";
  for (const auto& process : {job.StartServer(0), job.StartTrainer(0)}) {
    ExpectEnd(*process, kAuth,
              {"TCP needs certificates", "weft certs init", "--certs=DIR",
               "--insecure"});
  }
}

TEST(BadInput, CertificatesBesideInsecureAreRefused) {
  Job job;
  job.coordinator = "127.0.0.1:1";
  ExpectEnd(*job.StartServer(0, {"--certs=" + job.Path("c"), "--insecure"}),
            kUsage, {"--certs=" + job.Path("c"), "--insecure", "give one"});
}

TEST(BadInput, TableAccessThatCannotWorkIsRefused) {
  Job job;
  ExpectEnd(*job.StartServer(0, {"--table-access=users=trainer:rx"}), kUsage,
            {"--table-access", "right 'x'", "users=trainer:rx"});
  ExpectEnd(*job.StartServer(0, {"--table-access=users=trainer:r"}), kUsage,
            {"--table-access", "wants --certs"});
}

TEST(BadInput, CertificatesThatAreNotThereAreNamed) {
  Job job;
  job.coordinator = "127.0.0.1:1";
  ExpectEnd(*job.StartServer(0, {"--certs=" + job.Path("none")}), kAuth,
            {job.Path("none"), "weft certs init"});
}

// A program that is none of Weft's, at that path, and answers nobody.
class Squatter {
 public:
  explicit Squatter(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
    WEFT_CHECK_EQ(
        bind(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    WEFT_CHECK_EQ(listen(fd_, 8), 0);
  }
  ~Squatter() { close(fd_); }

 private:
  const int fd_;
};

TEST(BadInput, AnAddressInUseIsNamed) {
  const Job job;
  const Squatter squatter(job.Path("ps0.sock"));
  ExpectEnd(*job.StartServer(0), kConfig,
            {"ps0: wanted to listen on " + job.coordinator, "in use",
             "choose another address for all its workers by --coordinator"});
  const Squatter elsewhere(job.Path("trainer0.sock"));
  ExpectEnd(
      *job.StartTrainer(0, {"--listen=unix:" + job.Path("trainer0.sock")}),
      kConfig, {"in use", "choose another by --listen="});
}

TEST(BadInput, CheckpointsOfAFormerRunAreKept) {
  const Job job;
  const std::string saved = job.Path("saved");
  job.Train({"--epochs=2", "--checkpoint-dir=" + saved});
  const auto before = Checkpoints(saved);
  ExpectEnd(*job.StartTrainer(0, {"--checkpoint-dir=" + saved}), kConfig,
            {"found 2 of a former run", before.back(), "--resume",
             "another directory"});
  EXPECT_EQ(Checkpoints(saved), before);
}

TEST(BadInput, SoManyCheckpointsStayAsKeepSays) {
  Job job;
  job.flags = {"--keep=1"};  // servers take the trainer's flags too
  const std::string saved = job.Path("saved");
  job.Train({"--epochs=4", "--checkpoint-dir=" + saved});
  EXPECT_EQ(Checkpoints(saved).size(), 1u);
}

TEST(BadInput, BestAndNamedCheckpointsStayBesideTheLast) {
  for (const std::string strategy : {"ps", "ddp"}) {
    Job job;
    const std::string saved = job.Path("saved");
    const auto train = [&](const Flags& more) {
      Flags flags = {"--strategy=" + strategy, "--keep=1", "--keep-best",
                     "--checkpoint-dir=" + saved};
      flags.insert(flags.end(), more.begin(), more.end());
      if (strategy == "ps") return (void)job.Train(flags);
      job.servers = 0;
      job.coordinator = "unix:" + job.Path("trainer0.sock");
      for (const auto& trainer : job.StartTrainers(flags)) {
        EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
      }
    };
    train({"--epochs=1", "--keep-as=first-run"});
    const std::string first = Checkpoints(saved).back();
    EXPECT_EQ(ReadBytes(saved + "/NAME-first-run"), first + "\n");
    EXPECT_EQ(ReadBytes(saved + "/NAME-best"), first + "\n");
    train({"--epochs=5", "--resume"});
    const auto names = Checkpoints(saved);
    EXPECT_EQ(names.front(), first);
    std::string best = ReadBytes(saved + "/NAME-best");
    best.pop_back();
    EXPECT_THAT(names, ::testing::Contains(best));
    EXPECT_LE(names.size(), 3u);  // the first, the best, the last
  }
}

TEST(BadInput, ResultThatCannotBeWrittenEndsWithAnError) {
  Job job;
  job.trainers = 1;
  const Processes servers = job.StartServers();
  Flags command = {"/bin/sh", "-c", "exec \"$@\" > /dev/full", "sh"};
  for (const std::string& flag : job.TrainerCommand(0, {"--epochs=1"})) {
    command.push_back(flag);
  }
  ExpectEnd(*StartProcess(command), kResource,
            {"result cannot be written", "No space left"});
}

// With less, libraries end the process or wait for ever for want of a thread.
TEST(BadInput, TooSmallAnAddressSpaceIsNamedByEveryProgram) {
  const Job job;
  const auto limited = [](const Flags& command) {
    Flags all = {"/bin/sh", "-c", "ulimit -v 300000; exec \"$0\" \"$@\""};
    all.insert(all.end(), command.begin(), command.end());
    return StartProcess(all);
  };
  for (const Flags& command :
       {job.ServerCommand(0), job.TrainerCommand(0),
        Flags{Program("weft"), "run", "--nproc-per-node=1", "true"},
        Flags{Program("weft"), "status"}}) {
    ExpectEnd(*limited(command), kResource,
              {"found a limit of 300000 KiB: raise it by `ulimit -v`"});
  }
}

TEST(BadInput, CoordinatorOnAnyPortIsRefusedWhereOthersAreToFindIt) {
  Job job;
  job.coordinator = "127.0.0.1:0";
  for (const auto& process : {job.StartServer(0), job.StartTrainer(0)}) {
    ExpectEnd(*process, kUsage,
              {"--coordinator=127.0.0.1:0", "cannot know which port",
               "--init=file:///PATH"});
  }
}

TEST(BadInput, OutputOfTheToolThatCannotBeWrittenEndsWithAnError) {
  ExpectEnd(*StartProcess({"/bin/sh", "-c", "exec \"$0\" version > /dev/full",
                           Program("weft")}),
            kResource, {"cannot be written to standard output"});
}

TEST(BadInput, TrainersWithOtherSettingsAreRefusedAndBothValuesNamed) {
  const Job job;
  const Processes servers = job.StartServers();
  const auto first = job.StartTrainer(0, {"--lr=0.01", "--epochs=1000"});
  const auto second = job.StartTrainer(1, {"--lr=0.02", "--epochs=1000"});
  ExpectEnd(*first, kConfig,
            {"--lr is 0.01 at trainer0 and 0.02 at trainer1", "same flags"});
  ExpectEnd(*second, kConfig,
            {"--lr is 0.02 at trainer1 and 0.01 at trainer0"});
}

TEST(BadInput, FileAtTheAddressOfASocketIsKept) {
  Job job;
  const std::string thesis = job.Path("thesis.tex");
  std::ofstream(thesis) << "thesis";
  ExpectEnd(*job.StartTrainer(0, {"--listen=unix:" + thesis}), kConfig,
            {"a regular file of 6 bytes is there", "choose another path"});
  EXPECT_TRUE(std::filesystem::is_regular_file(thesis));
  job.coordinator = "unix:" + thesis;
  ExpectEnd(*job.StartServer(0), kConfig,
            {"a regular file of 6 bytes is there", "choose another path"});
  EXPECT_TRUE(std::filesystem::is_regular_file(thesis));
}

TEST(BadInput, ASocketDirectoryIsMadeByTheUser) {
  Job job;
  job.coordinator = "unix:" + job.Path("none") + "/s";
  ExpectEnd(*job.StartServer(0), kConfig,
            {"socket directory " + job.Path("none"), "No such file",
             "Try: mkdir -m 700 " + job.Path("none")});
}

TEST(BadInput, FileThatIsNoCoordinatorLogIsNamed) {
  const Job job;
  ExpectEnd(
      *job.StartServer(0, {"--coordinator-log=/dev/full"}), kConfig,
      {"/dev/full", "wanted a file", "name another file by --coordinator-log"});
}

TEST(BadInput, WorkerThatDoesNotFitTheJobIsRefused) {
  Job job;
  const auto server = job.StartServer(0);
  ASSERT_THAT(server->WaitForOutput("ps0 joined", kLong), IsOk());

  job.name = "other";
  ExpectEnd(*job.StartTrainer(0), kConfig,
            {"job \"job\"", "job \"other\"", "two jobs use one address",
             "--coordinator", "give --job=job if that one is meant"});
  job.name = "job";

  job.servers = 3;
  ExpectEnd(*job.StartTrainer(0), kConfig,
            {"ps=3 trainer=2", "ps=2 trainer=2",
             "the same --servers and --trainers"});
  job.servers = 2;

  const auto first = job.StartTrainer(0);
  ASSERT_THAT(server->WaitForOutput("trainer0 joined", kLong), IsOk());
  const std::string elsewhere = "--listen=unix:" + job.Path("elsewhere.sock");
  for (const Flags& flags : {Flags{}, Flags{elsewhere}}) {
    ExpectEnd(*job.StartTrainer(0, flags), kConfig,
              {"trainer0 is in job \"job\" already", "--rank"});
  }
  ExpectEnd(*job.StartServer(0), kConfig,
            {"ps0 is in job \"job\" already", job.coordinator, "--rank"});
}

// A file system with room for one checkpoint of these models and not for two,
// of which nobody but this process knows; if that may not be made here, a
// limit on the size of files, which only its own programs notice.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    std::filesystem::create_directory(path_);
    is_mounted_ =
        unshare(CLONE_NEWNS) == 0 &&
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount("none", path_.c_str(), "tmpfs", 0, "size=160k") == 0;
  }
  ~SmallDisk() {
    if (is_mounted_) umount2(path_.c_str(), MNT_DETACH);
  }

  // `command` on the disk now that it is full.
  Flags OnFull(const Flags& command) const {
    if (is_mounted_) return command;
    Flags limited = {"/bin/sh", "-c",
                     "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""};
    limited.insert(limited.end(), command.begin(), command.end());
    return limited;
  }

 private:
  const std::string path_;
  bool is_mounted_ = false;
};

TEST(BadInput, UnwritableOutputIsReportedBeforeTheWork) {
  const Job job;
  WriteBytes(job.Path("file"), "");
  ExpectEnd(*job.StartTrainer(0, {"--checkpoint-dir=" + job.Path("file/c")}),
            kConfig,
            {"--checkpoint-dir=" + job.Path("file/c"),
             "wanted a "
             "directory to write in",
             "Not a directory"});
  ExpectEnd(*job.StartServer(0, {"--dump-dir=" + job.Path("none")}), kConfig,
            {"--dump-dir=" + job.Path("none"),
             "wanted a directory to write in: No such file"});
}

TEST(BadInput, DirectoryThatServersMayNotUseIsReportedBeforeTheWork) {
  const Job job;
  for (const std::string& of_servers : {std::string(), job.Path("other")}) {
    Processes servers;
    for (int rank = 0; rank < job.servers; ++rank) {
      Flags command = job.ServerCommand(rank);
      command.erase(std::remove_if(command.begin(), command.end(),
                                   [](const std::string& flag) {
                                     return absl::StartsWith(
                                         flag, "--checkpoint-dir=");
                                   }),
                    command.end());
      if (!of_servers.empty()) {
        command.push_back("--checkpoint-dir=" + of_servers);
      }
      servers.push_back(StartProcess(std::move(command)));
    }
    const auto trainers =
        job.StartTrainers({"--checkpoint-dir=" + job.Path("saved")});
    ExpectEnd(*trainers[0], kConfig,
              {"ps", of_servers.empty() ? "start it with --checkpoint-dir=DIR"
                                        : "is not in this server's "
                                          "--checkpoint-dir, "});
    for (const auto& server : servers) {
      EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kConfig))
          << server->output();
    }
  }
}

TEST(BadInput, ATraceThatCannotBeWrittenLeavesNothingBehind) {
  const Job job;
  const std::string trace = "--trace=" + job.Path("t");
  std::filesystem::create_directory(job.Path("t"));
  ExpectEnd(*job.StartServer(0, {trace}), kConfig, {trace, "Is a directory"});
  EXPECT_FALSE(std::filesystem::exists(job.Path("t.part")));
  std::filesystem::remove(job.Path("t"));
  Flags full = {"/bin/sh", "-c",
                "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""};
  for (const std::string& word : job.ServerCommand(0, {trace})) {
    full.push_back(word);
  }
  ExpectEnd(*StartProcess(full), kResource, {trace, "File too large"});
  EXPECT_FALSE(std::filesystem::exists(job.Path("t.part")));
}

TEST(BadInput, AFullDiskCostsOnlyTheCheckpointThatDoesNotFit) {
  Job job;
  job.servers = 1;
  job.trainers = 1;
  const std::string saved = job.Path("saved");
  const SmallDisk disk(saved);
  job.Train({"--epochs=1", "--checkpoint-dir=" + saved});
  {
    const Flags flags = {"--epochs=2", "--resume", "--checkpoint-dir=" + saved};
    const auto server = StartProcess(disk.OnFull(job.ServerCommand(0)));
    const auto trainer =
        StartProcess(disk.OnFull(job.TrainerCommand(0, flags)));
    ExpectEnd(*trainer, kInternal,
              {"no checkpoint was saved in " + saved,
               "earlier ones are as they were", "the training is complete"});
    EXPECT_THAT(trainer->output(),
                ::testing::AnyOf(HasSubstr("No space left on device"),
                                 HasSubstr("File too large")));
    // The training was not lost with it.
    EXPECT_THAT(trainer->output(), HasSubstr("{\"test_accuracy\""));
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(0)) << server->output();
  }
  EXPECT_THAT(Checkpoints(saved),
              ::testing::ElementsAre("ckpt-000001-step-16"));
  const TrainerResult again =
      job.Train({"--epochs=1", "--resume", "--checkpoint-dir=" + saved});
  EXPECT_EQ(again.checkpoint, saved + "/ckpt-000001-step-16");
}

}  // namespace
}  // namespace weft::testing
