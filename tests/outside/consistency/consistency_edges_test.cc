// Staleness and quorum at their edges and in clumsy hands: bounds that cannot
// be, clocks that nobody has, workers that leave, die, come late or tick
// without waiting, parts that are late by one round and by many. What is
// promised is quoted from docs/parameter_server.md, "Consistency" ("the page"),
// ps/client.h or proto/ps.proto.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/many.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr int64_t kMost64 = std::numeric_limits<int64_t>::max();
// Long enough for what does not wait, short enough to wait for what does.
constexpr absl::Duration kMoment = absl::Milliseconds(200);

Tensor Keys(const std::vector<int64_t>& keys) {
  return Tensor::FromVector(keys);
}
Tensor Ones(int64_t n, double x = -1) { return Tensor::Full({n, 2}, x); }

v1::TableSpec Stale(int64_t staleness) {
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.set_partitions(4);
  spec.set_staleness(staleness);
  return spec;
}
v1::TableSpec Quorum(int shards, int quorum, v1::TableSpec::Late late) {
  v1::TableSpec spec = SparseSpec(kSync, shards);
  spec.set_partitions(4);
  spec.set_quorum(quorum);
  spec.set_late(late);
  return spec;
}

// So many workers with the table open.
struct Crowd {
  Crowd(int workers, const v1::TableSpec& spec, int servers = 2,
        const std::string& directory = "")
      : job(servers, workers, nullptr, directory) {
    for (int i = 0; i < workers; ++i) Open(i, spec);
  }
  void Open(int i, const v1::TableSpec& spec) {
    if (i >= static_cast<int>(clients.size())) {
      clients.push_back(job.MakeClient(i));
      tables.emplace_back();
    }
    tables[i].reset();
    auto table = clients[i]->Sparse(spec);
    EXPECT_THAT(table, IsOk());
    if (table.ok()) tables[i] = *std::move(table);
  }
  SparseTable& operator[](int i) { return *tables[i]; }
  absl::Status Push(int i, double gradient = -1) {
    return GetStatus(
        tables[i]->Push(Keys({1}), Ones(1, gradient)).Wait(kTimeout));
  }
  absl::Status Tick(int i) {
    return GetStatus(tables[i]->Tick().Wait(kTimeout));
  }
  float Row(int i) {
    const auto rows = tables[i]->Pull(Keys({1})).Wait(kTimeout);
    EXPECT_THAT(rows, IsOk());
    return rows.ok() ? rows->ToVector<float>()[0] : 1e9f;
  }
  // A pull that is to wait.
  Future<Tensor> Waiting(int i) {
    Future<Tensor> pull = tables[i]->Pull(Keys({1}));
    EXPECT_THAT(pull.Wait(kMoment),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_FALSE(pull.IsReady());
    return pull;
  }

  TestJob job;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<SparseTable>> tables;
};

// --- Specs -------------------------------------------------------------------

// table_layout.h: "kInvalidArgument names the field, what was found and what is
// allowed."
TEST(ConsistencySpec, ValuesThatCannotBeAreRefusedByName) {
  TestJob job(1, 1);
  const auto client = job.MakeClient(0);
  const auto expect = [&](v1::TableSpec spec, const std::string& named) {
    EXPECT_THAT(client->Sparse(spec),
                StatusIs(absl::StatusCode::kInvalidArgument, named))
        << spec.ShortDebugString();
  };
  for (const int64_t staleness :
       {int64_t{-1}, std::numeric_limits<int64_t>::min(), kMostStaleness + 1,
        kMost64}) {
    expect(Stale(staleness), "staleness");
  }
  v1::TableSpec sync = SparseSpec(kSync, 2);
  sync.set_staleness(0);
  expect(sync, "staleness");
  for (const int quorum : {0, -1, 4, std::numeric_limits<int>::max(),
                           std::numeric_limits<int>::min()}) {
    expect(Quorum(3, quorum, v1::TableSpec::DROP), "quorum");
  }
  v1::TableSpec async = SparseSpec(kAsync, 1);
  async.set_quorum(1);
  expect(async, "quorum");
  v1::TableSpec alone = SparseSpec(kSync, 2);
  alone.set_late(v1::TableSpec::FOLD);
  expect(alone, "late");
  v1::TableSpec unknown = Quorum(2, 1, v1::TableSpec::DROP);
  unknown.set_late(static_cast<v1::TableSpec::Late>(7));
  expect(unknown, "late");
  v1::TableSpec fine = Stale(kMostStaleness);
  fine.set_name("fine");
  EXPECT_THAT(client->Sparse(fine), IsOk());
}

// "With two replicas a quorum is refused (kUnimplemented)."
TEST(ConsistencySpec, TwoReplicasRefuseAQuorumWithAReason) {
  TestJob job(2, 1, nullptr, "", 2);
  const auto client = job.MakeClient(0);
  const std::vector<v1::TableSpec> specs = {Quorum(2, 1, v1::TableSpec::DROP),
                                            Quorum(2, 2, v1::TableSpec::FOLD)};
  for (v1::TableSpec spec : specs) {
    const auto table = client->Sparse(spec);
    EXPECT_THAT(table, StatusIs(absl::StatusCode::kUnimplemented, "replica"));
    EXPECT_THAT(table.status().ToString(), HasSubstr("'t'"));
  }
  v1::TableSpec plain = SparseSpec(kAsync, 1);
  EXPECT_THAT(client->Sparse(plain), IsOk());
}

// Who opens a table with another bound, or another quorum, is told which.
TEST(ConsistencySpec, SecondOpeningWithAnotherBoundIsRefusedByName) {
  Crowd crowd(2, Stale(1));
  EXPECT_THAT(crowd.clients[1]->Sparse(Stale(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "staleness"));
  v1::TableSpec none = Stale(1);
  none.clear_staleness();
  EXPECT_THAT(crowd.clients[1]->Sparse(none),
              StatusIs(absl::StatusCode::kFailedPrecondition, "staleness"));
  v1::TableSpec quorum = Quorum(2, 1, v1::TableSpec::DROP);
  quorum.set_name("q");
  ASSERT_THAT(crowd.clients[0]->Sparse(quorum), IsOk());
  quorum.set_late(v1::TableSpec::FOLD);
  EXPECT_THAT(crowd.clients[1]->Sparse(quorum),
              StatusIs(absl::StatusCode::kFailedPrecondition, "late"));
  quorum.set_late(v1::TableSpec::DROP);
  quorum.set_quorum(2);
  EXPECT_THAT(crowd.clients[1]->Sparse(quorum),
              StatusIs(absl::StatusCode::kFailedPrecondition, "quorum"));
}

// --- Clocks ------------------------------------------------------------------

// client.h, Tick: "kFailedPrecondition  the table has no staleness, the client
// no rank, or it has left".
TEST(Staleness, TickAndLeaveWithoutAClockAreRefused) {
  TestJob job(2, 1);
  const auto client = job.MakeClient(0);
  v1::TableSpec plain = SparseSpec(kAsync, 1);
  plain.set_name("plain");
  const auto without = client->Sparse(plain);
  ASSERT_THAT(without, IsOk());
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT((*without)->Tick().Wait(kTimeout), refused);
  (void)(*without)->LeaveClock().Wait(kTimeout);
  EXPECT_EQ((*without)->clock(), 0);
  const auto table = client->Sparse(Stale(0));
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT((*table)->LeaveClock().Wait(kTimeout), IsOk());
  EXPECT_THAT((*table)->Tick().Wait(kTimeout), refused);
  (void)(*table)->LeaveClock().Wait(kTimeout);  // twice
  // It may still push and pull, and waits for nobody.
  EXPECT_THAT((*table)->Push(Keys({1}), Ones(1)).Wait(kTimeout), IsOk());
  EXPECT_THAT((*table)->Pull(Keys({1})).Wait(kTimeout), IsOk());
  ClientOptions options;
  options.agent = &job.trainer(0);
  options.servers = {"ps0", "ps1"};
  options.client = 77;
  options.rank = -1;
  Client ranks(options);
  const auto reader = ranks.Sparse(Stale(0));
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT((*reader)->Tick().Wait(kTimeout), refused);
  EXPECT_THAT((*reader)->Pull(Keys({1})).Wait(kTimeout), IsOk());
}

// Many ticks, none of which is waited for: each ends well, also those that are
// more than 64 ahead of what the server has heard.
TEST(Staleness, TicksThatAreNotWaitedForAllCount) {
  Crowd crowd(1, Stale(3));
  std::vector<Future<void>> ticks;
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 0) (void)crowd[0].Push(Keys({1}), Ones(1));
    ticks.push_back(crowd[0].Tick());
  }
  for (const Future<void>& tick : ticks) {
    ASSERT_THAT(tick.Wait(kTimeout), IsOk());
  }
  EXPECT_EQ(crowd[0].clock(), 300);
  EXPECT_EQ(crowd.Row(0), 100);
}

