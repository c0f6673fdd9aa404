// Tables at the edges of what ps/client.h, ps/server.h and
// docs/parameter_server.md promise: too many pushes, a save while pushes go
// on, servers that die and come back, rates that change, paths that lead
// elsewhere.

#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr absl::Duration kLong = absl::Seconds(60);

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
Held held;

Future<ExchangeReply> HeldExchange(rpc::CallContext& context,
                                   v1::Request request,
                                   const std::optional<Tensor>& push_keys,
                                   const std::optional<Tensor>& push_values,
                                   const std::optional<Tensor>& pull_keys) {
  const bool is_push = request.push();
  if (is_push) {
    ++held.pushes;
    const int now = ++held.under_way;
    for (int most = held.most; now > most;) {
      if (held.most.compare_exchange_weak(most, now)) break;
    }
  }
  const Future<ExchangeReply> reply = ps::Exchange(
      context, std::move(request), push_keys, push_values, pull_keys);
  auto [answer, answered] = MakePromise<ExchangeReply>();
  // A copy: a call that is given up must not give up the gate of the others.
  held.opened.OnReady([reply, is_push,
                       answer = std::make_shared<Promise<ExchangeReply>>(
                           std::move(answer))](const absl::Status&) {
    if (is_push) --held.under_way;
    reply.OnReady(
        [answer](const Result<ExchangeReply>& result) { answer->Set(result); });
  });
  return answered;
}

const rpc::Registry& HeldFunctions() {
  static const auto* const kFunctions = [] {
    auto* registry = new rpc::Registry();
    using rpc::RunsOn;
    using rpc::internal::Describe;
    registry->Add(
        Describe<&OpenTable>(RunsOn::kExecutor, "weft::ps::OpenTable"));
    registry->Add(
        Describe<&Initialize>(RunsOn::kExecutor, "weft::ps::Initialize"));
    registry->Add(
        Describe<&ps::Describe>(RunsOn::kExecutor, "weft::ps::Describe"));
    registry->Add(
        Describe<&HeldExchange>(RunsOn::kExecutor, "weft::ps::Exchange"));
    return registry;
  }();
  return *kFunctions;
}

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

v1::TableSpec Spec(v1::TableSpec::Mode mode, int shards) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_mode(mode);
  if (mode == v1::TableSpec::SYNC) spec.set_shards(shards);
  spec.set_partitions(16);
  spec.set_reduction(v1::TableSpec::SUM);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return spec;
}
v1::TableSpec Dense(v1::TableSpec::Mode mode, int shards, int64_t elements) {
  v1::TableSpec spec = Spec(mode, shards);
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(elements);
  return spec;
}
v1::TableSpec Sparse(v1::TableSpec::Mode mode, int shards = 0) {
  v1::TableSpec spec = Spec(mode, shards);
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  return spec;
}

// ---- Pushes under way.

class ManyPushes : public ::testing::Test {
 protected:
  ManyPushes() : cluster_(1, 2, "", &HeldFunctions()) {}
  Future<void> PushOne(SparseTable& table) {
    return table.Push(keys_, Tensor::Full({20, 2}, -1));
  }
  std::vector<float> Values() {
    auto table = cluster_.MakeClient(1)->Sparse(Sparse(v1::TableSpec::ASYNC));
    return (*table)->Pull(keys_).Wait(kLong)->ToVector<float>();
  }

  Cluster cluster_;
  const Tensor keys_ = Tensor::Arange(20, DType::kI64);
};

TEST_F(ManyPushes, TwoHundredKeepToSixtyFourUnderWayAndAreAllApplied) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::atomic<int> made{0};
  std::thread trainer([&] {
    std::vector<Future<void>> pushes;
    for (int i = 0; i < 200; ++i) {
      pushes.push_back(PushOne(**table));
      ++made;
    }
    EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  });
  EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  EXPECT_TRUE(Becomes([&] { return made == 64; }));
  // Others go on meanwhile, and the 65th has not been sent.
  ASSERT_THAT(cluster_.MakeClient(1)->Describe(), IsOk());
  EXPECT_EQ(held.pushes, 64);
  EXPECT_EQ(made, 64);
  held.Release();
  trainer.join();
  EXPECT_LE(held.most, 64);
  EXPECT_THAT(Values(), Each(200.0f));
}

