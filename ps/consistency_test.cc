// Tables with a staleness, and with a quorum, through clients of one process:
// who waits for whom, what counts, and what is refused.

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/many.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/rpc/call.h"
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
using ::weft::testing::TempDir;

MATCHER_P2(Refuses, code, message, "is refused with such a message") {
  const absl::Status& status = ::weft::testing::GetStatus(arg);
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

v1::TableSpec StaleSpec(int64_t staleness) {
  v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 0);
  spec.set_staleness(staleness);
  return spec;
}

v1::TableSpec QuorumSpec(int shards, int quorum, bool folds) {
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, shards);
  spec.set_quorum(quorum);
  if (folds) spec.set_late(v1::TableSpec::FOLD);
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

int64_t Waiting(TestJob& job, int servers) {
  int64_t waiting = 0;
  for (int i = 0; i < servers; ++i) {
    waiting += (*job.server(i).Find("t"))->Stats().waiting_pulls();
  }
  return waiting;
}

// A job whose trainers have a table open.
struct OpenJob {
  OpenJob(int servers, int trainers, const v1::TableSpec& spec)
      : servers(servers), job(servers, trainers) {
    for (int i = 0; i < trainers; ++i) {
      clients.push_back(job.MakeClient(i));
      auto table = clients.back()->Sparse(spec);
      EXPECT_THAT(table, IsOk());
      tables.push_back(*std::move(table));
    }
  }
  // Waits until so many pulls wait at each server.
  ::testing::AssertionResult Waits(int64_t pulls) {
    return Becomes([&] { return Waiting(job, servers) == pulls * servers; });
  }

  int servers;
  TestJob job;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<SparseTable>> tables;
};

TEST(Staleness, PullWaitsForTheSlowestByTheBoundAndNoLonger) {
  for (const int staleness : {0, 1, 3}) {
    OpenJob open(2, 2, StaleSpec(staleness));
    for (int step = 1; step <= staleness; ++step) {
      const auto rows = Step(*open.tables[0]).Wait(kTimeout);
      ASSERT_THAT(rows, IsOk());
      EXPECT_THAT(rows->ToVector<float>(), Each(-step));
    }
    Future<Tensor> waits = Step(*open.tables[0]);
    ASSERT_TRUE(open.Waits(1));
    EXPECT_FALSE(waits.IsReady());
    EXPECT_EQ(open.tables[0]->clock(), staleness + 1);
    ASSERT_THAT(Step(*open.tables[1]).Wait(kTimeout), IsOk());
    const auto rows = waits.Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-(staleness + 2)));
  }
}

