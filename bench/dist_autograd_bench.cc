// dist_autograd_bench: what references, distributed passes and distributed
// steps between two processes cost beside PyTorch RPC's.
//
//   dist_autograd_bench                   figures
//   dist_autograd_bench --goals=R1,A1     rows, as bench/goals.h says: R1, R2,
//                                         A1, A2; --quick: one short round
//
// It starts itself as a server and as a client, and bench/peers'
// torch_dist_autograd.py, which does the same: sum(x w0 w1) of 32x32 matrices,
// w0 at the client, w1 at the server; then SGD of both.

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/rivals.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/optimizer/distributed_optimizer.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/directory.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/transport/grpc_transport.h"

namespace weft::bench {

constexpr int64_t kRows = 32;  // and columns, of all matrices

constexpr char kServer[] = "server";
constexpr char kClient[] = "client";

Tensor StartWeight(double scale) {
  Tensor w = Tensor::Zeros({kRows, kRows});
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.data<float>()[i] = static_cast<float>(
        scale * std::sin(1.0 + 3.0 * static_cast<double>(i)));
  }
  return w;
}

Tensor AddOne(const Tensor& a, const Tensor& b) {
  return Tensor::Scalar<float>(a.item<float>() + b.item<float>());
}
WEFT_RPC_INLINE(AddOne);

// The server calls the client too: gradients go back to it.
void Introduce(rpc::CallContext& call, const std::string& address) {
  call.Local<rpc::FixedDirectory>()->Put(
      {kClient, rpc::WorkerKey{2, 1}, address});
}
WEFT_RPC(Introduce);

// h w1, with w1 at the worker that has the layer.
class Layer {
 public:
  explicit Layer(double scale)
      : w_(std::make_shared<Variable>(StartWeight(scale),
                                      /*requires_grad=*/true)) {}
  Variable Forward(const Variable& h) { return MatMul(h, *w_); }
  rref::RRef<Variable> Weight(rpc::CallContext& call) {
    return rref::MakeLocal(call.agent(), w_).value();
  }
  Tensor Value() { return w_->value().Clone(); }

 private:
  std::shared_ptr<Variable> w_;
};
WEFT_RPC_CLASS(Layer, double);
WEFT_RPC_METHOD(Layer, Forward);
WEFT_RPC_METHOD(Layer, Weight);
WEFT_RPC_METHOD(Layer, Value);

namespace {

constexpr double kWeight0 = 0.1;
constexpr double kWeight1 = 0.05;

struct Options {
  std::string self;
  int rounds = 5;
  double seconds = 1;  // of one measurement
  // One side of a measurement, started by the main process.
  std::string serve;    // an address to listen at
  std::string call;     // an address to call
  int core = -1;        // to be pinned to
  double spin_us = 50;  // of the Loop
};

// ------------------------------------------------------------ the two sides

// A rank: a Loop, an endpoint, an agent, its references and contexts.
struct Rank {
  Rank(const Options& options, const std::string& name, uint32_t id,
       const std::string& listen) {
    net::LoopOptions loop_options;
    loop_options.credentials = net::Credentials::Insecure();
    loop_options.spin = absl::Microseconds(options.spin_us);
    loop = net::Loop::Create(loop_options).value();
    net::EndpointOptions endpoint_options;
    endpoint_options.name = name;
    endpoint_options.listen = listen;
    endpoint = net::Endpoint::Open(*loop, endpoint_options).value();
    transport = transport::MakeGrpcTransport(*loop, *endpoint, {});
    transport->Register(rpc::ConnectionPurpose());
    rpc::AgentOptions agent_options;
    agent_options.job = "bench";
    agent_options.name = name;
    agent_options.key = rpc::WorkerKey{id, 1};
    agent_options.transport = transport.get();
    agent_options.directory = &directory;
    agent = rpc::Agent::Create(agent_options).value();
    references = rref::References::Open(*agent).value();
    contexts = dist_autograd::Contexts::Open(*agent).value();
    const absl::Status started = endpoint->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
    // A worker finds itself where it finds the others.
    directory.Put({name, agent_options.key, endpoint->address()});
    agent->SetLocal(&directory);
  }

