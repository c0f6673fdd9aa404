// Servers that die while trainers train: nothing that was acknowledged is lost
// or doubled, and a synchronous training has the bits of an undisturbed one.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/replicated/replica_session.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

TEST(Failover, DenseTableWorksWithTwoReplicas) {
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  const auto table = client->Dense(DenseSpec(v1::TableSpec::SYNC, 1, 5000));
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Full({5000}, 7)).Wait(kTimeout),
              IsOk());
  const auto pulled =
      (*table)->PushPull(Tensor::Full({5000}, 1)).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(6));
}

// The replicas of each partition, and the maps.
std::string Describe(TestJob& job) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&text, "\nps", i, " ", job.replicated(i).map().Summary());
    for (const auto& [name, table] : job.replicated(i).tables()) {
      for (int p = 0; p < table->spec().partitions(); ++p) {
        absl::StrAppend(&text, "\n  ", name, " ", p, ": ",
                        table->DebugString(p));
      }
    }
  }
  return text;
}

TEST(Failover, KillOfAnyServerLosesNothingOfASynchronousTable) {
  TestJob job(3, 2, nullptr, "", /*replicas=*/2);
  constexpr int kRounds = 60;
  std::atomic<int> round{0};
  std::vector<std::vector<float>> ends(2);
  std::thread killer([&] {
    for (int victim = 0; victim < 3; ++victim) {
      ASSERT_TRUE(Becomes([&] { return round >= 15 * (victim + 1); }));
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Dense(DenseSpec(v1::TableSpec::SYNC, 2, 9000));
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Full({9000}, 0)).Wait(kTimeout),
                IsOk());
    for (int r = 0; r < kRounds; ++r) {
      const auto pulled =
          (*table)
              ->PushPull(Tensor::Full({9000}, static_cast<float>(r + trainer)))
              .Wait(kTimeout);
      ASSERT_THAT(pulled.status(), IsOk()) << "round " << r << Describe(job);
      ends[trainer] = ValuesOf(*pulled);
      round = r;
    }
    round = 1000;
  });
  killer.join();
  float sum = 0;
  for (int r = 0; r < kRounds; ++r) sum -= static_cast<float>(2 * r + 1);
  EXPECT_THAT(ends, Each(Each(sum)));
}

TEST(Failover, KillOfAnyServerLosesAndDoublesNoPushOfAnAsynchronousTable) {
  TestJob job(3, 2, nullptr, "", /*replicas=*/2);
  constexpr int kPushes = 300;
  constexpr int kKeys = 50;
  std::atomic<int> pushes{0};
  std::thread killer([&] {
    for (int victim = 0; victim < 3; ++victim) {
      ASSERT_TRUE(Becomes([&] { return pushes >= 100 * (victim + 1); }));
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  Tensor keys = Tensor::Empty({kKeys}, DType::kI64);
  for (int i = 0; i < kKeys; ++i) keys.data<int64_t>()[i] = i * 7919;
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 2));
    ASSERT_THAT(table.status(), IsOk());
    for (int i = 0; i < kPushes; ++i) {
      ASSERT_THAT(
          (*table)->Push(keys, Tensor::Full({kKeys, 2}, -1)).Wait(kTimeout),
          IsOk())
          << "push " << i;
      ++pushes;
    }
    pushes += 1000;
  });
  killer.join();
  const auto client = job.MakeClient(0);
  const auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 2));
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2 * kPushes));
}

TEST(Failover, ClientOfAnotherNumberOfReplicasIsRefused) {
  const v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, 100);
  TestJob two(2, 1, nullptr, "", /*replicas=*/2);
  EXPECT_THAT(two.MakeClient(0, kTimeout, 1)->Dense(spec).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "which serves tables, and 1 at trainer0"));
  TestJob one(2, 1);
  EXPECT_THAT(one.MakeClient(0, kTimeout, 2)->Dense(spec).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "which serves tables, and 2 at trainer0"));
}

// The last push is answered by one server only; then that one dies.
TEST(Failover, WhatATableHasPushedIsOnTwoServersOnceItIsClosed) {
  TestJob job(2, 2, nullptr, "", /*replicas=*/2);
  const v1::TableSpec spec = DenseSpec(v1::TableSpec::ASYNC, 1, 3000);
  const auto client = job.MakeClient(0);
  {
    const auto table = client->Dense(spec);
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT((*table)->Initialize(Tensor::Full({3000}, 0)).Wait(kTimeout),
                IsOk());
    ASSERT_THAT((*table)->Push(Tensor::Full({3000}, -1)).Wait(kTimeout),
                IsOk());
  }
  job.KillServer(0);
  const auto other = job.MakeClient(1);
  const auto table = other->Dense(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(1));
}

