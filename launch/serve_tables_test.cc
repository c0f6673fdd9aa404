#include "weft/launch/serve_tables.h"

#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/train/job_outcome.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
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
      own.limits.suspect_after = absl::Seconds(1);
      own.limits.dead_after = absl::Seconds(2);
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

}  // namespace
}  // namespace weft::launch
