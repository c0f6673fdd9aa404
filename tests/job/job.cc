#include "weft/tests/job/job.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/check.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

constexpr int kSide = 8;
constexpr int kClasses = 10;

std::string BigEndian(int64_t word) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(word >> shift & 0xff));
  }
  return bytes;
}

// The next of a sequence that is the same on every machine.
uint32_t Draw(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

// Image i is of class i mod 10: half of the pixels, the class says which, are
// bright, and all of them are noisy.
void WriteSet(const std::string& stem, int64_t images) {
  std::string pixels =
      absl::StrCat(absl::string_view("\0\0\x08\x03", 4), BigEndian(images),
                   BigEndian(kSide), BigEndian(kSide));
  std::string labels =
      absl::StrCat(absl::string_view("\0\0\x08\x01", 4), BigEndian(images));
  uint32_t noise = static_cast<uint32_t>(images);
  for (int64_t i = 0; i < images; ++i) {
    const int label = static_cast<int>(i % kClasses);
    uint32_t pattern = 77u * (label + 1);
    for (int p = 0; p < kSide * kSide; ++p) {
      const bool is_bright = Draw(pattern) % 2 == 0;
      pixels.push_back(
          static_cast<char>((is_bright ? 150 : 30) + Draw(noise) % 70));
    }
    labels.push_back(static_cast<char>(label));
  }
  WriteBytes(absl::StrCat(stem, "-images-idx3-ubyte"), pixels);
  WriteBytes(absl::StrCat(stem, "-labels-idx1-ubyte"), labels);
}

void Append(const Flags& more, Flags& flags) {
  flags.insert(flags.end(), more.begin(), more.end());
}

}  // namespace

Job::Job() {
  coordinator = "unix:" + Path("ps0.sock");
  data = Path("images");
  std::filesystem::create_directory(data);
  WriteSet(data + "/train", kTrainImages);
  WriteSet(data + "/t10k", 100);
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
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* general = reinterpret_cast<sockaddr*>(&address);
  WEFT_CHECK(fd >= 0 && bind(fd, general, size) == 0 &&
             getsockname(fd, general, &size) == 0)
      << strerror(errno);
  close(fd);
  return ntohs(address.sin_port);
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

}  // namespace weft::testing
