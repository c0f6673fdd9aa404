// rpc_bench: what a call between two processes costs beside raw gRPC's and
// PyTorch RPC's.
//
//   rpc_bench                       figures
//   rpc_bench --goals=L1,T1         rows, as bench/goals.h says: L1, L3, T1, B3
//
// Both processes hold a rank's own server. Run it from the top of the
// repository; it starts itself and the programs of bench/peers.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/net/credentials.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/directory.h"
#include "weft/rpc/grpc_transport.h"
#include "weft/tensor/tensor.h"

namespace weft::bench {

Tensor AddOne(const Tensor& a, const Tensor& b) {
  return Tensor::Scalar<float>(a.item<float>() + b.item<float>());
}
WEFT_RPC_INLINE(AddOne);

int64_t Put(const Tensor& x) { return x.numel(); }
WEFT_RPC_INLINE(Put);

namespace {

constexpr int kRounds = 3;
constexpr double kSeconds = 1;

struct Options {
  std::string self;
  std::string peers = "bench/peers";
  std::string raw_grpc;  // where the rival was built
  // One side of a measurement, started by the main process.
  std::string serve;   // an address to listen at
  std::string call;    // an address to call
  double spin_us = 0;  // of the Loop
  size_t size = 0;     // of a put; 0: adds
  int out = 1;
};

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * (values.size() - 1))];
}

void Pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

// ------------------------------------------------------------ the two sides

