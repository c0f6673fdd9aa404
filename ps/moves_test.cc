// Servers that are drained while trainers train, and stopped: no call fails, no
// push is lost or doubled, and each partition stays on two servers.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/client.h"
#include "weft/ps/service.h"
#include "weft/ps/test_job.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int kServers = 3;

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

WorkerKey KeyOf(int server) { return {static_cast<uint32_t>(server), 1}; }

// Asks server `of` until its map says so.
void SetDrained(TestJob& job, int of, int server, bool is_drained) {
  ASSERT_TRUE(Becomes([&] {
    return job.replicated(of).SetDrained(server, is_drained).ok();
  })) << job.replicated(of).map().Summary();
}

bool IsEmpty(TestJob& job, int of, WorkerKey server) {
  return job.replicated(of).map().PartsOf(server).is_empty();
}

// Drains server 1, as server 0 knows it, and ends it once it has nothing.
// Nothing has changed by its end: as server 0 has the map, each partition has
// the two servers that it had before.
void DrainAndStop(TestJob& job) {
  SetDrained(job, 0, 1, true);
  ASSERT_TRUE(Becomes([&] { return IsEmpty(job, 0, KeyOf(1)); }))
      << job.replicated(0).map().Summary();
  const PartitionMap before = job.replicated(0).map();
  EXPECT_TRUE(before.IsReplicated());
  job.KillServer(1);
  ASSERT_TRUE(Becomes([&] {
    return job.replicated(0).map().StateOf(KeyOf(1)) ==
           PartitionMap::State::kExited;
  }));
  const PartitionMap after = job.replicated(0).map();
  for (int i = 0; i < after.entries(); ++i) {
    EXPECT_EQ(after.entry(i).changed, before.entry(i).changed) << i;
  }
}

// Each server in turn has nothing, and takes part again.
void DrainEach(TestJob& job) {
  for (int server = 0; server < kServers; ++server) {
    const int other = (server + 1) % kServers;
    SetDrained(job, other, server, true);
    ASSERT_TRUE(Becomes([&] { return IsEmpty(job, other, KeyOf(server)); }))
        << job.replicated(other).map().Summary();
    EXPECT_TRUE(job.replicated(other).map().IsReplicated());
    SetDrained(job, other, server, false);
  }
}

// What two trainers push to a synchronous table while `move` runs: the sum of
// all is in each element.
void TrainInRounds(void (*move)(TestJob& job)) {
  TestJob job(kServers, 2, nullptr, "", /*replicas=*/2);
  constexpr int kElements = 9000;
  std::atomic<int> rounds{0};
  std::atomic<int> last{1'000'000};
  std::atomic<bool> is_over{false};
  std::vector<std::vector<float>> ends(2);
  std::thread mover([&] {
    if (Becomes([&] { return rounds >= 10; })) move(job);
    is_over = true;
  });
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table =
        client->Dense(DenseSpec(v1::TableSpec::SYNC, 2, kElements));
    ASSERT_THAT(table.status(), IsOk());
    ASSERT_THAT(
        (*table)->Initialize(Tensor::Full({kElements}, 0)).Wait(kTimeout),
        IsOk());
    for (int r = 0; r < last; ++r) {
      // The other one waits for this one's part of the next round.
      if (trainer == 0 && is_over && last > r + 2) last = r + 2;
      const float value = static_cast<float>(r % 3 + trainer);
      const auto pulled =
          (*table)->PushPull(Tensor::Full({kElements}, value)).Wait(kTimeout);
      ASSERT_THAT(pulled.status(), IsOk()) << "round " << r;
      ends[trainer] = ValuesOf(*pulled);
      if (trainer == 0) rounds = r + 1;
    }
  });
  mover.join();
  float sum = 0;
  for (int r = 0; r < last; ++r) sum -= static_cast<float>(2 * (r % 3) + 1);
  EXPECT_THAT(ends, Each(Each(sum))) << rounds << " rounds";
}

TEST(Moves, DrainedServerIsStoppedWhileASynchronousTableTrains) {
  TrainInRounds(&DrainAndStop);
}

TEST(Moves, EachServerIsDrainedWhileASynchronousTableTrains) {
  TrainInRounds(&DrainEach);
}

// The same of an asynchronous table.
void TrainByPushes(void (*move)(TestJob& job)) {
  TestJob job(kServers, 2, nullptr, "", /*replicas=*/2);
  constexpr int kKeys = 50;
  std::atomic<int> pushes{0};
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    if (Becomes([&] { return pushes >= 50; })) move(job);
    is_over = true;
  });
  Tensor keys = Tensor::Empty({kKeys}, DType::kI64);
  for (int i = 0; i < kKeys; ++i) keys.data<int64_t>()[i] = i * 7919;
  OnEach(2, [&](int trainer) {
    const auto client = job.MakeClient(trainer);
    const auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 2));
    ASSERT_THAT(table.status(), IsOk());
    while (!is_over) {
      ASSERT_THAT(
          (*table)->Push(keys, Tensor::Full({kKeys, 2}, -1)).Wait(kTimeout),
          IsOk());
      ++pushes;
    }
  });
  mover.join();
  const auto client = job.MakeClient(0);
  const auto table = client->Sparse(SparseSpec(v1::TableSpec::ASYNC, 2));
  ASSERT_THAT(table.status(), IsOk());
  const auto pulled = (*table)->Pull(keys).Wait(kTimeout);
  ASSERT_THAT(pulled.status(), IsOk());
  EXPECT_THAT(ValuesOf(*pulled), Each(pushes.load()));
}

TEST(Moves, DrainedServerIsStoppedWhileAnAsynchronousTableIsPushed) {
  TrainByPushes(&DrainAndStop);
}

TEST(Moves, EachServerIsDrainedWhileAnAsynchronousTableIsPushed) {
  TrainByPushes(&DrainEach);
}

TEST(Moves, LastServersAreNotDrained) {
  TestJob job(2, 1, nullptr, "", /*replicas=*/2);
  ASSERT_TRUE(Becomes([&] { return job.replicated(0).map().epoch() > 0; }));
  EXPECT_THAT(job.replicated(0).SetDrained(1, true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted 2 other servers"));
  EXPECT_THAT(
      job.replicated(0).SetDrained(7, true),
      StatusIs(absl::StatusCode::kFailedPrecondition, "is none of the job's"));
}

// It stays drained until it is told otherwise.
TEST(Moves, DrainedServerThatComesBackHasNothing) {
  TestJob job(kServers, 1, nullptr, "", /*replicas=*/2);
  ASSERT_TRUE(Becomes([&] { return job.replicated(0).map().epoch() > 0; }));
  DrainAndStop(job);
  job.StartServer(1);
  const WorkerKey back = {1, 2};
  ASSERT_TRUE(Becomes([&] {
    return job.replicated(0).map().StateOf(back) == PartitionMap::State::kLive;
  }));
  EXPECT_TRUE(IsEmpty(job, 0, back));
  // Whoever dies, the third has no other to stand by for it.
  SetDrained(job, 0, 1, false);
  job.KillServer(2);
  ASSERT_TRUE(Becomes([&] {
    return job.replicated(0).map().PartsOf(back).backups > 0 &&
           job.replicated(0).map().IsReplicated();
  })) << job.replicated(0).map().Summary();
}

}  // namespace
}  // namespace weft::ps
