#include "weft/tests/job/job.h"

#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/check.h"
#include "weft/tests/support/idx_images.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

void Append(const Flags& more, Flags& flags) {
  flags.insert(flags.end(), more.begin(), more.end());
}

}  // namespace

Job::Job() {
  coordinator = "unix:" + Path("ps0.sock");
  data = Path("images");
  std::filesystem::create_directory(data);
  WriteIdxImages(data + "/train", kTrainImages);
  WriteIdxImages(data + "/t10k", 100);
}

Flags Job::Command(const std::string& program, int rank) const {
  Flags command = {Program(program),
                   absl::StrCat("--rank=", rank),
                   absl::StrCat("--servers=", servers),
                   absl::StrCat("--trainers=", trainers),
                   absl::StrCat("--job=", name),
                   absl::StrCat("--coordinator=", coordinator),
                   absl::StrCat("--dump-dir=", Path(""))};
  Append(flags, command);
  return command;
}

Flags Job::ServerCommand(int rank, const Flags& more) const {
  Flags command = Command("parameter_server", rank);
  Append({"--checkpoint-dir=" + Path("")}, command);
  Append(more, command);
  return command;
}

Flags Job::TrainerCommand(int rank, const Flags& more) const {
  Flags command = Command("trainer", rank);
  Append({"--data=" + data, absl::StrCat("--batch-size=", kBatch), "--lr=0.01",
          "--json"},
         command);
  Append(more, command);
  return command;
}

std::unique_ptr<Process> Job::StartServer(int rank, const Flags& more) const {
  return StartProcess(ServerCommand(rank, more));
}

std::unique_ptr<Process> Job::StartTrainer(int rank, const Flags& more) const {
  return StartProcess(TrainerCommand(rank, more));
}

Processes Job::StartServers(const Flags& more) const {
  Processes all;
  for (int i = 0; i < servers; ++i) all.push_back(StartServer(i, more));
  return all;
}

Processes Job::StartTrainers(const Flags& more) const {
  Processes all;
  for (int i = 0; i < trainers; ++i) all.push_back(StartTrainer(i, more));
  return all;
}

TrainerResult Job::Train(const Flags& trainer_flags) const {
  const Processes holding = StartServers();
  const Processes training = StartTrainers(trainer_flags);
  for (const auto& p : training) {
    EXPECT_THAT(p->Wait(kLong), IsOkAndHolds(0)) << p->output();
  }
  for (const auto& p : holding) {
    EXPECT_THAT(p->Wait(kLong), IsOkAndHolds(0)) << p->output();
  }
  return ResultOf(*training[0]);
}

std::unique_ptr<Process> StartProcess(Flags argv) {
  // Several share the cores: one thread each is enough for images this small.
  auto process = Process::Start({std::move(argv), {"OMP_NUM_THREADS=1"}});
  WEFT_CHECK(process.ok()) << process.status();
  return *std::move(process);
}

pid_t FindWorker(const Process& run, const std::string& role, int rank) {
  std::ifstream children(
      absl::StrCat("/proc/", run.pid(), "/task/", run.pid(), "/children"));
  const std::string name = absl::StrCat("/", role, rank, "/");
  pid_t pid = 0;
  while (children >> pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
    std::string variable;
    while (std::getline(file, variable, '\0')) {
      if (absl::StartsWith(variable, "LAUNCHED_BY_WEFT_RUN=") &&
          absl::StrContains(variable, name)) {
        return pid;
      }
    }
  }
  return -1;
}

void KillWorker(const Process& run, const std::string& role, int rank) {
  const pid_t pid = FindWorker(run, role, rank);
  ASSERT_GT(pid, 0) << role << rank << run.output();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Becomes([&] {
    const pid_t next = FindWorker(run, role, rank);
    return next > 0 && next != pid;
  })) << role
      << rank << run.output();
}

void AwaitBack(const Process& run, const std::string& trainer, int times) {
  const auto is_back = [&] {
    const std::string output = run.output();
    size_t at = 0;
    for (int i = 0; i < times; ++i) {
      at = output.find(absl::StrCat("weft: ", trainer, " has ended"), at);
      if (at++ == output.npos) return false;
    }
    return output.find(absl::StrCat(trainer, " taking part "), at) !=
           output.npos;
  };
  ASSERT_TRUE(Becomes(is_back)) << trainer << "\n" << run.output();
}

std::string Program(const std::string& name) {
  return RunfilePath("launch/" + name);
}

TrainerResult ResultOf(const Process& trainer) {
  const std::string output = trainer.output();
  std::string last;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::StartsWith(line, "{\"test_accuracy\"")) last = std::string(line);
  }
  TrainerResult result;
  const auto object =
      nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
  const bool is_interrupted =
      object.is_object() && object.value("interrupted", false);
  if (!object.is_object() || object.size() != (is_interrupted ? 4 : 3) ||
      !object.contains("test_accuracy") || !object.contains("samples_per_s") ||
      !object.contains("checkpoint")) {
    ADD_FAILURE() << "there is no result: " << output;
    return result;
  }
  result.test_accuracy = object["test_accuracy"].get<double>();
  result.samples_per_s = object["samples_per_s"].get<double>();
  result.checkpoint = object["checkpoint"].get<std::string>();
  result.is_interrupted = is_interrupted;
  return result;
}

int FreePort() {
  // Below those that Linux gives to whoever asks for any: another program would
  // get this one before it is used, or while who has it is started again.
  constexpr int kLowest = 10000, kBeyond = 32000;
  std::random_device random;
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kLowest + static_cast<int>(random() % (kBeyond - kLowest));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    WEFT_CHECK(fd >= 0) << strerror(errno);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const auto* const general = reinterpret_cast<const sockaddr*>(&address);
    const bool is_free = bind(fd, general, sizeof(address)) == 0;
    close(fd);
    if (is_free) return port;
  }
  WEFT_CHECK(false) << "no port from " << kLowest << " on is free";
  return -1;
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.flush();
  EXPECT_TRUE(file.good()) << path;
}

std::vector<std::string> Checkpoints(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code none_yet;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, none_yet)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "ckpt-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int64_t StepOf(const std::string& checkpoint) {
  int64_t step = -1;
  EXPECT_TRUE(
      absl::SimpleAtoi(checkpoint.substr(checkpoint.rfind('-') + 1), &step))
      << checkpoint;
  return step;
}

std::string Epochs::flag() const { return absl::StrCat("--epochs=", count); }

Epochs WholeEpochs(const std::string& directory, int64_t steps_of_epoch) {
  Epochs newest;
  for (const std::string& name : Checkpoints(directory)) {
    const int64_t step = StepOf(name);
    if (step % steps_of_epoch != 0) continue;
    newest.count = static_cast<int>(step / steps_of_epoch);
    newest.checkpoint = absl::StrCat(directory, "/", name);
  }
  return newest;
}

void AwaitWholeEpoch(const Process& job, const std::string& directory,
                     int64_t steps_of_epoch) {
  const auto count = [&] {
    return WholeEpochs(directory, steps_of_epoch).count;
  };
  // The next epoch may have begun.
  const int wanted = count() + 2;
  ASSERT_TRUE(Becomes([&] { return count() >= wanted; }))
      << "of epoch " << wanted << "\n"
      << job.output();
}

void Stop(Process& job) {
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << job.output();
}

}  // namespace weft::testing
