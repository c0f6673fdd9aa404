// rpc_bench: what a call between two processes costs beside raw gRPC's,
// PyTorch RPC's and TensorPipe's.
//
//   rpc_bench                       figures
//   rpc_bench --goals=L1,T1         rows, as bench/goals.h says: L1 to L5, T1,
//                                   T2, B1 to B3, MOON-M1, MOON-M2; --quick:
//                                   one short round
//   rpc_bench --loopback=20000      so many adds between two agents of this
//                                   process and no network, for callgrind
//
// Both processes hold a rank's own server. A small call goes over a unix
// socket, TCP, and TCP with mTLS; so does raw gRPC's. It starts itself and the
// programs of bench/peers, which it finds and builds wherever it is started.

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/check.h"
#include "weft/bench/goals.h"
#include "weft/bench/measure.h"
#include "weft/bench/programs.h"
#include "weft/bench/rivals.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/tensor/tensor.h"
#include "weft/transport/grpc_transport.h"
#include "weft/transport/local_transport.h"

namespace weft::bench {

Tensor AddOne(const Tensor& a, const Tensor& b) {
  return Tensor::Scalar<float>(a.item<float>() + b.item<float>());
}
WEFT_RPC_INLINE(AddOne);

// Busy for so long first, so that the caller has gone to sleep.
Tensor AddLater(const Tensor& a, const Tensor& b, double work_us) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double, std::micro>(work_us);
  while (std::chrono::steady_clock::now() < end) {
  }
  return AddOne(a, b);
}
WEFT_RPC_INLINE(AddLater);

int64_t Put(const Tensor& x) { return x.numel(); }
WEFT_RPC_INLINE(Put);

float ElementAt(int64_t i) {
  return static_cast<float>(i * 2654435761 % 10007);
}

// What arrives by a put is checked before puts are timed.
bool IsWhole(const Tensor& x) {
  const auto elements = x.span<float>();
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] != ElementAt(static_cast<int64_t>(i))) return false;
  }
  return true;
}
WEFT_RPC(IsWhole);