TEST(Staleness, NobodyWaitsForAWorkerThatDiedLeftOrClosedTheTable) {
  for (const std::string how : {"dies", "leaves", "closes"}) {
    OpenJob open(2, 2, StaleSpec(0));
    Future<Tensor> waits = Step(*open.tables[0]);
    ASSERT_TRUE(open.Waits(1));
    if (how == "dies") {
      for (int i = 0; i < 2; ++i) {
        open.job.server(i).Forget(open.job.trainer(1).key());
      }
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

TEST(Staleness, PullWhoseTimeRunsOutNamesTheSlowestWorkerAndItsClock) {
  OpenJob open(1, 3, StaleSpec(0));
  Future<Tensor> fast = Step(*open.tables[0]);
  Future<Tensor> other = Step(*open.tables[2]);
  ASSERT_TRUE(open.Waits(2));
  open.job.server(0).Expire(SteadyClock().Now() + absl::Hours(1));
  EXPECT_THAT(fast.Wait(kTimeout),
              Refuses(absl::StatusCode::kDeadlineExceeded,
                      AllOf(HasSubstr("table 't'"), HasSubstr("clock 1"),
                            HasSubstr("rank 1, trainer1"),
                            HasSubstr("is the slowest, at clock 0"))));
}

TEST(Staleness, TickSaysThatAllPushesOfTheStepAreApplied) {
  OpenJob open(2, 2, StaleSpec(0));
  constexpr int kPushes = 50;
  for (int step = 1; step <= 5; ++step) {
    std::vector<Future<void>> pushes;
    for (int i = 0; i < kPushes; ++i) {
      pushes.push_back(open.tables[1]->Push(Keys(kKeys), Ones(kKeys)));
    }
    const Future<void> ticked = open.tables[1]->Tick();
    const auto rows = Step(*open.tables[0]).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-step * (kPushes + 1)));
    ASSERT_THAT(ticked.Wait(kTimeout), IsOk());
  }
}

// Each worker adds 1 to a row of its own in each step. What it reads at clock c
// has all steps before c - s of everybody, and no worker is more than s + 1
// steps ahead; at the end all is counted, once.
TEST(Staleness, WorkersAtAnySpeedReadWhatTheBoundPromisesAndLoseNothing) {
  constexpr int kWorkers = 4;
  constexpr int kSteps = 40;
  for (const int staleness : {0, 2}) {
    OpenJob open(2, kWorkers, StaleSpec(staleness));
    OnEach(kWorkers, [&](int rank) {
      SparseTable& table = *open.tables[rank];
      const Tensor mine = Tensor::FromVector<int64_t>({rank});
      for (int step = 1; step <= kSteps; ++step) {
        // One message for each operation, or one for all.
        std::optional<Tensor> rows;
        if ((step + rank) % 2 == 0) {
          ASSERT_THAT(table.Push(mine, Ones(1)).Wait(kTimeout), IsOk());
          ASSERT_THAT(table.Tick().Wait(kTimeout), IsOk());
          auto pulled = table.Pull(Keys(kWorkers)).Wait(kTimeout);
          ASSERT_THAT(pulled, IsOk());
          rows = *pulled;
        } else {
          auto pulled = PushPullMany({{&table, mine, Ones(1), Keys(kWorkers)}})
                            .Wait(kTimeout);
          ASSERT_THAT(pulled, IsOk());
          rows = pulled->front();
        }
        for (int of = 0; of < kWorkers; ++of) {
          const float steps = -rows->ToVector<float>()[2 * of];
          ASSERT_GE(steps, step - staleness) << "of " << of;
          ASSERT_LE(steps, step + staleness + 1) << "of " << of;
        }
        for (int i = 0; rank == 0 && i < 100; ++i) std::this_thread::yield();
      }
      ASSERT_THAT(table.LeaveClock().Wait(kTimeout), IsOk());
    });
    if (HasFatalFailure()) return;
    const auto rows = open.tables[0]->Pull(Keys(kWorkers)).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_THAT(rows->ToVector<float>(), Each(-kSteps));
  }
}

TEST(Staleness, OneThatComesLaterBeginsAtTheLowestClockAndAnObserverHasNone) {
  TestJob job(2, 3);
  auto first = job.MakeClient(0);
  auto table = *first->Sparse(StaleSpec(0));
  for (int step = 0; step < 7; ++step) {
    ASSERT_THAT(Step(*table).Wait(kTimeout), IsOk());
  }
  auto second = job.MakeClient(1);
  auto late = *second->Sparse(StaleSpec(0));
  EXPECT_EQ(late->clock(), 7);
  Future<Tensor> waits = Step(*table);
  EXPECT_THAT(Step(*late).Wait(kTimeout), IsOk());
  EXPECT_THAT(waits.Wait(kTimeout), IsOk());

  ClientOptions options;
  options.agent = &job.trainer(2);
  options.servers = {"ps0", "ps1"};
  options.client = 7;
  options.rank = -1;
  Client observer(options);
  auto watched = *observer.Sparse(StaleSpec(0));
  Future<Tensor> next = Step(*table);  // waits for `late`, not for it
  const auto rows = watched->Pull(Keys(kKeys)).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(watched->Tick().Wait(kTimeout),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("its rank is negative")));
  EXPECT_THAT(Step(*late).Wait(kTimeout), IsOk());
  EXPECT_THAT(next.Wait(kTimeout), IsOk());
  // An opening of the same worker goes on at its place.
  auto again = *second->Sparse(StaleSpec(0));
  EXPECT_EQ(again->clock(), 9);
}