// "A pull at clock c waits, at each server as a parked reply, until no clock is
// below c - s": at the bound not, one beyond it so; with the largest bound
// never.
TEST(Staleness, PullWaitsOneStepBeyondTheBoundAndNotAtIt) {
  for (const int64_t bound : {0, 1, 5}) {
    Crowd crowd(2, Stale(bound));
    for (int64_t step = 0; step < bound; ++step) {
      ASSERT_THAT(crowd.Push(0), IsOk());
      ASSERT_THAT(crowd.Tick(0), IsOk());
      EXPECT_EQ(crowd.Row(0), step + 1);
    }
    ASSERT_THAT(crowd.Tick(0), IsOk());
    const Future<Tensor> pull = crowd.Waiting(0);
    ASSERT_THAT(crowd.Push(1, -100), IsOk());
    ASSERT_THAT(crowd.Tick(1), IsOk());
    const auto rows = pull.Wait(kTimeout);
    ASSERT_THAT(rows, IsOk());
    EXPECT_EQ(rows->ToVector<float>()[0], 100 + bound);
  }
  Crowd crowd(2, Stale(kMostStaleness));
  for (int i = 0; i < 100; ++i) ASSERT_THAT(crowd.Tick(0), IsOk());
  EXPECT_EQ(crowd.Row(0), 0);
}