TEST(Failover, TableOfFewerPartitionsThanTheMapHasEntries) {
  TestJob job(3, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, 3000);
  spec.set_partitions(2);
  const auto table = client->Dense(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Full({3000}, 0)).Wait(kTimeout),
              IsOk());
  for (int victim = 0; victim < 3; ++victim) {
    ASSERT_TRUE(job.BecomesReplicated());
    job.KillServer(victim);
    job.StartServer(victim);
    const auto pulled =
        (*table)->PushPull(Tensor::Full({3000}, -1)).Wait(kTimeout);
    ASSERT_THAT(pulled.status(), IsOk());
    EXPECT_THAT(ValuesOf(*pulled), Each(victim + 1));
  }
}

// A partition has 6 MB, which are copied 1 MiB at a time.
TEST(Failover, LargePartitionIsFilledInPiecesWhileTrainingGoesOn) {
  constexpr int64_t kLarge = 1'000'000;
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = DenseSpec(v1::TableSpec::SYNC, 1, kLarge);
  spec.set_partitions(2);
  spec.mutable_rule()->mutable_adam()->set_lr(0.5);
  const auto table = client->Dense(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Full({kLarge}, 0)).Wait(kTimeout),
              IsOk());
  std::vector<float> last;
  absl::Status trained;
  const auto train = [&] {
    const auto pulled =
        (*table)->PushPull(Tensor::Full({kLarge}, -1)).Wait(kTimeout);
    trained = pulled.status();
    if (!trained.ok()) return;
    last = ValuesOf(*pulled);
    EXPECT_THAT(last, Each(last[0]));
  };
  for (int victim = 0; victim < 2; ++victim) {
    const int other = 1 - victim;
    ASSERT_TRUE(job.BecomesReplicated());
    job.KillServer(victim);
    job.StartServer(victim);
    const WorkerKey back = {static_cast<uint32_t>(victim), 2};
    ASSERT_TRUE(Becomes([&] {
      train();
      const PartitionMap map = job.replicated(other).map();
      return !trained.ok() || (map.IsReplicated() &&
                               map.StateOf(back) == PartitionMap::State::kLive);
    })) << job.replicated(other).map().Summary();
    ASSERT_THAT(trained, IsOk()) << victim;
  }
  ASSERT_TRUE(job.BecomesReplicated());
  job.KillServer(0);
  const float before = last[0];
  const auto pulled = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(before));
  // The slots of Adam have come too: equal steps go on as they did.
  train();
  ASSERT_THAT(trained, IsOk());
  EXPECT_NEAR(last[0] - before, 0.5, 1e-4);
}

// Partitions are copied a few at a time. Where the backup ends meanwhile, those
// copies make room for the next one's.
TEST(Failover, BackupThatDiesWhileItIsFilledIsFilledAnew) {
  constexpr int64_t kLarge = 4'000'000;
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  const auto table = client->Dense(DenseSpec(v1::TableSpec::ASYNC, 1, kLarge));
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Full({kLarge}, 3)).Wait(kTimeout),
              IsOk());
  job.KillServer(1);
  for (uint64_t life = 2; life < 5; ++life) {
    job.StartServer(1);
    const WorkerKey back = {1, life};
    ASSERT_TRUE(Becomes([&] {
      return job.replicated(0).map().entry(0).backup == back;
    })) << job.replicated(0).map().Summary();
    job.KillServer(1);
  }
  job.StartServer(1);
  ASSERT_TRUE(job.BecomesReplicated());
  job.KillServer(0);
  const auto pulled = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(3));
}

// A client sends what a dead server has answered again, with what it was asked
// since. Where the next server refuses all of it, nobody waits for the first.
TEST(Failover, PushRefusedTogetherWithAnAnsweredOneEndsAtOnce) {
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 1);
  spec.set_partitions(1);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_TRUE(job.BecomesReplicated());
  ASSERT_EQ(job.replicated(1).map().entry(0).primary.id, 0u);
  const Tensor keys = Tensor::Arange(4, DType::kI64);
  const Tensor steps = Tensor::Full({4, 2}, -1);
  ASSERT_THAT((*table)->Push(keys, steps).Wait(kTimeout), IsOk());
  job.SetTelling(false);
  job.KillServer(0);  // before the client has asked what is stable
  // The same worker's next 64 openings close the first at the other server.
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_THAT(
        rpc::CallAsync(job.trainer(0).To("ps1", kTimeout), &OpenReplicated,
                       spec, 5000 + i, (uint64_t{1} << 62) + i)
            .Wait(kTimeout)
            .status(),
        IsOk());
  }
  const Future<void> push = (*table)->Push(keys, steps);
  job.SetTelling(true);
  EXPECT_THAT(push.Wait(kTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, "open it again"));
}

