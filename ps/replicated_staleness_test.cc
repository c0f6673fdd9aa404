// Tables with a staleness on servers with two replicas, through clients of one
// process: who waits for whom, also where servers and workers die.

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/replicated_table.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

MATCHER_P2(Refuses, code, message, "is refused with such a message") {
  const absl::Status& status = ::weft::testing::GetStatus(arg);
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

v1::TableSpec StaleSpec(
    int64_t staleness,
    v1::TableSpec::Durability durability = v1::TableSpec::APPLIED) {
  v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  spec.set_staleness(staleness);
  spec.set_durability(durability);
  return spec;
}

// Keys 0 to `n` - 1: with 16 partitions some are on each of two servers.
Tensor Keys(int64_t n) {
  std::vector<int64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  return Tensor::FromVector<int64_t>(keys);
}
Tensor Ones(int64_t n) { return Tensor::Full({n, 2}, 1.0f); }

constexpr int64_t kKeys = 32;

// A step: adds 1 to every row (the rule subtracts it), and pulls them.
Future<Tensor> Step(SparseTable& table) {
  return table.PushPull(Keys(kKeys), Ones(kKeys), Keys(kKeys));
}

// A job whose trainers have a table open.
struct OpenJob {
  OpenJob(int servers, int trainers, const v1::TableSpec& spec,
          absl::Duration timeout = kTimeout)
      : job(servers, trainers, nullptr, "", /*replicas=*/2, 0, kSilence,
            RebalanceMode::kOff,
            spec.durability() == v1::TableSpec::LOGGED ? logs.Path("logs")
                                                       : std::string()) {
    EXPECT_TRUE(job.BecomesReplicated());
    for (int i = 0; i < trainers; ++i) {
      clients.push_back(job.MakeClient(i, timeout));
      auto table = clients.back()->Sparse(spec);
      EXPECT_THAT(table, IsOk());
      tables.push_back(*std::move(table));
    }
  }
  // Whether so many pulls, or more, come to wait at server `i`.
  ::testing::AssertionResult Waits(int i, int64_t pulls) {
    return Becomes([&] {
      const auto table = job.replicated(i).Find("t");
      return table.ok() && (*table)->Stats().waiting_pulls() >= pulls;
    });
  }
  void Forget(int trainer) {
    for (int i = 0; i < 2; ++i) {
      job.server(i).Forget(job.trainer(trainer).key());
    }
  }

  const testing::TempDir logs;
  TestJob job;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<SparseTable>> tables;
};

TEST(ReplicatedStaleness, PullWaitsForTheSlowestByTheBoundAndNoLonger) {
  for (const auto durability :
       {v1::TableSpec::APPLIED, v1::TableSpec::STABLE}) {
    for (const int staleness : {0, 2}) {
      OpenJob open(2, 2, StaleSpec(staleness, durability));
      for (int step = 1; step <= staleness; ++step) {
        const auto rows = Step(*open.tables[0]).Wait(kTimeout);
        ASSERT_THAT(rows, IsOk());
        EXPECT_THAT(rows->ToVector<float>(), Each(-step));
      }
      Future<Tensor> waits = Step(*open.tables[0]);
      ASSERT_TRUE(open.Waits(0, 1));
      ASSERT_TRUE(open.Waits(1, 1));
      EXPECT_FALSE(waits.IsReady());
      EXPECT_EQ(open.tables[0]->clock(), staleness + 1);
      const v1::TableStats stats = (*open.job.replicated(0).Find("t"))->Stats();
      EXPECT_EQ(stats.clocks(), 2);
      EXPECT_EQ(stats.least_clock(), 0);
      EXPECT_EQ(stats.most_clock(), staleness + 1);
      EXPECT_EQ(stats.slowest_worker(), "trainer1");
      ASSERT_THAT(Step(*open.tables[1]).Wait(kTimeout), IsOk());
      const auto rows = waits.Wait(kTimeout);
      ASSERT_THAT(rows, IsOk());
      EXPECT_THAT(rows->ToVector<float>(), Each(-(staleness + 2)));
    }
  }
}

TEST(ReplicatedStaleness, NobodyWaitsForAWorkerThatDiedLeftOrClosedTheTable) {
  for (const std::string how : {"dies", "leaves", "closes"}) {
    OpenJob open(2, 2, StaleSpec(0));
    Future<Tensor> waits = Step(*open.tables[0]);
    ASSERT_TRUE(open.Waits(0, 1));
    if (how == "dies") {
      open.Forget(1);
    } else if (how == "leaves") {
      EXPECT_THAT(open.tables[1]->LeaveClock().Wait(kTimeout), IsOk());
      EXPECT_THAT(open.tables[1]->Tick().Wait(kTimeout),
                  Refuses(absl::StatusCode::kFailedPrecondition,
                          HasSubstr("has left")));
    } else {
      open.tables[1].reset();
    }
    EXPECT_THAT(waits.Wait(kTimeout), IsOk()) << how;
    EXPECT_THAT(Step(*open.tables[0]).Wait(kTimeout), IsOk()) << how;
  }
}

// A server that is promoted has the clocks, and not those of workers that died
// before, whoever heard of that.
TEST(ReplicatedStaleness, PromotedServerWaitsForTheLivingAndNotForTheDead) {
  OpenJob open(2, 3, StaleSpec(0));
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(open.tables[i]->Tick().Wait(kTimeout), IsOk());
  }
  Future<Tensor> waits = Step(*open.tables[0]);
  ASSERT_TRUE(open.Waits(0, 1));
  // A copy that server 1 makes names trainer 2, of whose death the server that
  // gets it has heard before.
  open.job.KillServer(0);
  open.job.StartServer(0);
  open.job.server(0).Forget(open.job.trainer(2).key());
  ASSERT_TRUE(open.job.BecomesReplicated());
  open.job.KillServer(1);
  ASSERT_TRUE(open.Waits(0, 1));
  EXPECT_FALSE(waits.IsReady());
  EXPECT_THAT(open.tables[1]->Tick().Wait(kTimeout), IsOk());
  EXPECT_THAT(waits.Wait(kTimeout), IsOk());
  const v1::TableStats stats = (*open.job.replicated(0).Find("t"))->Stats();
  EXPECT_EQ(stats.clocks(), 2);
  EXPECT_EQ(stats.least_clock(), 2);
}