// Who leaves, dies, closes the table or comes late holds nobody back. "It
// begins at the lowest clock there is".
TEST(Staleness, WorkersThatGoOrComeHoldNobodyBack) {
  Crowd crowd(4, Stale(0));
  ASSERT_THAT(crowd.Tick(0), IsOk());
  const Future<Tensor> pull = crowd.Waiting(0);
  EXPECT_THAT(crowd[1].LeaveClock().Wait(kTimeout), IsOk());
  crowd.tables[2].reset();
  EXPECT_FALSE(pull.Wait(kMoment).ok());
  // The fourth dies.
  const rpc::WorkerKey dead = crowd.job.trainer(3).key();
  for (int i = 0; i < 2; ++i) crowd.job.server(i).Forget(dead);
  EXPECT_THAT(pull.Wait(kTimeout), IsOk());
  for (int i = 0; i < 9; ++i) ASSERT_THAT(crowd.Tick(0), IsOk());
  EXPECT_EQ(crowd[0].clock(), 10);
  EXPECT_EQ(crowd.Row(0), 0);
  // The third comes back, and the second, who left, opens it anew.
  crowd.Open(2, Stale(0));
  EXPECT_EQ(crowd[2].clock(), 10);
  EXPECT_EQ(crowd.Row(2), 0);
  ASSERT_THAT(crowd.Tick(2), IsOk());
  const Future<Tensor> again = crowd.Waiting(2);
  crowd.Open(1, Stale(0));
  EXPECT_EQ(crowd[1].clock(), 10);
  ASSERT_THAT(crowd.Tick(0), IsOk());
  ASSERT_THAT(crowd.Tick(1), IsOk());
  EXPECT_THAT(again.Wait(kTimeout), IsOk());
}

