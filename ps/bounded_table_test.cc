// Tables that stay bounded, through clients: the rows that go, and their bits,
// depend neither on the servers nor on what becomes of them; and servers whose
// memory for rows is used up.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr int kKeys = 400;

v1::TableSpec BoundedSpec(v1::TableSpec::Mode mode, int trainers) {
  v1::TableSpec spec = SparseSpec(mode, trainers);
  spec.mutable_rule()->mutable_adam()->set_lr(0.125);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(1);
  spec.mutable_life()->set_max_rows(16 * 6);
  spec.mutable_life()->set_idle_versions(8);
  spec.mutable_life()->set_admit_after(2);
  spec.mutable_life()->set_admit_counters(32);
  spec.mutable_life()->set_drop_versions(2);
  return spec;
}

// What trainer `rank` pushes to in round `round`: some keys often.
Tensor KeysOf(int rank, int round) {
  std::vector<int64_t> keys;
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t chance = Mix64(i + 1000 * round + 100000 * rank);
    keys.push_back(static_cast<int64_t>(chance >> 8) %
                   (chance % 3 == 0 ? 40 : kKeys));
  }
  return Tensor::FromVector<int64_t>(keys);
}
Tensor GradientsOf(int rank, int round) {
  return Tensor::Full({40, 2}, static_cast<float>(1 + (round + rank) % 5));
}

// Rounds `begin` to `end`. `at` follows them.
void Train(SparseTable& table, int rank, int begin, int end,
           std::atomic<int>* at = nullptr) {
  for (int round = begin; round < end; ++round) {
    const Tensor keys = KeysOf(rank, round);
    ASSERT_THAT(table.PushPull(keys, GradientsOf(rank, round), keys)
                    .Wait(kTimeout)
                    .status(),
                IsOk())
        << "round " << round;
    if (at != nullptr) *at = round;
  }
}

// The values of all rows; those that are not there have their first values.
std::vector<float> AllOf(SparseTable& table) {
  const auto rows =
      table.Pull(Tensor::Arange(kKeys, DType::kI64)).Wait(kTimeout);
  EXPECT_THAT(rows.status(), IsOk());
  return rows.ok() ? rows->ToVector<float>() : std::vector<float>();
}

v1::TableStats StatsOf(Client& client) {
  v1::TableStats all;
  const auto described = client.Describe();
  EXPECT_THAT(described.status(), IsOk());
  if (!described.ok()) return all;
  for (const v1::ServerStats& server : *described) {
    for (const v1::TableStats& table : server.tables()) {
      all.set_rows(all.rows() + table.rows());
      all.set_evicted_full(all.evicted_full() + table.evicted_full());
      all.set_evicted_idle(all.evicted_idle() + table.evicted_idle());
      all.set_not_admitted(all.not_admitted() + table.not_admitted());
      all.set_dropped_late(all.dropped_late() + table.dropped_late());
      all.set_refused_pushes(all.refused_pushes() + table.refused_pushes());
    }
  }
  return all;
}

constexpr int kRounds = 120;

