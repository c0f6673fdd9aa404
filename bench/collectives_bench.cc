// collectives_bench: what collective operations cost between processes of one
// host, beside PyTorch's gloo and MPI.
//
//   collectives_bench                 figures: min, p50, p99 of microseconds
//   collectives_bench --goals         rows, as bench/goals.h says: C1 to C6
//   collectives_bench --goals=C4 --seconds=0.5
//
// Each rank is a process of its own. A result is checked before it is timed.
// The time is that of rank 0.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/rivals.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/rendezvous/file_store.h"

namespace weft::bench {
namespace {

struct Options {
  double seconds = 0.3;  // for each case
  bool through_slots = false;
};

struct Case {
  std::string verb;  // all_reduce, broadcast, all_gather, barrier
  DType dtype = DType::kF32;
  bool in_arena = false;
  int64_t bytes = 0;  // of each rank

  std::string Name() const {
    return absl::StrCat(verb, "_", weft::Name(dtype), "_",
                        in_arena ? "arena" : "private", "_", bytes);
  }
};

struct Figures {
  double min_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double cpu_seconds_per_gb = 0;
};

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) +
           1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// One case on one rank.
class Runner {
 public:
  Runner(collectives::ProcessGroup& group, const Case& what)
      : group_(group), case_(what) {
    const int64_t count = what.bytes / ItemSize(what.dtype);
    tensor_ = Make(count);
    if (what.verb == "all_gather") output_ = Make(count * group.size());
  }

  void Check() {
    tensor_.Fill(1);
    Call();
    const double wanted = case_.verb == "all_reduce" ? group_.size() : 1;
    const Tensor& result = output_.defined() ? output_ : tensor_;
    if (result.numel() == 0) return;
    const Tensor wide = result.To(DType::kF64);
    WEFT_CHECK_EQ(wide.data<double>()[0], wanted);
    WEFT_CHECK_EQ(wide.data<double>()[wide.numel() - 1], wanted);
    tensor_.Fill(0);  // sums stay finite
  }

  void Call() {
    absl::Status status;
    if (case_.verb == "all_reduce") {
      status = group_.AllReduce(tensor_);
    } else if (case_.verb == "broadcast") {
      status = group_.Broadcast(tensor_, 0);
    } else if (case_.verb == "all_gather") {
      status = group_.AllGather(tensor_, output_);
    } else {
      status = group_.Barrier();
    }
    WEFT_CHECK(status.ok()) << status.ToString();
  }

  Figures Measure(double seconds) {
    for (int i = 0; i < 3; ++i) Call();
    const double before = Now();
    Call();
    const double one = std::max(Now() - before, 1e-6);
    const Tensor rounds = Tensor::Scalar<int64_t>(
        std::clamp<int64_t>(static_cast<int64_t>(seconds / one), 5, 5000));
    WEFT_CHECK(group_.Broadcast(rounds, 0).ok());
    std::vector<double> times(rounds.item<int64_t>());
    const double cpu = CpuSeconds();
    for (double& time : times) {
      const double begin = Now();
      Call();
      time = (Now() - begin) * 1e6;
    }
    const double used = CpuSeconds() - cpu;
    std::sort(times.begin(), times.end());
    const double gigabytes =
        1e-9 * static_cast<double>(case_.bytes) * times.size();
    return {times[0], times[times.size() / 2], times[times.size() * 99 / 100],
            gigabytes > 0 ? used / gigabytes : 0};
  }

 private:
  Tensor Make(int64_t count) {
    if (!case_.in_arena) return Tensor::Zeros({count}, case_.dtype);
    auto tensor = group_.Allocate({count}, case_.dtype);
    WEFT_CHECK(tensor.ok()) << tensor.status().ToString();
    tensor->Fill(0);
    return *std::move(tensor);
  }

