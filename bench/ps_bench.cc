// ps_bench: what the parameter server costs between two processes of one host,
// a server and a worker on a core each, over a unix socket.
//
//   ps_bench                    figures
//   ps_bench --goals=P2,P3      rows, as bench/goals.h says: P1 (a training
//                               step against its local one), P2 (sparse rows of
//                               one float), P3 (rows of 64 floats, and dense
//                               vectors), M (bytes of a row), R (two servers
//                               with replicas: durability APPLIED against NONE,
//                               by turns; rounds against none),
//                               T (26 tables of 1,000 keys: one message
//                               against 26 calls, by turns in one process), S
//                               (snapshots of 64 MB while a worker pushes and
//                               pulls, against none, by turns);
//                               --quick: one short round
//
// Rivals are a redis-server of this run, raw gRPC with a copy into one chunk,
// and ps-lite's figures as they were recorded, which decide nothing: their rows
// have "recorded" in their version. Sparse keys are distinct and random; "same
// keys" sends the same ones each time, as ps-lite's driver did, "other keys" a
// different set.

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/ps_sides.h"
#include "weft/bench/redis_rows.h"
#include "weft/bench/rivals.h"

namespace weft::bench {
namespace {

// ---------------------------------------------------------- the main process

class Runner {
 public:
  explicit Runner(const PsOptions& options) : options_(options) {}

  const std::string& directory() const { return directory_.path(); }
  std::string NewDirectory() { return directory_.NewPath(); }
  int rounds() const { return options_.rounds; }
  double seconds() const { return options_.seconds; }

  // A server and a worker that measures `what`.
  Figures Weft(const std::string& what, const std::string& of_both = "") {
    return RunServerAndClient(
        absl::StrCat(options_.self, " --serve=unix:", directory_.NewPath(), " ",
                     of_both),
        [&](const std::string& address) {
          return absl::StrCat(options_.self, " --call=", address,
                              " --seconds=", options_.seconds, " ", of_both,
                              " ", what);
        });
  }

  // A tensor of `bytes` sent and copied out into one chunk.
  Figures RawGrpc(int64_t bytes) {
    return RunProgram(absl::StrCat(
        ProgramPath("raw_grpc"), " --listen=unix:", directory_.NewPath(),
        " --seconds=", options_.seconds, " --size=", bytes,
        " --out=1 --copy --poll --client-core=", kWorkerCore,
        " --server-core=", kServerCore));
  }

  Figures Redis(int64_t keys, int64_t dim) {
    Pin(kWorkerCore);
    const auto redis = RedisRows::Start(directory_.path(), kServerCore);
    if (redis == nullptr) return {};
    redis_version_ = redis->version();
    const std::vector<int64_t> names = RandomKeys(keys, 1);
    const std::vector<float> rows(keys * dim, 1.0f);
    std::vector<float> pulled;
    if (!redis->Push(names, rows, dim) || !redis->Pull(names, dim, pulled) ||
        pulled != rows) {
      return {};
    }
    const double n = static_cast<double>(keys);
    const double bytes = n * static_cast<double>(dim) * sizeof(float);
    const double pushes = StepsPerSecond(
        [&] { WEFT_CHECK(redis->Push(names, rows, dim)); }, options_.seconds);
    const double pulls = StepsPerSecond(
        [&] { WEFT_CHECK(redis->Pull(names, dim, pulled)); }, options_.seconds);
    return {{"push_keys_per_s", n * pushes},
            {"pull_keys_per_s", n * pulls},
            {"push_gb_per_s", bytes * pushes / 1e9},
            {"pull_gb_per_s", bytes * pulls / 1e9}};
  }
  const std::string& redis_version() const { return redis_version_; }

 private:
  const PsOptions& options_;
  ScratchDirectory directory_;
  std::string redis_version_;
};

// The medians of what `run` gives in each round.
template <typename Run>
Figures Rounds(int rounds, Run run) {
  std::vector<Figures> all;
  for (int i = 0; i < rounds; ++i) all.push_back(run());
  Figures medians;
  for (const auto& figure : all.front()) {
    const std::optional<double> median = Median(all, figure.first);
    if (median.has_value()) medians[figure.first] = *median;
  }
  return medians;
}

struct Rival {
  std::string name;
  std::string version;
  double must = 1;
  double aim = 1;
};

class Contest {
 public:
  Contest(Runner& runner, GoalReport& report)
      : runner_(runner), report_(report) {}