// A training by two trainers; of a job with replicas each server is killed in
// turn, if `kills`.
std::vector<float> Trained(v1::TableSpec::Mode mode, int trainers, int servers,
                           int replicas, bool kills) {
  TestJob job(servers, trainers, nullptr, "", replicas);
  const v1::TableSpec spec = BoundedSpec(mode, trainers);
  std::atomic<int> round{0};
  std::thread killer([&] {
    for (int victim = 0; kills && victim < servers; ++victim) {
      ASSERT_TRUE(Becomes([&] { return round >= 30 * (victim + 1); }));
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  OnEach(trainers, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    Train(**table, trainer, 0, kRounds, &round);
  });
  round = 1000;
  killer.join();
  const auto client = job.MakeClient(0);
  const auto table = client->Sparse(spec);
  EXPECT_THAT(table.status(), IsOk());
  if (!table.ok()) return {};
  const v1::TableStats stats = StatsOf(*client);
  EXPECT_LE(stats.rows(), spec.life().max_rows());
  if (!kills) {
    EXPECT_GT(stats.evicted_full(), 0);
    EXPECT_GT(stats.evicted_idle(), 0);
    EXPECT_GT(stats.not_admitted(), 0);
    EXPECT_GT(stats.dropped_late(), 0);
  }
  return AllOf(**table);
}

TEST(BoundedTable, SynchronousBitsAreThoseOfAnyServersAlsoIfTheyDie) {
  const auto mode = v1::TableSpec::SYNC;
  const std::vector<float> one = Trained(mode, 2, 1, 1, false);
  ASSERT_EQ(one.size(), 2u * kKeys);
  EXPECT_EQ(Trained(mode, 2, 3, 1, false), one);
  EXPECT_EQ(Trained(mode, 2, 3, 2, false), one);
  EXPECT_EQ(Trained(mode, 2, 3, 2, true), one);
}

// With one trainer the pushes have an order, which fixes the bits.
TEST(BoundedTable, AsynchronousBitsAreThoseOfTheOrderOfPushes) {
  const auto mode = v1::TableSpec::ASYNC;
  const std::vector<float> one = Trained(mode, 1, 1, 1, false);
  ASSERT_EQ(one.size(), 2u * kKeys);
  EXPECT_EQ(Trained(mode, 1, 3, 1, false), one);
  EXPECT_EQ(Trained(mode, 1, 3, 2, true), one);
}

class BoundedRestore : public ::testing::TestWithParam<v1::TableSpec::Mode> {};

TEST_P(BoundedRestore, GoesOnWithTheSameEvictions) {
  const TempDir temp;
  const std::string path = temp.Path("ckpt");
  const auto directory = checkpoint::CheckpointDirectory::Open({path});
  ASSERT_THAT(directory.status(), IsOk());
  const v1::TableSpec spec = BoundedSpec(GetParam(), 1);
  std::string name;
  std::vector<float> wanted;
  {
    TestJob job(2, 1, nullptr, temp.path());
    const auto client = job.MakeClient(0);
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    Train(**table, 0, 0, 60);
    const auto attempt = (*directory)->Begin(1);
    const auto files = client->Save(path, *attempt, -1);
    ASSERT_THAT(files.status(), IsOk());
    const auto committed = (*directory)->Commit(*attempt, *files, {});
    ASSERT_THAT(committed.status(), IsOk());
    name = *committed;
    Train(**table, 0, 60, 120);
    wanted = AllOf(**table);
  }
  for (const int replicas : {1, 2}) {
    TestJob job(3, 1, nullptr, temp.path(), replicas);
    const auto client = job.MakeClient(0);
    ASSERT_THAT(client->Restore(path, name), IsOk());
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    Train(**table, 0, 60, 120);
    EXPECT_EQ(AllOf(**table), wanted) << replicas;
  }
  // Bounds may be others from then on.
  TestJob job(1, 1, nullptr, temp.path());
  const auto client = job.MakeClient(0);
  ASSERT_THAT(client->Restore(path, name), IsOk());
  v1::TableSpec changed = spec;
  changed.clear_life();
  const auto table = client->Sparse(changed);
  ASSERT_THAT(table.status(), IsOk());
  Train(**table, 0, 60, 120);
  EXPECT_GT(StatsOf(*client).rows(), spec.life().max_rows());
}

INSTANTIATE_TEST_SUITE_P(Modes, BoundedRestore,
                         ::testing::Values(v1::TableSpec::SYNC,
                                           v1::TableSpec::ASYNC));

// --- Memory ------------------------------------------------------------------

constexpr int64_t kMemory = 200000;

Tensor KeysFrom(int64_t first, int64_t n) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back(first + i);
  return Tensor::FromVector<int64_t>(keys);
}

class TableMemory : public ::testing::TestWithParam<int> {};  // replicas

TEST_P(TableMemory, PushThatCouldMakeRowsIsRefusedAndOthersGoOn) {
  const int servers = GetParam();
  TestJob job(servers, 2, nullptr, "", GetParam(), kMemory);
  const auto client = job.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto push = [](SparseTable& to, const Tensor& keys) {
    return to.Push(keys, Tensor::Full({keys.numel(), 2}, -1)).Wait(kTimeout);
  };
  const Tensor known = KeysFrom(0, 500);
  ASSERT_THAT(push(**table, known), IsOk());
  int64_t next = 500;
  absl::Status refused;
  while (refused.ok() && next < 100000) {
    refused = push(**table, KeysFrom(next, 500));
    next += 500;
  }
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kResourceExhausted, "table 't' on"));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("200000 are the most"), HasSubstr("partition"),
                    HasSubstr("--table-memory"), HasSubstr("life.max_rows")));
  EXPECT_GT(next, 2000);
  EXPECT_GT(StatsOf(*client).refused_pushes(), 0);

  // A client that goes on with what there is.
  const auto other = job.MakeClient(1);
  const auto again = other->Sparse(spec);
  ASSERT_THAT(again.status(), IsOk());
  EXPECT_THAT(push(**again, known), IsOk());
  const auto pulled = (*again)->Pull(known).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(pulled->ToVector<float>(), Each(2));
  const auto unknown = (*again)->Pull(KeysFrom(1 << 20, 3)).Wait(kTimeout);
  ASSERT_THAT(unknown.status(), IsOk());
  EXPECT_THAT(unknown->ToVector<float>(), Each(0));
}