namespace {

struct Options {
  std::string self;
  std::string raw_grpc;
  int rounds = 5;
  double seconds = 1;  // of one measurement
  // One side of a measurement, started by the main process.
  std::string serve;    // an address to listen at
  std::string call;     // an address to call
  std::string certs;    // for mTLS
  int core = -1;        // to be pinned to
  double spin_us = 50;  // of the Loop
  size_t size = 0;      // of a put; 0: adds
  int out = 1;
  double work_us = 0;        // of a function, before it adds
  int loopback = 0;          // adds within this process
  int shared_memories = 64;  // 0: unix sockets go by the stream alone
};

// ------------------------------------------------------------ the two sides

// As in their certificates.
constexpr char kServer[] = "trainer0";
constexpr char kClient[] = "trainer1";

net::Credentials CredentialsOf(const Options& options,
                               const std::string& name) {
  if (options.certs.empty()) return net::Credentials::Insecure();
  auto made = net::Credentials::ForMember(options.certs, name);
  WEFT_CHECK(made.ok()) << made.status().ToString();
  return *std::move(made);
}

// A rank: a Loop, an endpoint and an agent.
struct Rank {
  Rank(const Options& options, const std::string& name, uint32_t id,
       const std::string& listen) {
    net::LoopOptions loop_options;
    loop_options.credentials = CredentialsOf(options, name);
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
    transport::GrpcTransportOptions transport_options;
    transport_options.max_shared_memories = options.shared_memories;
    transport =
        transport::MakeGrpcTransport(*loop, *endpoint, transport_options);
    transport->Register(rpc::ConnectionPurpose());
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
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<rpc::Agent> agent;
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

void PrintRate(int64_t calls, size_t bytes, double elapsed) {
  std::printf("calls_per_s\t%.6g\ngb_per_s\t%.5g\n", calls / elapsed,
              static_cast<double>(calls * bytes) / elapsed / 1e9);
}

// Without the function's own work.
void MeasureLatency(const rpc::Target& server, double work_us, double seconds) {
  const Tensor one = Tensor::Scalar<float>(1);
  const auto add = [&] {
    const absl::StatusOr<Tensor> sum =
        work_us > 0 ? rpc::Call(server, AddLater, one, one, work_us)
                    : rpc::Call(server, AddOne, one, one);
    WEFT_CHECK(sum.ok()) << sum.status().ToString();
    WEFT_CHECK_EQ(sum->item<float>(), 2.0f);
  };
  for (int i = 0; i < 200; ++i) add();
  std::vector<double> took;
  const double begin = Now();
  for (double before = begin; before < begin + seconds;) {
    add();
    const double after = Now();
    took.push_back(after - before - work_us / 1e6);
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

// Tensors arrive as they were sent. They are given back to the pool together,
// so that those that are put later lie in memory that has been written.
void CheckPuts(const rpc::Target& server, int64_t elements, int out) {
  std::vector<Tensor> tensors;
  for (int i = 0; i <= out; ++i) {
    tensors.push_back(Tensor::Empty({elements}));
    const auto span = tensors.back().span<float>();
    for (int64_t j = 0; j < elements; ++j) span[j] = ElementAt(j);
  }
  std::vector<Future<bool>> checks;
  for (Tensor& tensor : tensors) {
    checks.push_back(rpc::CallAsync(server, IsWhole, std::move(tensor)));
  }
  for (const Future<bool>& check : checks) {
    const absl::StatusOr<bool> is_whole = check.Wait(absl::Seconds(60));
    WEFT_CHECK(is_whole.ok() && *is_whole) << is_whole.status().ToString();
  }
}

int CallServer(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(options.core);
  const std::string own =
      options.call.rfind("unix:", 0) == 0 ? options.call + "c" : "127.0.0.1:0";
  Rank rank(options, kClient, 2, own);
  rank.directory.Put({kServer, rpc::WorkerKey{1, 1}, options.call});
  const rpc::Target server = rank.agent->To(kServer);
  const Tensor one = Tensor::Scalar<float>(1);
  if (options.size > 0) {
    const int64_t elements = options.size / sizeof(float);
    CheckPuts(server, elements, options.out);
    MeasureRate(
        [&] { return rpc::CallAsync(server, Put, Tensor::Empty({elements})); },
        options.out, options.size, options.seconds);
  } else if (options.out > 1) {
    MeasureRate([&] { return rpc::CallAsync(server, AddOne, one, one); },
                options.out, 0, options.seconds);
  } else {
    MeasureLatency(server, options.work_us, options.seconds);
  }
  std::fflush(stdout);
  return 0;
}

// Both agents' own work, and hardly more: to be counted.
int CallItself(const Options& options) {
  transport::LocalNetwork network;
  const auto make = [&](const std::string& name, uint32_t id,
                        rpc::Directory& directory,
                        transport::Transport& transport) {
    rpc::AgentOptions agent_options;
    agent_options.job = "bench";
    agent_options.name = name;
    agent_options.key = rpc::WorkerKey{id, 1};
    agent_options.transport = &transport;
    agent_options.directory = &directory;
    auto agent = rpc::Agent::Create(agent_options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  };
  rpc::FixedDirectory directory;
  directory.Put({kServer, rpc::WorkerKey{1, 1}, "server"});
  const auto to = network.MakeTransport("server").value();
  const auto from = network.MakeTransport("client").value();
  const auto server = make(kServer, 1, directory, *to);
  const auto client = make(kClient, 2, directory, *from);
  const rpc::Target target = client->To(kServer);
  const Tensor one = Tensor::Scalar<float>(1);
  for (int i = 0; i < options.loopback; ++i) {
    const absl::StatusOr<Tensor> sum = rpc::Call(target, AddOne, one, one);
    WEFT_CHECK(sum.ok()) << sum.status().ToString();
    WEFT_CHECK_EQ(sum->item<float>(), 2.0f);
  }
  return 0;
}

// ---------------------------------------------------------- the main process

// Over a unix socket calls pass through shared memory, unless they must not.
enum class Way { kUnix, kUnixByStream, kTcp, kMtls };
constexpr Way kWays[] = {Way::kUnix, Way::kTcp, Way::kMtls};
const char* NameOf(Way way) {
  switch (way) {
    case Way::kUnix:
      return "unix";
    case Way::kUnixByStream:
      return "unix, by the stream alone";
    case Way::kTcp:
      return "tcp";
    case Way::kMtls:
      return "tcp, mTLS";
  }
  return "";
}

enum class Cores { kTwo, kOne, kAny };
enum class Waiting { kPoll, kBlock, kDefault };

// What is measured: ours and the rivals' in the same way.
struct Case {
  std::string name;
  Way way = Way::kUnix;
  size_t size = 0;  // of a put; 0: adds
  int out = 1;
  Cores cores = Cores::kTwo;
  Waiting waiting = Waiting::kPoll;
  int work_us = 0;  // of the server, before it answers an add
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {
    net::CertificatesOptions certificates;
    certificates.directory = directory_.path() + "/certs";
    certificates.job = "bench";
    certificates.members = {{"bench", "trainer", 0}, {"bench", "trainer", 1}};
    const absl::Status made = net::MakeCertificates(certificates);
    WEFT_CHECK(made.ok()) << made.ToString();
  }

  int rounds() const { return options_.rounds; }

  Figures Weft(const Case& c) {
    // 0 is the least that a Loop looks: 10 us.
    const char* spin = c.waiting == Waiting::kPoll    ? "1e9"
                       : c.waiting == Waiting::kBlock ? "0"
                                                      : "50";
    const std::string flags = absl::StrCat(
        " --spin=", spin, " --seconds=", options_.seconds, Certs(c),
        " --size=", c.size, " --out=", c.out, " --work=", c.work_us,
        c.way == Way::kUnixByStream ? " --shared-memories=0" : "");
    return RunServerAndClient(
        absl::StrCat(options_.self, " --serve=", Listen(c),
                     " --core=", ServerCore(c), flags),
        [&](const std::string& address) {
          return absl::StrCat(options_.self, " --call=", address,
                              " --core=", ClientCore(c), flags);
        });
  }

  // `flags`: --copy, --callback or --protobuf.
  Figures RawGrpc(const Case& c, const std::string& flags = "") {
    return RunProgram(absl::StrCat(
        options_.raw_grpc, " --listen=", Listen(c), Common(c), Certs(c),
        c.work_us > 0 ? absl::StrCat(" --work=", c.work_us) : "",
        c.waiting == Waiting::kBlock ? " " : " --poll ", flags));
  }

  // `channels`: "shm cma" within a host, "uv basic" over TCP.
  Figures TensorPipe(const Case& c, const std::string& channels) {
    if (!tensorpipe_.has_value()) {
      tensorpipe_ = BuildProgram("tensorpipe", "TensorPipe",
                                 "/usr/include/tensorpipe/tensorpipe.h");
    }
    if (tensorpipe_->empty()) return {};
    return RunProgram(absl::StrCat(*tensorpipe_, " ", channels, Common(c)));
  }

  // All of its figures come from one run.
  Figures Torch(Cores cores) {
    if (!has_torch_.has_value()) {
      has_torch_ = HasPythonModule("torch", "PyTorch");
    }
    if (!*has_torch_) return {};
    return RunProgram(absl::StrCat(
        "/usr/bin/python3 ", ScriptPath("torch_rpc.py"), " ", options_.seconds,
        cores == Cores::kTwo   ? " 0 1"
        : cores == Cores::kOne ? " 0 0"
                               : " -1 -1"));
  }

 private:
  static int ClientCore(const Case& c) {
    return c.cores == Cores::kAny ? -1 : 0;
  }
  static int ServerCore(const Case& c) {
    return c.cores == Cores::kAny ? -1 : c.cores == Cores::kTwo ? 1 : 0;
  }
  std::string Listen(const Case& c) {
    return c.way == Way::kUnix || c.way == Way::kUnixByStream
               ? "unix:" + directory_.NewPath()
               : "127.0.0.1:0";
  }
  std::string Certs(const Case& c) const {
    return c.way == Way::kMtls
               ? absl::StrCat(" --certs=", directory_.path(), "/certs")
               : "";
  }
  std::string Common(const Case& c) const {
    return absl::StrCat(" --seconds=", options_.seconds,
                        " --size=", c.size == 0 ? 64 : c.size, " --out=", c.out,
                        " --client-core=", ClientCore(c),
                        " --server-core=", ServerCore(c));
  }

  const Options& options_;
  ScratchDirectory directory_;
  std::optional<std::string> tensorpipe_;  // once looked for; empty: absent
  std::optional<bool> has_torch_;
};

struct Rival {
  std::string name;
  std::string version;
  std::function<Figures(const Case&)> run;
};

// A line of a goal: a figure of ours against the rival's.
struct Comparison {
  std::string goal;
  std::string rival;
  std::string figure;
  std::string rivals_figure;
  double must = 1;
  double aim = 1;
};

// Measures the cases and adds the rows.
class Contest {
 public:
  Contest(Runner& runner, GoalReport& report)
      : runner_(runner), report_(report) {
    const auto grpc = [&](const char* flags) {
      return [this, flags](const Case& c) { return runner_.RawGrpc(c, flags); };
    };
    const auto tensorpipe = [&](const char* channels) {
      return [this, channels](const Case& c) {
        return runner_.TensorPipe(c, channels);
      };
    };
    rivals_ = {
        {"gRPC stream", "1.51", grpc("")},
        {"gRPC callback stream", "1.51", grpc("--callback")},
        {"gRPC stream, copied out", "1.51", grpc("--copy")},
        {"gRPC unary, protobuf bytes", "1.51", grpc("--protobuf")},
        {"TensorPipe shm+cma", "20220513", tensorpipe("shm cma")},
        {"TensorPipe uv", "20220513", tensorpipe("uv basic")},
        {"torch RPC", "1.13", [this](const Case& c) { return Torch(c); }},
    };
  }

  // Ours and the rivals in turn.
  void Measure(const Case& c, const std::vector<Comparison>& comparisons) {
    const auto is_wanted = [&](const Comparison& x) {
      return report_.Wants(x.goal);
    };
    if (std::none_of(comparisons.begin(), comparisons.end(), is_wanted)) return;
    report_.Begin();
    std::vector<Figures> ours;
    std::map<std::string, std::vector<Figures>> theirs;
    for (int round = 0; round < runner_.rounds(); ++round) {
      ours.push_back(runner_.Weft(c));
      for (const Rival& rival : rivals_) {
        const auto is_this = [&](const Comparison& x) {
          return x.rival == rival.name && is_wanted(x);
        };
        if (std::any_of(comparisons.begin(), comparisons.end(), is_this)) {
          theirs[rival.name].push_back(rival.run(c));
        }
      }
    }
    for (const Comparison& x : comparisons) {
      if (is_wanted(x)) AddRow(c, x, ours, theirs[x.rival]);
    }
    report_.End();
  }

 private:
  void AddRow(const Case& c, const Comparison& x,
              const std::vector<Figures>& ours,
              const std::vector<Figures>& theirs) {
    GoalCase row;
    row.goal = x.goal;
    row.name = absl::StrCat(NameOf(c.way), ", ", c.name, ", ", x.figure,
                            " against ", x.rival);
    row.higher_is_better = x.figure.find("_us") == std::string::npos;
    row.weft = Median(ours, x.figure).value_or(0);
    row.peer = Median(theirs, x.rivals_figure);
    row.peer_name = x.rival;
    for (const Rival& rival : rivals_) {
      if (rival.name == x.rival) row.peer_version = rival.version;
    }
    row.must = x.must;
    row.aim = x.aim;
    report_.Add(row);
  }

  // It measures all cases at once and takes long: once a run and pinning.
  Figures Torch(const Case& c) {
    const auto known = torch_.find(c.cores);
    if (known != torch_.end()) return known->second;
    return torch_[c.cores] = runner_.Torch(c.cores);
  }

  Runner& runner_;
  GoalReport& report_;
  std::vector<Rival> rivals_;
  std::map<Cores, Figures> torch_;
};

// Source of the bounds: GOAL-L1 to GOAL-B3, docs/performance.md. No goal says
// what unix sockets must reach by the stream alone.
void MeasureCalls(Contest& contest) {
  const std::string grpc = "gRPC stream";
  const std::string callbacks = "gRPC callback stream";
  const std::string torch = "torch RPC";
  for (const Way way : kWays) {
    contest.Measure({"add, polled", way, 0, 1, Cores::kTwo, Waiting::kPoll},
                    {{"L1", grpc, "p50_us", "p50_us", 1 / 1.5, 1 / 1.25},
                     {"L1", torch, "p50_us", "add_p50_us", 4, 7},
                     {"L2", grpc, "p99_us", "p99_us", 1 / 2.0, 1 / 1.3}});
    contest.Measure({"add, blocking", way, 0, 1, Cores::kTwo, Waiting::kBlock},
                    {{"L3", grpc, "p50_us", "p50_us", 1 / 1.15, 1 / 1.05},
                     {"L3", torch, "p50_us", "add_p50_us", 1, 1.25}});
    // What it costs if both ends do sleep; no goal says what it may.
    contest.Measure({"add after 50 us of work, blocking", way, 0, 1,
                     Cores::kTwo, Waiting::kBlock, 50},
                    {{"L3", grpc, "p50_us", "p50_us", 0, 0}});
    // The goal's rival on one core is the callback API; completion queues take
    // half of its time there, and no goal says what must be reached beside
    // them.
    contest.Measure(
        {"add, blocking, one core", way, 0, 1, Cores::kOne, Waiting::kBlock},
        {{"L4", callbacks, "p50_us", "p50_us", 1 / 1.4, 1 / 1.15},
         {"L4", grpc, "p50_us", "p50_us", 0, 1 / 1.15},
         {"L4", torch, "p50_us", "add_p50_us", 3, 4}});
    contest.Measure(
        {"add, unpinned", way, 0, 1, Cores::kAny, Waiting::kDefault},
        {{"L5", torch, "p50_us", "add_p50_us", 2, 6}});
    contest.Measure(
        {"adds, 128 outstanding", way, 0, 128, Cores::kTwo, Waiting::kPoll},
        {{"T1", grpc, "calls_per_s", "calls_per_s", 0.7, 2},
         {"T1", torch, "calls_per_s", "add_128_per_s", 7, 20}});
    contest.Measure(
        {"adds, 16 outstanding", way, 0, 16, Cores::kTwo, Waiting::kPoll},
        {{"T2", grpc, "calls_per_s", "calls_per_s", 0.6, 1},
         {"T2", torch, "calls_per_s", "add_16_per_s", 6, 6}});
  }
  contest.Measure(
      {"add, polled", Way::kUnixByStream, 0, 1, Cores::kTwo, Waiting::kPoll},
      {{"L1", grpc, "p50_us", "p50_us", 0, 0},
       {"L2", grpc, "p99_us", "p99_us", 0, 0}});
  contest.Measure(
      {"add, blocking", Way::kUnixByStream, 0, 1, Cores::kTwo, Waiting::kBlock},
      {{"L3", grpc, "p50_us", "p50_us", 0, 0}});
}

// What no release needs: 3 us are a 35th of torch's time and less than gRPC's;
// a million calls a second are 4.5 times what gRPC reached.
void MeasureMoonshots(Contest& contest) {
  contest.Measure({"add, polled", Way::kUnix},
                  {{"MOON-M1", "gRPC stream", "p50_us", "p50_us", 0, 1},
                   {"MOON-M1", "torch RPC", "p50_us", "add_p50_us", 0, 35}});
  contest.Measure(
      {"adds, 128 outstanding", Way::kUnix, 0, 128},
      {{"MOON-M2", "gRPC stream", "calls_per_s", "calls_per_s", 0, 4.5}});
}

// Puts of a tensor into one piece of pooled memory, 4 in flight.
void MeasurePuts(Contest& contest) {
  const std::string copied = "gRPC stream, copied out";
  const std::string gb = "gb_per_s";
  for (const size_t kib : {64, 1 << 10, 16 << 10, 64 << 10}) {
    const std::string name = absl::StrCat("put of ", kib, " KiB");
    const std::string torch = absl::StrCat("put_", kib, "_gb_per_s");
    const bool is_large = kib >= 16 << 10;
    if (kib == 64) {
      contest.Measure({name, Way::kUnix, kib << 10, 4},
                      {{"B2", copied, gb, gb, 1, 1.5},
                       {"B2", "torch RPC", gb, torch, 7, 7}});
    } else {
      const double against_torch = kib == 1 << 10    ? 2.5
                                   : kib == 16 << 10 ? 1.8
                                                     : 4;
      contest.Measure(
          {name, Way::kUnix, kib << 10, 4},
          {{"B1", "TensorPipe shm+cma", gb, gb, 0.9, 1.1},
           {"B1", "torch RPC", gb, torch, against_torch, against_torch}});
    }
    for (const Way way : {Way::kTcp, Way::kMtls}) {
      std::vector<Comparison> comparisons = {
          {"B3", copied, gb, gb, 0.85, is_large ? 1.2 : 0.85},
          {"B3", "gRPC unary, protobuf bytes", gb, gb, 2, 2}};
      // TensorPipe has no TLS; no goal says what must be reached beside it.
      if (way == Way::kTcp) {
        comparisons.push_back({"B3", "TensorPipe uv", gb, gb, 0, 0.65});
      }
      contest.Measure({name, way, kib << 10, 4}, comparisons);
    }
  }
}

void PrintFigures(Runner& runner) {
  std::vector<Case> cases;
  cases.push_back({"add, polled", Way::kUnixByStream});
  for (const Way way : kWays) {
    cases.push_back({"add, polled", way});
    cases.push_back({"add, blocking", way, 0, 1, Cores::kTwo, Waiting::kBlock});
    cases.push_back({"128 adds", way, 0, 128});
    for (const size_t kib : {64, 1 << 10, 16 << 10, 64 << 10}) {
      cases.push_back(
          {absl::StrCat("put of ", kib, " KiB"), way, kib << 10, 4});
    }
  }
  for (const Case& c : cases) {
    std::printf("%s, %s\n", NameOf(c.way), c.name.c_str());
    for (const auto& [who, figures] :
         {std::pair{"  weft", runner.Weft(c)},
          std::pair{"  gRPC", runner.RawGrpc(c, c.size > 0 ? "--copy" : "")}}) {
      std::printf("%s", who);
      for (const auto& [name, value] : figures) {
        std::printf("  %s %.5g", name.c_str(), value);
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
  options.raw_grpc = weft::bench::ProgramPath("raw_grpc");
  std::string goals;
  bool quick = false;
  CLI::App app("What a call between two processes costs.");
  CLI::Option* wanted =
      app.add_option("--goals", goals,
                     "Print goals' rows: L1,...,B3, or empty: all")
          ->expected(0, 1);
  app.add_flag("--quick", quick, "One round of 0.3 s a measurement");
  app.add_option("--raw-grpc", options.raw_grpc, "Another rival raw_grpc");
  app.add_option("--seconds", options.seconds, "Of one measurement");
  app.add_option("--serve", options.serve, "")->group("");
  app.add_option("--call", options.call, "")->group("");
  app.add_option("--certs", options.certs, "")->group("");
  app.add_option("--core", options.core, "")->group("");
  app.add_option("--work", options.work_us, "")->group("");
  app.add_option("--spin", options.spin_us, "")->group("");
  app.add_option("--size", options.size, "")->group("");
  app.add_option("--out", options.out, "")->group("");
  app.add_option("--loopback", options.loopback,
                 "So many adds within this process");
  app.add_option("--shared-memories", options.shared_memories, "")->group("");
  CLI11_PARSE(app, argc, argv);
  if (options.loopback > 0) return weft::bench::CallItself(options);
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
  weft::bench::Contest contest(runner, report);
  weft::bench::MeasureCalls(contest);
  weft::bench::MeasurePuts(contest);
  weft::bench::MeasureMoonshots(contest);
  report.Finish();
}