  // ps-lite's recorded figures: push and pull, in the unit of `figure`.
  struct Recorded {
    double push;
    double pull;
    double must;
    double aim;
  };

  void Sparse(const std::string& goal, int64_t keys, int64_t dim,
              const std::string& unit, const Recorded& ps_lite,
              const std::string& flags, const std::string& more) {
    const std::string name = absl::StrCat(keys, " keys x ", dim,
                                          more.empty() ? ", same keys" : more);
    report_.Begin();
    const Figures ours = Weft(absl::StrCat("--measure=sparse --keys=", keys,
                                           " --dim=", dim, " ", flags));
    const Figures redis = Rounds(1, [&] { return runner_.Redis(keys, dim); });
    for (const std::string way : {"push", "pull"}) {
      const std::string figure = absl::StrCat(way, unit);
      Add(goal, absl::StrCat(name, ", ", figure), Find(ours, figure),
          Find(redis, figure),
          {"redis-server", runner_.redis_version(), 1.5, 5});
      AddRecorded(goal, absl::StrCat(name, ", ", figure), Find(ours, figure),
                  way == "push" ? ps_lite.push : ps_lite.pull, ps_lite);
    }
    report_.End();
  }

  void Dense(int64_t megabytes, const Recorded& ps_lite) {
    const int64_t bytes = megabytes << 20;
    report_.Begin();
    const Figures ours =
        Weft(absl::StrCat("--measure=dense --keys=", bytes / sizeof(float)));
    const Figures grpc =
        Rounds(runner_.rounds(), [&] { return runner_.RawGrpc(bytes); });
    for (const std::string way : {"push", "pull"}) {
      const std::string figure = absl::StrCat(way, "_gb_per_s");
      const std::string name =
          absl::StrCat("dense ", megabytes, " MiB, ", figure);
      Add("P3", name, Find(ours, figure), Find(grpc, "gb_per_s"),
          {"gRPC stream, copied out", "1.51", 0.6, 0.9});
      AddRecorded("P3", name, Find(ours, figure),
                  way == "push" ? ps_lite.push : ps_lite.pull, ps_lite);
    }
    report_.End();
  }

  void Loop() {
    report_.Begin();
    const Figures ours = Weft("--measure=loop");
    Add("P1", "MLP 784-128-10, batch 32, steps/s", Find(ours, "steps_per_s"),
        Find(ours, "local_steps_per_s"), {"own local step", "", 0.65, 0.85});
    report_.End();
  }

  void Memory() {
    report_.Begin();
    const Figures ours = Weft("--measure=memory");
    GoalCase row;
    row.goal = "M";
    row.name = "bytes of a row of one float with Adam, 1 M rows";
    row.higher_is_better = false;
    row.weft = Find(ours, "bytes_per_row").value_or(0);
    row.peer = 20;  // key and three floats
    row.peer_name = "the row alone";
    row.must = 20.0 / 48;
    row.aim = 20.0 / 32;
    report_.Add(row);
    report_.End();
  }

  // Times, by turns in one process: how often the calls take as long.
  void Many(int64_t dim) {
    report_.Begin();
    const Figures ours =
        Weft(absl::StrCat("--measure=many --keys=1000 --dim=", dim));
    for (const std::string way : {"pull", "push"}) {
      GoalCase row;
      row.goal = "T";
      row.name = absl::StrCat(kManyTables, " tables x 1000 keys x ", dim, ", ",
                              way, ", us");
      row.higher_is_better = false;
      row.weft = Find(ours, way + "_many_us").value_or(0);
      row.peer = Find(ours, way + "_calls_us");
      row.peer_name = absl::StrCat(kManyTables, " calls");
      row.must = 1;
      row.aim = 2;
      report_.Add(row);
    }
    report_.End();
  }