TEST(ReplicatedStaleness, PullWhoseTimeRunsOutNamesTheSlowestAndItsClock) {
  OpenJob open(2, 3, StaleSpec(0), absl::Seconds(4));
  absl::Status ended = Step(*open.tables[0]).Wait(kTimeout).status();
  // Asked again where no server has answered in time.
  EXPECT_TRUE(Becomes([&] {
    if (!absl::StrContains(ended.message(), "no server answered")) return true;
    ended = open.tables[0]->Pull(Keys(kKeys)).Wait(kTimeout).status();
    return false;
  }));
  EXPECT_THAT(ended, Refuses(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("table 't'"), HasSubstr("clock 1"),
                                   HasSubstr("rank 1, trainer1"),
                                   HasSubstr("is the slowest, at clock 0"))));
}

TEST(ReplicatedStaleness, TickSaysThatAllPushesOfTheStepAreApplied) {
  OpenJob open(2, 2, StaleSpec(0));
  constexpr int kPushes = 50;
  for (int step = 1; step <= 5; ++step) {
    for (int i = 0; i < kPushes; ++i) {
      (void)open.tables[1]->Push(Keys(kKeys), Ones(kKeys));
    }
    const Future<void> ticked = open.tables[1]->Tick();
    const auto rows = Step(*open.tables[0]).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-step * (kPushes + 1)));
    ASSERT_THAT(ticked.Wait(kTimeout), IsOk());
  }
}

