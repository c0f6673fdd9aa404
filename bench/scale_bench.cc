// scale_bench: what a job of many workers on one host costs, and how each cost
// grows with their number.
//
//   scale_bench                          2, 4, ..., 64 workers
//   scale_bench --workers=8,16,32 --idle=5 --tcp
//
// Each worker is a process of its own; all start at once. A row for each number
// of workers, then the exponent of growth of each column between the last two
// rows: 1 is proportional to the number of workers, 2 to the number of pairs.
// Times are seconds, of the slowest worker, between barriers of the membership:
//
//   start      processes started, all workers joined (Worker::Start)
//   calls      every worker has called every other for the first time
//   per_call_ms  CPU of both ends of one of them, milliseconds
//   again      the same once more, over connections that are there
//   meet       a process group of all (JoinGroup)
//   barrier, reduce_4, reduce_1m   one group operation: of 4 bytes, of 1 MiB
//   end        Worker::Shutdown
//   memory_mb  of one worker, private and its share of shared memory
//   per_pair_kb  what the connections of `calls` cost for each pair
//   idle_ms_s  CPU of one idle worker, milliseconds for each second

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/collectives/process_group.h"
#include "weft/rendezvous/world.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

extern char** environ;

namespace weft::bench {

int64_t NextNumber(int64_t number) { return number + 1; }
WEFT_RPC(NextNumber);

namespace {

struct Options {
  std::vector<int> workers = {2, 4, 8, 16, 32, 64};
  double idle_seconds = 3;
  double timeout_seconds = 300;  // of one number of workers
  int64_t arena_mib = 0;         // 0: the default of JoinGroup
  bool tcp = false;
  bool group = true;
  // This program sets these for each worker that it starts.
  int rank = -1;
  int size = 0;
  double started = 0;
  std::string directory;
  std::string self;
};

constexpr const char* kColumns[] = {"start",     "calls",       "per_call_ms",
                                    "again",     "meet",        "barrier",
                                    "reduce_4",  "reduce_1m",   "end",
                                    "memory_mb", "per_pair_kb", "idle_ms_s"};

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) +
           1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Private memory and this process's share of what it has mapped with others.
double MemoryKb() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "Pss:")) return std::atof(line.c_str() + 4);
  }
  return 0;
}

// ------------------------------------------------------------------ a worker

class Rank {
 public:
  explicit Rank(const Options& options) : options_(options) {}

  void Run() {
    Start();
    const double alone_kb = MemoryKb();
    const double alone_cpu = CpuSeconds();
    Measure("calls", [&] { CallAll(); });
    const double pairs = std::max(1, options_.size - 1);
    // As many calls come as are made.
    figures_["per_call_ms"] = 1e3 * (CpuSeconds() - alone_cpu) / pairs;
    // Both ends of a connection count their half of it.
    figures_["per_pair_kb"] = 2 * (MemoryKb() - alone_kb) / pairs;
    Measure("again", [&] { CallAll(); });
    if (options_.group) MeasureGroup();
    figures_["memory_mb"] = MemoryKb() / 1024;
    MeasureIdle();
    group_ = nullptr;
    AwaitAll();
    const double before = Now();
    const worker::ShutdownReport report = worker_->Shutdown();
    WEFT_CHECK(report.status().ok()) << report.status().ToString();
    figures_["end"] = Now() - before;
    worker_ = nullptr;
    Write();
  }

 private:
  void Start() {
    worker::Options options;
    options.job = "scale";
    options.rank = options_.rank;
    options.trainers = options_.size;
    options.ranks_on_host = options_.size;
    options.log_level = telemetry::Level::kError;
    if (options_.tcp) {
      options.insecure = true;
      options.init = absl::StrCat("file://", options_.directory, "/meet");
      options.listen = "127.0.0.1:0";
    } else {
      options.coordinator = absl::StrCat("unix:", options_.directory, "/c");
    }
    WEFT_CHECK(options.Resolve().ok()) << options.Resolve().ToString();
    auto worker = worker::Worker::Start(std::move(options));
    WEFT_CHECK(worker.ok()) << worker.status().ToString();
    worker_ = *std::move(worker);
    figures_["start"] = Now() - options_.started;
  }

