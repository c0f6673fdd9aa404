// Servers that even out what they have to do while trainers train with a few
// hot partitions: no call fails, no push is lost or doubled, also where one of
// them dies amid a move.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/replication/rebalancer.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;

constexpr int kServers = 3;
constexpr int kTrainers = 2;
constexpr int kPartitions = 16;
// All three are server 0's when the job begins.
constexpr int kHot[] = {0, 3, 6};
constexpr int kHotRows = 300;  // of each; of others one
constexpr int kPullsOfARound = 4;

bool IsHot(int partition) {
  return std::find(std::begin(kHot), std::end(kHot), partition) !=
         std::end(kHot);
}

Tensor SkewedKeys() {
  const Placement placement("t", kPartitions, 1);
  std::vector<int> lacking(kPartitions);
  int64_t all = 0;
  for (int p = 0; p < kPartitions; ++p) {
    all += lacking[p] = IsHot(p) ? kHotRows : 1;
  }
  Tensor keys = Tensor::Empty({all}, DType::kI64);
  int64_t n = 0;
  for (uint64_t key = 1; n < all; ++key) {
    if (lacking[placement.PartitionOfKey(key)]-- <= 0) continue;
    keys.data<int64_t>()[n++] = static_cast<int64_t>(key);
  }
  return keys;
}

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

std::set<uint32_t> PrimariesOfTheHot(TestJob& job, int of = 0) {
  const PartitionMap map = job.replicated(of).map();
  std::set<uint32_t> primaries;
  if (map.epoch() == 0) return primaries;
  for (const int p : kHot) {
    primaries.insert(map.entry(map.EntryOf(p)).primary.id);
  }
  return primaries;
}

TestJob MakeJob(RebalanceMode mode) {
  return TestJob(kServers, kTrainers, nullptr, "", /*replicas=*/2,
                 /*table_memory=*/0, kSilence, mode);
}

// Trains until `during`, which runs beside it, has come to its end. In each row
// is the sum of all that was pushed then.
template <typename During>
void TrainWhile(TestJob& job, v1::TableSpec::Mode mode, const During& during) {
  const Tensor keys = SkewedKeys();
  const bool is_sync = mode == v1::TableSpec::SYNC;
  std::atomic<int64_t> pushes{0};
  std::atomic<int> last{1 << 30};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    EXPECT_TRUE(Becomes([&] { return pushes >= 10; }));
    during();
    is_over = true;
  });
  std::vector<std::vector<float>> ends(kTrainers);
  OnEach(kTrainers, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(SparseSpec(mode, kTrainers));
    ASSERT_THAT(table.status(), IsOk());
    const Tensor ones = Tensor::Full({keys.numel(), 2}, -1);
    for (int r = 0; is_sync ? r < last : !is_over; ++r) {
      // The other one waits for this one's part of the next round.
      if (trainer == 0 && is_over && last > r + 2) last = r + 2;
      const auto pulled = (*table)->PushPull(keys, ones, keys).Wait(kTimeout);
      ASSERT_THAT(pulled.status(), IsOk()) << "round " << r;
      ends[trainer] = ValuesOf(*pulled);
      ++pushes;
      for (int i = 0; i < kPullsOfARound; ++i) {
        ASSERT_THAT((*table)->Pull(keys).Wait(kTimeout).status(), IsOk());
      }
    }
  });
  other.join();
  if (!is_sync) {
    const auto client = job.MakeClient(0);
    const auto table = client->Sparse(SparseSpec(mode, kTrainers));
    ASSERT_THAT(table.status(), IsOk());
    const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
    ASSERT_THAT(pulled.status(), IsOk());
    ends.assign(1, ValuesOf(*pulled));
  }
  EXPECT_THAT(ends, Each(Each(static_cast<float>(pushes))));
}

// The most that a server has to do, by the mean, as server 0 measures it.
double SkewOf(TestJob& job) {
  const auto reply = job.replicated(0).Balance(/*dry_run=*/true).Wait(kTimeout);
  EXPECT_THAT(reply.status(), IsOk());
  if (!reply.ok()) return 0;
  double most = 0;
  double all = 0;
  for (const auto& server : reply->servers()) {
    most = std::max(most, server.before());
    all += server.before();
  }
  return all == 0 ? HUGE_VAL : most * reply->servers_size() / all;
}

