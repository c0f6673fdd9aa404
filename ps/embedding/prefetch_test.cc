// Prefetch changes no bit: random passes with and without it, of one worker and
// of two, where rows go and where servers die.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/autograd/ops/reduce.h"
#include "weft/autograd/variable.h"
#include "weft/ps/client.h"
#include "weft/ps/embedding/lookups.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

constexpr auto kSync = v1::TableSpec::SYNC;
constexpr auto kAsync = v1::TableSpec::ASYNC;
constexpr int kPasses = 24;

struct Plan {
  v1::TableSpec::Mode mode = kSync;
  int workers = 1;
  bool evicts = false;
  int replicas = 1;
  int servers = 2;
};

v1::TableSpec TableOf(const Plan& plan, const std::string& name) {
  v1::TableSpec spec = SparseSpec(plan.mode, plan.workers);
  spec.set_name(name);
  spec.set_dim(3);
  spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec.mutable_initializer()->set_scale(1.0);
  auto* adagrad = spec.mutable_rule()->mutable_adagrad();
  adagrad->set_lr(0.1);
  adagrad->set_initial_accumulator(0.1);
  if (plan.evicts) {
    spec.set_partitions(4);
    spec.mutable_life()->set_max_rows(16);
    spec.mutable_life()->set_idle_versions(3);
  }
  return spec;
}

// What one worker looks up in one pass: the same with and without prefetch.
struct Batch {
  std::vector<Tensor> users;  // one or two look-ups of the same table
  Tensor items;
  bool uses_items = true;
};

Batch BatchOf(uint64_t seed, int worker, int pass) {
  std::mt19937_64 random(seed * 1000003 + worker * 1009 + pass);
  const auto ids = [&](int most) {
    std::vector<int64_t> all(random() % most + 1);
    for (int64_t& id : all) id = static_cast<int64_t>(random() % 30);
    return Tensor::FromVector(all);
  };
  Batch batch;
  batch.users.push_back(ids(12));
  if (random() % 2 == 0) batch.users.push_back(ids(12));
  if (random() % 4 == 0) batch.users.push_back(batch.users[0]);
  batch.items = ids(20);
  batch.uses_items = random() % 5 != 0;
  return batch;
}

std::vector<LookUp> LookUpsOf(const Batch& batch, SparseTable* users,
                              SparseTable* items) {
  std::vector<LookUp> all;
  for (const Tensor& ids : batch.users) all.push_back({users, ids});
  if (batch.uses_items) all.push_back({items, batch.items});
  return all;
}

enum class Ahead { kNone, kOne, kThree };

