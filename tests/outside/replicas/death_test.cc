// Servers of tables with two replicas that die at awkward moments: within each
// operation, while they are filled, again and again, all at once.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::Le;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::GetStatus;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr int64_t kElements = 40 * 1024;

// With two replicas. Each death here follows the repair of the one before
// (BecomesReplicated), docs/replication.md G3.
class Job : public TestJob {
 public:
  Job(int servers, int trainers, std::string checkpoint_dir = "")
      : TestJob(servers, trainers, nullptr, std::move(checkpoint_dir), 2) {}
};

// Kills `victim` a moment after `call` has begun, and starts it again.
template <typename Call>
auto KilledWithin(Job& job, int victim, absl::Duration after, Call call) {
  std::thread killer([&] {
    absl::SleepFor(after);
    job.KillServer(victim);
  });
  auto result = call();
  killer.join();
  job.StartServer(victim);
  return result;
}

TEST(DeathOfReplicas, WithinOpenAndInitialize) {
  Job job(3, 1);
  const auto client = job.MakeClient(0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(job.BecomesReplicated());
    v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
    spec.set_name(absl::StrCat("open", i));
    auto table = KilledWithin(job, i, absl::Microseconds(300 * i),
                              [&] { return client->Dense(spec); });
    ASSERT_THAT(table, IsOk()) << i;
    ASSERT_TRUE(job.BecomesReplicated());
    ASSERT_THAT(KilledWithin(job, (i + 1) % 3, absl::Microseconds(500 * i),
                             [&] {
                               return (*table)
                                   ->Initialize(Tensor::Full({kElements}, 7))
                                   .Wait(kTimeout);
                             }),
                IsOk())
        << i;
    const auto values =
        (*table)->PushPull(Tensor::Ones({kElements})).Wait(kTimeout);
    ASSERT_THAT(values, IsOk()) << i;
    EXPECT_THAT(values->ToVector<float>(), Each(6)) << i;
  }
}

TEST(DeathOfReplicas, OfAServerThatIsNotBackDoesNotHinderANewClient) {
  Job job(3, 2);
  {
    const auto client = job.MakeClient(0);
    const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
    ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
                IsOk());
    ASSERT_THAT(table->Push(Tensor::Full({kElements}, -1)).Wait(kTimeout),
                IsOk());
  }
  job.KillServer(0);
  const auto client = job.MakeClient(1);
  const auto table = client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table, IsOk());
  const auto values = (*table)->Pull().Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(1));
  EXPECT_THAT(client->Describe(), IsOk());
}

TEST(DeathOfReplicas, WithinRatesPushesAndPulls) {
  Job job(3, 1);
  const auto client = job.MakeClient(0);
  const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  float wanted = 0;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(job.BecomesReplicated());
    const float scale = i % 2 == 0 ? 0.5f : 2.0f;
    const auto rate = table->SetLearningRateScale(scale);
    if (i < 3) job.KillServer(i % 3);
    ASSERT_THAT(rate.Wait(kTimeout), IsOk()) << i;
    const auto push = table->Push(Tensor::Full({kElements}, -4));
    if (i >= 3) job.KillServer(i % 3);
    ASSERT_THAT(push.Wait(kTimeout), IsOk()) << i;
    const auto pull = table->Pull();
    job.StartServer(i % 3);
    const auto values = pull.Wait(kTimeout);
    ASSERT_THAT(values, IsOk()) << i;
    wanted += 4 * scale;
    ASSERT_THAT(values->ToVector<float>(), Each(wanted)) << i;
  }
}

TEST(DeathOfReplicas, OfOneThatIsBeingFilledAgainAndAgain) {
  Job job(3, 1);
  const auto client = job.MakeClient(0);
  const auto table = *client->Sparse(SparseSpec(kAsync, 1));
  const Tensor keys = Tensor::Arange(2000, DType::kI64);
  int pushes = 0;
  const auto push = [&] {
    ASSERT_THAT(table->Push(keys, Tensor::Full({2000, 2}, -1)).Wait(kTimeout),
                IsOk())
        << pushes;
    ++pushes;
  };
  push();
  ASSERT_TRUE(job.BecomesReplicated());
  for (int i = 0; i < 5; ++i) {
    job.KillServer(1);
    push();
    job.StartServer(1);
    push();
    absl::SleepFor(absl::Milliseconds(40 * i));
  }
  ASSERT_TRUE(job.BecomesReplicated());
  job.KillServer(0);
  push();
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(pushes));
}