TEST(Failover, LossOfBothCopiesIsToldAsSuch) {
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  const auto client = job.MakeClient(0);
  const auto table = client->Dense(DenseSpec(v1::TableSpec::SYNC, 1, 3000));
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT((*table)->Initialize(Tensor::Full({3000}, 0)).Wait(kTimeout),
              IsOk());
  job.KillServers({0, 1});  // before either has a chance to fill another
  job.StartServer(0);
  job.StartServer(1);
  EXPECT_THAT(
      (*table)->PushPull(Tensor::Full({3000}, 1)).Wait(kTimeout).status(),
      StatusIs(absl::StatusCode::kDataLoss, "--resume"));
}

// --- Restore of a job that has lost all copies of partitions -----------------

// A checkpoint of table "t" after one push of -1 to all `keys`, and two after.
class LostTest : public ::testing::Test {
 protected:
  static constexpr int kKeys = 200;

  LostTest() : job_(3, 2, nullptr, temp_.path(), /*replicas=*/2) {
    directory_ = *checkpoint::CheckpointDirectory::Open({path_});
    keys_ = Tensor::Arange(kKeys, DType::kI64);
  }

  void Save(Client& client) {
    const auto attempt = directory_->Begin(1);
    const auto files = client.Save(path_, *attempt, -1);
    ASSERT_THAT(files.status(), IsOk());
    const auto name = directory_->Commit(*attempt, *files, {});
    ASSERT_THAT(name.status(), IsOk());
    name_ = *name;
  }
  absl::Status Push(SparseTable& table) {
    return table.Push(keys_, Tensor::Full({kKeys, 2}, -1)).Wait(kTimeout);
  }
  // Two of three at once: what they had together is lost.
  void LoseSome() {
    ASSERT_TRUE(KillTwo()) << "every partition had a copy on server 1";
  }
  // Whether servers 0 and 2, which die here, had both copies of a partition.
  bool KillTwo() {
    job_.KillServers({0, 2});
    job_.StartServer(0);
    job_.StartServer(2);
    const auto is_all_on_one = [](const PartitionMap& map) {
      for (int i = 0; i < map.entries(); ++i) {
        if (map.entry(i).primary.id != 1) return false;  // server 1's
      }
      return true;
    };
    EXPECT_TRUE(Becomes([&] {
      const PartitionMap map = job_.replicated(1).map();
      return map.lost() > 0 || is_all_on_one(map);
    }));
    return job_.replicated(1).map().lost() > 0;
  }

  const weft::testing::TempDir temp_;
  const std::string path_ = temp_.Path("ckpt");
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
  TestJob job_;
  Tensor keys_;
  std::string name_;
};

TEST_F(LostTest, RestoreIntoTheRunningJobGoesOn) {
  const auto client = job_.MakeClient(0);
  const auto other = job_.MakeClient(1);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  const auto before = client->Sparse(spec);
  const auto others = other->Sparse(spec);
  ASSERT_THAT(before.status(), IsOk());
  ASSERT_THAT(others.status(), IsOk());
  ASSERT_THAT(Push(**before), IsOk());
  Save(*client);
  ASSERT_THAT(Push(**before), IsOk());
  ASSERT_TRUE(job_.BecomesReplicated());
  LoseSome();
  EXPECT_THAT((*before)->Pull(keys_).Wait(kTimeout).status(),
              StatusIs(absl::StatusCode::kDataLoss, "ps::Client::Restore"));
  EXPECT_THAT(Push(**before), StatusIs(absl::StatusCode::kDataLoss, ""));
  EXPECT_THAT(client->Sparse(spec).status(),
              StatusIs(absl::StatusCode::kDataLoss, "ps::Client::Restore"));
  const auto shown = client->Describe();
  ASSERT_THAT(shown.status(), IsOk());
  EXPECT_GT(shown->front().lost(), 0);

  ASSERT_THAT(client->Restore(path_, name_), IsOk());
  EXPECT_EQ(job_.replicated(1).map().lost(), 0);
  // Whoever had it open does not push into what was restored.
  EXPECT_THAT(Push(**others), Not(IsOk()));
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto restored = (*table)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(restored.status(), IsOk());
  EXPECT_THAT(ValuesOf(*restored), Each(1));
  ASSERT_THAT(Push(**table), IsOk());
  // It is as replicated as before.
  ASSERT_TRUE(job_.BecomesReplicated());
  job_.KillServer(1);
  const auto pulled = (*table)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2));
}

