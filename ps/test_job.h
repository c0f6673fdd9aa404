// TestJob: parameter servers and trainers as agents of one process, and specs
// of small tables, for tests of clients and servers.

#ifndef WEFT_PS_TEST_JOB_H_
#define WEFT_PS_TEST_JOB_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/core/replication/rebalancer.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/replicated/table_log.h"
#include "weft/ps/server.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/patience.h"
#include "weft/transport/local_transport.h"

namespace weft::ps {

inline constexpr absl::Duration kTimeout = absl::Seconds(30);

// After so long a server with replicas takes another for gone. The servers of a
// TestJob are told who is gone, so silence shows only that the machine has
// paused: this is longer than its pauses.
inline constexpr absl::Duration kSilence = absl::Seconds(10);

// `servers` parameter servers and `trainers` trainers.
class TestJob {
 public:
  // Servers answer by `functions`, if given, in place of those of service.h.
  TestJob(int servers, int trainers, const rpc::Registry* functions = nullptr,
          std::string checkpoint_dir = "", int replicas = 1,
          int64_t table_memory = 0, absl::Duration silence = kSilence,
          RebalanceMode rebalance = RebalanceMode::kOff,
          std::string table_log_dir = "")
      : table_log_dir_(std::move(table_log_dir)),
        checkpoint_dir_(std::move(checkpoint_dir)),
        replicas_(replicas),
        table_memory_(table_memory),
        silence_(silence),
        rebalance_(rebalance) {
    for (int i = 0; i < servers; ++i) {
      server_names_.push_back(absl::StrCat("ps", i));
    }
    for (int i = 0; i < servers; ++i) {
      Rank& rank = Add(server_names_[i], functions);
      Serve(i, rank);
    }
    for (int i = 0; i < trainers; ++i) Add(absl::StrCat("trainer", i));
    TellServers();
  }
  ~TestJob() {
    for (Rank& rank : ranks_) StopReplicas(rank);
    for (Rank& rank : ranks_) rank.agent.reset();
  }

  Server& server(int i) { return *ranks_[i].server; }
  rpc::Agent& trainer(int i) { return *ranks_[server_names_.size() + i].agent; }

  // As after a crash: the others learn that server `i` is gone, and its
  // supervisor starts a new incarnation, which holds no tables.
  void RestartServer(int i) {
    Rank& rank = ranks_[i];
    const rpc::WorkerKey ended = rank.agent->key();
    for (Rank& other : ranks_) {
      if (&other != &rank) other.agent->PeerGone(ended, "it was killed");
    }
    StopReplicas(rank);
    rank.agent.reset();
    rank.server.reset();
    rank.transport.reset();
    Start(server_names_[i], {ended.id, ended.epoch + 1}, nullptr, rank);
    Serve(i, rank);
  }

  // With replicas: KillServer is the first half of RestartServer, StartServer
  // the second.
  void KillServer(int i) { KillServers({i}); }
  // Kills all of them at once: the others hear of none before all have ended.
  void KillServers(const std::vector<int>& servers) {
    std::vector<rpc::WorkerKey> ended;
    for (const int i : servers) {
      Rank& rank = ranks_[i];
      ended.push_back(rank.agent->key());
      StopReplicas(rank);
      rank.agent.reset();
      rank.server.reset();
      rank.transport.reset();
    }
    ended_.insert(ended_.end(), ended.begin(), ended.end());
    for (Rank& other : ranks_) {
      if (other.agent == nullptr) continue;
      for (const rpc::WorkerKey& key : ended) {
        other.agent->PeerGone(key, "it was killed");
      }
    }
    TellServers();
  }
  void StartServer(int i) {
    Rank& rank = ranks_[i];
    rpc::WorkerKey key{static_cast<uint32_t>(i), 1};
    for (const rpc::WorkerKey& ended : ended_) {
      if (ended.id == key.id) key.epoch = std::max(key.epoch, ended.epoch + 1);
    }
    Start(server_names_[i], key, nullptr, rank);
    Serve(i, rank);
    TellServers();
  }
  ReplicatedServer& replicated(int i) { return *ranks_[i].replicated; }
  // While it is false, servers do not hear who lives and who is gone.
  void SetTelling(bool is_telling) {
    is_telling_ = is_telling;
    TellServers();
  }

  // Whether all servers that live come to know a map of them and of no other,
  // by which each partition has a backup that may be promoted: then any one of
  // them may die, and nothing is lost. IsReplicated() of a map alone is no such
  // proof: it is also true of one from before the last death. REQUIRES: two
  // servers live. On the thread that starts and kills them.
  ::testing::AssertionResult BecomesReplicated() {
    PartitionMap map;
    auto became = weft::testing::Becomes([&] {
      absl::SleepFor(absl::Milliseconds(1));
      const auto knows_all = [&](const Rank& rank) {
        if (rank.replicated == nullptr) return true;
        map = rank.replicated->map();
        return map.epoch() > 0 && map.IsReplicated() && IsOfThoseThatLive(map);
      };
      return std::all_of(ranks_.begin(), ranks_.end(), knows_all);
    });
    if (!became) became << "; the last map that was not so: " << map.Summary();
    return became;
  }

  // Whether server `i` answers calls on its tables.
  void SetServing(int i, bool serving) {
    ranks_[i].agent->SetLocal(serving ? ranks_[i].server.get() : nullptr);
  }