TEST(DeathOfReplicas, OfClientsAndOneServerLosesNoStablePush) {
  Job job(2, 2);
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.set_durability(v1::TableSpec::STABLE);
  const Tensor keys = Tensor::Arange(200, DType::kI64);
  ASSERT_TRUE(job.BecomesReplicated());
  {
    const auto client = job.MakeClient(0);
    const auto table = *client->Sparse(spec);
    for (int i = 0; i < 10; ++i) {
      ASSERT_THAT(table->Push(keys, Tensor::Full({200, 2}, -1)).Wait(kTimeout),
                  IsOk());
    }
    job.KillServer(0);
  }
  const auto client = job.MakeClient(1);
  const auto table = *client->Sparse(spec);
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(10));
}

// Pushes that nobody waited for belong to a table which is gone: its end waits
// until they are stable, ruling 1.
TEST(DeathOfReplicas, AfterTheEndOfATableLosesNoAcknowledgedPush) {
  Job job(2, 2);
  const Tensor keys = Tensor::Arange(200, DType::kI64);
  ASSERT_TRUE(job.BecomesReplicated());
  {
    const auto client = job.MakeClient(0);
    const auto table = *client->Sparse(SparseSpec(kAsync, 1));
    for (int i = 0; i < 10; ++i) {
      ASSERT_THAT(table->Push(keys, Tensor::Full({200, 2}, -1)).Wait(kTimeout),
                  IsOk());
    }
  }
  job.KillServer(1);
  const auto client = job.MakeClient(1);
  const auto table = *client->Sparse(SparseSpec(kAsync, 1));
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(10));
}

// Durability NONE: a push may be lost; none is applied twice.
TEST(DeathOfReplicas, DoublesNoPushWithoutDurability) {
  Job job(3, 1);
  v1::TableSpec spec = SparseSpec(kAsync, 1);
  spec.set_durability(v1::TableSpec::NONE);
  const auto client = job.MakeClient(0);
  const auto table = *client->Sparse(spec);
  const Tensor keys = Tensor::Arange(200, DType::kI64);
  ASSERT_TRUE(job.BecomesReplicated());
  for (int i = 0; i < 60; ++i) {
    if (i == 20) job.KillServer(1);
    ASSERT_THAT(table->Push(keys, Tensor::Full({200, 2}, -1)).Wait(kTimeout),
                IsOk())
        << i;
    if (i == 40) job.StartServer(1);
  }
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(Le(60)));
}

TEST(DeathOfReplicas, OfAllServersIsDataLossAndACheckpointGoesOn) {
  const TempDir temp;
  checkpoint::CheckpointDirectory::Options options;
  options.path = temp.Path("ckpt");
  auto directory = *checkpoint::CheckpointDirectory::Open(options);
  Job job(2, 1, temp.path());
  const auto client = job.MakeClient(0);
  auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  ASSERT_THAT(table->Push(Tensor::Full({kElements}, -1)).Wait(kTimeout),
              IsOk());
  const auto attempt = directory->Begin(1);
  const auto files = client->Save(options.path, *attempt, 1);
  ASSERT_THAT(files, IsOk());
  const auto name = directory->Commit(*attempt, *files, {});
  ASSERT_THAT(name, IsOk());
  ASSERT_THAT(table->Push(Tensor::Full({kElements}, -1)).Wait(kTimeout),
              IsOk());
  const auto pull = [&] { return GetStatus(table->Pull().Wait(kTimeout)); };

  job.KillServer(0);
  job.KillServer(1);
  job.StartServer(0);
  job.StartServer(1);
  EXPECT_THAT(pull(), StatusIs(absl::StatusCode::kDataLoss, ""));
  EXPECT_THAT(GetStatus(table->Push(Tensor::Ones({kElements})).Wait(kTimeout)),
              Not(IsOk()));

  ASSERT_THAT(client->Restore(options.path, *name), IsOk());
  const auto again = client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ((*again)->round(), 1);
  const auto values =
      (*again)->PushPull(Tensor::Full({kElements}, -1)).Wait(kTimeout);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->ToVector<float>(), Each(2));
}