TEST_F(LostTest, SnapshotIsOfOneVersionWhilePushesGoOn) {
  const auto client = job_.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::SYNC, 1);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto step = [&] {
    return (*table)
        ->PushPull(keys_, Tensor::Full({kKeys, 2}, -1), keys_)
        .Wait(kTimeout)
        .status();
  };
  ASSERT_THAT(step(), IsOk());
  ASSERT_THAT(step(), IsOk());
  const auto attempt = directory_->Begin(1);
  const auto snapshot = client->Snapshot(path_, *attempt, 2, kTimeout);
  ASSERT_THAT(snapshot.status(), IsOk());
  for (int i = 0; i < 10; ++i) ASSERT_THAT(step(), IsOk());
  const auto files = snapshot->Wait(kTimeout);
  ASSERT_THAT(files.status(), IsOk());
  const auto name = directory_->Commit(*attempt, *files, {});
  ASSERT_THAT(name.status(), IsOk());
  ASSERT_THAT(client->Restore(path_, *name), IsOk());
  table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  EXPECT_EQ((*table)->round(), 2);
  const auto pulled = (*table)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2));
}

// The next one is whole.
TEST_F(LostTest, ServerThatDiesWhileASnapshotIsWrittenFailsThatOneOnly) {
  const auto client = job_.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT(Push(**table), IsOk());
  ASSERT_TRUE(job_.BecomesReplicated());
  const auto attempt = directory_->Begin(1);
  const auto snapshot = client->Snapshot(path_, *attempt, -1, kTimeout);
  ASSERT_THAT(snapshot.status(), IsOk());
  job_.KillServer(2);
  // It may have been written before.
  const auto files = snapshot->Wait(kTimeout);
  if (!files.ok()) directory_->Abandon(*attempt);
  ASSERT_THAT(Push(**table), IsOk());
  Save(*client);
  ASSERT_THAT(client->Restore(path_, name_), IsOk());
  table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(2));
}

TEST_F(LostTest, RestoreThatFailsLeavesThemLost) {
  const auto client = job_.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  ASSERT_THAT(client->Sparse(spec).status(), IsOk());
  Save(*client);
  LoseSome();
  EXPECT_THAT(client->Restore(path_, "ckpt-000099-step-1"), Not(IsOk()));
  EXPECT_GT(job_.replicated(1).map().lost(), 0);
  EXPECT_THAT(client->Sparse(spec).status(),
              StatusIs(absl::StatusCode::kDataLoss, "ps::Client::Restore"));
  EXPECT_THAT(client->Restore(path_, name_), IsOk());
  EXPECT_THAT(client->Sparse(spec).status(), IsOk());
}

// Servers have been given what was lost, and its client died before they had
// loaded it: nothing is served, and nothing may be opened.
TEST_F(LostTest, RestoreThatDoesNotEndServesNothing) {
  const auto client = job_.MakeClient(0, absl::Seconds(5));
  const auto patient = job_.MakeClient(1);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  ASSERT_THAT(Push(**table), IsOk());
  Save(*patient);
  LoseSome();
  ASSERT_THAT(rpc::CallAsync(job_.trainer(1).To("ps1", kTimeout), &BeginRestore,
                             path_, name_, uint64_t{5})
                  .Wait(kTimeout),
              IsOk());
  ASSERT_TRUE(Becomes([&] { return job_.replicated(1).map().is_restoring(); }));
  EXPECT_THAT((*table)->Pull(keys_).Wait(kTimeout).status(), Not(IsOk()));
  EXPECT_THAT(client->Sparse(spec).status(),
              StatusIs(absl::StatusCode::kUnavailable, "is being restored"));
  ASSERT_THAT(patient->Restore(path_, name_), IsOk());
  const auto again = patient->Sparse(spec);
  ASSERT_THAT(again.status(), IsOk());
  const auto pulled = (*again)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(1));
}

// Longer than a checkpoint may be missing.
TEST_F(LostTest, RestoreOutlastsAServerThatIsNotFoundForLong) {
  const auto client = job_.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  {
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT(Push(**table), IsOk());
    Save(*client);
  }
  job_.SetTelling(false);
  job_.KillServer(2);
  job_.StartServer(2);  // the map still names the one before
  std::thread late([&] {
    absl::SleepFor(absl::Seconds(4));
    job_.SetTelling(true);
  });
  EXPECT_THAT(client->Restore(path_, name_), IsOk());
  late.join();
  const auto table = client->Sparse(spec);
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull(keys_).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(1));
}