TEST(Staleness, DenseTableHasClocksAndServersWithoutRowsHaveNone) {
  TestJob job(3, 2);
  v1::TableSpec spec = DenseSpec(v1::TableSpec::ASYNC, 0, 100);  // one slice
  spec.set_staleness(0);
  auto a = job.MakeClient(0), b = job.MakeClient(1);
  auto first = *a->Dense(spec), second = *b->Dense(spec);
  ASSERT_THAT(first->Initialize(Tensor::Zeros({100})).Wait(kTimeout), IsOk());
  Future<Tensor> waits = first->PushPull(Tensor::Full({100}, 1.0f));
  ASSERT_TRUE(Becomes([&] { return Waiting(job, 3) == 1; }));
  ASSERT_THAT(second->PushPull(Tensor::Full({100}, 1.0f)).Wait(kTimeout),
              IsOk());
  const auto values = waits.Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(-2));
  int with_clocks = 0;
  for (int i = 0; i < 3; ++i) {
    const v1::TableStats stats = (*job.server(i).Find("t"))->Stats();
    if (stats.clocks() == 0) continue;
    ++with_clocks;
    EXPECT_EQ(stats.least_clock(), 1);
    EXPECT_EQ(stats.most_clock(), 1);
    EXPECT_EQ(stats.slowest_worker(), "trainer0");
  }
  EXPECT_EQ(with_clocks, 1);
}

TEST(Staleness, RestoredTableBeginsWithNewClocks) {
  const TempDir dir;
  TestJob job(2, 1, nullptr, dir.path());
  auto client = job.MakeClient(0);
  auto table = *client->Sparse(StaleSpec(0));
  ASSERT_THAT(Step(*table).Wait(kTimeout), IsOk());
  auto directory = *checkpoint::CheckpointDirectory::Open({dir.path()});
  const std::string attempt = *directory->Begin(1);
  auto files = client->Save(dir.path(), attempt, -1);
  ASSERT_THAT(files, IsOk());
  const auto name = directory->Commit(attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(client->Restore(dir.path(), *name), IsOk());
  EXPECT_FALSE(Step(*table).Wait(kTimeout).ok());
  auto restored = *client->Sparse(StaleSpec(0));
  EXPECT_EQ(restored->clock(), 0);
  const auto rows = Step(*restored).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(-2));
}

// What is sent by hand, of a client that has the table open.
absl::Status Send(OpenJob& open, int trainer, const v1::Request& request) {
  return rpc::CallAsync(open.job.trainer(trainer).To("ps0", kTimeout),
                        &ps::Exchange, request, std::optional<Tensor>(),
                        std::optional<Tensor>(), std::optional<Tensor>())
      .Wait(kTimeout)
      .status();
}

TEST(Staleness, TicksBackAndOfOthersAreRefusedByName) {
  OpenJob open(1, 2, StaleSpec(3));
  auto again = open.job.MakeClient(0);
  TableShard& shard = **open.job.server(0).Find("t");
  ASSERT_THAT(Step(*open.tables[0]).Wait(kTimeout), IsOk());
  ASSERT_THAT(Step(*open.tables[0]).Wait(kTimeout), IsOk());
  // The id that trainer0's first table has: see Client::Open.
  const uint64_t client = Mix64(1000 ^ Mix64(1));
  v1::Request tick;
  tick.set_table("t");
  tick.set_client(client);
  tick.set_rank(0);
  tick.set_clock(1);
  tick.set_tick(true);
  EXPECT_THAT(Send(open, 0, tick),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      AllOf(HasSubstr("table 't'"), HasSubstr("rank 0"),
                            HasSubstr("came after 2"),
                            HasSubstr("clocks do not go back"))));
  tick.set_clock(3);
  EXPECT_THAT(Send(open, 1, tick), Refuses(absl::StatusCode::kPermissionDenied,
                                           HasSubstr("which is trainer0")));
  tick.set_rank(1);
  EXPECT_THAT(Send(open, 0, tick),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("another opening of the table has it, of "
                                "trainer1")));
  tick.set_rank(5);
  EXPECT_THAT(Send(open, 0, tick),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("the rank has no clock")));
  tick.set_rank(0);
  tick.set_clock(1000);
  EXPECT_THAT(Send(open, 0, tick),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("too far ahead of 2")));
  tick.set_clock(-1);
  EXPECT_THAT(Send(open, 0, tick), Refuses(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("clock is -1")));
  tick.clear_clock();
  EXPECT_THAT(Send(open, 0, tick),
              Refuses(absl::StatusCode::kInvalidArgument,
                      HasSubstr("wanted a clock with the tick")));
  EXPECT_EQ(shard.Stats().most_clock(), 2);
  // Another worker of the same rank.
  ClientOptions options;
  options.agent = &open.job.trainer(1);
  options.servers = {"ps0"};
  options.client = 77;
  options.rank = 0;
  Client twin(options);
  EXPECT_THAT(
      twin.Sparse(StaleSpec(3)).status(),
      Refuses(absl::StatusCode::kFailedPrecondition,
              AllOf(HasSubstr("of trainer0"), HasSubstr("a rank of its own"))));
}

