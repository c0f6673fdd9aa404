#include "weft/bench/ps_sides.h"

#include <signal.h>
#include <sys/prctl.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/loss.h"
#include "weft/base/check.h"
#include "weft/bench/many_tables.h"
#include "weft/bench/snapshot_cost.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/net/tls/credentials.h"
#include "weft/nn/layers.h"
#include "weft/optimizer/optimizer.h"
#include "weft/ps/client.h"
#include "weft/ps/flat_parameters.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/server.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/session/directory.h"
#include "weft/transport/grpc_transport.h"

namespace weft::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kKeySets = 4;

struct Rank {
  Rank(const std::string& name, uint32_t id, const std::string& listen) {
    net::LoopOptions loop_options;
    loop_options.credentials = net::Credentials::Insecure();
    loop = *net::Loop::Create(loop_options);
    net::EndpointOptions endpoint_options;
    endpoint_options.name = name;
    endpoint_options.listen = listen;
    endpoint = *net::Endpoint::Open(*loop, endpoint_options);
    transport = transport::MakeGrpcTransport(*loop, *endpoint, {});
    rpc::AgentOptions agent_options;
    agent_options.job = "bench";
    agent_options.name = name;
    agent_options.key = rpc::WorkerKey{id, 1};
    agent_options.transport = transport.get();
    agent_options.directory = &directory;
    agent = *rpc::Agent::Create(agent_options);
    const absl::Status started = endpoint->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  rpc::FixedDirectory directory;
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<net::Endpoint> endpoint;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<rpc::Agent> agent;
};

std::string ServerName(int i) { return absl::StrCat("ps", i); }
rpc::WorkerKey ServerKey(int i) { return {static_cast<uint32_t>(i + 1), 1}; }
std::string ServerAddress(const std::string& first, int i) {
  return i == 0 ? first : absl::StrCat(first, ".", i);
}

ps::v1::TableSpec Spec(const std::string& name) {
  ps::v1::TableSpec spec;
  spec.set_name(name);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}

// Calls a second of `start`, whose Futures are waited for `out` at a time.
template <typename Start>
double Rate(Start start, int out, double seconds) {
  std::deque<decltype(start())> under_way;
  const auto finish = [&] {
    const auto result = under_way.front().Wait(kTimeout);
    WEFT_CHECK(result.ok());
    under_way.pop_front();
  };
  int64_t calls = 0;
  double begin = Now();
  const double warm = begin + seconds / 5;
  bool is_warm = false;
  while (Now() < warm + seconds) {
    if (!is_warm && Now() >= warm) {
      is_warm = true;
      calls = 0;
      begin = Now();
    }
    while (static_cast<int>(under_way.size()) < out) {
      under_way.push_back(start());
    }
    finish();
    ++calls;
  }
  const double rate = static_cast<double>(calls) / (Now() - begin);
  while (!under_way.empty()) finish();
  return rate;
}

void Print(const std::string& name, double value) {
  std::printf("%s\t%.6g\n", name.c_str(), value);
}

void SetWire(const std::string& name, ps::v1::WireValues& wire) {
  ps::v1::WireValues::Dtype dtype;
  WEFT_CHECK(
      ps::v1::WireValues::Dtype_Parse(absl::AsciiStrToUpper(name), &dtype))
      << "--wire=" << name << ": wanted f32, f16, bf16 or int8";
  wire.set_push(dtype);
  wire.set_pull(dtype);
}

void MeasureSparse(ps::Client& client, const PsOptions& options) {
  ps::v1::TableSpec spec = Spec("sparse");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(options.dim);
  SetWire(options.wire, *spec.mutable_wire());
  auto table = *client.Sparse(spec);
  std::vector<Tensor> keys;
  for (int i = 0; i < (options.other_keys ? kKeySets : 1); ++i) {
    keys.push_back(Tensor::FromVector(RandomKeys(options.keys, i + 1)));
  }
  const Tensor ones = Tensor::Ones({options.keys, options.dim});
  // Checked before it is timed: each row is what was pushed.
  for (const Tensor& set : keys) {
    WEFT_CHECK(table->Push(set, ones).Wait(kTimeout).ok());
    const auto rows = table->Pull(set).Wait(kTimeout);
    WEFT_CHECK(rows.ok()) << rows.status().ToString();
    for (float x : rows->span<float>()) WEFT_CHECK_EQ(x, -1.0f);
  }
  size_t next = 0;
  const auto set = [&]() -> const Tensor& {
    return keys[next++ % keys.size()];
  };
  const double n = static_cast<double>(options.keys);
  const double bytes = n * static_cast<double>(options.dim) * sizeof(float);
  const double pushes = Rate([&] { return table->Push(set(), ones); },
                             options.out, options.seconds);
  const double pulls =
      Rate([&] { return table->Pull(set()); }, options.out, options.seconds);
  Print("push_keys_per_s", n * pushes);
  Print("pull_keys_per_s", n * pulls);
  Print("push_gb_per_s", bytes * pushes / 1e9);
  Print("pull_gb_per_s", bytes * pulls / 1e9);
}

void MeasureDense(ps::Client& client, const PsOptions& options) {
  const int64_t n = options.keys;
  ps::v1::TableSpec spec = Spec("dense");
  spec.set_kind(ps::v1::TableSpec::DENSE);
  spec.set_elements(n);
  auto table = *client.Dense(spec);
  const Tensor ones = Tensor::Ones({n});
  WEFT_CHECK(table->Initialize(ones).Wait(kTimeout).ok());
  WEFT_CHECK(table->Push(ones).Wait(kTimeout).ok());
  const auto values = table->Pull().Wait(kTimeout);
  WEFT_CHECK(values.ok()) << values.status().ToString();
  for (float x : values->span<float>()) WEFT_CHECK_EQ(x, 0.0f);
  const double bytes = static_cast<double>(n) * sizeof(float);
  Print("push_gb_per_s", bytes / 1e9 *
                             Rate([&] { return table->Push(ones); },
                                  options.out, options.seconds));
  Print("pull_gb_per_s",
        bytes / 1e9 *
            Rate([&] { return table->Pull(); }, options.out, options.seconds));
}

// The MLP of GOAL-P1: 784-128-10, batches of 32.
class Mlp final : public nn::Module {
 public:
  Mlp()
      : generator_(1),
        hidden_(784, 128, generator_),
        out_(128, 10, generator_) {
    AddModule("hidden", hidden_);
    AddModule("out", out_);
    std::vector<int64_t> labels(32);
    for (int64_t i = 0; i < 32; ++i) labels[i] = i % 10;
    labels_ = Tensor::FromVector(labels);
    std::vector<float> images(32 * 784);
    for (size_t i = 0; i < images.size(); ++i)
      images[i] = (i * 37 % 101) / 101.f;
    images_ = Tensor::FromVector(images, {32, 784});
  }
  double Backward() {
    const Variable loss = CrossEntropy(
        out_.Forward(Relu(hidden_.Forward(Variable(images_)))), labels_);
    loss.Backward();
    return loss.value().item<float>();
  }

