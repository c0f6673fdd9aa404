// collectives_bench: what collective operations cost between processes of one
// host, in shared memory and as between hosts, over gRPC streams, beside
// PyTorch's gloo and MPI.
//
//   collectives_bench                 figures: min, p50, p99 and mean of
//                                     microseconds, CPU seconds per gigabyte,
//                                     how often rank 0 lost or gave away its
//                                     core and faulted a page in an operation,
//                                     and the time until a killed rank is named
//   collectives_bench --only=barrier --ranks=4
//   collectives_bench --goals         rows, as bench/goals.h says: C1 to C7
//   collectives_bench --goals=C4 --seconds=0.5
//
// Each rank is a process of its own. A result is checked before it is timed.
// The time is that of rank 0.

#include <signal.h>
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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/rivals.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/collectives/process_group.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/rendezvous/file_store.h"
#include "weft/transport/grpc_transport.h"

namespace weft::bench {
namespace {

struct Options {
  double seconds = 0.3;  // for each case
  bool through_slots = false;
  std::string only;  // figures of cases whose names contain it
  std::vector<int> ranks = {2, 4};
};

// Where tensors lie, and how ranks reach each other.
enum class Path {
  kPrivate,  // memory of each rank's own, on one host
  kArena,    // shared memory
  kStreams,  // gRPC over TCP without TLS, as the rivals between hosts
};

const char* NameOf(Path path) {
  switch (path) {
    case Path::kPrivate:
      return "private";
    case Path::kArena:
      return "arena";
    case Path::kStreams:
      return "streams";
  }
  return "";
}

struct Case {
  std::string verb;  // all_reduce, broadcast, all_gather, barrier
  DType dtype = DType::kF32;
  Path path = Path::kPrivate;
  int64_t bytes = 0;  // of each rank