// "A pull that waits beyond its deadline ends with kDeadlineExceeded, which
// names the slowest worker, its rank and its clock." The table goes on after
// it.
TEST(Staleness, PullWhoseTimeIsUpNamesTheSlowestAndTheTableGoesOn) {
  Crowd crowd(2, Stale(1));
  for (int i = 0; i < 2; ++i) ASSERT_THAT(crowd.Tick(0), IsOk());
  // As the servers do once its time is up.
  const auto expire = [&](const Future<Tensor>& pull) {
    EXPECT_TRUE(testing::Becomes([&] {
      for (int i = 0; i < 2; ++i) {
        crowd.job.server(i).Expire(SteadyClock().Now() + absl::Hours(1));
      }
      return pull.IsReady();
    }));
    return pull.Wait(kTimeout).status();
  };
  const absl::Status late = expire(crowd[0].Pull(Keys({1})));
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, "trainer1"));
  EXPECT_THAT(late.ToString(), HasSubstr("rank 1"));
  EXPECT_THAT(expire(crowd[0].PushPull(Keys({1}), Ones(1), Keys({1}))),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (int i = 0; i < 2; ++i) ASSERT_THAT(crowd.Tick(1), IsOk());
  const auto rows = crowd[0].Pull(Keys({1})).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->ToVector<float>()[0], 1) << "pushed once";
}

// "Refused: [...] one of a rank that another client has".
TEST(Staleness, RankThatAnotherWorkerHasIsRefused) {
  Crowd crowd(2, Stale(1));
  ClientOptions options;
  options.agent = &crowd.job.trainer(1);
  options.servers = {"ps0", "ps1"};
  options.client = 5;
  options.rank = 0;
  Client thief(options);
  const auto table = thief.Sparse(Stale(1));
  EXPECT_THAT(table,
              StatusIs(absl::StatusCode::kFailedPrecondition, "trainer0"));
  EXPECT_THAT(crowd.Tick(0), IsOk());
}

// PushMany, PushPullMany and ExchangeEach of tables of which one has a
// staleness: "each operation is what the table's own method is".
TEST(Staleness, OperationsOnManyTablesTickAsTheirOwnMethods) {
  Crowd crowd(1, Stale(2));
  v1::TableSpec plain = SparseSpec(kAsync, 1);
  plain.set_name("plain");
  const auto other = crowd.clients[0]->Sparse(plain);
  ASSERT_THAT(other, IsOk());
  ASSERT_THAT(PushMany({{&crowd[0], Keys({1}), Ones(1)},
                        {other->get(), Keys({1}), Ones(1)}})
                  .Wait(kTimeout),
              IsOk());
  EXPECT_EQ(crowd[0].clock(), 0) << "a Push ends no step";
  ASSERT_THAT(PushPullMany({{&crowd[0], Keys({1}), Ones(1), Keys({1})},
                            {other->get(), Keys({1}), Ones(1), Keys({1})}})
                  .Wait(kTimeout),
              IsOk());
  EXPECT_EQ(crowd[0].clock(), 1) << "a PushPull ends one";
}

// --- Quorum ------------------------------------------------------------------

// "A round closes with the parts of the first q of n shards"; DROP: "it does
// not count". "round() is then the first round that is not closed on all
// servers".
TEST(Quorums, LatePartsAreDroppedAndTheWorkerGoesOnWithTheOpenRound) {
  Crowd crowd(3, Quorum(3, 2, v1::TableSpec::DROP));
  for (int round = 0; round < 5; ++round) {
    ASSERT_THAT(crowd.Push(0), IsOk());
    ASSERT_THAT(crowd.Push(1, -10), IsOk());
    EXPECT_EQ(crowd.Row(0), 11 * (round + 1));
  }
  EXPECT_EQ(crowd[2].round(), 0);
  ASSERT_THAT(crowd.Push(2, -100), IsOk());
  EXPECT_EQ(crowd[2].round(), 5);
  EXPECT_EQ(crowd.Row(2), 55);
  EXPECT_EQ(crowd[2].late_parts().folded, 0);
  // Key 1 is on one server, but each server has a part of each round.
  EXPECT_EQ(crowd[2].late_parts().dropped, 2);
  // The quorum may be any two.
  ASSERT_THAT(crowd.Push(2, -100), IsOk());
  ASSERT_THAT(crowd.Push(1, -10), IsOk());
  EXPECT_EQ(crowd.Row(2), 165);
  ASSERT_THAT(crowd.Push(0), IsOk());
  EXPECT_EQ(crowd.Row(0), 165);
  EXPECT_EQ(crowd[0].round(), 6);
}