TEST(Consistency, SpecsThatAskForWhatCannotBeAreRefused) {
  TestJob job(1, 1);
  auto client = job.MakeClient(0);
  const auto refuses = [&](const v1::TableSpec& spec, const char* why) {
    EXPECT_THAT(client->Sparse(spec).status(),
                Refuses(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("table 't'"), HasSubstr(why))));
  };
  refuses(QuorumSpec(3, 4, false), "quorum is 4, wanted 1 to 3");
  refuses(QuorumSpec(3, 0, false), "quorum is 0, wanted 1 to 3");
  refuses(QuorumSpec(3, -1, false), "quorum is -1, wanted 1 to 3");
  refuses(StaleSpec(-1), "staleness is -1, wanted 0 to");
  v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 2);
  spec.set_staleness(1);
  refuses(spec, "a SYNC table's pulls wait for rounds");
  spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  spec.set_quorum(1);
  refuses(spec, "an ASYNC table has no rounds");
  spec = SparseSpec(v1::TableSpec::SYNC, 2);
  spec.set_late(v1::TableSpec::FOLD);
  refuses(spec, "without a quorum no part is late");
  spec = QuorumSpec(2, 1, false);
  spec.set_late(static_cast<v1::TableSpec::Late>(9));
  refuses(spec, "late is 9");

  ASSERT_THAT(client->Sparse(StaleSpec(1)), IsOk());
  EXPECT_THAT(client->Sparse(StaleSpec(2)).status(),
              Refuses(absl::StatusCode::kFailedPrecondition,
                      AllOf(HasSubstr("table 't'"), HasSubstr("staleness"))));
}

TEST(Quorum, RoundClosesWithoutTheSlowestWhosePushEndsWellAndSaysSo) {
  for (const bool folds : {false, true}) {
    OpenJob open(2, 3, QuorumSpec(3, 2, folds));
    Future<Tensor> first = Step(*open.tables[0]);
    ASSERT_TRUE(open.Waits(1));
    ASSERT_THAT(Step(*open.tables[1]).Wait(kTimeout), IsOk());
    ASSERT_THAT(first.Wait(kTimeout), IsOk());
    EXPECT_THAT(first.Wait(kTimeout)->ToVector<float>(), Each(-2));
    const auto late = Step(*open.tables[2]).Wait(kTimeout);
    ASSERT_THAT(late, IsOk());
    EXPECT_THAT(late->ToVector<float>(), Each(-2));
    EXPECT_EQ(open.tables[2]->late_parts().folded, folds ? 2 : 0);
    EXPECT_EQ(open.tables[2]->late_parts().dropped, folds ? 0 : 2);
    EXPECT_EQ(open.tables[2]->round(), 1);
    EXPECT_EQ(open.tables[0]->late_parts().dropped, 0);
    // In the next round trainer2 is on time; what was folded counts there.
    Future<Tensor> next = Step(*open.tables[2]);
    ASSERT_TRUE(open.Waits(1));
    ASSERT_THAT(Step(*open.tables[0]).Wait(kTimeout), IsOk());
    ASSERT_THAT(next.Wait(kTimeout), IsOk());
    EXPECT_THAT(next.Wait(kTimeout)->ToVector<float>(), Each(folds ? -5 : -4));
  }
}

TEST(Quorum, WorkerThatIsFarBehindGoesOnWithTheOpenRound) {
  OpenJob open(2, 3, QuorumSpec(3, 2, true));
  for (int round = 0; round < 20; ++round) {
    Future<Tensor> first = Step(*open.tables[0]);
    ASSERT_THAT(Step(*open.tables[1]).Wait(kTimeout), IsOk());
    ASSERT_THAT(first.Wait(kTimeout), IsOk());
  }
  EXPECT_THAT(Step(*open.tables[2]).Wait(kTimeout), IsOk());
  EXPECT_EQ(open.tables[2]->late_parts().dropped, 2);  // too late to be folded
  EXPECT_EQ(open.tables[2]->round(), 20);
}