// A rank: a Loop, an endpoint and an agent.
struct Rank {
  Rank(const Options& options, const std::string& name, uint32_t id,
       const std::string& listen) {
    net::LoopOptions loop_options;
    loop_options.credentials = net::Credentials::Insecure();
    loop_options.spin = absl::Microseconds(options.spin_us);
    auto made_loop = net::Loop::Create(loop_options);
    WEFT_CHECK(made_loop.ok()) << made_loop.status().ToString();
    loop = *std::move(made_loop);
    net::EndpointOptions endpoint_options;
    endpoint_options.name = name;
    endpoint_options.listen = listen;
    auto made_endpoint = net::Endpoint::Open(*loop, endpoint_options);
    WEFT_CHECK(made_endpoint.ok()) << made_endpoint.status().ToString();
    endpoint = *std::move(made_endpoint);
    transport = rpc::MakeGrpcTransport(*loop, *endpoint);
    rpc::AgentOptions agent_options;
    agent_options.job = "bench";
    agent_options.name = name;
    agent_options.key = rpc::WorkerKey{id, 1};
    agent_options.transport = transport.get();
    agent_options.directory = &directory;
    auto made_agent = rpc::Agent::Create(agent_options);
    WEFT_CHECK(made_agent.ok()) << made_agent.status().ToString();
    agent = *std::move(made_agent);
    const absl::Status started = endpoint->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  rpc::FixedDirectory directory;
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<net::Endpoint> endpoint;
  std::unique_ptr<rpc::Transport> transport;
  std::unique_ptr<rpc::Agent> agent;
};

int Serve(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(1);
  Rank rank(options, "server", 1, options.serve);
  std::printf("%s\n", rank.endpoint->address().c_str());
  std::fflush(stdout);
  // A server waits for nothing but its end; in the polled case this thread
  // holds the queue, as a waiting rank's would.
  Promise<void> never(rank.loop->driver());
  (void)never.future().Wait(absl::Minutes(10));
  return 0;
}

void PrintRate(int64_t calls, size_t bytes, double elapsed) {
  std::printf("calls_per_s\t%.6g\ngb_per_s\t%.5g\n", calls / elapsed,
              static_cast<double>(calls * bytes) / elapsed / 1e9);
}

void MeasureLatency(const rpc::Target& server, double seconds) {
  const Tensor one = Tensor::Scalar<float>(1);
  const auto add = [&] {
    const absl::StatusOr<Tensor> sum = rpc::Call(server, AddOne, one, one);
    WEFT_CHECK(sum.ok()) << sum.status().ToString();
    WEFT_CHECK_EQ(sum->item<float>(), 2.0f);
  };
  for (int i = 0; i < 200; ++i) add();
  std::vector<double> took;
  const double begin = Now();
  for (double before = begin; before < begin + seconds;) {
    add();
    const double after = Now();
    took.push_back(after - before);
    before = after;
  }
  std::printf("p50_us\t%.4g\np99_us\t%.4g\n", 1e6 * Quantile(took, 0.5),
              1e6 * Quantile(took, 0.99));
}

// `start()` returns the Future of one call.
template <typename Start>
void MeasureRate(Start start, int out, size_t bytes, double seconds) {
  std::deque<decltype(start())> under_way;
  const auto finish = [&] {
    const auto result = under_way.front().Wait(absl::Seconds(60));
    WEFT_CHECK(result.ok()) << result.status().ToString();
    under_way.pop_front();
  };
  int64_t calls = 0;
  double begin = Now();
  const double warm = begin + seconds / 5;
  double end = warm + seconds;
  bool is_warm = false;
  while (Now() < end) {
    if (!is_warm && Now() >= warm) {
      is_warm = true;
      calls = 0;
      begin = Now();
    }
    while (static_cast<int>(under_way.size()) < out) {
      under_way.push_back(start());
    }
    // All that have come, so that as many leave together.
    do {
      finish();
      ++calls;
    } while (!under_way.empty() && under_way.front().IsReady());
  }
  PrintRate(calls, bytes, Now() - begin);
  while (!under_way.empty()) finish();
}

int CallServer(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(0);
  const std::string own =
      options.call.rfind("unix:", 0) == 0 ? options.call + "c" : "127.0.0.1:0";
  Rank rank(options, "client", 2, own);
  rank.directory.Put({"server", rpc::WorkerKey{1, 1}, options.call});
  const rpc::Target server = rank.agent->To("server");
  const Tensor one = Tensor::Scalar<float>(1);
  if (options.size > 0) {
    const int64_t elements = options.size / sizeof(float);
    MeasureRate(
        [&] { return rpc::CallAsync(server, Put, Tensor::Empty({elements})); },
        options.out, options.size, kSeconds);
  } else if (options.out > 1) {
    MeasureRate([&] { return rpc::CallAsync(server, AddOne, one, one); },
                options.out, 0, kSeconds);
  } else {
    MeasureLatency(server, kSeconds);
  }
  std::fflush(stdout);
  return 0;
}

// ---------------------------------------------------------- the main process

using Figures = std::map<std::string, std::string>;

// The name<TAB>value lines of a program; empty if it failed.
Figures RunProgram(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return {};
  Figures figures;
  char line[256];
  while (fgets(line, sizeof line, pipe) != nullptr) {
    const std::vector<std::string> words =
        absl::StrSplit(absl::StripAsciiWhitespace(line), '\t');
    if (words.size() == 2) figures[words[0]] = words[1];
  }
  return pclose(pipe) == 0 ? figures : Figures();
}

std::optional<double> Find(const Figures& figures, const std::string& name) {
  const auto it = figures.find(name);
  if (it == figures.end()) return std::nullopt;
  return std::atof(it->second.c_str());
}

// What is measured: ours and the rivals' in the same way.
struct Case {
  std::string name;
  bool over_unix = false;
  bool poll = true;
  size_t size = 0;
  int out = 1;
  std::string figure;  // the line that counts
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {
    char pattern[] = "/tmp/weft-rpc-bench-XXXXXX";
    WEFT_CHECK(mkdtemp(pattern) != nullptr);
    directory_ = pattern;
  }
  ~Runner() { (void)RunProgram("rm -r " + directory_); }