// All rows that a worker has seen in all passes, one after another.
std::vector<float> Train(TestJob& job, const Plan& plan, uint64_t seed,
                         int worker, Ahead ahead,
                         std::atomic<int>* passes = nullptr) {
  std::vector<float> seen;
  const auto client = job.MakeClient(worker);
  const auto users = client->Sparse(TableOf(plan, "users"));
  const auto items = client->Sparse(TableOf(plan, "items"));
  EXPECT_THAT(users.status(), IsOk());
  EXPECT_THAT(items.status(), IsOk());
  Lookups lookups({kTimeout, {users->get(), items->get()}});
  std::mt19937_64 random(seed + worker);
  const int far = ahead == Ahead::kThree ? 3 : 1;
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::vector<LookUp> look_ups =
        LookUpsOf(BatchOf(seed, worker, pass), users->get(), items->get());
    if (random() % 7 == 0) {  // a pass that is aborted, and done again
      const auto dropped = lookups.Embeddings(look_ups);
      EXPECT_THAT(dropped.status(), IsOk()) << "pass " << pass;
      if (!dropped.ok()) break;
      Sum((*dropped)[0]).Backward();
      lookups.Abort();
    }
    const auto rows = lookups.Embeddings(look_ups);
    EXPECT_THAT(rows.status(), IsOk()) << "pass " << pass;
    if (!rows.ok()) break;
    if (ahead != Ahead::kNone) {
      for (int next = pass == 0 ? 1 : far; next <= far; ++next) {
        // Also one with look-ups that do not come to be.
        EXPECT_THAT(
            lookups.Prefetch(LookUpsOf(BatchOf(seed, worker, pass + next),
                                       users->get(), items->get()),
                             next),
            IsOk());
      }
      if (pass % 6 == 0) {
        EXPECT_THAT(
            lookups.Prefetch(
                {{users->get(), Tensor::FromVector<int64_t>({1, 2, 3, pass})}}),
            IsOk());
      }
    }
    Variable loss;
    for (size_t i = 0; i < rows->size(); ++i) {
      const Variable& e = (*rows)[i];
      for (const float v : e.value().ToVector<float>()) seen.push_back(v);
      const Variable part = Sum(e * e) * (1.0 + static_cast<double>(i));
      loss = loss.defined() ? loss + part : part;
    }
    loss.Backward();
    const absl::Status sent = lookups.Commit();
    EXPECT_THAT(sent, IsOk()) << "pass " << pass;
    if (!sent.ok()) break;
    if (passes != nullptr) *passes = pass;
  }
  if (ahead == Ahead::kNone) {
    EXPECT_EQ(lookups.prefetched(), 0);
  } else {
    EXPECT_GT(lookups.prefetched(), kPasses);
  }
  const auto last = (*users)->Pull(Tensor::Arange(30)).Wait(kTimeout);
  EXPECT_THAT(last.status(), IsOk());
  if (last.ok()) {
    for (const float v : last->ToVector<float>()) seen.push_back(v);
  }
  if (passes != nullptr) *passes = 1000;
  return seen;
}

std::vector<std::vector<float>> TrainAll(const Plan& plan, uint64_t seed,
                                         Ahead ahead) {
  TestJob job(plan.servers, plan.workers, nullptr, "", plan.replicas);
  std::vector<std::vector<float>> seen(plan.workers);
  OnEach(plan.workers, [&](int worker) {
    seen[worker] = Train(job, plan, seed, worker, ahead);
  });
  return seen;
}

std::string NameOf(const Plan& plan) {
  return absl::StrCat(v1::TableSpec::Mode_Name(plan.mode), " of ", plan.workers,
                      plan.evicts ? " with eviction" : "");
}

TEST(Prefetch, HasTheBitsOfLookUpsWithoutIt) {
  for (const Plan& plan : std::vector<Plan>{{kSync, 1},
                                            {kSync, 1, true},
                                            {kSync, 2},
                                            {kSync, 2, true},
                                            {kAsync, 1},
                                            {kAsync, 1, true}}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(absl::StrCat(NameOf(plan), ", seed ", seed));
      const auto without = TrainAll(plan, seed, Ahead::kNone);
      EXPECT_EQ(TrainAll(plan, seed, Ahead::kOne), without);
      EXPECT_EQ(TrainAll(plan, seed, Ahead::kThree), without);
      if (HasFailure()) return;
    }
  }
}

// The rows that a table evicts do go: the test above would not notice else.
TEST(Prefetch, RowsGoInTheTableThatEvicts) {
  Plan plan{kSync, 1, true};
  TestJob job(plan.servers, 1);
  Train(job, plan, 1, 0, Ahead::kOne);
  const auto stats = job.MakeClient(0)->Describe();
  ASSERT_THAT(stats.status(), IsOk());
  int64_t full = 0, idle = 0;
  for (const v1::ServerStats& server : *stats) {
    for (const v1::TableStats& table : server.tables()) {
      full += table.evicted_full();
      idle += table.evicted_idle();
    }
  }
  EXPECT_GT(full, 0);
  EXPECT_GT(idle, 0);
}