// FOLD: "it counts in the open round, beside that round's own part of the shard
// and not for its quorum, if it is at most 4 rounds late; else it is dropped."
TEST(Quorums, LatePartsAreFoldedUpToFourRoundsLate) {
  for (const int late : {1, 4, 5, 9}) {
    Crowd crowd(2, Quorum(2, 1, v1::TableSpec::FOLD));
    for (int round = 0; round < late; ++round) {
      ASSERT_THAT(crowd.Push(0), IsOk());
    }
    ASSERT_THAT(crowd.Push(1, -100), IsOk());  // of round 0, in round `late`
    const bool is_folded = late <= 4;
    EXPECT_EQ(crowd[1].late_parts().folded, is_folded ? 2 : 0) << late;
    EXPECT_EQ(crowd[1].late_parts().dropped, is_folded ? 0 : 2) << late;
    EXPECT_EQ(crowd.Row(0), late) << "the round is open";
    EXPECT_EQ(crowd[1].round(), late);
    ASSERT_THAT(crowd.Push(0), IsOk());
    EXPECT_EQ(crowd.Row(0), late + 1 + (is_folded ? 100 : 0)) << late;
  }
}

// "The mean of a round is over the parts that it has."
TEST(Quorums, MeanIsOverThePartsThatTheRoundHas) {
  v1::TableSpec spec = Quorum(3, 1, v1::TableSpec::FOLD);
  spec.set_reduction(v1::TableSpec::MEAN);
  Crowd crowd(3, spec);
  ASSERT_THAT(crowd.Push(0, -6), IsOk());
  EXPECT_EQ(crowd.Row(0), 6);
  ASSERT_THAT(crowd.Push(1, -2), IsOk());  // folded into round 1
  ASSERT_THAT(crowd.Push(2, -4), IsOk());  // so is this
  ASSERT_THAT(crowd.Push(0, -9), IsOk());
  EXPECT_EQ(crowd.Row(0), 6 + 5);
}

// A quorum of all is none: bits and rounds are those of a table without, and no
// part is ever late.
TEST(Quorums, QuorumOfAllWaitsForAll) {
  Crowd crowd(2, Quorum(2, 2, v1::TableSpec::FOLD));
  for (int round = 0; round < 3; ++round) {
    ASSERT_THAT(crowd.Push(0), IsOk());
    const Future<Tensor> pull = crowd.Waiting(0);
    ASSERT_THAT(crowd.Push(1, -10), IsOk());
    EXPECT_THAT(pull.Wait(kTimeout), IsOk());
    EXPECT_EQ(crowd.Row(1), 11 * (round + 1));
  }
  EXPECT_EQ(crowd[0].late_parts().dropped + crowd[0].late_parts().folded, 0);
}

// "makes the number less only if fewer than q shards count (RETIRE)".
TEST(Quorums, DeathOfWorkersMakesTheQuorumLessOnlyBelowIt) {
  Crowd crowd(3, Quorum(3, 2, v1::TableSpec::DROP));
  const auto die = [&](int rank) {
    for (int i = 0; i < 2; ++i) crowd.job.server(i).DeclareDead(rank);
  };
  die(2);
  ASSERT_THAT(crowd.Push(0), IsOk());
  // Two are left, and two are wanted.
  const Future<Tensor> pull = crowd.Waiting(0);
  die(1);
  EXPECT_THAT(pull.Wait(kTimeout), IsOk());
  ASSERT_THAT(crowd.Push(0), IsOk());
  EXPECT_EQ(crowd.Row(0), 2);
  // The second comes back, and opens the table again.
  for (int i = 0; i < 2; ++i) crowd.job.server(i).Admit(1);
  crowd.Open(1, Quorum(3, 2, v1::TableSpec::DROP));
  EXPECT_EQ(crowd[1].round(), 2);
  ASSERT_THAT(crowd.Push(0), IsOk());
  const Future<Tensor> again = crowd.Waiting(0);
  ASSERT_THAT(crowd.Push(1, -10), IsOk());
  EXPECT_THAT(again.Wait(kTimeout), IsOk());
  EXPECT_EQ(crowd.Row(0), 13);
}