TEST(ReplicatedStaleness, OneThatComesLaterBeginsAtTheLowestClock) {
  OpenJob open(3, 1, StaleSpec(0));
  auto& table = open.tables[0];
  for (int step = 0; step < 7; ++step) {
    ASSERT_THAT(Step(*table).Wait(kTimeout), IsOk());
  }
  // Another opening of the worker takes its clock, and the first one has none.
  auto again = *open.clients[0]->Sparse(StaleSpec(0));
  EXPECT_EQ(again->clock(), 7);
  EXPECT_THAT(
      table->Tick().Wait(kTimeout),
      Refuses(absl::StatusCode::kFailedPrecondition,
              AllOf(HasSubstr("table 't'"), HasSubstr("of rank 0"),
                    HasSubstr("another opening"), HasSubstr("trainer0"))));
  EXPECT_THAT(Step(*again).Wait(kTimeout), IsOk());
}

TEST(ReplicatedStaleness, RankOfAnotherWorkerIsRefusedByName) {
  OpenJob open(2, 2, StaleSpec(0));
  ClientOptions options;
  options.agent = &open.job.trainer(1);
  options.servers = {"ps0", "ps1"};
  options.client = 7;
  options.rank = 0;
  options.replicas = 2;
  Client twin(options);
  EXPECT_THAT(twin.Sparse(StaleSpec(0)).status(),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      AllOf(HasSubstr("of rank 0"), HasSubstr("trainer0"),
                            HasSubstr("give each client a rank of its own"))));
  // One without a rank has no clock: nobody waits for it, and it for nobody.
  options.rank = -1;
  Client observer(options);
  auto watched = *observer.Sparse(StaleSpec(0));
  Future<Tensor> waits = Step(*open.tables[0]);
  EXPECT_THAT(watched->Pull(Keys(kKeys)).Wait(kTimeout), IsOk());
  EXPECT_THAT(watched->Tick().Wait(kTimeout),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("its rank is negative")));
  EXPECT_THAT(Step(*open.tables[1]).Wait(kTimeout), IsOk());
  EXPECT_THAT(waits.Wait(kTimeout), IsOk());
}

// Whatever became of its pushes.
TEST(ReplicatedStaleness, TableThatHasFailedLeavesItsClock) {
  TestJob job(2, 2, nullptr, "", /*replicas=*/2, /*table_memory=*/1 << 16);
  ASSERT_TRUE(job.BecomesReplicated());
  auto a = job.MakeClient(0), b = job.MakeClient(1);
  auto first = *a->Sparse(StaleSpec(0)), second = *b->Sparse(StaleSpec(0));
  constexpr int64_t kMany = 20'000;  // rows: more than there is memory for
  EXPECT_FALSE(second->Push(Keys(kMany), Ones(kMany)).Wait(kTimeout).ok());
  EXPECT_FALSE(second->status().ok());
  ASSERT_THAT(first->Tick().Wait(kTimeout), IsOk());
  Future<Tensor> waits = first->Pull(Keys(kKeys));
  ASSERT_TRUE(Becomes([&] {
    return (*job.replicated(0).Find("t"))->Stats().waiting_pulls() > 0;
  }));
  second.reset();
  EXPECT_THAT(waits.Wait(kTimeout), IsOk());
}

TEST(ReplicatedStaleness, DenseTableHasClocksOfThePartitionsWithRows) {
  TestJob job(2, 2, nullptr, "", /*replicas=*/2);
  ASSERT_TRUE(job.BecomesReplicated());
  v1::TableSpec spec = DenseSpec(v1::TableSpec::ASYNC, 0, 100);  // one slice
  spec.set_staleness(0);
  auto a = job.MakeClient(0), b = job.MakeClient(1);
  auto first = *a->Dense(spec), second = *b->Dense(spec);
  ASSERT_THAT(first->Initialize(Tensor::Zeros({100})).Wait(kTimeout), IsOk());
  Future<Tensor> waits = first->PushPull(Tensor::Full({100}, 1.0f));
  ASSERT_THAT(second->PushPull(Tensor::Full({100}, 1.0f)).Wait(kTimeout),
              IsOk());
  const auto values = waits.Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(-2));
}

TEST(ReplicatedStaleness, QuorumsAndDurabilityNoneAreRefused) {
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  ASSERT_TRUE(job.BecomesReplicated());
  auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 2);
  spec.set_quorum(1);
  EXPECT_THAT(client->Sparse(spec).status(),
              Refuses(absl::StatusCode::kUnimplemented,
                      AllOf(HasSubstr("table 't' wants a quorum"),
                            HasSubstr("--replicas=1"))));
  EXPECT_THAT(
      client->Sparse(StaleSpec(1, v1::TableSpec::NONE)).status(),
      Refuses(absl::StatusCode::kInvalidArgument,
              AllOf(HasSubstr("table 't'"), HasSubstr("durability NONE"))));
}

