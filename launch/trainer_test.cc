// The trainer program as a process: its flags, its output, its exit codes
// (docs/cli.md). Jobs of several processes are in //tests/job.

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/rendezvous/membership.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/group_backend.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::launch {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(100);
constexpr int kUsage = 2;
constexpr int kConfig = 3;

using Words = std::vector<std::string>;

class TrainerProgramTest : public ::testing::Test {
 protected:
  TrainerProgramTest() {
    std::filesystem::create_directory(dir_.Path("images"));
    testing::WriteIdxImages(dir_.Path("images/train"), 64);
    testing::WriteIdxImages(dir_.Path("images/t10k"), 20);
  }

  std::unique_ptr<testing::Process> Start(const Words& flags,
                                          const Words& environment = {}) {
    testing::Command command;
    command.argv = {testing::RunfilePath("launch/trainer")};
    command.argv.insert(command.argv.end(), flags.begin(), flags.end());
    command.env = {"OMP_NUM_THREADS=1"};
    command.env.insert(command.env.end(), environment.begin(),
                       environment.end());
    auto process = testing::Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return process.ok() ? *std::move(process) : nullptr;
  }

  // The flags of a data-parallel job of one rank, which needs nobody else.
  Words Alone(const Words& more) const {
    Words flags = {"--strategy=ddp",
                   "--trainers=1",
                   "--coordinator=unix:" + dir_.Path("trainer0.sock"),
                   "--dump-dir=" + dir_.path(),
                   "--data=" + dir_.Path("images"),
                   "--batch-size=16",
                   "--epochs=1",
                   "--json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // Expects that `flags` are refused, whatever the job is.
  void ExpectUsageError(const Words& flags, const std::string& message) {
    const auto trainer = Start(flags);
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kUsage)) << message;
    EXPECT_THAT(trainer->output(), HasSubstr("error: "));
    EXPECT_THAT(trainer->output(), HasSubstr(message));
  }

  std::vector<std::string> Checkpoints() const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator(dir_.Path("saved"), none)) {
      const std::string name = entry.path().filename();
      if (name.rfind("ckpt-", 0) == 0) names.push_back(name);
    }
    return names;
  }

  testing::TempDir dir_;
};

// The objects among the lines of `output`.
std::vector<nlohmann::json> Objects(const std::string& output) {
  std::vector<nlohmann::json> objects;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    auto object = nlohmann::json::parse(std::string(line), nullptr,
                                        /*allow_exceptions=*/false);
    if (object.is_object()) objects.push_back(std::move(object));
  }
  return objects;
}

TEST_F(TrainerProgramTest, HelpListsItsFlagsAndEndsWithZero) {
  const auto trainer = Start({"--help"});
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0));
  for (const char* flag : {"--strategy", "--checkpoint-dir", "--keep-best",
                           "--loss-every", "--coordinator"}) {
    EXPECT_THAT(trainer->output(), HasSubstr(flag));
  }
}