 private:
  Generator generator_;
  nn::Linear hidden_;
  nn::Linear out_;
  Tensor labels_, images_;
};

void MeasureLoop(ps::Client& client, const PsOptions& options) {
  constexpr double kLr = 0.01;
  Mlp local_model, model;
  optimizer::SgdOptions sgd;
  sgd.lr = kLr;
  auto local =
      *optimizer::Optimizer::Create({{sgd, local_model.NamedParameters()}});
  double local_loss = 0, loss = 0;
  const auto local_step = [&] {
    local->ZeroGrad();
    local_loss = local_model.Backward();
    WEFT_CHECK(local->Step().ok());
  };
  ps::FlatParameters parameters(model);
  ps::v1::TableSpec spec = Spec("mlp");
  spec.set_kind(ps::v1::TableSpec::DENSE);
  spec.set_elements(parameters.elements());
  spec.set_mode(ps::v1::TableSpec::SYNC);
  spec.set_shards(1);
  spec.mutable_rule()->mutable_sgd()->set_lr(kLr);
  auto table = *client.Dense(spec);
  WEFT_CHECK(table->Initialize(parameters.Values()).Wait(kTimeout).ok());
  const auto step = [&] {
    parameters.ClearGradient();
    loss = model.Backward();
    auto values = table->PushPull(parameters.TakeGradient()).Wait(kTimeout);
    WEFT_CHECK(values.ok()) << values.status().ToString();
    WEFT_CHECK(parameters.AdoptValues(*std::move(values)).ok());
  };
  for (int i = 0; i < 20; ++i) {  // the same steps give the same bits
    local_step();
    step();
    WEFT_CHECK_EQ(loss, local_loss);
  }
  Print("local_steps_per_s", StepsPerSecond(local_step, options.seconds));
  Print("steps_per_s", StepsPerSecond(step, options.seconds));
}

// Rounds of a synchronous table of which one worker has all the data.
void MeasureRounds(ps::Client& client, const PsOptions& options) {
  const int64_t n = options.keys;
  ps::v1::TableSpec spec = Spec("rounds");
  spec.set_kind(ps::v1::TableSpec::DENSE);
  spec.set_elements(n);
  spec.set_mode(ps::v1::TableSpec::SYNC);
  spec.set_shards(1);
  auto table = *client.Dense(spec);
  const Tensor ones = Tensor::Ones({n});
  WEFT_CHECK(table->Initialize(ones).Wait(kTimeout).ok());
  const auto values = table->PushPull(ones).Wait(kTimeout);
  WEFT_CHECK(values.ok()) << values.status().ToString();
  for (float x : values->span<float>()) WEFT_CHECK_EQ(x, 0.0f);
  Print("rounds_per_s",
        Rate([&] { return table->PushPull(ones); }, 1, options.seconds));
}

// Prints the means of both, and how far from the ratio of these 95 of 100
// other runs of as many turns would be.
void PrintPairs(const std::string& way, const std::vector<double>& none,
                const std::vector<double>& applied) {
  const double turns = static_cast<double>(none.size());
  const double of_none = std::accumulate(none.begin(), none.end(), 0.0) / turns;
  const double of_applied =
      std::accumulate(applied.begin(), applied.end(), 0.0) / turns;
  const double ratio = of_applied / of_none;
  double squares = 0;
  for (size_t i = 0; i < none.size(); ++i) {
    const double residual = applied[i] - ratio * none[i];
    squares += residual * residual;
  }
  Print(way + "_none_per_s", of_none);
  Print(way + "_applied_per_s", of_applied);
  Print(way + "_ratio_within", 1.96 * std::sqrt(squares) / (turns * of_none));
}

// What it costs that a push is also at its backup when it is acknowledged: a
// table of durability NONE and one of APPLIED on the same servers, by turns of
// a tenth of a second, so that the machine's changes of speed meet both alike.
void MeasureLevels(ps::Client& client, const PsOptions& options) {
  constexpr int kTurns = 80;
  constexpr double kTurnSeconds = 0.1;
  struct Level {
    std::string name;
    ps::v1::TableSpec::Durability durability;
    std::function<Future<void>()> push;
    std::function<Future<Tensor>()> pull;
    std::vector<double> pushes = {}, pulls = {};  // a second, in each turn
  };
  const bool sparse = options.dim > 0;
  const Tensor keys = Tensor::FromVector(RandomKeys(options.keys, 1));
  const Tensor ones = sparse ? Tensor::Ones({options.keys, options.dim})
                             : Tensor::Ones({options.keys});
  std::vector<Level> levels;
  for (const auto& [name, durability] :
       {std::pair("none", ps::v1::TableSpec::NONE),
        std::pair("applied", ps::v1::TableSpec::APPLIED)}) {
    ps::v1::TableSpec spec = Spec(name);
    spec.set_durability(durability);
    Level level{name, durability, {}, {}};
    if (sparse) {
      spec.set_kind(ps::v1::TableSpec::SPARSE);
      spec.set_dim(options.dim);
      const std::shared_ptr<ps::SparseTable> table = *client.Sparse(spec);
      level.push = [table, keys, ones] { return table->Push(keys, ones); };
      level.pull = [table, keys] { return table->Pull(keys); };
    } else {
      spec.set_kind(ps::v1::TableSpec::DENSE);
      spec.set_elements(options.keys);
      const std::shared_ptr<ps::DenseTable> table = *client.Dense(spec);
      WEFT_CHECK(table->Initialize(ones).Wait(kTimeout).ok());
      level.push = [table, ones] { return table->Push(ones); };
      level.pull = [table] { return table->Pull(); };
    }
    levels.push_back(std::move(level));
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < levels.size(); ++i) {
      Level& level = levels[(turn + i) % levels.size()];
      level.pushes.push_back(Rate(level.push, options.out, kTurnSeconds));
      level.pulls.push_back(Rate(level.pull, options.out, kTurnSeconds));
    }
  }
  PrintPairs("push", levels[0].pushes, levels[1].pushes);
  PrintPairs("pull", levels[0].pulls, levels[1].pulls);
}