// "each part of a round counts once or not at all, whatever is sent again": the
// sum of all that was not told to be dropped is the table, whoever is how slow.
TEST(Quorums, WhatIsNotToldToBeDroppedIsTheSumForAnyOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto late = seed % 2 == 0 ? v1::TableSpec::DROP : v1::TableSpec::FOLD;
    const int quorum = 1 + static_cast<int>(seed / 2 % 3);
    // One server: what is told is of all of a part.
    Crowd crowd(3, Quorum(3, quorum, late), 1);
    double sum = 0;
    for (int i = 0; i < 60; ++i) {
      const int worker = static_cast<int>(random() % 3);
      const int64_t dropped = crowd[worker].late_parts().dropped;
      const double gradient = 1 + static_cast<double>(random() % 50);
      const int64_t round = crowd[worker].round();
      // So far ahead a part is refused; others must come first.
      int64_t least = round;
      for (int w = 0; w < 3; ++w) least = std::min(least, crowd[w].round());
      if (round - least > 3) continue;
      const absl::Status pushed = crowd.Push(worker, -gradient);
      ASSERT_THAT(pushed, IsOk()) << seed;
      if (crowd[worker].late_parts().dropped == dropped) sum += gradient;
    }
    // Closes what is open: each worker gives parts until all are at one round.
    int64_t most = 0;
    for (int w = 0; w < 3; ++w) most = std::max(most, crowd[w].round());
    for (int w = 0; w < 3; ++w) {
      while (crowd[w].round() < most + 1) {
        ASSERT_THAT(crowd.Push(w, 0), IsOk());
      }
    }
    EXPECT_EQ(crowd.Row(0), sum) << seed;
  }
}

// G20: what is restored goes on; what was folded into the open round is not in
// the checkpoint, and its shard may give its part anew.
TEST(Quorums, RestoredTableGoesOnAtTheLastVersion) {
  testing::TempDir dir;
  Crowd crowd(2, Quorum(2, 1, v1::TableSpec::FOLD), 2, dir.path());
  for (int round = 0; round < 3; ++round) ASSERT_THAT(crowd.Push(0), IsOk());
  ASSERT_THAT(crowd.Push(1, -100), IsOk());  // folded into the open round
  const auto directory =
      checkpoint::CheckpointDirectory::Open({dir.Path("c")}).value();
  const std::string attempt = *directory->Begin(1);
  auto files = crowd.clients[0]->Save(dir.Path("c"), attempt, 7);
  ASSERT_THAT(files, IsOk()) << "whatever `version` is asked for";
  const auto name = directory->Commit(attempt, *std::move(files), {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(crowd.Push(0), IsOk());
  EXPECT_EQ(crowd.Row(0), 104);
  ASSERT_THAT(crowd.clients[0]->Restore(dir.Path("c"), *name), IsOk());
  // With another quorum, which a restored table may have.
  const v1::TableSpec changed = Quorum(2, 2, v1::TableSpec::DROP);
  crowd.Open(0, changed);
  crowd.Open(1, changed);
  EXPECT_EQ(crowd[0].round(), 3);
  EXPECT_EQ(crowd.Row(0), 3);
  ASSERT_THAT(crowd.Push(0), IsOk());
  const Future<Tensor> pull = crowd.Waiting(0);
  ASSERT_THAT(crowd.Push(1, -10), IsOk());
  EXPECT_THAT(pull.Wait(kTimeout), IsOk());
  EXPECT_EQ(crowd.Row(1), 14);
}

// "`SetLearningRateScale` from a round that has closed meanwhile is refused:
// set it for one well ahead."
TEST(Quorums, LearningRateOfAClosedRoundIsRefused) {
  Crowd crowd(2, Quorum(2, 1, v1::TableSpec::DROP));
  for (int round = 0; round < 3; ++round) ASSERT_THAT(crowd.Push(0), IsOk());
  EXPECT_THAT(crowd[1].SetLearningRateScale(2, 1).Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(crowd[1].SetLearningRateScale(2, 5).Wait(kTimeout), IsOk());
  for (int round = 0; round < 3; ++round) ASSERT_THAT(crowd.Push(0), IsOk());
  EXPECT_EQ(crowd.Row(0), 5 + 2);
}

}  // namespace
}  // namespace weft::ps