  rpc::FixedDirectory directory;
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<net::Endpoint> endpoint;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<rpc::Agent> agent;
  std::shared_ptr<rref::References> references;
  std::shared_ptr<dist_autograd::Contexts> contexts;
};

int Serve(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(options.core);
  Rank rank(options, kServer, 1, options.serve);
  std::printf("%s\n", rank.endpoint->address().c_str());
  std::fflush(stdout);
  // A server waits for nothing but its end; in the polled case this thread
  // holds the queue, as a waiting rank's would.
  Promise<void> never(rank.loop->driver());
  (void)never.future().Wait(absl::Minutes(10));
  return 0;
}

void Print(const std::string& name, double value) {
  std::printf("%s\t%.6g\n", name.c_str(), value);
  std::fflush(stdout);
}

double MedianUs(double seconds, const std::function<void()>& call) {
  for (int i = 0; i < 200; ++i) call();
  std::vector<double> took;
  const double begin = Now();
  for (double before = begin; before < begin + seconds;) {
    call();
    const double after = Now();
    took.push_back(after - before);
    before = after;
  }
  return 1e6 * Median(took);
}

// Times a second of each, in turn for a tenth of `seconds` each time, so that
// a slow spell of the machine meets all of them.
std::vector<double> PerSecond(double seconds,
                              const std::vector<std::function<void()>>& steps) {
  constexpr int kTurns = 10;
  std::vector<std::vector<double>> rates(steps.size());
  for (const auto& step : steps) {
    for (int i = 0; i < 20; ++i) step();
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < steps.size(); ++i) {
      int64_t times = 0;
      const double begin = Now();
      while (Now() < begin + seconds / kTurns) {
        steps[i]();
        ++times;
      }
      rates[i].push_back(static_cast<double>(times) / (Now() - begin));
    }
  }
  std::vector<double> medians;
  for (const auto& values : rates) medians.push_back(Median(values));
  return medians;
}

// The client's half of the model.
class Trainer {
 public:
  Trainer(Rank& rank, const rpc::Target& server)
      : rank_(rank),
        layer_(rref::Make<Layer>(server, kWeight1).value()),
        w0_(std::make_shared<Variable>(StartWeight(kWeight0), true)) {
    weights_ = {rref::MakeLocal(*rank.agent, w0_).value(),
                rref::Call(layer_, &Layer::Weight).value()};
  }

  Variable Forward(const dist_autograd::Scope& pass) const {
    const Result<Variable> y =
        pass.Call(layer_, &Layer::Forward, MatMul(Variable(x_), *w0_));
    WEFT_CHECK(y.ok()) << y.status().ToString();
    return Sum(*y);
  }
  // `dead`: with a second call whose result the loss does not need. A FAST pass
  // has to send a gradient of zeros through it, or it does not end.
  void Pass(dist_autograd::PassMode mode, bool dead) const {
    const dist_autograd::Scope pass(*rank_.contexts);
    Variable loss = Forward(pass);
    if (dead) {
      const Variable unused = Forward(pass);
      if (mode == dist_autograd::PassMode::kFast) {
        loss = Add(loss, Mul(unused, zero_));
      }
    }
    Backward(pass, loss, mode);
  }
  void Step(optimizer::DistributedOptimizer& optimizer) const {
    const dist_autograd::Scope pass(*rank_.contexts);
    Backward(pass, Forward(pass), dist_autograd::PassMode::kSmart);
    const absl::Status stepped = optimizer.Step(pass);
    WEFT_CHECK(stepped.ok()) << stepped.ToString();
  }
  std::unique_ptr<optimizer::DistributedOptimizer> MakeOptimizer(
      double learning_rate) const {
    return optimizer::DistributedOptimizer::Create(
               *rank_.agent, optimizer::SgdOptions{learning_rate}, weights_)
        .value();
  }

  // One step does what it does in one process.
  void Check() const {
    constexpr double kRate = 1e-3;
    const Variable w0(StartWeight(kWeight0), true),
        w1(StartWeight(kWeight1), true);
    Sum(MatMul(MatMul(Variable(x_), w0), w1)).Backward();
    Step(*MakeOptimizer(kRate));
    ExpectStepped(w0_->value(), w0, kRate);
    ExpectStepped(rref::Call(layer_, &Layer::Value).value(), w1, kRate);
  }

 private:
  static void Backward(const dist_autograd::Scope& pass, const Variable& loss,
                       dist_autograd::PassMode mode) {
    dist_autograd::PassOptions options;
    options.mode = mode;
    const absl::Status ended = pass.Backward(loss, options);
    WEFT_CHECK(ended.ok()) << ended.ToString();
  }
  static void ExpectStepped(const Tensor& found, const Variable& before,
                            double rate) {
    const Tensor gradient = before.grad().Contiguous();
    for (int64_t i = 0; i < found.numel(); ++i) {
      const double wanted =
          before.value().data<float>()[i] - rate * gradient.data<float>()[i];
      WEFT_CHECK(std::abs(found.data<float>()[i] - wanted) < 1e-5)
          << "element " << i << ": wanted " << wanted << ", found "
          << found.data<float>()[i];
    }
  }