TEST(DeathOfReplicas, OfTwoOfThreeAtOnceIsDataLossNotAHang) {
  Job job(3, 1);
  const auto client = job.MakeClient(0);
  const auto table = *client->Dense(DenseSpec(kSync, 1, kElements));
  ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
              IsOk());
  ASSERT_TRUE(job.BecomesReplicated());
  job.KillServers({0, 2});
  EXPECT_THAT(table->Pull().Wait(kTimeout),
              StatusIs(absl::StatusCode::kDataLoss, ""));
  // A new table of the same servers: no copy of some partitions is left either.
  v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  spec.set_name("later");
  auto later = client->Dense(spec);
  if (later.ok()) {
    EXPECT_THAT((*later)->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
                StatusIs(absl::StatusCode::kDataLoss, ""));
  }
}

TEST(DeathOfReplicas, WithinSaveAndRestore) {
  const TempDir temp;
  checkpoint::CheckpointDirectory::Options options;
  options.path = temp.Path("ckpt");
  auto directory = *checkpoint::CheckpointDirectory::Open(options);
  v1::TableSpec spec = DenseSpec(kSync, 1, kElements);
  spec.mutable_rule()->mutable_adam()->set_lr(0.1);
  std::string name;
  std::vector<float> saved, next;
  {
    Job job(3, 1, temp.path());
    const auto client = job.MakeClient(0);
    auto table = *client->Dense(spec);
    ASSERT_THAT(table->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout),
                IsOk());
    for (int i = 0; i < 3; ++i) {
      ASSERT_THAT(table->Push(Tensor::Full({kElements}, i - 2)).Wait(kTimeout),
                  IsOk());
    }
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(job.BecomesReplicated());
      const auto attempt = directory->Begin(3);
      const auto files = KilledWithin(job, i, absl::Milliseconds(4 * i), [&] {
        return client->Save(options.path, *attempt, 3);
      });
      ASSERT_THAT(files, IsOk()) << i;
      const auto committed = directory->Commit(*attempt, *files, {});
      ASSERT_THAT(committed, IsOk()) << i;
      name = *committed;
    }
    saved = table->Pull().Wait(kTimeout)->ToVector<float>();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(job.BecomesReplicated());
      const auto restored =
          KilledWithin(job, i, absl::Milliseconds(4 * i),
                       [&] { return client->Restore(options.path, name); });
      ASSERT_THAT(restored, IsOk()) << i;
      table = *client->Dense(spec);
      std::string all;
      const auto described = *client->Describe();
      for (const auto& server : described) {
        all += server.ShortDebugString() + "\n";
      }
      ASSERT_EQ(table->round(), 3) << i << "\n" << all;
      ASSERT_EQ(table->Pull().Wait(kTimeout)->ToVector<float>(), saved) << i;
    }
    next = table->PushPull(Tensor::Ones({kElements}))
               .Wait(kTimeout)
               ->ToVector<float>();
  }
  for (const int servers : {1, 2, 3}) {
    for (const int replicas : {1, 2}) {
      if (replicas > servers) continue;
      TestJob job(servers, 1, nullptr, temp.path(), replicas);
      const auto client = job.MakeClient(0);
      ASSERT_THAT(client->Restore(options.path, name), IsOk())
          << servers << " " << replicas;
      const auto table = *client->Dense(spec);
      EXPECT_EQ(table->round(), 3);
      EXPECT_EQ(table->Pull().Wait(kTimeout)->ToVector<float>(), saved);
      EXPECT_EQ(table->PushPull(Tensor::Ones({kElements}))
                    .Wait(kTimeout)
                    ->ToVector<float>(),
                next)
          << servers << " " << replicas;
    }
  }
}