  std::string Name() const {
    return absl::StrCat(verb, "_", weft::Name(dtype), "_", NameOf(path), "_",
                        bytes);
  }
};

struct Figures {
  double min_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double mean_us = 0;
  double cpu_seconds_per_gb = 0;
  // These are counted in one operation on rank 0.
  double switches = 0;
  double page_faults = 0;
};

// What this process has used so far.
struct Used {
  Used() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) +
             1e-6 * static_cast<double>(t.tv_usec);
    };
    cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
    switches = static_cast<double>(used.ru_nvcsw + used.ru_nivcsw);
    page_faults = static_cast<double>(used.ru_minflt);
  }
  double cpu_seconds;
  double switches;
  double page_faults;
};

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
    const absl::Status told = group_.Broadcast(rounds, 0);
    WEFT_CHECK(told.ok()) << told.ToString();
    std::vector<double> times(rounds.item<int64_t>());
    const Used before_all;
    for (double& time : times) {
      const double begin = Now();
      Call();
      time = (Now() - begin) * 1e6;
    }
    const Used after_all;
    const double count = static_cast<double>(times.size());
    Figures figures;
    for (const double time : times) figures.mean_us += time / count;
    std::sort(times.begin(), times.end());
    figures.min_us = times[0];
    figures.p50_us = times[times.size() / 2];
    figures.p99_us = times[times.size() * 99 / 100];
    const double gigabytes = 1e-9 * static_cast<double>(case_.bytes) * count;
    if (gigabytes > 0) {
      figures.cpu_seconds_per_gb =
          (after_all.cpu_seconds - before_all.cpu_seconds) / gigabytes;
    }
    figures.switches = (after_all.switches - before_all.switches) / count;
    figures.page_faults =
        (after_all.page_faults - before_all.page_faults) / count;
    return figures;
  }

 private:
  Tensor Make(int64_t count) {
    if (case_.path != Path::kArena) return Tensor::Zeros({count}, case_.dtype);
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

// A process's way to the others over gRPC.
struct StreamEnd {
  explicit StreamEnd(int rank) {
    net::LoopOptions loop_options;
    loop_options.credentials = net::Credentials::Insecure();
    loop = net::Loop::Create(loop_options).value();
    net::EndpointOptions endpoint_options;
    endpoint_options.name = NameOfRank(rank);
    endpoint_options.listen = "127.0.0.1:0";
    endpoint = net::Endpoint::Open(*loop, endpoint_options).value();
    transport = transport::MakeGrpcTransport(*loop, *endpoint, {});
    streams = std::make_unique<collectives::Streams>(*transport);
    const absl::Status started = endpoint->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }
  static std::string NameOfRank(int rank) { return absl::StrCat("rank", rank); }

  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<net::Endpoint> endpoint;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<collectives::Streams> streams;
};

// One rank of a world of processes.
class World {
 public:
  World(const std::string& directory, int rank, int ranks, Path path,
        int64_t arena_bytes, const Options& options) {
    auto store = rendezvous::OpenFileStore({directory + "/store", "bench"});
    WEFT_CHECK(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
    auto backend = path == Path::kStreams
                       ? OverStreams(rank, ranks)
                       : OnHost(directory, rank, ranks, arena_bytes, options);
    WEFT_CHECK(backend.ok()) << backend.status().ToString();
    group_ = collectives::ProcessGroup::Create(*std::move(backend));
  }

  collectives::ProcessGroup& group() { return *group_; }

 private:
  absl::StatusOr<std::unique_ptr<collectives::Backend>> OnHost(
      const std::string& directory, int rank, int ranks, int64_t arena_bytes,
      const Options& options) {
    collectives::HostOptions host;
    host.store = store_.get();
    host.rank = rank;
    host.size = ranks;
    host.directory = directory;
    host.arena_bytes = std::max(host.arena_bytes, arena_bytes);
    if (options.through_slots) {
      host.least_read_bytes = std::numeric_limits<int64_t>::max();
    }
    return collectives::ConnectHost(host);
  }

  absl::StatusOr<std::unique_ptr<collectives::Backend>> OverStreams(int rank,
                                                                    int ranks) {
    constexpr absl::Duration kPatience = absl::Seconds(30);
    end_ = std::make_unique<StreamEnd>(rank);
    WEFT_CHECK(store_
                   ->Set(StreamEnd::NameOfRank(rank), end_->endpoint->address(),
                         kPatience)
                   .ok());
    collectives::StreamOptions options;
    options.streams = end_->streams.get();
    options.rank = rank;
    for (int r = 0; r < ranks; ++r) {
      const std::string name = StreamEnd::NameOfRank(r);
      const auto address = store_->Wait(name, 0, kPatience);
      WEFT_CHECK(address.ok()) << address.status().ToString();
      options.ranks.push_back({name, address->value});
    }
    return collectives::StreamBackend::Connect(options);
  }

  std::unique_ptr<rendezvous::Store> store_;
  std::unique_ptr<StreamEnd> end_;
  std::unique_ptr<collectives::ProcessGroup> group_;
};

// The part of one rank; rank 0 writes a line for each case to `out`.
int RunRank(const std::string& directory, int rank, int ranks,
            const std::vector<Case>& cases, const Options& options, FILE* out) {
  int64_t arena_bytes = 0;
  for (const Case& one : cases) {
    if (one.path != Path::kArena) continue;
    const int64_t tensors = one.verb == "all_gather" ? ranks + 1 : 1;
    arena_bytes = std::max(arena_bytes, tensors * (one.bytes + 4096));
  }
  World world(directory, rank, ranks, cases.at(0).path, arena_bytes, options);
  for (const Case& one : cases) {
    Runner runner(world.group(), one);
    runner.Check();
    const Figures found = runner.Measure(options.seconds);
    if (rank != 0) continue;
    fprintf(out, "%s %g %g %g %g %g %g %g\n", one.Name().c_str(), found.min_us,
            found.p50_us, found.p99_us, found.mean_us, found.cpu_seconds_per_gb,
            found.switches, found.page_faults);
    fflush(out);
  }
  const absl::Status ended = world.group().Barrier();
  WEFT_CHECK(ended.ok()) << ended.ToString();
  return 0;
}

// What one of `ranks` processes runs: `rank` in `directory`, with a file to
// write to. Returns its exit code.
using RankMain =
    std::function<int(const std::string& directory, int rank, FILE* out)>;

// Forks the ranks, hands what they write to `read`, and waits for them.
// `killed`: the rank that is not expected to end with 0.
void RunRanks(int ranks, const RankMain& main,
              const std::function<void(FILE*)>& read, int killed = -1) {
  const ScratchDirectory directory;
  int ends[2];
  WEFT_CHECK_EQ(pipe(ends), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      _exit(main(directory.path(), rank, fdopen(ends[1], "w")));
    }
    children.push_back(pid);
  }
  close(ends[1]);
  FILE* in = fdopen(ends[0], "r");
  read(in);
  fclose(in);
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (rank != killed) WEFT_CHECK_EQ(status, 0);
  }
}

