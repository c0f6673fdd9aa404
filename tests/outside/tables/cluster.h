// Cluster: servers and trainers of tables, over a network that can be held.

#ifndef WEFT_TESTS_OUTSIDE_TABLES_CLUSTER_H_
#define WEFT_TESTS_OUTSIDE_TABLES_CLUSTER_H_

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"

namespace weft::ps {

inline constexpr absl::Duration kLong = absl::Seconds(60);

// Answers of pushes are held back until the test lets them go.
struct Held {
  std::atomic<bool> holds{false};
  std::atomic<int> under_way{0}, most{0}, pushes{0};
  Promise<void> gate;
  Future<void> opened = MakeReady();

  void Hold() {
    std::tie(gate, opened) = MakePromise<void>();
    under_way = most = pushes = 0;
    holds = true;
  }
  void Release() {
    if (holds.exchange(false)) gate.Set(absl::OkStatus());
  }
};
inline Held held;

// Servers and trainers as agents of one process.
class Cluster {
 public:
  Cluster(int servers, int trainers, std::string checkpoint_dir = "",
          const rpc::Registry* functions = nullptr)
      : checkpoint_dir_(std::move(checkpoint_dir)), functions_(functions) {
    for (int i = 0; i < servers; ++i) names_.push_back(absl::StrCat("ps", i));
    ranks_.resize(servers + trainers);
    for (int i = 0; i < servers; ++i) StartServer(i, 1);
    for (int i = 0; i < trainers; ++i) {
      Start(servers + i, absl::StrCat("trainer", i), 1, nullptr);
    }
  }
  ~Cluster() {
    held.Release();
    for (Rank& rank : ranks_) rank.agent.reset();
  }

  rpc::Agent& trainer(int i) { return *ranks_[names_.size() + i].agent; }
  Server& server(int i) { return *ranks_[i].server; }

  // The incarnation that ended.
  rpc::WorkerKey KillServer(int i) {
    const rpc::WorkerKey ended = ranks_[i].agent->key();
    ranks_[i].agent.reset();
    ranks_[i].server.reset();
    ranks_[i].transport.reset();
    for (Rank& other : ranks_) {
      if (other.agent != nullptr) other.agent->PeerGone(ended, "it was killed");
    }
    return ended;
  }
  void StartServer(int i, int epoch) {
    ServerOptions options{i, static_cast<int>(names_.size())};
    options.checkpoint_dir = checkpoint_dir_;
    Start(i, names_[i], epoch, functions_);
    ranks_[i].server = std::make_unique<Server>(options);
    ranks_[i].agent->SetLocal(ranks_[i].server.get());
  }

  std::unique_ptr<Client> MakeClient(int trainer,
                                     absl::Duration timeout = kLong,
                                     std::vector<std::string> servers = {}) {
    ClientOptions options;
    options.agent = &this->trainer(trainer);
    options.servers = servers.empty() ? names_ : servers;
    options.client = ++clients_;
    options.rank = trainer;
    options.timeout = timeout;
    return std::make_unique<Client>(options);
  }

 private:
  struct Rank {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<Server> server;
    std::unique_ptr<rpc::Agent> agent;
  };

  void Start(int rank, const std::string& name, int epoch,
             const rpc::Registry* functions) {
    const rpc::WorkerKey key{static_cast<uint32_t>(rank),
                             static_cast<rendezvous::Epoch>(epoch)};
    directory_.Put({name, key, name});
    ranks_[rank].transport = network_.MakeTransport(name).value();
    rpc::AgentOptions options;
    options.job = "test";
    options.name = name;
    options.key = key;
    options.transport = ranks_[rank].transport.get();
    options.directory = &directory_;
    if (functions != nullptr) options.registry = functions;
    ranks_[rank].agent = *rpc::Agent::Create(options);
  }

  const std::string checkpoint_dir_;
  const rpc::Registry* const functions_;
  transport::LocalNetwork network_;
  rpc::FixedDirectory directory_;
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
  std::atomic<uint64_t> clients_{0};
};

inline v1::TableSpec Spec(v1::TableSpec::Mode mode, int shards) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_mode(mode);
  if (mode == v1::TableSpec::SYNC) spec.set_shards(shards);
  spec.set_partitions(16);
  spec.set_reduction(v1::TableSpec::SUM);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}
inline v1::TableSpec Dense(v1::TableSpec::Mode mode, int shards,
                           int64_t elements) {
  v1::TableSpec spec = Spec(mode, shards);
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(elements);
  return spec;
}
inline v1::TableSpec Sparse(v1::TableSpec::Mode mode, int shards = 0) {
  v1::TableSpec spec = Spec(mode, shards);
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  return spec;
}

struct Directory {
  explicit Directory(const ::weft::testing::TempDir& temp)
      : path(temp.Path("ckpt")),
        files(checkpoint::CheckpointDirectory::Open({path}).value()) {}
  // The checkpoint's name.
  absl::StatusOr<std::string> Save(Client& client, int64_t version) {
    const auto attempt = files->Begin(1);
    if (!attempt.ok()) return attempt.status();
    const auto written = client.Save(path, *attempt, version);
    if (!written.ok()) {
      files->Abandon(*attempt);
      return written.status();
    }
    return files->Commit(*attempt, *written, {});
  }

  const std::string path;
  const std::unique_ptr<checkpoint::CheckpointDirectory> files;
};

}  // namespace weft::ps

#endif  // WEFT_TESTS_OUTSIDE_TABLES_CLUSTER_H_