// Bytes of a row of one float with Adam, a million of them.
void MeasureMemory(ps::Client& client) {
  constexpr int64_t kRows = 1'000'000;
  constexpr int64_t kPart = 100'000;
  ps::v1::TableSpec spec = Spec("adam");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(1);
  spec.mutable_rule()->mutable_adam()->set_lr(0.001);
  auto table = *client.Sparse(spec);
  for (int64_t begin = 0; begin < kRows; begin += kPart) {
    const Tensor keys = Tensor::FromVector(RandomKeys(kPart, begin + 1));
    WEFT_CHECK(table->Push(keys, Tensor::Ones({kPart, 1})).Wait(kTimeout).ok());
  }
  const auto stats = client.Describe();
  WEFT_CHECK(stats.ok()) << stats.status().ToString();
  for (const ps::v1::TableStats& t : (*stats)[0].tables()) {
    if (t.spec().name() != "adam") continue;
    Print("bytes_per_row", static_cast<double>(t.memory_bytes()) /
                               static_cast<double>(t.rows()));
  }
}

void MeasureMany(ps::Client& client, const PsOptions& options) {
  ps::v1::TableSpec spec = Spec("field");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(options.dim);
  for (const auto& [name, us] : MeasureManyTables(
           client, spec, kManyTables, options.keys, options.seconds)) {
    Print(name, us);
  }
}