  Figures Weft(const Case& c) {
    const std::string spin = c.poll ? "1e9" : "0";
    const std::string listen =
        c.over_unix ? absl::StrCat("unix:", directory_, "/s", ++sockets_)
                    : "127.0.0.1:0";
    FILE* server =
        popen(absl::StrCat("exec ", options_.self, " --serve=", listen,
                           " --spin=", spin, " & echo $!; wait")
                  .c_str(),
              "r");
    char pid[64], address[256];
    if (server == nullptr || fgets(pid, sizeof pid, server) == nullptr ||
        fgets(address, sizeof address, server) == nullptr) {
      return {};
    }
    Figures figures = RunProgram(absl::StrCat(
        options_.self, " --call=", absl::StripAsciiWhitespace(address),
        " --spin=", spin, " --size=", c.size, " --out=", c.out));
    kill(std::atoi(pid), SIGKILL);
    pclose(server);
    return figures;
  }

  // `flags`: --copy or --protobuf.
  Figures RawGrpc(const Case& c, const std::string& flags = "") {
    const std::string listen =
        c.over_unix ? absl::StrCat("unix:", directory_, "/r", ++sockets_)
                    : "127.0.0.1:0";
    return RunProgram(absl::StrCat(
        options_.raw_grpc, " --listen=", listen, " --seconds=", kSeconds,
        " --size=", c.size == 0 ? 64 : c.size, " --out=", c.out,
        c.poll ? " --poll " : " ", flags));
  }

  Figures Torch() {
    return RunProgram(absl::StrCat("/usr/bin/python3 ", options_.peers,
                                   "/torch_rpc.py ", kSeconds));
  }