// Adam, a mean over two shards, a rate that changes.
std::vector<float> Train(bool kills) {
  constexpr int64_t kSmall = 9000;
  Job job(3, 2);
  v1::TableSpec spec = DenseSpec(kSync, 2, kSmall);
  spec.set_reduction(v1::TableSpec::MEAN);
  spec.mutable_rule()->mutable_adam()->set_lr(0.05);
  std::atomic<int> round{0};
  std::vector<std::vector<float>> ends(2);
  std::thread killer([&] {
    for (int victim = 0; kills && victim < 3; ++victim) {
      if (!Becomes([&] { return round >= 10 * (victim + 1); })) return;
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = *client->Dense(spec);
    ASSERT_THAT(table->Initialize(Tensor::Full({kSmall}, 1)).Wait(kTimeout),
                IsOk());
    for (int r = 0; r < 40; ++r) {
      ASSERT_THAT(table->SetLearningRateScale(1.0 / (1 + r)).Wait(kTimeout),
                  IsOk())
          << r;
      std::vector<float> gradient(kSmall);
      for (int64_t i = 0; i < kSmall; ++i) {
        gradient[i] =
            1.0f / static_cast<float>(1 + (i + 31 * r) % 97 + trainer);
      }
      const auto values =
          table->PushPull(Tensor::FromVector(gradient)).Wait(kTimeout);
      ASSERT_THAT(values, IsOk()) << r;
      ends[trainer] = values->ToVector<float>();
      round = r;
    }
    round = 1000;
  });
  killer.join();
  EXPECT_EQ(ends[0], ends[1]);
  return ends[0];
}

TEST(DeathOfReplicas, LeavesTheBitsOfAdamAndMeansAndRates) {
  EXPECT_EQ(Train(true), Train(false));
}

TEST(DeathOfReplicas, OfEachServerWhileFourClientsPushWithoutWaiting) {
  constexpr int kPushes = 120;
  Job job(3, 5);
  std::atomic<int> pushes{0};
  std::thread killer([&] {
    for (int victim = 0; victim < 3; ++victim) {
      if (!Becomes([&] { return pushes >= 80 * (victim + 1); })) return;
      ASSERT_TRUE(job.BecomesReplicated());
      job.KillServer(victim);
      job.StartServer(victim);
    }
  });
  const Tensor keys = Tensor::Arange(100, DType::kI64);
  OnEach(4, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = *client->Sparse(SparseSpec(kAsync, 4));
    std::vector<Future<void>> under_way;
    for (int i = 0; i < kPushes; ++i) {
      under_way.push_back(table->Push(keys, Tensor::Full({100, 2}, -1)));
      if (i % 40 == 39) {
        for (const auto& push : under_way) {
          ASSERT_THAT(push.Wait(kTimeout), IsOk()) << trainer << " " << i;
        }
        under_way.clear();
      }
      ++pushes;
    }
    pushes += 1000;
  });
  killer.join();
  const auto client = job.MakeClient(4);
  const auto table = *client->Sparse(SparseSpec(kAsync, 4));
  const auto rows = table->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(rows->ToVector<float>(), Each(4 * kPushes));
}

// A shard changes its owner, with half a round given, and a server dies.
TEST(DeathOfReplicas, InTheMiddleOfARoundWhoseShardChangesItsOwner) {
  Job job(3, 2);
  const auto one = job.MakeClient(0), two = job.MakeClient(1);
  const auto a = *one->Dense(DenseSpec(kSync, 2, kElements));
  const auto b = *two->Dense(DenseSpec(kSync, 2, kElements));
  ASSERT_THAT(a->Initialize(Tensor::Zeros({kElements})).Wait(kTimeout), IsOk());
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(job.BecomesReplicated());
    ASSERT_THAT(a->PushShard({0, r, true}, Tensor::Full({kElements}, -1))
                    .Wait(kTimeout),
                IsOk());
    job.KillServer(r);
    ASSERT_THAT(b->PushShard({0, r, true}, Tensor::Full({kElements}, -1))
                    .Wait(kTimeout),
                IsOk());
    job.StartServer(r);
    ASSERT_THAT(b->PushShard({1, r, true}, Tensor::Full({kElements}, -10))
                    .Wait(kTimeout),
                IsOk());
    b->EndRound();
    const auto values = b->Pull().Wait(kTimeout);
    ASSERT_THAT(values, IsOk()) << r;
    ASSERT_THAT(values->ToVector<float>(), Each(11 * (r + 1)));
  }
}

}  // namespace
}  // namespace weft::ps