TEST_F(TrainerProgramTest, FlagsThatContradictEachOtherAreUsageErrors) {
  const Words ps = {"--servers=1", "--trainers=1"};
  const auto with = [](Words flags, const Words& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const std::vector<std::pair<Words, std::string>> cases = {
      {with(ps, {"--sync", "--async"}), "wanted --sync or --async, found both"},
      {{"--strategy=fast", "--trainers=1"},
       "--strategy=fast: wanted ps or ddp"},
      {{"--strategy=ddp", "--trainers=1", "--async"},
       "--async needs --strategy=ps"},
      {{"--strategy=ddp", "--trainers=1", "--quorum=1"},
       "--staleness, --quorum and --late need --strategy=ps"},
      {with(ps, {"--staleness=1"}), "--staleness=1 needs --async"},
      {with(ps, {"--async", "--quorum=1"}), "--quorum=1 needs --sync"},
      {with(ps, {"--quorum=2"}), "--quorum=2: wanted 1 to --trainers=1"},
      {with(ps, {"--quorum=-1"}), "--quorum=-1: wanted 1 to --trainers=1"},
      {with(ps, {"--late=fold"}), "--late=fold needs --quorum"},
      {{"--strategy=ddp", "--trainers=1", "--push-dtype=bf16"},
       "--push-dtype and --pull-dtype need --strategy=ps"},
      {{"--strategy=ddp", "--trainers=1", "--servers=1"},
       "needs no parameter servers; wanted --servers=0, found 1"},
      {with(ps, {"--virtual-shards=8"}),
       "--virtual-shards=8 needs --strategy=ddp"},
      {{"--strategy=ddp", "--trainers=1", "--virtual-shards=3"},
       "--virtual-shards=3: virtual shards: wanted a power of two"},
      {{"--strategy=ddp", "--trainers=4", "--virtual-shards=2"},
       "wanted at least one for each of 4 ranks, found 2"},
      {with(ps, {"--deterministic"}),
       "--virtual-shards=8 needs --strategy=ddp"},
      {{"--strategy=ddp", "--trainers=9", "--deterministic"},
       "wanted at least one for each of 9 ranks, found 8"},
      {{"--strategy=ddp", "--trainers=4", "--deterministic",
        "--virtual-shards=2"},
       "wanted at least one for each of 4 ranks, found 2"},
      {{"--strategy=ddp", "--trainers=1", "--virtual-shards=-1"},
       "wanted a power of two"},
      {with(ps, {"--resume"}), "--resume needs --checkpoint-dir=DIR"},
      {with(ps, {"--keep-best"}), "need --checkpoint-dir=DIR to keep it in"},
      {with(ps, {"--keep-as=x"}), "need --checkpoint-dir=DIR to keep it in"},
      {with(ps, {"--keep-as=best", "--keep-best", "--checkpoint-dir=c"}),
       "--keep-as=best is the name that --keep-best gives"},
      {{"--workers=1:2"}, "--workers=1:2 (or WEFT_WORKERS)"},
      {{"--workers=1:2", "--strategy=ddp"},
       "wants --strategy=ddp and --virtual-shards=N"},
      {with(ps, {"--optimizer=lamb"}),
       "--optimizer=lamb looks at whole rows of parameters"},
      {with(ps, {"--clip-norm=1"}), "wanted --strategy=ddp, or another"},
      {with(ps, {"--role=ps"}),
       "--role=ps (or WEFT_ROLE): this program is a trainer"},
      {{"--trainers=2"}, "or train without any by --strategy=ddp"},
      {with(ps, {"--no-sync", "--no-async"}), "found --no-sync and --no-async"},
      {{"--strategy=ddp", "--trainers=1", "--no-sync"},
       "--async needs --strategy=ps"},
  };
  for (const auto& [flags, message] : cases) ExpectUsageError(flags, message);
}

TEST_F(TrainerProgramTest, ValuesOutOfRangeAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--epochs=-1"}, "--epochs=-1: wanted a number of at least 0"},
      {{"--batch-size=0"}, "--batch-size=0: wanted at least 1"},
      {{"--lr=1001"}, "--lr=1001: wanted a number above 0 and at most 1000"},
      {{"--lr=nan"}, "--lr=nan: wanted a number above 0"},
      {{"--lr=0", "--optimizer=lion"}, "--lr=0: wanted a number above 0"},
      {{"--optimizer=Adam"}, "'Adam'; allowed are sgd, adam, adamw"},
      {{"--clip-value=-1"}, "--clip-value=-1: wanted a number of at least 0"},
      {{"--clip-norm=inf"}, "--clip-norm=inf: wanted a number of at least 0"},
      {{"--push-dtype=fp8"}, "'fp8'; allowed are f32, f16, bf16 and int8"},
      {{"--pull-dtype=F16"}, "'F16'; allowed are f32, f16, bf16 and int8"},
      {{"--staleness=-1"}, "'-1'; wanted a number of at least 0, or none"},
      {{"--late=never"}, "'never'; allowed are drop and fold"},
      {{"--keep=0"}, "--keep=0: wanted at least 1 checkpoint"},
      {{"--replicas=3"}, "--replicas=3: wanted 1 or 2"},
      {{"--replicas=2"}, "--replicas=2 wants at least 2 servers, found"},
      {{"--loss-every=-1"}, "--loss-every=-1: wanted a number of at least 0"},
      {{"--keep-as=A B", "--checkpoint-dir=c"}, "at most 63 of [a-z0-9-]"},
      {{"--precision=f8"}, "'f8'; allowed are f32, f16 and bf16"},
      {{"--precision=f16"}, "--precision=f16: wanted --strategy=ddp"},
      {{"--device=cuda"}, "--device=cuda: wanted --strategy=ddp; with"},
      {{"--backend=mpi"}, "--backend=mpi: wanted host, nccl"},
      {{"--backend=same_device"},
       "--backend=same_device: wanted --strategy=ddp"},
      {{"--backend=nccl"}, "--backend=nccl: wanted --strategy=ddp"},
      {{"--device=tpu"}, "device \"tpu\": wanted cpu, cuda"},
      {{"--epochs=many"}, "--epochs=many: wanted an integer"},
      {{"word"}, "found the word \"word\" where flags are wanted"},
  };
  for (auto [flags, message] : cases) {
    flags.push_back("--servers=1");
    flags.push_back("--trainers=1");
    ExpectUsageError(flags, message);
  }
}