  Rank& rank_;
  const rref::RRef<Layer> layer_;
  const std::shared_ptr<Variable> w0_;
  const Tensor x_ = StartWeight(1);
  const Variable zero_ = Variable(Tensor::Scalar<float>(0));
  std::vector<rref::RRef<Variable>> weights_;
};

void MeasureReferences(const rpc::Target& server, double seconds) {
  const Tensor one = Tensor::Scalar<float>(1);
  const auto expect_two = [](const Result<Tensor>& sum) {
    WEFT_CHECK(sum.ok()) << sum.status().ToString();
    WEFT_CHECK_EQ(sum->item<float>(), 2.0f);
  };
  Print("add_us", MedianUs(seconds, [&] {
          expect_two(rpc::Call(server, AddOne, one, one));
        }));
  Print("make_fetch_us", MedianUs(seconds, [&] {
          const auto ref = rref::BeginRemote(server, AddOne, one, one);
          WEFT_CHECK(ref.ok()) << ref.status().ToString();
          expect_two(rref::Fetch(*ref));
        }));
  const auto ref = rref::Remote(server, AddOne, one, one).value();
  Print("fetch_us", MedianUs(seconds, [&] { expect_two(rref::Fetch(ref)); }));
}

void MeasurePasses(Rank& rank, const rpc::Target& server, double seconds) {
  using dist_autograd::PassMode;
  const Trainer trainer(rank, server);
  trainer.Check();
  // So little that the weights stay what they are.
  const auto optimizer = trainer.MakeOptimizer(1e-9);
  const auto pass = [&](PassMode mode, bool dead) {
    return [&trainer, mode, dead] { trainer.Pass(mode, dead); };
  };
  const std::vector<double> rates = PerSecond(
      seconds, {pass(PassMode::kSmart, false), pass(PassMode::kFast, false),
                pass(PassMode::kSmart, true), pass(PassMode::kFast, true),
                [&] { trainer.Step(*optimizer); }});
  Print("pass_per_s", rates[0]);
  Print("fast_pass_per_s", rates[1]);
  Print("dead_pass_per_s", rates[2]);
  Print("fast_dead_pass_per_s", rates[3]);
  Print("step_per_s", rates[4]);
}

int CallServer(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(options.core);
  const std::string own =
      options.call.rfind("unix:", 0) == 0 ? options.call + "c" : "127.0.0.1:0";
  Rank rank(options, kClient, 2, own);
  rank.directory.Put({kServer, rpc::WorkerKey{1, 1}, options.call});
  const rpc::Target server = rank.agent->To(kServer);
  const absl::Status met =
      rpc::Call(server, Introduce, rank.endpoint->address());
  WEFT_CHECK(met.ok()) << met.ToString();
  MeasureReferences(server, options.seconds);
  MeasurePasses(rank, server, options.seconds);
  rank.contexts->Close();
  const absl::Status closed = rank.references->Close(absl::Seconds(20));
  WEFT_CHECK(closed.ok()) << closed.ToString();
  std::fflush(stdout);
  return 0;
}

// ---------------------------------------------------------- the main process

// Ours and the rival's are measured in the same way. Polled: both ends look
// for messages all the time, each on a core of its own.
struct Case {
  std::string name;
  bool unix_socket;  // else TCP
  bool pinned;       // to two cores
  bool polled;
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {}

  Figures Weft(const Case& c) {
    const std::string flags = absl::StrCat(" --seconds=", options_.seconds,
                                           " --spin=", c.polled ? "1e9" : "50");
    const std::string listen =
        c.unix_socket ? "unix:" + directory_.NewPath() : "127.0.0.1:0";
    return RunServerAndClient(
        absl::StrCat(options_.self, " --serve=", listen,
                     " --core=", c.pinned ? 1 : -1, flags),
        [&](const std::string& address) {
          return absl::StrCat(options_.self, " --call=", address,
                              " --core=", c.pinned ? 0 : -1, flags);
        });
  }

  Figures Torch(const Case& c) {
    if (!has_torch_.has_value()) {
      has_torch_ = HasPythonModule("torch", "PyTorch");
    }
    if (!*has_torch_) return {};
    return RunProgram(
        absl::StrCat("/usr/bin/python3 ", ScriptPath("torch_dist_autograd.py"),
                     " ", options_.seconds, c.pinned ? " 0 1" : " -1 -1"));
  }

  int rounds() const { return options_.rounds; }

 private:
  const Options& options_;
  ScratchDirectory directory_;
  std::optional<bool> has_torch_;  // once looked for
};

// A line of a goal: a figure of ours against one of torch, or another of ours.
struct Comparison {
  std::string goal;
  std::string figure;
  std::string peers_figure;
  bool is_peer_torch;
  double must = 1;
  double aim = 1;
};

