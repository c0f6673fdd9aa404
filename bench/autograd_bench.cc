// autograd_bench: what an operation and its backward cost beside PyTorch's.
//
//   autograd_bench                 figures: min, p50, p99 of nanoseconds
//   autograd_bench --goals=E1      rows, as bench/goals.h says
//
// It starts the programs of bench/peers, which it finds and builds wherever it
// is started.

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/variable.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/rivals.h"

namespace weft::bench {
namespace {

constexpr int kChain = 100;
constexpr int kRounds = 5;

class Chain {
 public:
  Chain() : x_(Tensor::Ones({1}), /*requires_grad=*/true) {
    Step();
    WEFT_CHECK_EQ(Forward().value().item<float>(), kChain + 1.0f);
    WEFT_CHECK_EQ(x_.grad().item<float>(), 1.0f);
  }

  Variable Forward() const {
    Variable y = x_;
    for (int i = 0; i < kChain; ++i) y = y + c_;
    return y;
  }

  void Step() const {
    x_.ClearGradient();
    Forward().Backward();
  }

 private:
  const Variable x_;
  const Variable c_{Tensor::Ones({1})};
};

// Seconds of each call of `step`, for about `seconds` after a warm-up.
template <typename Step>
std::vector<double> Times(Step step, double seconds) {
  for (int i = 0; i < 100; ++i) step();
  std::vector<double> times;
  const double end = Now() + seconds;
  for (double before = Now(); before < end;) {
    step();
    const double after = Now();
    times.push_back(after - before);
    before = after;
  }
  return times;
}

struct PeerRate {
  std::string version;
  double per_second = 0;
};

// What the peer's program prints; nothing if it is not there or fails.
std::optional<PeerRate> RunPeer(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text(256, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  PeerRate rate;
  std::istringstream words(text);
  const bool ok =
      pclose(pipe) == 0 && (words >> rate.version >> rate.per_second);
  return ok ? std::optional<PeerRate>(rate) : std::nullopt;
}

struct Rival {
  const char* name;
  std::string command;
  std::string version = {};
  std::vector<double> rates = {};
};

// All sides in turn, so that a slow spell of the machine meets each.
void AddE1(GoalReport& report) {
  const Chain chain;
  // An empty command prints nothing, as an absent rival does.
  const std::string python =
      HasPythonModule("torch", "PyTorch")
          ? "/usr/bin/python3 " + ScriptPath("torch_autograd.py")
          : "";
  const std::string libtorch =
      BuildProgram("torch_autograd", "libtorch",
                   "/usr/include/torch/csrc/api/include/torch/torch.h");
  report.Begin();
  std::vector<double> ours;
  Rival rivals[] = {{"torch via Python", python}, {"libtorch C++", libtorch}};
  for (int round = 0; round < kRounds; ++round) {
    const auto times = Times([&] { chain.Step(); }, 0.5);
    double sum = 0;
    for (const double t : times) sum += t;
    ours.push_back(kChain * static_cast<double>(times.size()) / sum);
    for (Rival& rival : rivals) {
      const auto rate = RunPeer(rival.command);
      if (!rate.has_value()) continue;
      rival.rates.push_back(rate->per_second);
      rival.version = rate->version;
    }
  }
  for (const Rival& rival : rivals) {
    GoalCase goal;
    goal.goal = "E1";
    goal.name = "chain100 forward and backward, operations/s";
    goal.weft = Quantile(ours, 0.5);
    if (rival.rates.size() == ours.size()) {
      goal.peer = Quantile(rival.rates, 0.5);
    }
    goal.peer_name = rival.name;
    goal.peer_version = rival.version;
    goal.must = 3;
    goal.aim = 6;
    report.Add(goal);
  }
  report.End();
}

template <typename Step>
void Print(const char* name, Step step) {
  const std::vector<double> times = Times(step, 0.5);
  const double each = 1e9 / kChain;
  std::printf("%-22s %8.1f %8.1f %8.1f\n", name, Quantile(times, 0) * each,
              Quantile(times, 0.5) * each, Quantile(times, 0.99) * each);
}

void PrintFigures() {
  std::printf("%-22s %8s %8s %8s\n", "ns an operation", "min", "p50", "p99");
  const Chain chain;
  Print("forward and backward", [&] { chain.Step(); });
  Print("forward", [&] { chain.Forward(); });
  NoGradScope no_grad;
  Print("forward, no gradient", [&] { chain.Forward(); });
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  std::string goals;
  CLI::App app("What an operation and its backward cost.");
  CLI::Option* wanted =
      app.add_option("--goals", goals, "Print goals' rows: E1, or empty: all")
          ->expected(0, 1);
  CLI11_PARSE(app, argc, argv);
  weft::bench::Pin(0);  // and so the rivals' programs
  if (wanted->count() == 0) {
    weft::bench::PrintFigures();
    return 0;
  }
  weft::bench::GoalReport report(absl::StrSplit(goals, ','));
  if (report.Wants("E1")) weft::bench::AddE1(report);
  report.Finish();
}