 private:
  const Options& options_;
  std::string directory_;
  int sockets_ = 0;
};

// The median over rounds; nothing if a round gave none.
std::optional<double> Median(const std::vector<Figures>& rounds,
                             const std::string& name) {
  std::vector<double> values;
  for (const Figures& figures : rounds) {
    const std::optional<double> value = Find(figures, name);
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  return Quantile(values, 0.5);
}

struct Rival {
  std::string name;
  std::string version;
  std::string figure;
  double must = 1;
  double aim = 1;
  std::vector<Figures> rounds;
};

// Runs ours and the rivals in turn; adds a row for each rival.
void Compare(const std::string& goal, const Case& c, Runner& runner,
             std::vector<Rival> rivals, GoalReport& report) {
  std::vector<Figures> ours;
  for (int round = 0; round < kRounds; ++round) {
    ours.push_back(runner.Weft(c));
    for (Rival& rival : rivals) {
      rival.rounds.push_back(rival.name == "torch RPC" ? runner.Torch()
                             : rival.name == "gRPC, protobuf bytes"
                                 ? runner.RawGrpc(c, "--protobuf")
                             : c.size > 0 ? runner.RawGrpc(c, "--copy")
                                          : runner.RawGrpc(c));
    }
  }
  for (const Rival& rival : rivals) {
    GoalCase row;
    row.goal = goal;
    row.name = absl::StrCat(c.name, " against ", rival.name);
    row.higher_is_better = c.figure != "p50_us";
    row.weft = Median(ours, c.figure).value_or(0);
    row.peer = Median(rival.rounds, rival.figure);
    row.peer_name = rival.name;
    row.peer_version = rival.version;
    row.must = rival.must;
    row.aim = rival.aim;
    report.Add(row);
  }
}

constexpr char kGrpcVersion[] = "1.51";
constexpr char kTorchVersion[] = "1.13";

Rival Grpc(const std::string& figure, double must, double aim) {
  return {"gRPC stream", kGrpcVersion, figure, must, aim, {}};
}
Rival Torch(const std::string& figure, double must, double aim) {
  return {"torch RPC", kTorchVersion, figure, must, aim, {}};
}

void AddGoals(Runner& runner, GoalReport& report) {
  for (const bool over_unix : {true, false}) {
    const std::string way = over_unix ? "unix" : "tcp";
    if (report.Wants("L1")) {
      Compare("L1",
              {way + ", polled add, p50 us", over_unix, true, 0, 1, "p50_us"},
              runner,
              {Grpc("p50_us", 1 / 1.5, 1 / 1.25), Torch("add_p50_us", 4, 7)},
              report);
    }
    if (report.Wants("L3")) {
      Compare(
          "L3",
          {way + ", blocking add, p50 us", over_unix, false, 0, 1, "p50_us"},
          runner,
          {Grpc("p50_us", 1 / 1.15, 1 / 1.05), Torch("add_p50_us", 1, 1.25)},
          report);
    }
    if (report.Wants("T1")) {
      Compare("T1",
              {way + ", 128 outstanding adds/s", over_unix, true, 0, 128,
               "calls_per_s"},
              runner,
              {Grpc("calls_per_s", 0.7, 2), Torch("add_128_per_s", 7, 20)},
              report);
    }
  }
  if (!report.Wants("B3")) return;
  for (const size_t kib : {64, 1024, 16 << 10, 64 << 10}) {
    Rival protobuf{"gRPC, protobuf bytes", kGrpcVersion, "gb_per_s", 2, 2, {}};
    Compare("B3",
            {absl::StrCat("tcp, put of ", kib, " KiB, 4 in flight, GB/s"),
             false, true, kib << 10, 4, "gb_per_s"},
            runner,
            {Grpc("gb_per_s", 0.85, kib >= 16 << 10 ? 1.2 : 0.85), protobuf},
            report);
  }
}

void PrintFigures(Runner& runner) {
  const Case cases[] = {
      {"unix, polled add", true, true, 0, 1, ""},
      {"tcp, polled add", false, true, 0, 1, ""},
      {"unix, blocking add", true, false, 0, 1, ""},
      {"tcp, blocking add", false, false, 0, 1, ""},
      {"unix, 128 adds", true, true, 0, 128, ""},
      {"tcp, 128 adds", false, true, 0, 128, ""},
      {"tcp, put 64 KiB", false, true, 64 << 10, 4, ""},
      {"tcp, put 1 MiB", false, true, 1 << 20, 4, ""},
      {"tcp, put 16 MiB", false, true, 16 << 20, 4, ""},
      {"tcp, put 64 MiB", false, true, 64 << 20, 4, ""},
  };
  for (const Case& c : cases) {
    std::printf("%s\n", c.name.c_str());
    for (const auto& [who, figures] :
         {std::pair{"  weft", runner.Weft(c)},
          std::pair{"  gRPC", runner.RawGrpc(c, c.size > 0 ? "--copy" : "")}}) {
      std::printf("%s", who);
      for (const auto& [name, value] : figures) {
        std::printf("  %s %s", name.c_str(), value.c_str());
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
  options.self = argv[0];
  options.raw_grpc =
      std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1) +
      "raw_grpc";
  std::string goals;
  CLI::App app("What a call between two processes costs.");
  CLI::Option* wanted =
      app.add_option("--goals", goals,
                     "Print goals' rows: L1,L3,T1,B3, or empty: all")
          ->expected(0, 1);
  app.add_option("--peers", options.peers, "Where the rivals' scripts are");
  app.add_option("--raw-grpc", options.raw_grpc, "The rival raw_grpc");
  app.add_option("--serve", options.serve, "")->group("");
  app.add_option("--call", options.call, "")->group("");
  app.add_option("--spin", options.spin_us, "")->group("");
  app.add_option("--size", options.size, "")->group("");
  app.add_option("--out", options.out, "")->group("");
  CLI11_PARSE(app, argc, argv);
  if (!options.serve.empty()) return weft::bench::Serve(options);
  if (!options.call.empty()) return weft::bench::CallServer(options);
  weft::bench::Runner runner(options);
  if (wanted->count() == 0) {
    weft::bench::PrintFigures(runner);
    return 0;
  }
  weft::bench::GoalReport report(absl::StrSplit(goals, ','));
  weft::bench::AddGoals(runner, report);
  report.Finish();
}