TEST(Quorum, RoundsNeedNoMoreThanThereAreAndAnExpiredWaitSaysHowMany) {
  OpenJob open(1, 3, QuorumSpec(3, 2, false));
  Future<Tensor> waits = Step(*open.tables[0]);
  ASSERT_TRUE(open.Waits(1));
  open.job.server(0).Expire(SteadyClock().Now() + absl::Hours(1));
  EXPECT_THAT(waits.Wait(kTimeout),
              Refuses(absl::StatusCode::kDeadlineExceeded,
                      HasSubstr("round 0 waits for 1 more of shard 1 of rank "
                                "1, shard 2 of rank 2")));
  open.job.server(0).DeclareDead(1);
  open.job.server(0).DeclareDead(2);
  auto client = open.job.MakeClient(0);
  auto table = *client->Sparse(QuorumSpec(3, 2, false));
  EXPECT_EQ(table->round(), 1);
  EXPECT_THAT(Step(*table).Wait(kTimeout), IsOk());
}

// Trainers of different speeds; each server closes rounds for itself. Each part
// counts once at a server or is told to be dropped there.
TEST(Quorum, WhatWasAcknowledgedAndNotDroppedIsTheSum) {
  constexpr int kWorkers = 4;
  constexpr int64_t kRounds = 40;
  for (const bool folds : {false, true}) {
    OpenJob open(2, kWorkers, QuorumSpec(kWorkers, 2, folds));
    std::atomic<int64_t> pushed{0};
    const auto run = [&](int64_t rounds, const Tensor& gradients) {
      OnEach(kWorkers, [&](int rank) {
        SparseTable& table = *open.tables[rank];
        while (table.round() < rounds) {
          for (int i = 0; i < 50 * rank; ++i) std::this_thread::yield();
          ASSERT_THAT(table.PushPull(Keys(kKeys), gradients, Keys(kKeys))
                          .Wait(kTimeout),
                      IsOk());
          ++pushed;
        }
      });
    };
    run(kRounds, Ones(kKeys));
    ASSERT_FALSE(HasFatalFailure());
    const int64_t counted_pushes = pushed;
    int64_t dropped = 0, folded = 0;
    for (const auto& table : open.tables) {
      dropped += table->late_parts().dropped;
      folded += table->late_parts().folded;
    }
    // What was folded into an open round, and is not applied yet.
    run(kRounds + 4, Tensor::Zeros({kKeys, 2}));
    ASSERT_FALSE(HasFatalFailure());
    const auto rows = open.tables[0]->Pull(Keys(kKeys)).Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    // One key of each server.
    const Placement placement("t", 16, 2);
    int64_t sum = 0;
    for (int server = 0; server < 2; ++server) {
      for (int64_t key = 0; key < kKeys; ++key) {
        if (placement.ServerOf(placement.PartitionOfKey(key)) != server) {
          continue;
        }
        sum += static_cast<int64_t>(-rows->ToVector<float>()[2 * key]);
        break;
      }
    }
    EXPECT_EQ(sum, 2 * counted_pushes - dropped)
        << counted_pushes << " pushes, " << folded << " folded";
    if (folds) {
      EXPECT_GT(folded + dropped, 0);
    }
  }
}

TEST(Quorum, CheckpointOfServersAtDifferentVersionsGoesOnAtTheLast) {
  const TempDir dir;
  TestJob job(2, 3, nullptr, dir.path());
  auto client = job.MakeClient(0);
  auto table = *client->Sparse(QuorumSpec(3, 2, false));
  // The two do not agree on who is there.
  job.server(1).DeclareDead(1);
  job.server(1).DeclareDead(2);
  Future<Tensor> waits = Step(*table);
  ASSERT_TRUE(Becomes([&] {
    return (*job.server(1).Find("t"))->Stats().version() == 1 &&
           (*job.server(0).Find("t"))->Stats().waiting_pulls() == 1;
  }));
  auto directory = *checkpoint::CheckpointDirectory::Open({dir.path()});
  const std::string attempt = *directory->Begin(1);
  auto files = client->Save(dir.path(), attempt, 0);
  ASSERT_THAT(files, IsOk());
  const auto name = directory->Commit(attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(client->Restore(dir.path(), *name), IsOk());
  EXPECT_FALSE(waits.Wait(kTimeout).ok());
  auto restored = *client->Sparse(QuorumSpec(3, 1, false));
  EXPECT_EQ(restored->round(), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ((*job.server(i).Find("t"))->Stats().version(), 1);
  }
  EXPECT_THAT(Step(*restored).Wait(kTimeout), IsOk());
}

}  // namespace
}  // namespace weft::ps