TEST_F(ManyPushes, SixtyFifthInAnInlineScopeIsRefusedAndSaysSo) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
  const Future<void> refused = [&] {
    const InlineScope scope;
    return PushOne(**table);
  }();
  EXPECT_TRUE(refused.IsReady());
  EXPECT_THAT(refused.Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  held.Release();
  EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  EXPECT_THAT(Values(), Each(64.0f));
}

TEST_F(ManyPushes, SixtyFifthThatWaitsInVainEndsByItsTimeout) {
  // Enough for the others to arrive.
  const auto client = cluster_.MakeClient(0, absl::Seconds(5));
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 65; ++i) pushes.push_back(PushOne(**table));
  EXPECT_THAT(pushes.back().Wait(kLong),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const auto& push : pushes) {
    EXPECT_THAT(push.Wait(kLong),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_THAT(PushOne(**table).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(held.pushes, 64);
  held.Release();
  table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(PushOne(**table).Wait(kLong), IsOk());
  EXPECT_THAT(Values(), Each(65.0f));
}

TEST_F(ManyPushes, TableDroppedWithPushesUnderWayEndsThemAll) {
  std::vector<Future<void>> pushes;
  {
    const auto client = cluster_.MakeClient(0);
    auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(table, IsOk());
    held.Hold();
    for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
    EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  }
  held.Release();
  for (const auto& push : pushes) {
    push.Wait(kLong).IgnoreError();
    EXPECT_TRUE(push.IsReady());
  }
  EXPECT_THAT(Values(), Each(64.0f));
}

TEST_F(ManyPushes, ServerThatDiesEndsThoseUnderWayAndTheOneThatWaits) {
  const auto client = cluster_.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  held.Hold();
  std::vector<Future<void>> pushes;
  for (int i = 0; i < 64; ++i) pushes.push_back(PushOne(**table));
  EXPECT_TRUE(Becomes([] { return held.pushes == 64; }));
  std::atomic<bool> ended{false};
  std::thread late([&] {
    EXPECT_THAT(PushOne(**table).Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps0"));
    ended = true;
  });
  // The server's agent must not wait for what this test holds.
  std::thread killer([&] { cluster_.KillServer(0); });
  for (const auto& push : pushes) {
    EXPECT_THAT(push.Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps0"));
  }
  late.join();
  held.Release();
  killer.join();
}

// The gradient is the caller's again once Push has returned.
TEST_F(ManyPushes, GradientMayBeWrittenToOncePushHasReturned) {
  v1::TableSpec spec = Dense(v1::TableSpec::ASYNC, 0, 5000);
  spec.set_name("d");
  const auto client = cluster_.MakeClient(0);
  auto table = client->Dense(spec);
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Zeros({5000})).Wait(kLong), IsOk());
  const Tensor gradient = Tensor::Ones({5000});
  const Tensor all = Tensor::Ones({2, 5000});
  std::vector<Future<void>> pushes;
  pushes.push_back((*table)->Push(gradient));
  pushes.push_back((*table)->Push(all.Select(0, 1)));
  gradient.Fill(100);
  all.Fill(100);
  EXPECT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
  EXPECT_THAT((*table)->Pull().Wait(kLong)->ToVector<float>(), Each(-2.0f));
}

// ---- The 65th opening.

TEST(TableOpenings, SixtyFifthOfAWorkerClosesItsOldestAndNobodyElses) {
  Cluster cluster(1, 2);
  const auto client = cluster.MakeClient(0), other = cluster.MakeClient(1);
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  auto others = other->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(others, IsOk());
  std::vector<std::unique_ptr<SparseTable>> tables;
  for (int i = 0; i < 64; ++i) {
    auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(table, IsOk());
    tables.push_back(*std::move(table));
  }
  for (const auto& table : tables) {
    ASSERT_THAT(table->Push(keys, ones).Wait(kLong), IsOk());
  }
  auto one_more = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(one_more, IsOk());
  EXPECT_THAT(tables[0]->Push(keys, ones).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tables[0]->Pull(keys).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(tables[1]->Push(keys, ones).Wait(kLong), IsOk());
  EXPECT_THAT((*others)->Push(keys, ones).Wait(kLong), IsOk());
  EXPECT_THAT((*one_more)->Pull(keys).Wait(kLong)->ToVector<float>(),
              Each(-66.0f));
}

// ---- A save while pushes go on.

struct Directory {
  explicit Directory(const TempDir& temp)
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

// Whatever it was asked while rounds went on: a checkpoint that loads has one
// version of the whole table.
TEST(TableSaves, SaveWhileRoundsGoOnIsOneVersionOfAllServersOrRefused) {
  constexpr int kRounds = 60;
  constexpr int64_t kElements = 20 * kMinSliceElements;
  const TempDir temp;
  Directory directory(temp);
  const v1::TableSpec spec = Dense(v1::TableSpec::SYNC, 2, kElements);
  std::vector<std::string> saved;
  {
    Cluster cluster(2, 3, temp.path());
    std::atomic<int> training{2};
    std::vector<std::thread> trainers;
    for (int t = 0; t < 2; ++t) {
      trainers.emplace_back([&, t] {
        const auto client = cluster.MakeClient(t);
        auto table = client->Dense(spec);
        ASSERT_THAT(table, IsOk());
        ASSERT_THAT(
            (*table)->Initialize(Tensor::Zeros({kElements})).Wait(kLong),
            IsOk());
        for (int round = 0; round < kRounds; ++round) {
          const auto values =
              (*table)->PushPull(Tensor::Full({kElements}, -0.5)).Wait(kLong);
          ASSERT_THAT(values, IsOk());
          ASSERT_EQ(values->data<float>()[0], round + 1);
        }
        --training;
      });
    }
    const auto saver = cluster.MakeClient(2);
    ASSERT_THAT(saver->Describe(), IsOk());
    int saves = 0;
    while (training > 0 && saves < 40) {
      const auto name = directory.Save(*saver, -1);
      ++saves;
      if (name.ok()) {
        saved.push_back(*name);
      } else {
        EXPECT_THAT(name.status(),
                    StatusIs(absl::StatusCode::kFailedPrecondition));
      }
    }
    for (std::thread& trainer : trainers) trainer.join();
    const auto last = directory.Save(*saver, kRounds);
    ASSERT_THAT(last, IsOk());
    saved.push_back(*last);
    EXPECT_THAT(directory.Save(*saver, kRounds + 1),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  const auto kept = directory.files->List();
  ASSERT_THAT(kept, IsOk());
  for (const std::string& name : *kept) {
    Cluster cluster(3, 1, temp.path());
    const auto client = cluster.MakeClient(0);
    const absl::Status restored = client->Restore(directory.path, name);
    if (!restored.ok()) {
      EXPECT_NE(name, saved.back()) << restored;
      EXPECT_THAT(restored, Not(StatusIs(absl::StatusCode::kInternal)));
      continue;
    }
    auto table = client->Dense(spec);
    ASSERT_THAT(table, IsOk());
    const auto values = (*table)->Pull().Wait(kLong);
    ASSERT_THAT(values, IsOk());
    EXPECT_THAT(values->ToVector<float>(),
                Each(static_cast<float>((*table)->round())))
        << name;
  }
}

TEST(TableSaves, SaveWhilePushesGoOnHasWholeRowsAndLosesNone) {
  const TempDir temp;
  Directory directory(temp);
  const v1::TableSpec spec = Sparse(v1::TableSpec::ASYNC);
  const Tensor keys = Tensor::Arange(500, DType::kI64);
  std::string during, after;
  {
    Cluster cluster(2, 2, temp.path());
    std::atomic<bool> stop{false};
    std::atomic<int> pushed{0};
    std::thread trainer([&] {
      const auto client = cluster.MakeClient(0);
      auto table = client->Sparse(spec);
      ASSERT_THAT(table, IsOk());
      while (!stop) {
        std::vector<Future<void>> pushes;
        for (int i = 0; i < 70; ++i) {
          pushes.push_back((*table)->Push(keys, Tensor::Full({500, 2}, -1)));
        }
        ASSERT_THAT(WaitAll(std::move(pushes), kLong), IsOk());
        pushed += 70;
      }
    });
    EXPECT_TRUE(Becomes([&] { return pushed >= 70; }));
    const auto saver = cluster.MakeClient(1);
    for (int i = 0; i < 5; ++i) {
      const int before = pushed;
      const auto name = directory.Save(*saver, -1);
      ASSERT_THAT(name, IsOk());
      during = *name;
      EXPECT_TRUE(Becomes([&] { return pushed > before; }));
    }
    stop = true;
    trainer.join();
    const auto name = directory.Save(*saver, -1);
    ASSERT_THAT(name, IsOk());
    after = *name;
    auto table = saver->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(),
                Each(static_cast<float>(pushed)));
  }
  Cluster cluster(3, 1, temp.path());
  const auto client = cluster.MakeClient(0);
  float wanted = 0;
  for (const std::string& name : {after, during}) {
    ASSERT_THAT(client->Restore(directory.path, name), IsOk());
    auto table = client->Sparse(spec);
    ASSERT_THAT(table, IsOk());
    const auto rows = (*table)->Pull(keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    const std::vector<float> values = rows->ToVector<float>();
    for (size_t i = 0; i < values.size(); i += 2) {
      ASSERT_EQ(values[i], values[i + 1]);
      ASSERT_EQ(values[i], std::floor(values[i]));
      ASSERT_GE(values[i], 70.0f);
    }
    if (name == after) wanted = values[0];
    EXPECT_LE(values[0], wanted);
    EXPECT_THAT((*table)->Push(keys, Tensor::Ones({500, 2})).Wait(kLong),
                IsOk());
  }
}

// ---- A server that dies.

TEST(ServerDeath, EveryOperationNamesTheServerAndItsIncarnationForGood) {
  const TempDir temp;
  Directory directory(temp);
  Cluster cluster(2, 2, temp.path());
  const auto client = cluster.MakeClient(0);
  v1::TableSpec dense_spec = Dense(v1::TableSpec::ASYNC, 0, 5000);
  dense_spec.set_name("d");
  auto sparse = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  auto dense = client->Dense(dense_spec);
  ASSERT_THAT(sparse, IsOk());
  ASSERT_THAT(dense, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  const Tensor ones = Tensor::Ones({64, 2});
  ASSERT_THAT((*sparse)->Push(keys, ones).Wait(kLong), IsOk());
  ASSERT_THAT((*dense)->Initialize(Tensor::Ones({5000})).Wait(kLong), IsOk());
  const auto name = directory.Save(*client, -1);
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT((*sparse)->Push(keys, ones).Wait(kLong), IsOk());

  const rpc::WorkerKey first = cluster.KillServer(1);
  const auto is_lost = [](rpc::WorkerKey key) {
    return ::testing::AllOf(
        StatusIs(absl::StatusCode::kUnavailable, "ps1"),
        StatusIs(absl::StatusCode::kUnavailable, key.ToString()));
  };
  const auto expect_lost = [&](rpc::WorkerKey key, SparseTable& s,
                               DenseTable& d) {
    EXPECT_THAT(s.Pull(keys).Wait(kLong).status(), is_lost(key));
    EXPECT_THAT(s.Push(keys, ones).Wait(kLong), is_lost(key));
    EXPECT_THAT(s.PushPull(keys, ones, keys).Wait(kLong).status(),
                is_lost(key));
    EXPECT_THAT(s.SetLearningRateScale(0.5).Wait(kLong), is_lost(key));
    // Keys that the other server has are lost, too.
    EXPECT_THAT(d.Pull().Wait(kLong).status(), is_lost(key));
    EXPECT_THAT(d.Push(Tensor::Ones({5000})).Wait(kLong), is_lost(key));
    EXPECT_THAT(d.PushPull(Tensor::Ones({5000})).Wait(kLong).status(),
                is_lost(key));
    EXPECT_THAT(d.Initialize(Tensor::Ones({5000})).Wait(kLong), is_lost(key));
    EXPECT_THAT(d.SetLearningRateScale(0.5).Wait(kLong), is_lost(key));
    EXPECT_THAT(client->Sparse(Sparse(v1::TableSpec::ASYNC)).status(),
                is_lost(key));
    EXPECT_THAT(client->Dense(dense_spec).status(), is_lost(key));
    EXPECT_THAT(client->Describe().status(), is_lost(key));
    EXPECT_THAT(client->Save(directory.path, "x", -1).status(), is_lost(key));
    EXPECT_THAT(client->CheckCheckpointDirectory(directory.path), is_lost(key));
  };
  expect_lost(first, **sparse, **dense);
  cluster.StartServer(1, 2);
  expect_lost(first, **sparse, **dense);
  {
    const auto other = cluster.MakeClient(1);
    auto again = other->Sparse(Sparse(v1::TableSpec::ASYNC));
    ASSERT_THAT(again, IsOk());
    EXPECT_THAT(other->Dense(dense_spec), IsOk());
    EXPECT_THAT((*again)->Push(keys, ones).Wait(kLong), IsOk());
  }
  expect_lost(first, **sparse, **dense);

  // A Restore that fails changes nothing.
  EXPECT_FALSE(client->Restore(directory.path, "ckpt-000077-step-1").ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE((*sparse)->Pull(keys).Wait(kLong).ok());
    EXPECT_FALSE((*dense)->Pull().Wait(kLong).ok());
  }
  ASSERT_THAT(client->Restore(directory.path, *name), IsOk());
  // Never initial values, nor those of others, through the old tables.
  EXPECT_FALSE((*sparse)->Pull(keys).Wait(kLong).ok());
  EXPECT_FALSE((*sparse)->Push(keys, ones).Wait(kLong).ok());
  EXPECT_FALSE((*dense)->Pull().Wait(kLong).ok());
  sparse = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  dense = client->Dense(dense_spec);
  ASSERT_THAT(sparse, IsOk());
  ASSERT_THAT(dense, IsOk());
  EXPECT_THAT((*sparse)->Pull(keys).Wait(kLong)->ToVector<float>(),
              Each(-1.0f));
  EXPECT_THAT((*dense)->Pull().Wait(kLong)->ToVector<float>(), Each(1.0f));

  const rpc::WorkerKey second = cluster.KillServer(1);
  cluster.StartServer(1, 3);
  expect_lost(second, **sparse, **dense);
}

// Keys of which the dead server had none: the client is lost all the same.
TEST(ServerDeath, OperationsOnTheOtherServersRowsEndToo) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(64, DType::kI64);
  ASSERT_THAT((*table)->Push(keys, Tensor::Ones({64, 2})).Wait(kLong), IsOk());
  cluster.KillServer(1);
  cluster.StartServer(1, 2);
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  for (int64_t key = 0; key < 8; ++key) {
    const Tensor one = Tensor::FromVector<int64_t>({key});
    EXPECT_THAT((*table)->Pull(one).Wait(kLong).status(),
                StatusIs(absl::StatusCode::kUnavailable, "ps1"));
    EXPECT_THAT((*table)->Push(one, Tensor::Ones({1, 2})).Wait(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "ps1"));
  }
}

TEST(ServerDeath, ServerThatWasNeverThereIsNamed) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0, absl::Seconds(2), {"ps0", "ghost"});
  const auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  EXPECT_THAT(table.status(), Not(IsOk()));
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("ghost"));
}

// ---- Learning rates.

class Rates : public ::testing::TestWithParam<int> {
 protected:
  static const optimizer::RuleOptions& Rule() {
    static const auto* const kRules = new std::vector<optimizer::RuleOptions>{
        optimizer::SgdOptions{0.1, 0.9, 0.0, 0.01, true},
        optimizer::AdamOptions{0.05, 0.9, 0.99, 1e-8, 0.01},
        optimizer::AdamWOptions{0.05}, optimizer::AdagradOptions{0.1, 0.01},
        optimizer::FtrlOptions{0.1, 1.0, 0.01, 0.01}};
    return (*kRules)[GetParam()];
  }
  static Tensor GradientOf(int64_t elements, int shard, int64_t round) {
    std::vector<float> values(elements);
    for (int64_t i = 0; i < elements; ++i) {
      values[i] = std::sin(0.7f * i + 1.3f * shard + 0.1f * round);
    }
    return Tensor::FromVector(values);
  }
  static double ScaleOf(int64_t round) {
    constexpr double kScales[] = {1.0, 0.25, 0.1, 3.0, 1e-3, 0.7};
    return kScales[round % 6];
  }
};

TEST_P(Rates, ChangedByRoundGiveTheBitsOfALocalOptimizer) {
  constexpr int64_t kElements = 2 * kMinSliceElements + 7;
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  for (const v1::TableSpec::Reduction reduction :
       {v1::TableSpec::SUM, v1::TableSpec::MEAN}) {
    v1::TableSpec spec = Dense(v1::TableSpec::SYNC, 2, kElements);
    spec.set_name(absl::StrCat("d", reduction));
    spec.set_reduction(reduction);
    *spec.mutable_rule() = optimizer::ToSpec(Rule());
    auto table = client->Dense(spec);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Ones({kElements})).Wait(kLong),
                IsOk());
    const Variable w(Tensor::Ones({kElements}), true);
    auto local = optimizer::Optimizer::Create({{Rule(), {{"w", w}}}});
    ASSERT_THAT(local, IsOk());
    for (int64_t round = 0; round < 8; ++round) {
      if (round != 0) {
        ASSERT_THAT((*table)->SetLearningRateScale(ScaleOf(round)).Wait(kLong),
                    IsOk());
        // The same again, as by another worker.
        ASSERT_THAT(
            (*table)->SetLearningRateScale(ScaleOf(round), round).Wait(kLong),
            IsOk());
      }
      std::vector<float> sum =
          GradientOf(kElements, 0, round).ToVector<float>();
      const auto other = GradientOf(kElements, 1, round).ToVector<float>();
      for (int64_t i = 0; i < kElements; ++i) {
        sum[i] += other[i];
        if (reduction == v1::TableSpec::MEAN) sum[i] /= 2;
      }
      ASSERT_THAT((*local)->SetLearningRateScale(ScaleOf(round)), IsOk());
      ASSERT_THAT((*local)->Apply([&](const optimizer::Parameter&) {
        return Gradient(Tensor::FromVector(sum));
      }),
                  IsOk());
      for (const int shard : {1, 0}) {
        ASSERT_THAT((*table)
                        ->PushShard({shard, round, /*take_over=*/true},
                                    GradientOf(kElements, shard, round))
                        .Wait(kLong),
                    IsOk());
      }
      (*table)->EndRound();
      const auto values = (*table)->Pull().Wait(kLong);
      ASSERT_THAT(values, IsOk());
      ASSERT_EQ(values->ToVector<float>(), w.value().ToVector<float>())
          << optimizer::RuleName(Rule()) << " round " << round;
    }
  }
}

TEST_P(Rates, ChangedByRoundGiveTheBitsOfALocalLazyOptimizerOfRows) {
  constexpr int64_t kRows = 40;
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  v1::TableSpec spec = Sparse(v1::TableSpec::SYNC, 1);
  *spec.mutable_rule() = optimizer::ToSpec(Rule());
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Variable w(Tensor::Zeros({kRows, 2}), true);
  auto local = optimizer::Optimizer::Create({{Rule(), {{"w", w}}, true}});
  ASSERT_THAT(local, IsOk());
  const Tensor keys = Tensor::Arange(kRows, DType::kI64);
  for (int64_t round = 0; round < 7; ++round) {
    const Tensor gradient = GradientOf(2 * kRows, 0, round).View({kRows, 2});
    ASSERT_THAT((*table)->SetLearningRateScale(ScaleOf(round)).Wait(kLong),
                IsOk());
    ASSERT_THAT((*local)->SetLearningRateScale(ScaleOf(round)), IsOk());
    ASSERT_THAT((*local)->Apply([&](const optimizer::Parameter&) {
      return Gradient(gradient);
    }),
                IsOk());
    const auto rows = (*table)->PushPull(keys, gradient, keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    ASSERT_EQ(rows->ToVector<float>(), w.value().ToVector<float>())
        << optimizer::RuleName(Rule()) << " round " << round;
  }
}

// 0 is allowed: the end of a cosine.
TEST_P(Rates, ScaleOfZeroLeavesFiniteWeights) {
  Cluster cluster(1, 1);
  const auto client = cluster.MakeClient(0);
  v1::TableSpec spec = Sparse(v1::TableSpec::ASYNC);
  *spec.mutable_rule() = optimizer::ToSpec(Rule());
  auto table = client->Sparse(spec);
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(4, DType::kI64);
  for (const double scale : {1.0, 0.0, 0.0, 1.0}) {
    ASSERT_THAT((*table)->SetLearningRateScale(scale).Wait(kLong), IsOk());
    const auto rows =
        (*table)->PushPull(keys, Tensor::Ones({4, 2}), keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    for (const float x : rows->ToVector<float>()) {
      EXPECT_TRUE(std::isfinite(x))
          << optimizer::RuleName(Rule()) << " at scale " << scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Rates, ::testing::Range(0, 5));

TEST(RateChangesOfATable, WhatCannotBeIsRefusedAndChangesNothing) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::SYNC, 1));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  for (const double bad :
       {-1.0, -1e-300, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT((*table)->SetLearningRateScale(bad).Wait(kLong),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad;
  }
  ASSERT_THAT((*table)->Push(keys, ones).Wait(kLong), IsOk());
  ASSERT_THAT((*table)->Pull(keys).Wait(kLong), IsOk());
  EXPECT_THAT((*table)->SetLearningRateScale(0.5, 0).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT((*table)->SetLearningRateScale(0.5, -1).Wait(kLong),
              ::testing::AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition),
                               StatusIs(absl::StatusCode::kInvalidArgument)));
  ASSERT_THAT((*table)->SetLearningRateScale(0.5, 3).Wait(kLong), IsOk());
  ASSERT_THAT((*table)->SetLearningRateScale(0.5, 3).Wait(kLong), IsOk());
  EXPECT_THAT((*table)->SetLearningRateScale(0.25, 3).Wait(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  std::vector<Future<void>> changes;
  for (int64_t i = 0; i < 4200; ++i) {
    changes.push_back((*table)->SetLearningRateScale(0.25, 10 + i));
  }
  int refused = 0;
  for (const auto& change : changes) {
    const absl::Status status = change.Wait(kLong);
    if (status.ok()) continue;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
    ++refused;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 200);
  // Rounds 1 and 2 at the old rate, from round 3 at half of it.
  float wanted = -1;
  for (const float step : {1.0f, 1.0f, 0.5f}) {
    wanted -= step;
    const auto rows = (*table)->PushPull(keys, ones, keys).Wait(kLong);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(wanted));
  }
}

// ---- Checkpoint paths.

TEST(CheckpointPaths, NoWordingLeadsOutOfTheServersDirectory) {
  const TempDir temp;
  const std::string root = temp.Path("root");
  const std::string attempt = "tmp-000001-1-0123456789abcdef";
  for (const char* made : {"root/run", "root2", "root/deep/er"}) {
    std::filesystem::create_directories(temp.Path(made) + "/" + attempt);
  }
  std::filesystem::create_directory_symlink(root + "/loop", root + "/loop");
  std::filesystem::create_directory_symlink("../../root2", root + "/deep/out");
  std::filesystem::create_directory_symlink("../run", root + "/deep/in");
  Cluster cluster(1, 1, root);
  const auto client = cluster.MakeClient(0);
  ASSERT_THAT(client->Sparse(Sparse(v1::TableSpec::ASYNC)), IsOk());
  for (const std::string& good :
       {root, root + "/", root + "//run/", root + "/run/../run/.",
        root + "/deep/in", root + "/deep/../run"}) {
    EXPECT_THAT(client->CheckCheckpointDirectory(good), IsOk()) << good;
  }
  std::string with_zero = root + "/run";
  with_zero.push_back('\0');
  with_zero += "/../../root2";
  const auto before = [&] {
    std::set<std::string> all;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(temp.path())) {
      all.insert(entry.path());
    }
    return all;
  };
  const std::set<std::string> there = before();
  for (const std::string& bad :
       {temp.Path("root2"), root + "2", root + "/../root2", root + "/deep/out",
        root + "/deep/out/../root2", root + "/loop", std::string(),
        std::string("."), std::string(".."), std::string("root/run"), with_zero,
        root + std::string(1, '\0'), root + "/" + std::string(5000, 'x'),
        root + "/run/\n", "file://" + root, std::string("~")}) {
    EXPECT_THAT(client->CheckCheckpointDirectory(bad), Not(IsOk())) << bad;
    EXPECT_THAT(client->Save(bad, attempt, -1).status(), Not(IsOk())) << bad;
    EXPECT_THAT(client->Restore(bad, "ckpt-000001-step-1"), Not(IsOk())) << bad;
  }
  std::string name_with_zero = attempt;
  name_with_zero.push_back('\0');
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), "../run/" + attempt,
        "./" + attempt, attempt + "/", attempt + "/../../../root2/" + attempt,
        name_with_zero, std::string("tmp-"), std::string("ckpt-000001-step-1"),
        "/" + temp.Path("root2"), std::string(5000, 't')}) {
    EXPECT_THAT(client->Save(root + "/run", bad, -1).status(), Not(IsOk()))
        << bad;
    EXPECT_THAT(client->Restore(root + "/run", bad), Not(IsOk())) << bad;
  }
  EXPECT_EQ(before(), there);
}

