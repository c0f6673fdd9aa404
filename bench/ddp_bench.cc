// ddp_bench: data-parallel training of two ranks on two cores, beside two
// processes that train alone at the same time, and beside PyTorch's.
//
//   ddp_bench                  figures: steps/s of each model, and what was not
//                              hidden
//   ddp_bench --goals=D1,D2    rows, as bench/goals.h says
//
// Each side of a case runs in turn, several rounds, with a process pinned to
// each core; it starts itself with --rank for that.

#include <sys/stat.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/bench/ddp_models.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/rivals.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/optimizer/optimizer.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::bench {
namespace {

constexpr int kRounds = 5;
constexpr int kRanks = 2;

// --- A rank. ----------------------------------------------------------------

struct RankFlags {
  std::string model = "mlp";
  std::string mode = "ddp";  // or alone
  int rank = -1;
  std::string directory;
  double seconds = 2;
};

double StepOnce(TrainedModel& model, optimizer::Optimizer& optimizer) {
  optimizer.ZeroGrad();
  const Variable loss = model.Loss();
  loss.Backward();
  WEFT_CHECK(optimizer.Step().ok());
  return loss.value().item<float>();
}

absl::Status TrainRank(const RankFlags& flags, worker::Worker& worker) {
  WEFT_ASSIGN_OR_RETURN(const auto group, worker::JoinGroup(worker));
  const auto model = MakeModel(flags.model);
  // Alone: a group of this rank only, so that both have their gradients in
  // buckets.
  WEFT_ASSIGN_OR_RETURN(const auto own, group->Split(flags.rank));
  const bool is_alone = flags.mode == "alone";
  WEFT_ASSIGN_OR_RETURN(const auto ddp, ddp::DistributedDataParallel::Create(
                                            *model, is_alone ? *own : *group));
  WEFT_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::Create(
          {{optimizer::SgdOptions{0.01}, model->NamedParameters()}}));
  const double first = StepOnce(*model, *optimizer);
  for (int i = 0; i < 4; ++i) StepOnce(*model, *optimizer);
  WEFT_RETURN_IF_ERROR(group->Barrier());
  double last = first;
  int64_t steps = 0;
  const double begin = Now();
  for (bool stops = false; !stops; steps += 4) {
    for (int i = 0; i < 4; ++i) last = StepOnce(*model, *optimizer);
    stops = Now() - begin > flags.seconds;
    if (is_alone) continue;
    const Tensor all = Tensor::Scalar<int64_t>(stops);
    WEFT_RETURN_IF_ERROR(group->AllReduce(all));
    stops = all.item<int64_t>() > 0;
  }
  const double rate = static_cast<double>(steps) / (Now() - begin);
  WEFT_CHECK_LT(last, first);
  WEFT_RETURN_IF_ERROR(ddp->CheckInSync());
  const auto log = ddp->GetLog();
  const double exposed_ms = absl::ToDoubleMilliseconds(log.total.exposed) /
                            static_cast<double>(log.steps);
  std::printf("weft %.4f %.4f\n", rate, exposed_ms);
  std::fflush(stdout);
  return group->Barrier();
}

absl::Status RunRank(const RankFlags& flags) {
  Pin(flags.rank);
  setenv("OMP_NUM_THREADS", "1", 1);
  worker::Options options;
  options.job = "ddp-bench";
  options.rank = flags.rank;
  options.trainers = kRanks;
  options.log_level = telemetry::Level::kError;
  options.coordinator = absl::StrCat("unix:", flags.directory, "/meet.sock");
  WEFT_RETURN_IF_ERROR(options.Resolve());
  WEFT_ASSIGN_OR_RETURN(const auto worker, worker::Worker::Start(options));
  WEFT_RETURN_IF_ERROR(
      CatchToStatus([&] { return TrainRank(flags, *worker); }));
  return worker->Shutdown().status();
}

// --- All. -------------------------------------------------------------------

struct Rate {
  std::string version;
  double steps_per_s = 0;  // the mean of both ranks
  double exposed_ms = 0;
};

// `command(rank)` of both at once; nothing if one fails.
template <typename CommandOf>
std::optional<Rate> RunBoth(CommandOf command) {
  FILE* pipes[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    pipes[rank] = popen((command(rank) + " 2>/dev/null").c_str(), "r");
    if (pipes[rank] == nullptr) return std::nullopt;
  }
  Rate mean;
  bool is_ok = true;
  for (FILE* pipe : pipes) {
    std::string text(256, '\0');
    text.resize(fread(text.data(), 1, text.size(), pipe));
    std::istringstream words(text);
    double rate = 0, exposed = 0;
    is_ok = pclose(pipe) == 0 && (words >> mean.version >> rate) && is_ok;
    words >> exposed;
    mean.steps_per_s += rate / kRanks;
    mean.exposed_ms += exposed / kRanks;
  }
  return is_ok ? std::optional<Rate>(mean) : std::nullopt;
}

class Runner {
 public:
  Runner() : has_torch_(HasPythonModule("torch", "PyTorch")) {}

  std::optional<Rate> Weft(const std::string& model, const std::string& mode) {
    const std::string meet = directory_.NewPath();
    mkdir(meet.c_str(), 0700);
    return RunBoth([&](int rank) {
      return absl::StrCat("'", OwnPath(), "' --rank=", rank, " --model=", model,
                          " --mode=", mode, " --directory=", meet,
                          " --seconds=", seconds);
    });
  }
  std::optional<Rate> Torch(const std::string& model, const std::string& mode) {
    if (!has_torch_) return std::nullopt;
    const std::string meet = directory_.NewPath();
    return RunBoth([&](int rank) {
      return absl::StrCat("/usr/bin/python3 '", ScriptPath("torch_ddp.py"),
                          "' ", model, " ", mode, " ", rank, " ", meet, " ",
                          seconds, " ", rank);
    });
  }