// What there is in its place is said where the build, or the machine, has none.
TEST_F(TrainerProgramTest, DeviceThatIsNotThereIsConfiguration) {
  const auto cuda = Start(Alone({"--device=cuda:99"}));
  EXPECT_THAT(cuda->Wait(kLong), IsOkAndHolds(kConfig)) << cuda->output();
  EXPECT_THAT(cuda->output(), HasSubstr("--device=cuda:99: "));
  EXPECT_THAT(cuda->output(), AnyOf(HasSubstr("install NVIDIA's CUDA toolkit"),
                                    HasSubstr("no CUDA device"),
                                    HasSubstr("this process sees")));
  const auto simulated = Start(Alone({"--device=simulated:64"}));
  EXPECT_THAT(simulated->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(simulated->output(), HasSubstr("wanted at most simulated:63"));
}

TEST_F(TrainerProgramTest, NcclWantsDevicesAndMembersThatStay) {
  ExpectUsageError(
      {"--strategy=ddp", "--trainers=1", "--device=cpu", "--backend=nccl"},
      "--backend=nccl: wanted --device=cuda, whose tensors NCCL moves");
  ExpectUsageError({"--strategy=ddp", "--trainers=1", "--device=cpu",
                    "--backend=same_device"},
                   "--backend=same_device: wanted --device=cuda or simulated");
  ExpectUsageError({"--strategy=ddp", "--workers=1:2", "--virtual-shards=2",
                    "--device=simulated", "--backend=nccl"},
                   "--backend=nccl: wanted host or auto in an elastic job");
}

TEST_F(TrainerProgramTest, ValueOfTheEnvironmentThatIsWrongIsConfiguration) {
  const auto trainer = Start(Alone({}), {"WEFT_RANK=first"});
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(trainer->output(), HasSubstr("environment WEFT_RANK"));
}

TEST_F(TrainerProgramTest, ResultIsOneJsonObjectWithTheLossesBeforeIt) {
  const auto trainer = Start(Alone({"--loss-every=2"}));
  ASSERT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  const auto objects = Objects(trainer->output());
  ASSERT_THAT(objects, SizeIs(3)) << trainer->output();  // 4 steps
  EXPECT_EQ(objects[0]["step"], 2);
  EXPECT_EQ(objects[1]["step"], 4);
  EXPECT_GT(objects[1]["loss"].get<double>(), 0);
  EXPECT_GE(objects[2]["test_accuracy"].get<double>(), 0);
  EXPECT_GT(objects[2]["samples_per_s"].get<double>(), 0);
  EXPECT_EQ(objects[2]["checkpoint"], "");
  EXPECT_FALSE(objects[2].contains("interrupted"));
}

TEST_F(TrainerProgramTest, EveryOptimizerTrains) {
  for (const char* name : {"sgd", "adamw", "adagrad", "ftrl", "rmsprop",
                           "adadelta", "lion", "lamb", "rowwise_adagrad"}) {
    const auto trainer =
        Start(Alone({absl::StrCat("--optimizer=", name), "--clip-value=0.5",
                     "--clip-norm=1", "--loss-every=4"}));
    ASSERT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
    EXPECT_THAT(Objects(trainer->output()), SizeIs(2)) << name;
  }
}

TEST_F(TrainerProgramTest, CheckpointOfAnotherOptimizerIsRefused) {
  const std::string saved = "--checkpoint-dir=" + dir_.Path("saved");
  auto trainer = Start(Alone({saved}));
  ASSERT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  // Its slots have the names of adam's.
  trainer = Start(Alone({saved, "--resume", "--optimizer=lamb"}));
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(trainer->output(),
              HasSubstr("--optimizer is adam there and lamb now"));
}

TEST_F(TrainerProgramTest, LossEveryZeroWritesNoLoss) {
  const auto trainer = Start(Alone({"--loss-every=0"}));
  ASSERT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  EXPECT_THAT(Objects(trainer->output()), SizeIs(1));
}

TEST_F(TrainerProgramTest, RestartedTrainerResumesByItself) {
  const std::string saved = "--checkpoint-dir=" + dir_.Path("saved");
  auto trainer = Start(Alone({saved}));
  ASSERT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  ASSERT_THAT(Checkpoints(), SizeIs(1));
  // Started by hand it does not touch the checkpoints of a former run.
  trainer = Start(Alone({saved, "--epochs=2"}));
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(trainer->output(), HasSubstr("found 1 of a former run"));
  ASSERT_THAT(Checkpoints(), SizeIs(1));
  trainer =
      Start(Alone({saved, "--epochs=2"}), {"TORCHELASTIC_RESTART_COUNT=1"});
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("resuming"));
  EXPECT_THAT(Checkpoints(), SizeIs(2));
}