  void CallAll() {
    std::vector<Future<int64_t>> results;
    for (int i = 1; i < options_.size; ++i) {
      const int rank = (options_.rank + i) % options_.size;
      results.push_back(
          rpc::CallAsync(worker_->agent().To(absl::StrCat("trainer", rank),
                                             absl::Seconds(120)),
                         NextNumber, int64_t{rank}));
    }
    for (int i = 1; i < options_.size; ++i) {
      const int64_t rank = (options_.rank + i) % options_.size;
      const absl::StatusOr<int64_t> result =
          results[i - 1].Wait(absl::Seconds(120));
      WEFT_CHECK(result.ok()) << result.status().ToString();
      WEFT_CHECK_EQ(*result, rank + 1);
    }
  }

  void MeasureGroup() {
    Measure("meet", [&] {
      worker::JoinGroupOptions options;
      if (options_.arena_mib > 0)
        options.arena_bytes = options_.arena_mib << 20;
      auto group = worker::JoinGroup(*worker_, options);
      WEFT_CHECK(group.ok()) << group.status().ToString();
      group_ = *std::move(group);
    });
    MeasureOperation("barrier", [&] { return group_->Barrier(); });
    Tensor small = Tensor::Zeros({1}, DType::kF32);
    MeasureOperation("reduce_4", [&] { return group_->AllReduce(small); });
    Tensor large = group_->Allocate({(1 << 20) / 4}, DType::kF32).value();
    large.Fill(1);
    WEFT_CHECK(group_->AllReduce(large).ok());
    WEFT_CHECK_EQ(large.data<float>()[0], static_cast<float>(options_.size));
    large.Fill(0);
    MeasureOperation("reduce_1m", [&] { return group_->AllReduce(large); });
  }

  void MeasureIdle() {
    AwaitAll();
    const double cpu = CpuSeconds();
    absl::SleepFor(absl::Seconds(options_.idle_seconds));
    if (options_.idle_seconds > 0) {
      figures_["idle_ms_s"] =
          1e3 * (CpuSeconds() - cpu) / options_.idle_seconds;
    }
  }

  template <typename F>
  void Measure(const std::string& name, const F& what) {
    AwaitAll();
    const double before = Now();
    what();
    AwaitAll();
    figures_[name] = Now() - before;
  }

  template <typename F>
  void MeasureOperation(const std::string& name, const F& what) {
    constexpr int kRounds = 10;
    Measure(name, [&] {
      for (int i = 0; i < kRounds; ++i) {
        const absl::Status status = what();
        WEFT_CHECK(status.ok()) << status.ToString();
      }
    });
    figures_[name] /= kRounds;
  }

  void AwaitAll() {
    const absl::Status met =
        worker_->AwaitAll(absl::StrCat("scale", ++barriers_), absl::Minutes(2));
    WEFT_CHECK(met.ok()) << met.ToString();
  }

  void Write() const {
    std::ofstream file(
        absl::StrCat(options_.directory, "/figures", options_.rank));
    for (const auto& [name, value] : figures_)
      file << name << ' ' << value << '\n';
  }

  const Options& options_;
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<collectives::ProcessGroup> group_;
  Figures figures_;
  int barriers_ = 0;
};

// ---------------------------------------------------------- the main process

pid_t Spawn(const Options& options, const std::string& directory, int size,
            int rank, double started) {
  std::vector<std::string> words = {
      options.self,
      absl::StrCat("--rank=", rank),
      absl::StrCat("--size=", size),
      absl::StrCat("--directory=", directory),
      "--started=" + std::to_string(started),
      absl::StrCat("--idle=", options.idle_seconds),
      absl::StrCat("--arena-mib=", options.arena_mib)};
  if (options.tcp) words.push_back("--tcp");
  if (!options.group) words.push_back("--no-group");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  WEFT_CHECK_EQ(posix_spawn(&pid, options.self.c_str(), nullptr, nullptr,
                            arguments.data(), environ),
                0);
  return pid;
}

// False once one has failed, or all have not ended in time; then none is left.
bool AwaitProcesses(std::vector<pid_t> pids, double timeout_seconds) {
  const double deadline = Now() + timeout_seconds;
  bool good = true;
  while (!pids.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      pids.erase(std::remove(pids.begin(), pids.end(), ended), pids.end());
    } else {
      absl::SleepFor(absl::Milliseconds(2));
    }
    if (!good || Now() > deadline) {
      for (const pid_t pid : pids) kill(pid, SIGKILL);
      for (const pid_t pid : pids) waitpid(pid, &status, 0);
      return false;
    }
  }
  return true;
}