TEST(CheckpointPaths, ShardNumbersThatCannotBeAreRefused) {
  const TempDir temp;
  Directory directory(temp);
  Cluster cluster(1, 1, temp.path());
  const auto client = cluster.MakeClient(0);
  ASSERT_THAT(client->Sparse(Sparse(v1::TableSpec::ASYNC)), IsOk());
  const auto attempt = directory.files->Begin(1);
  ASSERT_THAT(attempt, IsOk());
  for (const int32_t first : {-1, INT_MIN, INT_MAX, 100000000}) {
    v1::SaveRequest request;
    request.set_directory(directory.path);
    request.set_attempt(*attempt);
    request.set_first_shard(first);
    request.set_version(-1);
    const auto saved =
        rpc::Call(cluster.trainer(0).To("ps0", kLong), &ps::Save, request);
    if (saved.ok()) {
      // Then each file lies where it says.
      for (const auto& file : saved->files()) {
        EXPECT_TRUE(std::filesystem::exists(directory.path + "/" + *attempt +
                                            "/" + file.name()))
            << file.name();
      }
    } else {
      EXPECT_THAT(saved.status(), Not(StatusIs(absl::StatusCode::kInternal)))
          << first;
    }
  }
}

// ---- Other edges of a table.

TEST(TableEdges, EmptyAndStrangeKeysAreTakenOrNamed) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::ASYNC));
  ASSERT_THAT(table, IsOk());
  const Tensor none = Tensor::Empty({0}, DType::kI64);
  const auto rows = (*table)->Pull(none).Wait(kLong);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->shape(), (Shape{0, 2}));
  EXPECT_THAT((*table)->Push(none, Tensor::Empty({0, 2})).Wait(kLong), IsOk());
  const Tensor extreme =
      Tensor::FromVector<int64_t>({std::numeric_limits<int64_t>::min(), -1, 0,
                                   std::numeric_limits<int64_t>::max(), -1});
  ASSERT_THAT((*table)->Push(extreme, Tensor::Ones({5, 2})).Wait(kLong),
              IsOk());
  EXPECT_EQ((*table)->Pull(extreme).Wait(kLong)->ToVector<float>(),
            (std::vector<float>{-1, -1, -2, -2, -1, -1, -1, -1, -2, -2}));
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT((*table)->Push(extreme, Tensor::Ones({4, 2})).Wait(kLong),
              invalid);
  EXPECT_THAT((*table)->Push(extreme, Tensor::Ones({5, 3})).Wait(kLong),
              invalid);
  EXPECT_THAT((*table)->Push(extreme, Tensor()).Wait(kLong), invalid);
  EXPECT_THAT((*table)->Push(Tensor(), Tensor::Ones({5, 2})).Wait(kLong),
              invalid);
  EXPECT_THAT(
      (*table)->Pull(Tensor::Ones({2, 2}, DType::kI64)).Wait(kLong).status(),
      invalid);
  // Views in any strides.
  const Tensor wide = Tensor::Ones({2, 5}).Transpose(0, 1);
  const Tensor steps =
      Tensor::FromVector<int64_t>({0, 9, 1, 9, 2, 9, 3, 9, 4, 9}, {5, 2})
          .Select(1, 0);
  EXPECT_THAT((*table)->Push(steps, wide).Wait(kLong), IsOk());
  EXPECT_THAT((*table)
                  ->Pull(Tensor::FromVector<int64_t>({1, 2, 3, 4}))
                  .Wait(kLong)
                  ->ToVector<float>(),
              Each(-1.0f));
}