// A server dies, with what it has loaded, again and again.
TEST_F(LostTest, DeathsWithinARestoreServeNothingThatIsNotThere) {
  const auto client = job_.MakeClient(0);
  const v1::TableSpec spec = SparseSpec(v1::TableSpec::ASYNC, 2);
  {
    const auto table = client->Sparse(spec);
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT(Push(**table), IsOk());
    Save(*client);
  }
  for (int i = 0; i < 4; ++i) {
    if (i == 0) {
      LoseSome();
    } else if (!KillTwo()) {
      continue;  // the last one has left a copy of each on server 1
    }
    std::thread killer([&] {
      absl::SleepFor(absl::Milliseconds(3 * i));
      job_.KillServer(1);
      job_.StartServer(1);
    });
    const absl::Status restored = client->Restore(path_, name_);
    killer.join();
    ASSERT_THAT(restored, IsOk()) << i;
    const auto table = client->Sparse(spec);
    // The death may have come after its end, before the backups were filled.
    if (absl::IsDataLoss(table.status())) continue;
    ASSERT_THAT(table.status(), IsOk()) << i;
    const auto pulled = (*table)->Pull(keys_).Wait(kTimeout);
    if (absl::IsDataLoss(pulled.status())) continue;
    ASSERT_THAT(pulled.status(), IsOk()) << i;
    EXPECT_THAT(ValuesOf(*pulled), Each(1)) << i;
  }
}

// Calls a server at its first tick, once it may.
class LateFollower : public MapFollower {
 public:
  LateFollower(std::shared_ptr<ReplicaSession> session, Future<void> may_call)
      : session_(std::move(session)), may_call_(std::move(may_call)) {}
  void OnMap(const PartitionMap& /*map*/) override {}
  void OnClose(const absl::Status& /*why*/) override {}
  void OnTick(Instant /*now*/) override {
    if (!begun.Set(absl::OkStatus())) return;
    EXPECT_THAT(may_call_.Wait(kTimeout), IsOk());
    const rpc::WorkerKey server = session_->map().servers()[0].key;
    called.Set(
        session_->CallAsync(server, kTimeout, &GetMap).Wait(kTimeout).status());
  }

  Promise<void> begun, called;

 private:
  const std::shared_ptr<ReplicaSession> session_;
  const Future<void> may_call_;
};

// The thread of a session may hold the last references to it and to a table
// when the program has dropped both and has destroyed its agent.
TEST(Failover, TickThatOutlivesTheAgentCallsNobody) {
  auto job = std::make_unique<TestJob>(2, 1, nullptr, "", /*replicas=*/2);
  auto session =
      ReplicaSession::Begin({&job->trainer(0), {"ps0", "ps1"}}, kTimeout);
  ASSERT_THAT(session, IsOk());
  Promise<void> may_call;
  auto follower = std::make_shared<LateFollower>(*session, may_call.future());
  const Future<void> begun = follower->begun.future();
  const Future<void> called = follower->called.future();
  (*session)->Add(follower);
  auto open = std::make_unique<OpenSession>(*std::move(session));
  EXPECT_THAT(begun.Wait(kTimeout), IsOk());
  follower.reset();
  open.reset();
  job.reset();
  may_call.Set(absl::OkStatus());
  EXPECT_THAT(called.Wait(kTimeout),
              StatusIs(absl::StatusCode::kCancelled, "ended"));
}

// An operation that waits for servers that are gone holds its table.
TEST(Failover, SessionThatIsStillOpenEndsWithTheAgent) {
  auto job = std::make_unique<TestJob>(2, 1, nullptr, "", /*replicas=*/2);
  auto session =
      ReplicaSession::Begin({&job->trainer(0), {"ps0", "ps1"}}, kTimeout);
  ASSERT_THAT(session, IsOk());
  Promise<void> may_call;
  auto follower = std::make_shared<LateFollower>(*session, may_call.future());
  const Future<void> begun = follower->begun.future();
  const Future<void> called = follower->called.future();
  (*session)->Add(follower);
  const OpenSession open(*std::move(session));
  EXPECT_THAT(begun.Wait(kTimeout), IsOk());
  job.reset();
  may_call.Set(absl::OkStatus());
  EXPECT_THAT(called.Wait(kTimeout),
              StatusIs(absl::StatusCode::kCancelled, "ended"));
}

}  // namespace
}  // namespace weft::ps
