#include "weft/train/step_table.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::train {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

ps::v1::TableSpec Rows(int shards) {
  ps::v1::TableSpec spec;
  spec.set_name("rows");
  spec.set_dim(4);
  spec.set_shards(shards);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  return spec;
}

// What fits no job is refused before anybody is waited for.
TEST(StepTable, OpenRefusesWhatNoTrainingHas) {
  worker::TestWorkers::Options options;
  options.trainers = 1;
  const auto workers = worker::TestWorkers::Start(options).value();
  worker::Worker& trainer = workers->Get("trainer0");
  for (const int shards : {0, -1, 3, 1 << 30}) {
    const absl::Status status = StepTable::Open(trainer, Rows(shards)).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted TableSpec::shards to be the number of virtual "
                         "shards of the training"));
    EXPECT_EQ(worker::ExitCodeFor(status), worker::ExitCode::kConfig);
  }
  ps::v1::TableSpec dense = Rows(8);
  dense.set_kind(ps::v1::TableSpec::DENSE);
  EXPECT_THAT(
      StepTable::Open(trainer, dense).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "wanted a sparse table"));
  EXPECT_THAT(StepTable::Open(trainer, Rows(8)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted at least 2 servers and --replicas=2"));
}

// A parameter server with replicas in each of two workers.
class Servers {
 public:
  explicit Servers(worker::TestWorkers& workers) {
    for (const char* name : {"ps0", "ps1"}) {
      worker::Worker& worker = workers.Get(name);
      ps::ReplicatedServer::Options options;
      options.agent = &worker.agent();
      options.store = &worker.membership().store();
      options.self = worker.membership().self().key;
      options.host = static_cast<uint32_t>(workers_.size());
      // Nobody takes over meanwhile.
      options.silence = absl::Minutes(10);
      options.leases.lease = absl::Minutes(8);
      auto replicas = std::make_shared<ps::ReplicatedServer>(options);
      auto server = std::make_unique<ps::Server>(
          ps::ServerOptions{static_cast<int>(workers_.size()), 2});
      server->SetReplicated(replicas);
      worker.agent().SetLocal(replicas);
      worker.agent().SetLocal(server.get());
      workers_.push_back(&worker);
      live_.push_back(
          {options.self, options.host, ps::PartitionMap::State::kLive});
      replicas_.push_back(std::move(replicas));
      servers_.push_back(std::move(server));
    }
    for (const auto& one : replicas_) one->OnServers(live_, {}, 2);
  }
  ~Servers() { Stop(); }
  // They run, and serve nothing any more.
  void Stop() {
    for (worker::Worker* worker : workers_) {
      worker->agent().SetLocal(std::shared_ptr<ps::ReplicatedServer>());
      worker->agent().SetLocal(std::shared_ptr<ps::Server>());
    }
    replicas_.clear();
    servers_.clear();
  }

 private:
  std::vector<worker::Worker*> workers_;
  std::vector<ps::PartitionMap::Server> live_;
  std::vector<std::shared_ptr<ps::ReplicatedServer>> replicas_;
  std::vector<std::unique_ptr<ps::Server>> servers_;
};

// "Not yet" would be asked again, for as long as that was to take.
TEST(StepTable, PushThatIsNotAnsweredInItsTimeNamesWhereAndIsOver) {
  worker::TestWorkers::Options options;
  options.servers = 2;
  options.trainers = 1;
  options.configure = [](worker::Options& own) { own.replicas = 2; };
  const auto workers = worker::TestWorkers::Start(options).value();
  Servers servers(*workers);
  const auto opened =
      StepTable::Open(workers->Get("trainer0"), Rows(1), absl::Seconds(6));
  ASSERT_THAT(opened, IsOk());
  const DataParallelTraining::Tables tables = (*opened)->MakeTables();
  const Tensor keys = Tensor::Arange(8, DType::kI64);
  const std::string part = *(*opened)->PartOf(keys, Tensor::Ones({8, 4}));
  const auto push = [&](int64_t round) {
    EXPECT_THAT(tables.begin_round(round), IsOk());
    EXPECT_THAT(tables.push(round, /*shard=*/0, part), IsOk());
    absl::Status stable;
    EXPECT_TRUE(Becomes([&] {
      stable = tables.await_stable(absl::Milliseconds(20));
      return !absl::IsDeadlineExceeded(stable);
    }));
    return stable;
  };
  EXPECT_THAT(push(0), IsOk());
  servers.Stop();
  const absl::Status failed = push(1);
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable,
                               "a push was not answered within 6s: table "
                               "'rows': partition "));
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable, "; that is ps"));
}

}  // namespace
}  // namespace weft::train