// Ours and torch's in turn.
void Measure(Runner& runner, GoalReport& report, const Case& c,
             const std::vector<Comparison>& comparisons) {
  if (std::none_of(comparisons.begin(), comparisons.end(),
                   [&](const Comparison& x) { return report.Wants(x.goal); })) {
    return;
  }
  report.Begin();
  std::vector<Figures> ours, torch;
  for (int round = 0; round < runner.rounds(); ++round) {
    ours.push_back(runner.Weft(c));
    torch.push_back(runner.Torch(c));
  }
  for (const Comparison& x : comparisons) {
    if (!report.Wants(x.goal)) continue;
    GoalCase row;
    row.goal = x.goal;
    row.peer_name = x.is_peer_torch ? "torch RPC" : "Weft";
    row.peer_version = x.is_peer_torch ? "1.13" : "this run";
    row.name = absl::StrCat(c.name, ", ", x.figure, " against ", row.peer_name,
                            "'s ", x.peers_figure);
    row.higher_is_better = x.figure.find("_us") == std::string::npos;
    row.weft = Median(ours, x.figure).value_or(0);
    row.peer = Median(x.is_peer_torch ? torch : ours, x.peers_figure);
    row.must = x.must;
    row.aim = x.aim;
    report.Add(row);
  }
  report.End();
}

const Case kUnixPolled = {"unix, polled", true, true, true};
const Case kTcpPolled = {"tcp, polled", false, true, true};
const Case kUnixDefault = {"unix, unpinned", true, false, false};
const Case kTcpDefault = {"tcp, unpinned", false, false, false};

// Source of the bounds: GOAL-R1 to GOAL-A2, docs/performance.md. A1 and A2 are
// of ranks with default settings; R1 and R2 of polled ones too, as L1.
void MeasureGoals(Runner& runner, GoalReport& report) {
  for (const Case& c : {kUnixPolled, kTcpPolled, kUnixDefault, kTcpDefault}) {
    std::vector<Comparison> comparisons = {
        {"R1", "make_fetch_us", "make_fetch_us", true, 3, 7},
        {"R1", "make_fetch_us", "add_us", false, 0, 1 / 1.3},
        {"R2", "fetch_us", "fetch_us", true, 2, 2},
        {"R2", "fetch_us", "add_us", false, 0, 1 / 1.1}};
    if (!c.polled) {
      comparisons.push_back({"A1", "pass_per_s", "pass_per_s", true, 3, 6});
      // SMART: at most 10 % over FAST where all is live, and less where
      // something is dead.
      comparisons.push_back(
          {"A1", "pass_per_s", "fast_pass_per_s", false, 1 / 1.1, 1 / 1.1});
      comparisons.push_back(
          {"A1", "dead_pass_per_s", "fast_dead_pass_per_s", false, 1, 1});
      comparisons.push_back({"A2", "step_per_s", "step_per_s", true, 3, 6});
    }
    Measure(runner, report, c, comparisons);
  }
}

void PrintFigures(Runner& runner) {
  for (const Case& c : {kUnixPolled, kTcpPolled, kUnixDefault, kTcpDefault}) {
    std::printf("%s\n", c.name.c_str());
    for (const auto& [who, figures] : {std::pair{"  weft", runner.Weft(c)},
                                       std::pair{"  torch", runner.Torch(c)}}) {
      std::printf("%s", who);
      for (const auto& [name, value] : figures) {
        if (name != "version") std::printf("  %s %.5g", name.c_str(), value);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Options options;
  options.self = weft::bench::OwnPath();
  std::string goals;
  bool quick = false;
  CLI::App app("What references, distributed passes and steps cost.");
  CLI::Option* wanted =
      app.add_option("--goals", goals,
                     "Print goals' rows: R1,R2,A1,A2, or empty: all")
          ->expected(0, 1);
  app.add_flag("--quick", quick, "One round of 0.3 s a measurement");
  app.add_option("--seconds", options.seconds, "Of one measurement");
  app.add_option("--serve", options.serve, "")->group("");
  app.add_option("--call", options.call, "")->group("");
  app.add_option("--core", options.core, "")->group("");
  app.add_option("--spin", options.spin_us, "")->group("");
  CLI11_PARSE(app, argc, argv);
  if (!options.serve.empty()) return weft::bench::Serve(options);
  if (!options.call.empty()) return weft::bench::CallServer(options);
  if (quick) {
    options.rounds = 1;
    options.seconds = 0.3;
  }
  weft::bench::Runner runner(options);
  if (wanted->count() == 0) {
    weft::bench::PrintFigures(runner);
    return 0;
  }
  weft::bench::GoalReport report(absl::StrSplit(goals, ','));
  weft::bench::MeasureGoals(runner, report);
  report.Finish();
}