TEST(TableEdges, PartsOfRoundsThatCannotBeAreRefusedAndTheRoundGoesOn) {
  Cluster cluster(2, 1);
  const auto client = cluster.MakeClient(0);
  auto table = client->Sparse(Sparse(v1::TableSpec::SYNC, 2));
  ASSERT_THAT(table, IsOk());
  const Tensor keys = Tensor::Arange(20, DType::kI64);
  const Tensor ones = Tensor::Ones({20, 2});
  for (const RoundPart& bad :
       {RoundPart{2, 0}, RoundPart{-1, 0}, RoundPart{INT_MAX, 0},
        RoundPart{0, -1}, RoundPart{0, 100},
        RoundPart{0, std::numeric_limits<int64_t>::max()}}) {
    EXPECT_THAT((*table)->PushShard(bad, keys, ones).Wait(kLong), Not(IsOk()))
        << bad.shard << " " << bad.round;
  }
  for (const int shard : {0, 1}) {
    const RoundPart part{shard, 0, true};
    ASSERT_THAT((*table)->PushShard(part, keys, ones).Wait(kLong), IsOk());
    // Late and twice: it counts once.
    ASSERT_THAT((*table)->PushShard(part, keys, ones).Wait(kLong), IsOk());
  }
  (*table)->EndRound();
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(), Each(-2.0f));
  // After its round was closed.
  (*table)->PushShard({0, 0, true}, keys, ones).Wait(kLong).IgnoreError();
  EXPECT_THAT((*table)->Pull(keys).Wait(kLong)->ToVector<float>(), Each(-2.0f));
}

}  // namespace
}  // namespace weft::ps