void MeasureSnapshotCost(ps::Client& client, const PsOptions& options) {
  ps::v1::TableSpec spec = Spec("saved");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(options.dim);
  spec.mutable_rule()->mutable_adagrad()->set_lr(0.1);
  SnapshotCase of;
  of.directory = options.directory;
  of.rows = options.rows;
  of.keys = options.keys;
  of.seconds = options.seconds;
  for (const auto& [name, value] : MeasureSnapshots(client, spec, of)) {
    Print(name, value);
  }
}

}  // namespace

std::vector<int64_t> RandomKeys(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) key = static_cast<int64_t>(random());
  return keys;
}

// All servers are in one process, on one core.
int ServeTables(const PsOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(kServerCore);
  rendezvous::MemoryStore store;
  std::vector<std::unique_ptr<ps::Server>> servers;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::shared_ptr<ps::ReplicatedServer>> replicas;
  std::vector<ps::PartitionMap::Server> live;
  for (int i = 0; i < options.servers; ++i) {
    ps::ServerOptions its{i, options.servers};
    its.checkpoint_dir = options.directory;
    servers.push_back(std::make_unique<ps::Server>(its));
    ranks.push_back(std::make_unique<Rank>(ServerName(i), ServerKey(i).id,
                                           ServerAddress(options.serve, i)));
    live.push_back({ServerKey(i), static_cast<uint32_t>(i),
                    ps::PartitionMap::State::kLive});
  }
  for (int i = 0; i < options.servers; ++i) {
    for (int j = 0; j < options.servers; ++j) {
      ranks[i]->directory.Put(
          {ServerName(j), ServerKey(j), ranks[j]->endpoint->address()});
    }
    ranks[i]->agent->SetLocal(servers[i].get());
    if (options.replicas == 1) continue;
    ps::ReplicatedServer::Options replicated;
    replicated.agent = ranks[i]->agent.get();
    replicated.store = &store;
    replicated.self = ServerKey(i);
    replicas.push_back(std::make_shared<ps::ReplicatedServer>(replicated));
    servers[i]->SetReplicated(replicas.back());
    ranks[i]->agent->SetLocal(replicas.back());
  }
  for (const auto& replica : replicas) {
    replica->OnServers(live, {}, options.servers);
  }
  std::printf("%s\n", ranks[0]->endpoint->address().c_str());
  std::fflush(stdout);
  Promise<void> never(ranks[0]->loop->driver());
  (void)never.future().Wait(absl::Minutes(10));
  return 0;
}

int CallTables(const PsOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(kWorkerCore);
  Rank rank("trainer0", 100, options.call + "c");
  std::vector<std::string> names;
  for (int i = 0; i < options.servers; ++i) {
    names.push_back(ServerName(i));
    rank.directory.Put(
        {names[i], ServerKey(i), ServerAddress(options.call, i)});
  }
  ps::ClientOptions client_options;
  client_options.agent = rank.agent.get();
  client_options.servers = names;
  client_options.client = 7;
  client_options.timeout = kTimeout;
  client_options.replicas = options.replicas;
  ps::Client client(client_options);
  if (options.measure == "sparse") MeasureSparse(client, options);
  if (options.measure == "dense") MeasureDense(client, options);
  if (options.measure == "rounds") MeasureRounds(client, options);
  if (options.measure == "levels") MeasureLevels(client, options);
  if (options.measure == "loop") MeasureLoop(client, options);
  if (options.measure == "memory") MeasureMemory(client);
  if (options.measure == "many") MeasureMany(client, options);
  if (options.measure == "snapshots") MeasureSnapshotCost(client, options);
  std::fflush(stdout);
  return 0;
}

}  // namespace weft::bench