using Results = std::map<std::string, Figures>;

// The cases are all kStreams, or none is.
Results RunWeft(int ranks, const std::vector<Case>& cases,
                const Options& options) {
  Results results;
  RunRanks(
      ranks,
      [&](const std::string& directory, int rank, FILE* out) {
        return RunRank(directory, rank, ranks, cases, options, out);
      },
      [&](FILE* in) {
        char name[128];
        Figures figures;
        while (fscanf(in, "%127s %lg %lg %lg %lg %lg %lg %lg", name,
                      &figures.min_us, &figures.p50_us, &figures.p99_us,
                      &figures.mean_us, &figures.cpu_seconds_per_gb,
                      &figures.switches, &figures.page_faults) == 8) {
          results[name] = figures;
        }
      });
  return results;
}

// Seconds from SIGKILL at the last of `ranks` in the middle of all-reduces
// until the others' operation has failed with its number; one value for each of
// them.
std::vector<double> SecondsToNameKilledRank(int ranks, Path path,
                                            const Options& options) {
  const int killed = ranks - 1;
  double killed_at = 0;
  std::vector<double> named_at;
  RunRanks(
      ranks,
      [&](const std::string& directory, int rank, FILE* out) -> int {
        World world(directory, rank, ranks, path, 0, options);
        const Tensor tensor = Tensor::Zeros({1 << 18}, DType::kF32);
        for (int i = 0;; ++i) {
          if (rank == killed && i == 100) {
            fprintf(out, "killed %.9f\n", Now());
            fflush(out);
            raise(SIGKILL);
          }
          const absl::Status status = world.group().AllReduce(tensor);
          if (status.ok()) continue;
          const bool is_named = absl::StrContains(
              status.message(), absl::StrCat("rank ", killed));
          WEFT_CHECK(is_named) << status.ToString();
          fprintf(out, "named %.9f\n", Now());
          fflush(out);
          return 0;
        }
      },
      [&](FILE* in) {
        char what[16];
        double when = 0;
        while (fscanf(in, "%15s %lg", what, &when) == 2) {
          if (std::string(what) == "killed") {
            killed_at = when;
          } else {
            named_at.push_back(when);
          }
        }
      },
      killed);
  for (double& when : named_at) when -= killed_at;
  return named_at;
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
  return {{verb, DType::kF32, Path::kPrivate, bytes},
          {verb, DType::kF32, Path::kArena, bytes}};
}