  // Two servers in one process, two replicas. D1, which is the default, may
  // cost 10 % of D0: two tables of the same servers, by turns. A synchronous
  // table, which has no D0, is compared with itself without replicas, and that
  // has no bound.
  void Replicas() {
    const std::string both = "--servers=2 --replicas=2";
    const std::vector<std::pair<std::string, std::string>> levels = {
        {"sparse 10,000 keys x 16", "--keys=10000 --dim=16"},
        {"sparse 10,000 keys x 16, 16 in flight",
         "--keys=10000 --dim=16 --out=16"},
        {"sparse 100 keys x 16, 16 in flight", "--keys=100 --dim=16 --out=16"},
        {"dense 4 MiB", "--keys=1048576 --dim=0"}};
    for (const auto& [name, what] : levels) {
      report_.Begin();
      const Figures ours =
          runner_.Weft(absl::StrCat("--measure=levels ", what), both);
      for (const std::string way : {"push", "pull"}) {
        std::printf("# %s, %s: the ratio is within %.3f\n", name.c_str(),
                    way.c_str(), Find(ours, way + "_ratio_within").value_or(0));
        Add("R", absl::StrCat(name, ", ", way, "/s"),
            Find(ours, way + "_applied_per_s"), Find(ours, way + "_none_per_s"),
            {"durability NONE", "", 0.9, 1});
      }
      report_.End();
    }
    const std::vector<std::pair<std::string, std::string>> rounds = {
        {"round of 4 MiB", "--measure=rounds --keys=1048576"},
        {"round of 64 KiB", "--measure=rounds --keys=16384"}};
    for (const auto& [name, what] : rounds) {
      report_.Begin();
      std::vector<Figures> alone, replicated;
      for (int round = 0; round < runner_.rounds(); ++round) {
        alone.push_back(runner_.Weft(what, "--servers=2"));
        replicated.push_back(runner_.Weft(what, both));
      }
      Add("R", absl::StrCat(name, ", rounds/s"),
          Median(replicated, "rounds_per_s"), Median(alone, "rounds_per_s"),
          {"without replicas", "", 0, 1});
      report_.End();
    }
  }

  // A snapshot each minute may cost 2 % of the rate, and no call 1 ms.
  void Snapshots() {
    for (const auto& [name, of_both] :
         {std::pair("one server", ""),
          std::pair("two servers, two replicas", "--servers=2 --replicas=2")}) {
      report_.Begin();
      const std::string directory = runner_.NewDirectory();
      const Figures ours =
          runner_.Weft("--measure=snapshots --rows=500000 --keys=1000 --dim=16",
                       absl::StrCat(of_both, " --directory=", directory));
      std::printf("# %s:", name);
      for (const auto& [figure, value] : ours) {
        std::printf(" %s %.5g", figure.c_str(), value);
      }
      std::printf("\n");
      Add("S", absl::StrCat(name, ", a snapshot each minute, steps/s"),
          Find(ours, "minute_rate"), 1.0,
          {"without snapshots", "", 0.98, 0.99});
      for (const std::string way : {"push", "pull"}) {
        const auto with = Find(ours, way + "_p999_us_with");
        const auto without = Find(ours, way + "_p999_us_without");
        GoalCase row;
        row.goal = "S";
        row.name = absl::StrCat(name, ", p99.9 of a ", way, ", us");
        row.higher_is_better = false;
        row.weft = with.value_or(0);
        if (without.has_value()) row.peer = *without + 1000;
        row.peer_name = "1 ms more than without snapshots";
        report_.Add(row);
      }
      report_.End();
    }
  }

 private:
  Figures Weft(const std::string& what) {
    return Rounds(runner_.rounds(), [&] { return runner_.Weft(what); });
  }

  void Add(const std::string& goal, const std::string& name,
           std::optional<double> ours, std::optional<double> theirs,
           const Rival& rival) {
    GoalCase row;
    row.goal = goal;
    row.name = absl::StrCat(name, " against ", rival.name);
    row.weft = ours.value_or(0);
    row.peer = theirs;
    row.peer_name = rival.name;
    row.peer_version = rival.version;
    row.must = rival.must;
    row.aim = rival.aim;
    report_.Add(row);
  }

  // Adds a result of another run: it counts in a summary of its own only.
  void AddRecorded(const std::string& goal, const std::string& name,
                   std::optional<double> ours, double theirs,
                   const Recorded& recorded) {
    Add(absl::StrCat(goal, ", recorded"), name, ours, theirs,
        {"ps-lite", "recorded 2025-11", recorded.must, recorded.aim});
  }