// Each worker adds 1 to a row of its own in each step. What it reads at clock c
// has all steps before c - s of everybody, and no worker is more than s + 1
// steps ahead, while servers die and come back, at LOGGED all of them at once;
// at the end all is counted, once.
TEST(ReplicatedStaleness, BoundHoldsAndNothingIsLostWhileServersDie) {
  constexpr int kWorkers = 3;
  constexpr int kSteps = 60;
  for (const auto durability :
       {v1::TableSpec::APPLIED, v1::TableSpec::STABLE, v1::TableSpec::LOGGED}) {
    constexpr int kStaleness = 1;
    OpenJob open(3, kWorkers, StaleSpec(kStaleness, durability));
    std::atomic<int> steps{0};
    std::thread killer([&] {
      for (int server = 0; server < 2; ++server) {
        const int wanted = (server + 1) * kSteps * kWorkers / 4;
        ASSERT_TRUE(Becomes([&] { return steps >= wanted; }));
        std::vector<int> victims = {server};
        if (durability == v1::TableSpec::LOGGED) victims = {0, 1, 2};
        open.job.KillServers(victims);
        for (const int victim : victims) open.job.StartServer(victim);
        ASSERT_TRUE(open.job.BecomesReplicated());
      }
    });
    OnEach(kWorkers, [&](int rank) {
      SparseTable& table = *open.tables[rank];
      const Tensor mine = Tensor::FromVector<int64_t>({rank});
      for (int step = 1; step <= kSteps; ++step, ++steps) {
        const bool in_one = (step + rank) % 2 == 0;
        if (!in_one) {
          (void)table.Push(mine, Ones(1));
          (void)table.Tick();
        }
        const auto rows =
            (in_one ? table.PushPull(mine, Ones(1), Keys(kWorkers))
                    : table.Pull(Keys(kWorkers)))
                .Wait(kTimeout);
        ASSERT_THAT(rows, IsOk());
        for (int of = 0; of < kWorkers; ++of) {
          const float seen = -rows->ToVector<float>()[2 * of];
          ASSERT_GE(seen, step - kStaleness) << "of " << of;
          ASSERT_LE(seen, step + kStaleness + 1) << "of " << of;
        }
      }
      ASSERT_THAT(table.LeaveClock().Wait(kTimeout), IsOk());
      ASSERT_THAT(table.AwaitStable(kTimeout), IsOk());
    });
    killer.join();
    if (HasFatalFailure()) return;
    const auto rows = open.tables[0]->Pull(Keys(kWorkers)).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-kSteps));
  }
}

// A worker dies, one leaves, and all servers with them: those that come back
// have the clocks of their logs, and hear of the death.
TEST(ReplicatedStaleness, ServersThatComeBackWithTheirLogsWaitForTheLiving) {
  OpenJob open(2, 3, StaleSpec(0, v1::TableSpec::LOGGED));
  std::vector<Future<Tensor>> steps;
  for (const auto& table : open.tables) steps.push_back(Step(*table));
  for (const auto& step : steps) ASSERT_THAT(step.Wait(kTimeout), IsOk());
  ASSERT_THAT(open.tables[1]->LeaveClock().Wait(kTimeout), IsOk());
  open.job.KillServers({0, 1});
  for (const int i : {0, 1}) open.job.StartServer(i);
  ASSERT_TRUE(open.job.BecomesReplicated());
  // Rank 2 has a clock, and is behind.
  const Future<Tensor> waits = Step(*open.tables[0]);
  ASSERT_TRUE(open.Waits(0, 1));
  ASSERT_TRUE(open.Waits(1, 1));
  EXPECT_FALSE(waits.IsReady());
  open.Forget(2);
  const auto rows = waits.Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(-4));
}

}  // namespace
}  // namespace weft::ps