// With all of the hot on one server it has 3 of 4.5 parts of the work and twice
// the mean, if a backup costs half of what a primary does. What is measured on
// a busy machine trembles, so the bound is wider than the 1.1 that is aimed at.
void ExpectToEvenOut(TestJob& job) {
  double skew = 0;
  EXPECT_TRUE(Becomes([&] {
    absl::SleepFor(absl::Milliseconds(10));
    skew = SkewOf(job);
    return skew <= 1.3 && PrimariesOfTheHot(job).size() >= 2;
  })) << skew
      << " of the mean; " << job.replicated(0).map().Summary();
  EXPECT_TRUE(job.replicated(0).map().IsReplicated());
}

TEST(Rebalance, HotPartitionsOfASynchronousTableAreShared) {
  TestJob job = MakeJob(RebalanceMode::kOn);
  TrainWhile(job, v1::TableSpec::SYNC, [&] { ExpectToEvenOut(job); });
}

TEST(Rebalance, HotPartitionsOfAnAsynchronousTableAreShared) {
  TestJob job = MakeJob(RebalanceMode::kOn);
  TrainWhile(job, v1::TableSpec::ASYNC, [&] { ExpectToEvenOut(job); });
}

// The one that the first move goes to, while it goes on. Then it comes back.
void KillAmidAMove(TestJob& job) {
  WorkerKey target;
  EXPECT_TRUE(Becomes([&] {
    const PartitionMap map = job.replicated(0).map();
    for (int i = 0; i < map.entries(); ++i) {
      const PartitionMap::Entry& entry = map.entry(i);
      if (entry.is_handing_over) target = entry.backup;
      if (!IsNone(entry.next)) target = entry.next;
      // Whoever is asked here stays.
      if (!IsNone(target) && target.id != 0) return true;
      target = WorkerKey();
    }
    return false;
  }));
  if (IsNone(target)) return;
  const int victim = static_cast<int>(target.id);
  job.KillServer(victim);
  job.StartServer(victim);
  EXPECT_TRUE(job.BecomesReplicated());
}

TEST(Rebalance, DeathAmidAMoveLosesNothingOfASynchronousTable) {
  TestJob job = MakeJob(RebalanceMode::kOn);
  TrainWhile(job, v1::TableSpec::SYNC, [&] { KillAmidAMove(job); });
}

TEST(Rebalance, DeathAmidAMoveLosesNothingOfAnAsynchronousTable) {
  TestJob job = MakeJob(RebalanceMode::kOn);
  TrainWhile(job, v1::TableSpec::ASYNC, [&] { KillAmidAMove(job); });
}

TEST(Rebalance, OneRoundIsShownOrBegunWhenSomebodyAsks) {
  TestJob job = MakeJob(RebalanceMode::kOff);
  TrainWhile(job, v1::TableSpec::ASYNC, [&] {
    v1::BalanceReply shown;
    EXPECT_TRUE(Becomes([&] {
      const auto reply = job.replicated(1).Balance(true).Wait(kTimeout);
      EXPECT_THAT(reply.status(), IsOk());
      if (reply.ok()) shown = *reply;
      return !reply.ok() || reply->moves_size() > 0;
    }));
    const PartitionMap before = job.replicated(1).map();
    EXPECT_THAT(PrimariesOfTheHot(job, 1), ::testing::ElementsAre(0));
    EXPECT_EQ(shown.servers_size(), kServers);
    EXPECT_THAT(shown.held(), IsEmpty());
    for (const auto& move : shown.moves()) EXPECT_GT(move.load(), 0);
    EXPECT_TRUE(Becomes([&] {
      const auto reply = job.replicated(1).Balance(false).Wait(kTimeout);
      EXPECT_THAT(reply.status(), IsOk());
      return !reply.ok() || PrimariesOfTheHot(job, 1).size() >= 2;
    })) << job.replicated(1).map().Summary();
    EXPECT_GT(job.replicated(1).map().epoch(), before.epoch());
  });
}

}  // namespace
}  // namespace weft::ps