  // `replicas`: as the servers have it, unless it is given.
  std::unique_ptr<Client> MakeClient(int trainer,
                                     absl::Duration timeout = kTimeout,
                                     int replicas = 0) {
    return std::make_unique<Client>(
        OptionsOfClient(trainer, timeout, replicas));
  }
  ClientOptions OptionsOfClient(int trainer, absl::Duration timeout = kTimeout,
                                int replicas = 0) {
    ClientOptions options;
    options.agent = ranks_[server_names_.size() + trainer].agent.get();
    options.servers = server_names_;
    options.client = 1000 + trainer;
    options.rank = trainer;
    options.timeout = timeout;
    options.replicas = replicas != 0 ? replicas : replicas_;
    return options;
  }

 private:
  struct Rank {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<Server> server;
    std::unique_ptr<rpc::Agent> agent;
    std::shared_ptr<ReplicatedServer> replicated;
  };

  static void StopReplicas(Rank& rank) {
    if (rank.replicated == nullptr) return;
    rank.replicated->Shutdown(absl::UnavailableError("it was killed"));
    rank.agent->SetLocal(std::shared_ptr<ReplicatedServer>());
    rank.server->SetReplicated(nullptr);
    rank.replicated.reset();
  }

  bool IsOfThoseThatLive(const PartitionMap& map) const {
    for (size_t i = 0; i < server_names_.size(); ++i) {
      const bool is_live = ranks_[i].agent != nullptr;
      const auto is_it = [&](const PartitionMap::Server& server) {
        return server.key.id == i && server.state == PartitionMap::State::kLive;
      };
      const auto named =
          std::find_if(map.servers().begin(), map.servers().end(), is_it);
      if (is_live != (named != map.servers().end())) return false;
      if (is_live && named->key != ranks_[i].agent->key()) return false;
    }
    return true;
  }

  // As the membership does.
  void TellServers() {
    if (!is_telling_) return;
    std::vector<PartitionMap::Server> live;
    for (size_t i = 0; i < server_names_.size(); ++i) {
      const Rank& rank = ranks_[i];
      if (rank.agent == nullptr) continue;
      live.push_back({rank.agent->key(), 0, PartitionMap::State::kLive});
    }
    for (Rank& rank : ranks_) {
      if (rank.replicated == nullptr) continue;
      rank.replicated->OnServers(live, ended_,
                                 static_cast<int>(server_names_.size()));
    }
  }

  Rank& Add(const std::string& name, const rpc::Registry* functions = nullptr) {
    const rpc::WorkerKey key{static_cast<uint32_t>(ranks_.size()), 1};
    Rank& rank = ranks_.emplace_back();
    Start(name, key, functions, rank);
    return rank;
  }

  void Start(const std::string& name, rpc::WorkerKey key,
             const rpc::Registry* functions, Rank& rank) {
    directory_.Put({name, key, name});
    rank.transport = network_.MakeTransport(name).value();
    rpc::AgentOptions options;
    options.job = "test";
    options.name = name;
    options.key = key;
    options.transport = rank.transport.get();
    options.directory = &directory_;
    if (functions != nullptr) options.registry = functions;
    rank.agent = *rpc::Agent::Create(options);
  }

  void Serve(int i, Rank& rank) {
    const int servers = static_cast<int>(server_names_.size());
    ServerOptions options{i, servers};
    options.checkpoint_dir = checkpoint_dir_;
    options.table_memory = table_memory_;
    rank.server = std::make_unique<Server>(options);
    if (replicas_ == 2) {
      ReplicatedServer::Options replicated;
      replicated.agent = rank.agent.get();
      replicated.store = &store_;
      replicated.self = rank.agent->key();
      replicated.table_memory = table_memory_;
      replicated.silence = silence_;
      if (!table_log_dir_.empty()) {
        TableLog::Options log;
        log.directory = absl::StrCat(table_log_dir_, "/", server_names_[i]);
        log.least_growth = 1 << 16;  // it is written anew now and then
        replicated.log = *TableLog::Open(log);
      }
      replicated.leases.lease = 0.8 * silence_;
      // At once, and at any load: what there is to wait for is the core's test.
      replicated.rebalance = rebalance_;
      replicated.rebalancing.least_load = 1e-9;
      replicated.rebalancing.lasts = absl::ZeroDuration();
      replicated.rebalancing.settle = absl::ZeroDuration();
      replicated.rebalancing.rest = absl::Seconds(1);
      rank.replicated = std::make_shared<ReplicatedServer>(replicated);
      rank.server->SetReplicated(rank.replicated);
      rank.agent->SetLocal(rank.replicated);
    } else {
      rank.agent->SetLocal(std::make_shared<OneReplica>());
    }
    rank.agent->SetLocal(rank.server.get());
  }

  const std::string table_log_dir_;
  const std::string checkpoint_dir_;
  const int replicas_;
  const int64_t table_memory_;
  const absl::Duration silence_;
  const RebalanceMode rebalance_;
  rendezvous::MemoryStore store_;
  bool is_telling_ = true;
  std::vector<rpc::WorkerKey> ended_;
  transport::LocalNetwork network_;
  rpc::FixedDirectory directory_;
  std::vector<Rank> ranks_;
  std::vector<std::string> server_names_;
};

inline v1::TableSpec Spec(v1::TableSpec::Mode mode, int workers) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_mode(mode);
  spec.set_shards(workers);
  spec.set_partitions(16);
  spec.set_reduction(v1::TableSpec::SUM);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}

inline v1::TableSpec DenseSpec(v1::TableSpec::Mode mode, int workers,
                               int64_t n) {
  v1::TableSpec spec = Spec(mode, workers);
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(n);
  return spec;
}

inline v1::TableSpec SparseSpec(v1::TableSpec::Mode mode, int workers) {
  v1::TableSpec spec = Spec(mode, workers);
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  return spec;
}

// Runs `body(trainer)` on a thread for each trainer.
template <typename Body>
void OnEach(int trainers, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < trainers; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weft::ps

#endif  // WEFT_PS_TEST_JOB_H_