  collectives::ProcessGroup& group_;
  const Case case_;
  Tensor tensor_;
  Tensor output_;
};

// The part of one rank; rank 0 writes a line for each case to `out`.
int RunRank(const std::string& directory, int rank, int ranks,
            const std::vector<Case>& cases, const Options& options, FILE* out) {
  auto store = rendezvous::OpenFileStore({directory + "/store", "bench"});
  WEFT_CHECK(store.ok()) << store.status().ToString();
  collectives::HostOptions host;
  host.store = store->get();
  host.rank = rank;
  host.size = ranks;
  host.directory = directory;
  if (options.through_slots) {
    host.least_read_bytes = std::numeric_limits<int64_t>::max();
  }
  for (const Case& one : cases) {
    if (!one.in_arena) continue;
    const int64_t tensors = one.verb == "all_gather" ? ranks + 1 : 1;
    host.arena_bytes = std::max(host.arena_bytes, tensors * (one.bytes + 4096));
  }
  auto backend = collectives::ConnectHost(host);
  WEFT_CHECK(backend.ok()) << backend.status().ToString();
  const auto group = collectives::ProcessGroup::Create(*std::move(backend));
  for (const Case& one : cases) {
    Runner runner(*group, one);
    runner.Check();
    const Figures found = runner.Measure(options.seconds);
    if (rank != 0) continue;
    fprintf(out, "%s %g %g %g %g\n", one.Name().c_str(), found.min_us,
            found.p50_us, found.p99_us, found.cpu_seconds_per_gb);
    fflush(out);
  }
  WEFT_CHECK(group->Barrier().ok());
  return 0;
}

using Results = std::map<std::string, Figures>;

Results RunWeft(int ranks, const std::vector<Case>& cases,
                const Options& options) {
  char directory[] = "/tmp/weft-bench-XXXXXX";
  WEFT_CHECK(mkdtemp(directory) != nullptr);
  int ends[2];
  WEFT_CHECK_EQ(pipe(ends), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      _exit(RunRank(directory, rank, ranks, cases, options,
                    fdopen(ends[1], "w")));
    }
    children.push_back(pid);
  }
  close(ends[1]);
  Results results;
  FILE* in = fdopen(ends[0], "r");
  char name[128];
  Figures figures;
  while (fscanf(in, "%127s %lg %lg %lg %lg", name, &figures.min_us,
                &figures.p50_us, &figures.p99_us,
                &figures.cpu_seconds_per_gb) == 5) {
    results[name] = figures;
  }
  fclose(in);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    WEFT_CHECK_EQ(status, 0);
  }
  unlink(absl::StrCat(directory, "/store").c_str());
  rmdir(directory);
  return results;
}

// --- Rivals. -----------------------------------------------------------------

struct Rival {
  std::string name;
  std::string version;
  std::map<std::string, double> values;

  std::optional<double> Of(const std::string& key) const {
    const auto it = values.find(key);
    if (it == values.end()) return std::nullopt;
    return it->second;
  }
};

Rival RunRival(std::string name, const std::string& command) {
  Rival rival;
  rival.name = std::move(name);
  if (command.empty()) return rival;
  FILE* in = popen(command.c_str(), "r");
  if (in == nullptr) return rival;
  char line[256];
  while (fgets(line, sizeof line, in) != nullptr) {
    const std::vector<std::string> parts =
        absl::StrSplit(absl::StripSuffix(line, "\n"), '\t');
    if (parts.size() != 2) continue;
    if (parts[0] == "version") {
      rival.version = parts[1];
    } else {
      rival.values[parts[0]] = atof(parts[1].c_str());
    }
  }
  pclose(in);
  return rival;
}

std::string SizesOf(const std::vector<int64_t>& sizes) {
  return absl::StrJoin(sizes, " ");
}

std::string GlooCommand(int ranks, const Options& options,
                        const std::vector<int64_t>& sizes) {
  if (!HasPythonModule("torch", "PyTorch gloo")) return "";
  return absl::StrCat("/usr/bin/python3 ", ScriptPath("torch_collectives.py"),
                      " ", ranks, " ", options.seconds, " ", SizesOf(sizes),
                      " 2>/dev/null");
}

// Compiled by MPI's own compiler, beside the system's temporary files.
std::string MpiCommand(int ranks, const Options& options,
                       const std::vector<int64_t>& sizes) {
  const std::string program = absl::StrCat("/tmp/weft-bench-mpi-", getpid());
  const std::string compile =
      absl::StrCat("mpicc -O2 -o ", program, " ",
                   ScriptPath("mpi_collectives.c"), " 2>/dev/null");
  if (system(compile.c_str()) != 0) {
    fprintf(stderr,
            "bench: the rival MPI is absent, so that its rows have no peer: "
            "there is no mpicc. To get it: tools/setup.sh --bench\n");
    return "";
  }
  return absl::StrCat("mpirun --allow-run-as-root --oversubscribe -n ", ranks,
                      " ", program, " ", options.seconds, " ", SizesOf(sizes),
                      " 2>/dev/null; rm -f ", program);
}

// --- Goals. ------------------------------------------------------------------

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

struct Goal {
  std::string name;
  std::vector<Case> cases;
  // Times by which it must, and should, be better than the rival; 0: no goal.
  double mpi_must, mpi_aim_private, mpi_aim_arena;
  double gloo_must, gloo_aim;
};

std::vector<Case> BothMemories(const std::string& verb, int64_t bytes) {
  return {{verb, DType::kF32, false, bytes}, {verb, DType::kF32, true, bytes}};
}