// Source: performance goals C1 to C7 of the project. The rivals of C7 use TCP
// over the loopback, with the congestion control that the system has.
std::vector<Goal> Goals(int ranks) {
  const bool is_two = ranks == 2;
  std::vector<Case> others = {{"barrier", DType::kF32, Path::kPrivate, 0}};
  for (const char* verb : {"broadcast", "all_gather"}) {
    for (const int64_t bytes : {kKiB, 16 * kMiB}) {
      others.push_back({verb, DType::kF32, Path::kPrivate, bytes});
    }
  }
  std::vector<Goal> goals = {
      {"C1", BothMemories("all_reduce", kKiB), 1 / 3.0, is_two ? 1 / 1.5 : 1,
       is_two ? 1 / 1.5 : 1, 30, 30},
      {"C2", BothMemories("all_reduce", 64 * kKiB), 1, 1.5, 5, 0, 0},
      {"C3", BothMemories("all_reduce", kMiB), 1 / 1.1, 1.05, 4, 0, 0},
      {"C4", BothMemories("all_reduce", 16 * kMiB), 1 / 1.05,
       is_two ? 1.1 : 1.3, is_two ? 2.3 : 3.5, 4, 4},
      {"C5", BothMemories("all_reduce", 100'000'000), 1.5, 1.8, 5, 2, 2},
      {"C6", others, 1 / 1.2, 1 / 1.2, 1 / 1.2, 2, 2},
  };
  if (is_two) {
    goals.push_back({"C7",
                     {{"all_reduce", DType::kF32, Path::kStreams, 16 * kMiB}},
                     0,
                     0,
                     0,
                     1 / 1.2,
                     1 / 0.9});
  }
  return goals;
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
  for (const int ranks : options.ranks) {
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
               one.path == Path::kArena ? goal.mpi_aim_arena
                                        : goal.mpi_aim_private);
        AddRow(report, goal, one, ranks, found, gloo, goal.gloo_must,
               goal.gloo_aim);
      }
      report.End();
    }
  }
}

void PrintTable(int ranks, std::vector<Case> cases, const Options& options) {
  cases.erase(std::remove_if(cases.begin(), cases.end(),
                             [&](const Case& one) {
                               return !absl::StrContains(one.Name(),
                                                         options.only);
                             }),
              cases.end());
  if (cases.empty()) return;
  const Results results = RunWeft(ranks, cases, options);
  for (const Case& one : cases) {
    const Figures& found = results.at(one.Name());
    printf("%-40s %6d %10.2f %10.2f %10.1f %10.2f %10.2f %8.2f %8.2f %8.2f\n",
           one.Name().c_str(), ranks, found.min_us, found.p50_us, found.p99_us,
           found.mean_us, static_cast<double>(one.bytes) / found.p50_us * 1e-3,
           found.cpu_seconds_per_gb, found.switches, found.page_faults);
    fflush(stdout);
  }
}

void PrintFigures(const Options& options) {
  std::vector<Case> on_host = {
      {"barrier", DType::kF32, Path::kPrivate, 0},
      {"broadcast", DType::kF32, Path::kPrivate, kKiB},
      {"broadcast", DType::kF32, Path::kPrivate, 16 * kMiB}};
  std::vector<Case> over_streams = {
      {"barrier", DType::kF32, Path::kStreams, 0}};
  for (const int64_t bytes :
       {4 * kKiB, 64 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Path path : {Path::kPrivate, Path::kArena}) {
        on_host.push_back({"all_reduce", dtype, path, bytes});
      }
      over_streams.push_back({"all_reduce", dtype, Path::kStreams, bytes});
    }
  }
  printf("%-40s %6s %10s %10s %10s %10s %10s %8s %8s %8s\n", "case", "ranks",
         "min us", "p50 us", "p99 us", "mean us", "GB/s", "cpu s/GB",
         "switches", "faults");
  for (const int ranks : options.ranks) {
    PrintTable(ranks, on_host, options);
    PrintTable(ranks, over_streams, options);
  }
  if (!options.only.empty()) return;
  for (const Path path : {Path::kPrivate, Path::kStreams}) {
    printf("a rank of 4 that is killed is named by the others after (s), %s:",
           path == Path::kStreams ? "streams" : "shared memory");
    for (const double seconds : SecondsToNameKilledRank(4, path, options)) {
      printf(" %.3f", seconds);
    }
    printf("\n");
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
  app.add_option("--only", options.only,
                 "Figures of cases whose names contain this: bf16_streams");
  app.add_option("--ranks", options.ranks, "How many, several times: 2, 4");
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