  double seconds = 2;

 private:
  const bool has_torch_;
  ScratchDirectory directory_;
};

// Medians of rounds in turn; nothing where a round failed.
struct Compared {
  std::optional<double> ddp, both, torch_ddp, torch_both, exposed_ms;
  std::string torch_version;
};

Compared Measure(Runner& runner, const std::string& model, int rounds) {
  std::vector<double> ddp, both, torch_ddp, torch_both, exposed;
  Compared figures;
  for (int round = 0; round < rounds; ++round) {
    if (const auto rate = runner.Weft(model, "ddp")) {
      ddp.push_back(rate->steps_per_s);
      exposed.push_back(rate->exposed_ms);
    }
    if (const auto rate = runner.Torch(model, "ddp")) {
      torch_ddp.push_back(rate->steps_per_s);
      figures.torch_version = rate->version;
    }
    if (const auto rate = runner.Weft(model, "alone")) {
      both.push_back(rate->steps_per_s);
    }
    if (const auto rate = runner.Torch(model, "alone")) {
      torch_both.push_back(rate->steps_per_s);
    }
  }
  const auto set = [&](std::optional<double>& figure,
                       const std::vector<double>& values) {
    if (static_cast<int>(values.size()) == rounds) figure = Median(values);
  };
  set(figures.ddp, ddp);
  set(figures.both, both);
  set(figures.torch_ddp, torch_ddp);
  set(figures.torch_both, torch_both);
  set(figures.exposed_ms, exposed);
  return figures;
}

// What one model must reach: goals of efficiency and rate, and their ratios.
struct Wanted {
  const char* model;
  const char* efficiency_goal;
  double efficiency_must, efficiency_aim;
  const char* rate_goal;
  double rate_must, rate_aim;
};
constexpr Wanted kWanted[] = {
    {"mlp", "D1", 0.80, 0.92, "D2", 1.6, 2.1},
    {"cnn", "D3", 0.90, 0.95, "D3", 1.2, 1.8},
    {"lm", "D3", 0.95, 0.98, "D3", 1.05, 1.3},
};

void AddGoals(GoalReport& report, Runner& runner, const Wanted& wanted) {
  if (!report.Wants(wanted.efficiency_goal) &&
      !report.Wants(wanted.rate_goal)) {
    return;
  }
  report.Begin();
  const Compared figures = Measure(runner, wanted.model, kRounds);
  GoalCase row;
  row.goal = wanted.efficiency_goal;
  row.name = absl::StrCat(wanted.model,
                          ", steps/s of two ranks against two processes alone");
  row.weft = figures.ddp.value_or(0);
  row.peer = figures.both;
  row.peer_name = "Weft, each rank in a group of its own";
  row.peer_version = "this build";
  row.must = wanted.efficiency_must;
  row.aim = wanted.efficiency_aim;
  report.Add(row);
  row.goal = wanted.rate_goal;
  row.name = absl::StrCat(wanted.model, ", steps/s of two ranks");
  row.peer = figures.torch_ddp;
  row.peer_name = "PyTorch DDP, gloo";
  row.peer_version = figures.torch_version;
  row.must = wanted.rate_must;
  row.aim = wanted.rate_aim;
  report.Add(row);
  report.End();
}

void PrintFigures(Runner& runner) {
  std::printf("%-5s %9s %9s %10s %11s %9s %10s %10s\n", "steps/s", "ddp",
              "both", "ddp/both", "exposed ms", "torch ddp", "torch both",
              "weft/torch");
  for (const Wanted& wanted : kWanted) {
    const Compared f = Measure(runner, wanted.model, 1);
    const double ddp = f.ddp.value_or(0), both = f.both.value_or(0);
    const double torch = f.torch_ddp.value_or(0);
    std::printf("%-7s %9.2f %9.2f %10.2f %11.2f %9.2f %10.2f %10.2f\n",
                wanted.model, ddp, both, both > 0 ? ddp / both : 0,
                f.exposed_ms.value_or(0), torch, f.torch_both.value_or(0),
                torch > 0 ? ddp / torch : 0);
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;  // NOLINT: this program's own
  std::string goals;
  RankFlags rank;
  CLI::App app("Data-parallel training on two cores.");
  CLI::Option* wanted =
      app.add_option("--goals", goals,
                     "Print goals' rows: D1,D2,D3; empty: all")
          ->expected(0, 1);
  app.add_option("--seconds", rank.seconds, "Of each run");
  for (const auto& [name, text] : {std::pair{"--model", &rank.model},
                                   {"--mode", &rank.mode},
                                   {"--directory", &rank.directory}}) {
    app.add_option(name, *text, "Of a rank");
  }
  app.add_option("--rank", rank.rank, "Of a rank that this program started");
  CLI11_PARSE(app, argc, argv);
  if (rank.rank >= 0) {
    const absl::Status status = RunRank(rank);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    }
    return status.ok() ? 0 : 1;
  }
  Runner runner;
  runner.seconds = rank.seconds;
  if (wanted->count() == 0) {
    PrintFigures(runner);
    return 0;
  }
  GoalReport report(absl::StrSplit(goals, ','));
  for (const Wanted& one : kWanted) AddGoals(report, runner, one);
  report.Finish();
}