// Nobody applies the round without it, and it may come again.
TEST_P(TableMemory, PartOfARoundIsRefusedBeforeItIsTaken) {
  const int servers = GetParam();
  TestJob job(servers, 2, nullptr, "", GetParam(), kMemory);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 2);
  const auto first = job.MakeClient(0);
  const auto second = job.MakeClient(1);
  const auto of_first = first->Sparse(spec);
  const auto of_second = second->Sparse(spec);
  ASSERT_THAT(of_first.status(), IsOk());
  ASSERT_THAT(of_second.status(), IsOk());
  const Tensor few = KeysFrom(0, 10);
  const auto ones = [](int64_t n) { return Tensor::Full({n, 2}, -1); };
  const auto push = [&](SparseTable& to, int shard, int64_t round,
                        const Tensor& keys) {
    return to.PushShard({shard, round}, keys, ones(keys.numel()))
        .Wait(kTimeout);
  };
  ASSERT_THAT(push(**of_first, 0, 0, few), IsOk());
  ASSERT_THAT(push(**of_second, 1, 0, few), IsOk());
  ASSERT_THAT(push(**of_first, 0, 1, few), IsOk());
  EXPECT_THAT(push(**of_second, 1, 1, KeysFrom(0, 50000)),
              StatusIs(absl::StatusCode::kResourceExhausted, "--table-memory"));
  // Its part is still awaited: with rows for which there is room it closes.
  ASSERT_THAT(push(**of_second, 1, 1, few), IsOk());
  (*of_first)->EndRound();
  (*of_first)->EndRound();
  const auto pulled = (*of_first)->Pull(few).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(pulled->ToVector<float>(), Each(4));
}

INSTANTIATE_TEST_SUITE_P(Replicas, TableMemory, ::testing::Values(1, 2));

// A bounded table never needs more than its bound.
TEST(BoundedTable, NeedsNoMoreMemoryThanItsBound) {
  TestJob job(1, 1, nullptr, "", 1, kMemory);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
  spec.mutable_life()->set_max_bytes(kMemory / 2);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  for (int64_t push = 0; push < 200; ++push) {
    ASSERT_THAT((*table)
                    ->Push(KeysFrom(push * 500, 500), Tensor::Ones({500, 2}))
                    .Wait(kTimeout),
                IsOk())
        << push;
  }
  const v1::TableStats stats = StatsOf(*client);
  EXPECT_EQ(stats.refused_pushes(), 0);
  EXPECT_GT(stats.rows(), 1000);
  EXPECT_GT(stats.evicted_full(), 90000);
}

}  // namespace
}  // namespace weft::ps