  Runner& runner_;
  GoalReport& report_;
};

// Source of the bounds: GOAL-P1 to P3 of docs/performance.md.
void Measure(Contest& contest, const GoalReport& report) {
  const std::string keys = "_keys_per_s", bytes = "_gb_per_s";
  if (report.Wants("P1")) contest.Loop();
  if (report.Wants("P2")) {
    const auto p2 = [&](int64_t n, double push, double pull) {
      const Contest::Recorded ps_lite = {push, pull, 1.2, 2};
      contest.Sparse("P2", n, 1, keys, ps_lite, "", "");
      contest.Sparse("P2", n, 1, keys, ps_lite, "--other-keys", ", other keys");
    };
    p2(10'000, 49e6, 49e6);
    p2(100'000, 58e6, 58e6);
    p2(1'000'000, 34e6, 32e6);
    contest.Sparse("P2", 10'000, 1, keys, {87e6, 87e6, 1.2, 2}, "--out=16",
                   ", same keys, 16 in flight");
  }
  if (report.Wants("P3")) {
    contest.Sparse("P3", 10'000, 64, bytes, {1.6, 1.66, 1.5, 3}, "", "");
    contest.Sparse("P3", 10'000, 64, bytes, {1.6, 1.66, 1.5, 3}, "--other-keys",
                   ", other keys");
    contest.Dense(1, {2.9, 2.6, 2, 4});
    contest.Dense(16, {2.8, 2.2, 2, 4});
    contest.Dense(64, {1.4, 0.8, 2, 4});
  }
  if (report.Wants("M")) contest.Memory();
  if (report.Wants("R")) contest.Replicas();
  if (report.Wants("S")) contest.Snapshots();
  if (report.Wants("T")) {
    contest.Many(1);
    contest.Many(16);
  }
}

void PrintFigures(Runner& runner) {
  const auto print = [&](const std::string& what) {
    std::printf("%s\n", what.c_str());
    for (const auto& [name, value] : runner.Weft(what)) {
      std::printf("  %-20s %.4g\n", name.c_str(), value);
    }
    std::fflush(stdout);
  };
  for (const char* keys : {"10", "10000", "100000", "1000000"}) {
    print(absl::StrCat("--measure=sparse --keys=", keys));
    print(absl::StrCat("--measure=sparse --other-keys --keys=", keys));
  }
  print("--measure=sparse --keys=10000 --out=16");
  for (const char* wire : {"f32", "f16", "bf16", "int8"}) {
    print(absl::StrCat("--measure=sparse --keys=10000 --dim=64 --wire=", wire));
  }
  for (const int megabytes : {1, 16, 64}) {
    print(absl::StrCat("--measure=dense --keys=", megabytes << 18));
  }
  print("--measure=loop");
  print("--measure=memory");
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::PsOptions options;
  std::string goals;
  bool quick = false;
  CLI::App app("What the parameter server costs between two processes.");
  CLI::Option* wanted =
      app.add_option("--goals", goals, "Print goals' rows: P1,P2,P3,M,R,S,T")
          ->expected(0, 1);
  app.add_flag("--quick", quick, "One short round");
  for (const auto& [name, value] : {std::pair{"--serve", &options.serve},
                                    {"--call", &options.call},
                                    {"--measure", &options.measure}}) {
    app.add_option(name, *value, "")->group("");
  }
  app.add_option("--keys", options.keys, "")->group("");
  app.add_option("--dim", options.dim, "")->group("");
  app.add_option("--out", options.out, "")->group("");
  app.add_option("--wire", options.wire, "")->group("");
  app.add_option("--servers", options.servers, "")->group("");
  app.add_option("--replicas", options.replicas, "")->group("");
  app.add_option("--rows", options.rows, "")->group("");
  app.add_option("--directory", options.directory, "")->group("");
  app.add_option("--seconds", options.seconds, "Of one measurement");
  app.add_flag("--other-keys", options.other_keys, "")->group("");
  CLI11_PARSE(app, argc, argv);
  if (!options.serve.empty()) return weft::bench::ServeTables(options);
  if (!options.call.empty()) return weft::bench::CallTables(options);
  options.self = weft::bench::OwnPath();
  if (quick) {
    options.rounds = 1;
    options.seconds = 0.3;
  }
  weft::bench::Runner runner(options);
  if (wanted->count() == 0) {
    weft::bench::PrintFigures(runner);
    return 0;
  }
  std::vector<std::string> chosen = absl::StrSplit(goals, ',');
  for (size_t i = 0, n = goals.empty() ? 0 : chosen.size(); i < n; ++i) {
    chosen.push_back(absl::StrCat(chosen[i], ", recorded"));
  }
  weft::bench::GoalReport report(chosen);
  weft::bench::Contest contest(runner, report);
  weft::bench::Measure(contest, report);
  report.Finish();
}