// Source: performance goals C1 to C6 of the project.
std::vector<Goal> Goals(int ranks) {
  const bool is_two = ranks == 2;
  std::vector<Case> others = {{"barrier", DType::kF32, false, 0}};
  for (const char* verb : {"broadcast", "all_gather"}) {
    for (const int64_t bytes : {kKiB, 16 * kMiB}) {
      others.push_back({verb, DType::kF32, false, bytes});
    }
  }
  return {
      {"C1", BothMemories("all_reduce", kKiB), 1 / 3.0, is_two ? 1 / 1.5 : 1,
       is_two ? 1 / 1.5 : 1, 30, 30},
      {"C2", BothMemories("all_reduce", 64 * kKiB), 1, 1.5, 5, 0, 0},
      {"C3", BothMemories("all_reduce", kMiB), 1 / 1.1, 1.05, 4, 0, 0},
      {"C4", BothMemories("all_reduce", 16 * kMiB), 1 / 1.05,
       is_two ? 1.1 : 1.3, is_two ? 2.3 : 3.5, 4, 4},
      {"C5", BothMemories("all_reduce", 64 * kMiB), 1.5, 1.8, 5, 2, 2},
      {"C6", others, 1 / 1.2, 1 / 1.2, 1 / 1.2, 2, 2},
  };
}

void AddRow(GoalReport& report, const Goal& goal, const Case& one, int ranks,
            const Figures& weft, const Rival& rival, double must, double aim) {
  if (must == 0) return;
  const std::string key = one.verb == "barrier"
                              ? "barrier_us"
                              : absl::StrCat(one.verb, "_", one.bytes, "_us");
  GoalCase row;
  row.goal = goal.name;
  row.name = absl::StrCat(one.Name(), ", ", ranks, " ranks, ", rival.name);
  row.higher_is_better = false;
  row.weft = weft.p50_us;
  row.peer = rival.Of(key);
  row.peer_name = rival.name;
  row.peer_version = rival.version;
  // Small operations of C6 are compared as those of C1.
  const bool is_small = goal.name == "C6" && one.bytes <= kKiB;
  row.must = is_small ? (rival.name == "MPI" ? 1 / 3.0 : 30) : must;
  row.aim = is_small ? (rival.name == "MPI" ? 1 / 1.2 : 30) : aim;
  report.Add(row);
}

void MeasureGoals(GoalReport& report, const Options& options) {
  for (const int ranks : {2, 4}) {
    for (const Goal& goal : Goals(ranks)) {
      if (!report.Wants(goal.name)) continue;
      std::vector<int64_t> sizes;
      for (const Case& one : goal.cases) {
        if (one.bytes > 0) sizes.push_back(one.bytes);
      }
      std::sort(sizes.begin(), sizes.end());
      sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
      report.Begin();
      const Results weft = RunWeft(ranks, goal.cases, options);
      const Rival mpi = RunRival("MPI", MpiCommand(ranks, options, sizes));
      const Rival gloo =
          RunRival("PyTorch gloo", GlooCommand(ranks, options, sizes));
      for (const Case& one : goal.cases) {
        const Figures& found = weft.at(one.Name());
        AddRow(report, goal, one, ranks, found, mpi, goal.mpi_must,
               one.in_arena ? goal.mpi_aim_arena : goal.mpi_aim_private);
        AddRow(report, goal, one, ranks, found, gloo, goal.gloo_must,
               goal.gloo_aim);
      }
      report.End();
    }
  }
}

void PrintFigures(const Options& options) {
  std::vector<Case> cases = {{"barrier", DType::kF32, false, 0}};
  for (const int64_t bytes :
       {4 * kKiB, 64 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool in_arena : {false, true}) {
        cases.push_back({"all_reduce", dtype, in_arena, bytes});
      }
    }
  }
  printf("%-40s %6s %10s %10s %10s %10s %8s\n", "case", "ranks", "min us",
         "p50 us", "p99 us", "GB/s", "cpu s/GB");
  for (const int ranks : {2, 4}) {
    const Results results = RunWeft(ranks, cases, options);
    for (const Case& one : cases) {
      const Figures& found = results.at(one.Name());
      printf("%-40s %6d %10.1f %10.1f %10.1f %10.2f %8.2f\n",
             one.Name().c_str(), ranks, found.min_us, found.p50_us,
             found.p99_us, static_cast<double>(one.bytes) / found.p50_us * 1e-3,
             found.cpu_seconds_per_gb);
    }
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Options options;
  std::string goals;
  bool quick = false;
  CLI::App app("What collective operations cost between processes of a host.");
  CLI::Option* wanted =
      app.add_option("--goals", goals, "Prints rows: C1,C4 or all")
          ->expected(0, 1);
  app.add_option("--seconds", options.seconds, "For each case");
  app.add_flag("--through-slots", options.through_slots,
               "Copy private memory in pieces, as where it cannot be read");
  app.add_flag("--quick", quick, "A fifth of the time");
  CLI11_PARSE(app, argc, argv);
  if (quick) options.seconds /= 5;
  if (wanted->count() == 0) {
    weft::bench::PrintFigures(options);
    return 0;
  }
  weft::bench::GoalReport report(
      goals.empty() ? std::vector<std::string>()
                    : std::vector<std::string>(absl::StrSplit(goals, ',')));
  weft::bench::MeasureGoals(report, options);
  report.Finish();
}