TEST_F(TrainerProgramTest, MissingDataIsConfigurationAndNamesTheFile) {
  const auto trainer = Start(Alone({"--data=" + dir_.Path("nowhere")}));
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(trainer->output(),
              HasSubstr(dir_.Path("nowhere/train-images-idx3-ubyte")));
}

TEST_F(TrainerProgramTest, CheckpointDirThatIsAFileIsConfiguration) {
  std::ofstream(dir_.Path("file")) << "mine";
  const auto trainer =
      Start(Alone({"--checkpoint-dir=" + dir_.Path("file/dir")}));
  EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(trainer->output(), HasSubstr("wanted a directory to write in"));
}

std::vector<std::string> SocketsIn(const std::string& directory) {
  std::vector<std::string> found;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_socket()) found.push_back(entry.path());
  }
  return found;
}

// Trainer 1, of this process, joins the job and then takes its time.
TEST_F(TrainerProgramTest, SignalWhileTheTrainersMeetLeavesNoSocketBehind) {
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1), 0);
  for (const bool is_at_group : {false, true}) {
    const auto trainer =
        Start({"--strategy=ddp", "--trainers=2", "--rank=0",
               "--data=" + dir_.Path("images"), "--dump-dir=" + dir_.path()});
    worker::Options options;
    options.role = "trainer";
    options.rank = 1;
    options.trainers = 2;
    options.join_timeout = kLong;
    auto other = worker::Worker::Start(options);
    ASSERT_THAT(other, IsOk()) << trainer->output();
    rendezvous::Membership& members = (*other)->membership();
    const auto settings =
        members.store().Wait("trainers/settings/trainer0", 0, kLong);
    ASSERT_THAT(settings, IsOk()) << trainer->output();
    if (is_at_group) {
      const std::string same =
          settings->value.substr(settings->value.find('\n'));
      ASSERT_THAT(
          members.store()
              .Set("trainers/settings/trainer1",
                   absl::StrCat((*other)->self().incarnation, same), kLong)
              .status(),
          IsOk());
      worker::GroupBackend backend;
      backend.name = "auto";  // --backend
      const auto cards = members.AllGather(
          "join_group/trainer/world",
          absl::StrCat((*other)->self().key.id, " ", (*other)->self().key.epoch,
                       " nonce ", Encode(worker::OfferOf(backend, ""))),
          {"trainer0", "trainer1"}, kLong);
      ASSERT_THAT(cards, IsOk()) << trainer->output();
      const std::vector<std::string> card =
          absl::StrSplit(cards->at("trainer0"), ' ');
      ASSERT_GE(card.size(), 3);
      const std::string& nonce = card[2];
      ASSERT_THAT(members.store()
                      .Wait(absl::StrCat("collectives/trainer/world#", nonce,
                                         "/place/0"),
                            0, kLong)
                      .status(),
                  IsOk())
          << trainer->output();
    }
    trainer->Signal(SIGTERM);
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(128 + SIGTERM));
    EXPECT_THAT(trainer->output(),
                HasSubstr("asked to stop while the trainers met"));
    other->reset();
    EXPECT_THAT(SocketsIn(dir_.path()), ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace weft::launch
