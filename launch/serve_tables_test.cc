#include "weft/launch/serve_tables.h"

#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/rendezvous/store.h"
#include "weft/rendezvous/view.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/job_outcome.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using testing::IsOk;
using testing::StatusIs;

// A job of one server, which serves on a thread, and two trainers.
class ServeTablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    worker::TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 2;
    options.configure = [](worker::Options& own) {
      own.limits.suspect_after = absl::Seconds(2);
      own.limits.dead_after = absl::Seconds(5);
    };
    auto started = worker::TestWorkers::Start(options);
    ASSERT_THAT(started, IsOk());
    workers_ = *std::move(started);
    serving_ = std::thread([this, &ps0 = workers_->Get("ps0")] {
      outcome_ = ServeTables(
          ps0, server_, [this] { return signal_.load(); }, grace_);
    });
  }
  void TearDown() override {
    if (serving_.joinable()) serving_.join();
  }

  void Leave(const std::string& trainer) {
    ASSERT_THAT(workers_->Get(trainer).membership().Leave(absl::Seconds(10)),
                IsOk());
  }
  absl::Status Outcome() {
    serving_.join();
    return outcome_;
  }

  ps::Server server_{{0, 1}};
  std::atomic<int> signal_{0};
  const absl::Duration grace_ = absl::Milliseconds(300);
  std::unique_ptr<worker::TestWorkers> workers_;
  std::thread serving_;
  absl::Status outcome_;
};

TEST_F(ServeTablesTest, EndsOnceAllTrainersHaveLeft) {
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_THAT(Outcome(), IsOk());
}

TEST_F(ServeTablesTest, DeathOfOneOfTwoTrainersIsNotTheOutcome) {
  workers_->Kill("trainer0");
  Leave("trainer1");
  EXPECT_THAT(Outcome(), IsOk());
}

TEST_F(ServeTablesTest, JobThatLostAllTrainersNamesThem) {
  workers_->Kill("trainer0");
  workers_->Kill("trainer1");
  EXPECT_THAT(Outcome(), StatusIs(absl::StatusCode::kUnavailable,
                                  "trainers died: trainer0"));
}

TEST_F(ServeTablesTest, ClientsOfATrainerThatDiedAreForgotten) {
  const auto windows = [&] {
    const auto stats = server_.Stats();
    return stats.tables_size() == 0 ? -1 : stats.tables(0).windows();
  };
  {
    ps::ClientOptions options;
    options.agent = &workers_->Get("trainer0").agent();
    options.servers = {"ps0"};
    ps::Client client(options);
    ps::v1::TableSpec spec;
    spec.set_name("t");
    spec.set_kind(ps::v1::TableSpec::SPARSE);
    spec.set_dim(1);
    spec.set_mode(ps::v1::TableSpec::ASYNC);
    spec.set_partitions(8);
    spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
    const auto table = client.Sparse(spec);
    ASSERT_THAT(table, IsOk());
    ASSERT_THAT(
        (*table)
            ->Push(Tensor::Arange(64, DType::kI64), Tensor::Ones({64, 1}))
            .Wait(absl::Seconds(60)),
        IsOk());
    EXPECT_GT(windows(), 0);
  }
  workers_->Kill("trainer0");
  EXPECT_TRUE(testing::Becomes([&] { return windows() == 0; }));
  Leave("trainer1");
  EXPECT_THAT(Outcome(), IsOk());
}

TEST_F(ServeTablesTest, SignalEndsItAfterTheGraceWithTrainersAtWork) {
  signal_ = SIGTERM;
  EXPECT_EQ(worker::SignalOf(Outcome()), SIGTERM);
}

TEST_F(ServeTablesTest, ReportOfATrainerIsTheOutcome) {
  train::JobOutcome(workers_->Get("trainer0").membership(), 2)
      .Report(absl::ResourceExhaustedError("no room"));
  Leave("trainer0");
  Leave("trainer1");
  EXPECT_THAT(Outcome(), StatusIs(absl::StatusCode::kResourceExhausted,
                                  "trainer0: no room"));
}

// There are three servers; ps0 hosts the coordinator and serves on a thread.
// ps1 dies, and comes back when trainer0 has died too.
TEST(ServeTables, DeathOfAServerEndsNoOtherAndWhoTakesItsPlaceServes) {
  worker::TestWorkers::Options options;
  options.servers = 3;
  options.trainers = 2;
  options.configure = [](worker::Options& own) {
    own.replicas = 2;
    own.limits.suspect_after = absl::Seconds(2);
    own.limits.dead_after = absl::Seconds(5);
  };
  ps::Server of_ps0{{0, 3}};
  ps::Server of_ps1{{1, 3}};
  const auto started = worker::TestWorkers::Start(options);
  ASSERT_THAT(started, IsOk());
  worker::TestWorkers& workers = **started;
  const auto serve = [](worker::Worker& worker, ps::Server& server) {
    return ServeTables(
        worker, server, [] { return 0; }, absl::Seconds(20));
  };
  worker::Worker& ps0 = workers.Get("ps0");
  absl::Status first = absl::UnknownError("serves");
  std::thread serving([&] { first = serve(ps0, of_ps0); });
  worker::Options again = workers.Get("ps1").options();
  workers.Kill("trainer0");
  workers.Kill("ps1");
  again.rejoins = true;
  const auto ps1 = worker::Worker::Start(again);
  EXPECT_THAT(ps1, IsOk());
  absl::Status second = ps1.status();
  std::thread serving_again([&] {
    if (ps1.ok()) second = serve(**ps1, of_ps1);
  });
  auto& trainer = workers.Get("trainer1").membership();
  EXPECT_THAT(trainer.WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("ps1") != nullptr &&
                           view.Find("trainer0") == nullptr;
                  },
                  absl::Seconds(60)),
              IsOk());
  EXPECT_THAT(trainer.status(), IsOk());
  EXPECT_THAT(ps0.membership().status(), IsOk());
  EXPECT_THAT(trainer.Leave(absl::Seconds(30)), IsOk());
  serving_again.join();
  serving.join();
  EXPECT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());
}

TEST(ServeTables, ServersThatDifferInReplicasAreToldAtTheStart) {
  worker::TestWorkers::Options options;
  options.servers = 2;
  options.trainers = 1;
  options.configure = [](worker::Options& own) {
    own.replicas = own.name() == "ps0" ? 2 : 1;
  };
  ps::Server of_ps0{{0, 2}};
  ps::Server of_ps1{{1, 2}};
  const auto started = worker::TestWorkers::Start(options);
  ASSERT_THAT(started, IsOk());
  worker::TestWorkers& workers = **started;
  std::thread serving([&] {
    (void)ServeTables(
        workers.Get("ps0"), of_ps0, [] { return 0; }, absl::Seconds(20));
  });
  ASSERT_TRUE(testing::Becomes([&] {
    return workers.Get("ps1")
        .membership()
        .store()
        .Get("ps/replicas/ps0", absl::Seconds(1))
        .ok();
  }));
  EXPECT_THAT(
      ServeTables(
          workers.Get("ps1"), of_ps1, [] { return 0; }, absl::Seconds(20)),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "--replicas is 1 at ps1 and 2 at ps0"));
  EXPECT_THAT(workers.Get("trainer0").membership().Leave(absl::Seconds(30)),
              IsOk());
  serving.join();
}

}  // namespace
}  // namespace weft::launch