// Times and CPU of the slowest worker, memory of the mean.
std::optional<Figures> RunWorkers(const Options& options, int size) {
  ScratchDirectory scratch;
  const std::string& directory = scratch.path();
  chmod(directory.c_str(), 0700);
  const double started = Now();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    pids.push_back(Spawn(options, directory, size, rank, started));
  }
  if (!AwaitProcesses(pids, options.timeout_seconds)) return std::nullopt;
  Figures all;
  for (int rank = 0; rank < size; ++rank) {
    std::ifstream file(absl::StrCat(directory, "/figures", rank));
    std::string name;
    double value = 0;
    while (file >> name >> value) {
      if (absl::StartsWith(name, "memory") || absl::StartsWith(name, "per_") ||
          absl::StartsWith(name, "idle")) {
        all[name] += value / size;
      } else {
        all[name] = std::max(all[name], value);
      }
    }
  }
  return all;
}

void PrintRow(const std::string& title, const Figures& figures) {
  std::printf("%-9s", title.c_str());
  for (const char* column : kColumns) {
    const auto value = Find(figures, column);
    if (value.has_value()) {
      std::printf(" %11.5g", *value);
    } else {
      std::printf(" %11s", "-");
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

// What so many workers take, about: 9 MiB each, and 105 KiB of each for each
// other one (docs/performance.md, "Many workers").
int64_t MemoryMib(int64_t workers) {
  return workers * 9 + workers * workers / 10;
}

int64_t AvailableMib() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "MemAvailable:")) {
      return std::atoll(line.c_str() + 13) >> 10;
    }
  }
  return std::numeric_limits<int64_t>::max();
}

bool HasRoomFor(int workers) {
  const int64_t wanted = MemoryMib(workers);
  const int64_t found = AvailableMib();
  if (wanted <= found) return true;
  std::fprintf(stderr,
               "scale_bench: %d workers take about %lld MiB of memory, this "
               "host has %lld: give fewer by --workers\n",
               workers, static_cast<long long>(wanted),
               static_cast<long long>(found));
  return false;
}

// Checks that a flag is from `least` to a day. CLI::Range lets nan pass.
CLI::Validator SecondsFrom(double least) {
  return CLI::Validator(
      [least](std::string& text) -> std::string {
        double seconds = 0;
        if (absl::SimpleAtod(text, &seconds) && seconds >= least &&
            seconds <= 86400) {
          return "";
        }
        return absl::StrCat("wanted from ", least, " to 86400 s, found ", text);
      },
      "SECONDS");
}

int Main(const Options& options) {
  for (const int size : options.workers) {
    if (!HasRoomFor(size)) return 1;
  }
  std::printf("%-9s", "workers");
  for (const char* column : kColumns) std::printf(" %11s", column);
  std::printf("\n");
  std::vector<std::pair<int, Figures>> rows;
  for (const int size : options.workers) {
    const std::optional<Figures> row = RunWorkers(options, size);
    if (!row.has_value()) {
      std::fprintf(stderr, "scale_bench: %d workers failed\n", size);
      return 1;
    }
    PrintRow(absl::StrCat(size), *row);
    rows.emplace_back(size, *row);
  }
  if (rows.size() < 2 || rows[rows.size() - 2].first == rows.back().first) {
    return 0;
  }
  const auto& [small, before] = rows[rows.size() - 2];
  const auto& [large, after] = rows.back();
  Figures exponents;
  for (const auto& [name, value] : after) {
    const auto first = Find(before, name);
    if (!first.has_value() || *first <= 0 || value <= 0) continue;
    exponents[name] =
        std::log(value / *first) / std::log(static_cast<double>(large) / small);
  }
  PrintRow("exponent", exponents);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Options options;
  CLI::App app{"costs of a job of many workers on one host"};
  app.add_option("--workers", options.workers, "numbers of workers")
      ->delimiter(',')
      ->check(CLI::Range(1, weft::rendezvous::kMaxWorkers));
  app.add_option("--idle", options.idle_seconds, "seconds of the idle phase")
      ->check(weft::bench::SecondsFrom(0));
  app.add_option("--timeout", options.timeout_seconds,
                 "seconds for each number of workers")
      ->check(weft::bench::SecondsFrom(1));
  app.add_option("--arena-mib", options.arena_mib,
                 "of each rank of the group; 0: as JoinGroup")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--tcp", options.tcp, "at TCP addresses");
  app.add_flag("!--no-group", options.group, "calls alone");
  app.add_option("--rank", options.rank)->group("");
  app.add_option("--size", options.size)->group("");
  app.add_option("--started", options.started)->group("");
  app.add_option("--directory", options.directory)->group("");
  CLI11_PARSE(app, argc, argv);
  options.self = "/proc/self/exe";
  if (options.rank < 0) return weft::bench::Main(options);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  weft::bench::Rank(options).Run();
  return 0;
}