TEST(Prefetch, WithTwoReplicasAKillOfAnyServerChangesNoBit) {
  for (const auto mode : {kSync, kAsync}) {
    Plan plan{mode, mode == kSync ? 2 : 1, /*evicts=*/true, 2, 3};
    SCOPED_TRACE(NameOf(plan));
    const auto without = TrainAll(plan, 5, Ahead::kNone);
    TestJob job(plan.servers, plan.workers, nullptr, "", plan.replicas);
    std::atomic<int> passes{0};
    std::thread killer([&] {
      for (int victim = 0; victim < 3; ++victim) {
        ASSERT_TRUE(Becomes([&] { return passes >= 6 * (victim + 1); }));
        ASSERT_TRUE(job.BecomesReplicated());
        job.KillServer(victim);
        job.StartServer(victim);
      }
    });
    std::vector<std::vector<float>> seen(plan.workers);
    OnEach(plan.workers, [&](int worker) {
      seen[worker] = Train(job, plan, 5, worker, Ahead::kOne,
                           worker == 0 ? &passes : nullptr);
    });
    killer.join();
    EXPECT_EQ(seen, without);
  }
}

// What it is for: the rows are asked for before the look-up.
TEST(Prefetch, TakesEachLookUpOnceAndDropsWhatItsPassDoesNotTake) {
  TestJob job(1, 1);
  const auto client = job.MakeClient(0);
  const auto table = *client->Sparse(TableOf({kAsync}, "t"));
  Lookups lookups;
  const Tensor a = Tensor::FromVector<int64_t>({1, 2});
  const Tensor b = Tensor::FromVector<int64_t>({2, 3});
  ASSERT_THAT(lookups.Prefetch({{table.get(), a}, {table.get(), b}}), IsOk());
  ASSERT_THAT(lookups.CommitNothing(), IsOk());
  // The look-ups come in another form and order than the prefetches.
  ASSERT_THAT(lookups.Embedding(*table, b).status(), IsOk());
  ASSERT_THAT(lookups.EmbeddingBag(*table, a, BagMode::kSum).status(), IsOk());
  EXPECT_EQ(lookups.prefetched(), 2);
  EXPECT_EQ(lookups.asked(), 0);
  ASSERT_THAT(lookups.Embedding(*table, b).status(), IsOk());
  EXPECT_EQ(lookups.prefetched(), 2);
  EXPECT_EQ(lookups.asked(), 1);
  lookups.Abort();
  ASSERT_THAT(lookups.Prefetch({{table.get(), a}}), IsOk());
  ASSERT_THAT(lookups.CommitNothing(), IsOk());
  ASSERT_THAT(lookups.CommitNothing(), IsOk());
  ASSERT_THAT(lookups.Embedding(*table, a).status(), IsOk());
  EXPECT_EQ(lookups.prefetched(), 2);
}

// ASYNC: a row that this worker changes is as after the change; one that only
// another worker changes may be as it was when it was asked for.
TEST(Prefetch, OfAnAsyncTableSeesThisWorkersPushes) {
  TestJob job(1, 2);
  v1::TableSpec spec = SparseSpec(kAsync, 2);
  const auto client = job.MakeClient(0);
  const auto other = job.MakeClient(1);
  const auto table = *client->Sparse(spec);
  const auto theirs = *other->Sparse(spec);
  const Tensor ids = Tensor::FromVector<int64_t>({1, 2});
  Lookups lookups;
  const auto e = lookups.Embedding(*table, Tensor::FromVector<int64_t>({1}));
  ASSERT_THAT(e.status(), IsOk());
  ASSERT_THAT(lookups.Prefetch({{table.get(), ids}}), IsOk());
  ASSERT_THAT(theirs->Push(ids, Tensor::Full({2, 2}, -10)).Wait(kTimeout),
              IsOk());
  Sum(*e).Backward();
  ASSERT_THAT(lookups.Commit(), IsOk());
  const auto rows = lookups.Embedding(*table, ids);
  ASSERT_THAT(rows.status(), IsOk());
  EXPECT_EQ(lookups.prefetched(), 1);
  const std::vector<float> values = rows->value().ToVector<float>();
  EXPECT_EQ(values[0], 9);
  EXPECT_THAT((std::vector<float>{0, 10}), Contains(values[2]));
}

}  // namespace
}  // namespace weft::ps
