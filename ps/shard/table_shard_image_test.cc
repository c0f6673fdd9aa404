// What is saved of a part of a table, and loaded.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/shard/table_shard_fixture.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Many large partitions are copied while rounds close, or could.
TEST(TableShardImage, SavedImageOfASyncTableIsOneVersionWhileRoundsGoOn) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  std::vector<int64_t> keys(2000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  std::atomic<bool> is_done{false};
  std::thread rounds([&] {
    Worker a(shard.get(), 0), b(shard.get(), 1);
    for (int64_t round = 0; round < 60; ++round) {
      const auto first = a.Sparse(round, keys, 1.0f);
      const auto second = b.Sparse(round, keys, 1.0f);
      // The image that holds the round ends.
      EXPECT_THAT(first.Wait(absl::Seconds(60)), IsOk());
      EXPECT_THAT(second.Wait(absl::Seconds(60)), IsOk());
    }
    is_done = true;
  });
  int images = 0;
  while (!is_done) {
    const TableShard::Image image = shard->Save();
    for (const auto& [partition, rows] : image.partitions) {
      EXPECT_THAT(rows.weights, Each(-1.0f * image.version));
    }
    ++images;
  }
  rounds.join();
  EXPECT_GT(images, 0);
  EXPECT_EQ(shard->Save().version, 60);
}

// Nobody copies the frozen table meanwhile, and nothing waits for that.
TEST(TableShardImage,
     RoundsCloseAndPushesGoOnWhileAFrozenTableWaitsToBeCopied) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  std::vector<int64_t> keys(500);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const auto round = [&](int64_t number) {
    const auto first = a.Sparse(number, keys, 1.0f);
    EXPECT_THAT(Now(b.Sparse(number, keys, 1.0f)), IsOk());
    EXPECT_THAT(Now(first), IsOk());
  };
  round(0);
  round(1);
  const auto budget = ByteBudget::Of(int64_t{1} << 30);
  const auto snapshot = shard->Freeze(budget);
  round(2);
  EXPECT_GT(budget->held(), 0);
  size_t rows = 0;
  for (int64_t number = 3; !snapshot->is_done(); ++number) {
    const auto next = snapshot->Next();
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT(next->second.weights, Each(-2.0f));
    rows += next->second.keys.size();
    round(number);
  }
  EXPECT_EQ(snapshot->moment().version, 2);
  EXPECT_EQ(snapshot->size(), static_cast<size_t>(kPartitions));
  EXPECT_EQ(rows, keys.size());
  EXPECT_EQ(budget->held(), 0);
}

TEST(TableShardImage, PartitionsOfAFrozenAsyncTableAreOfTheirOwnMoments) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  std::vector<int64_t> keys(500);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const auto snapshot = shard->Freeze();
  for (int i = 0; !snapshot->is_done(); ++i) {
    Worker worker(shard.get(), i);  // its sequences begin anew
    EXPECT_THAT(Now(worker.Sparse(0, keys, 1.0f)), IsOk());
    const auto next = snapshot->Next();
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT(next->second.weights, Each(-1.0f * (i + 1)));
  }
}

TEST(TableShardImage, SnapshotThatWouldTakeTooMuchMemoryFailsAndNoRoundWaits) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  Worker a(shard.get(), 0), b(shard.get(), 1);
  std::vector<int64_t> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const auto round = [&](int64_t number) {
    const auto first = a.Sparse(number, keys, 1.0f);
    EXPECT_THAT(Now(b.Sparse(number, keys, 1.0f)), IsOk());
    EXPECT_THAT(Now(first), IsOk());
  };
  round(0);
  const auto budget = ByteBudget::Of(20000);
  const auto snapshot = shard->Freeze(budget);
  round(1);
  absl::Status status;
  while (status.ok() && !snapshot->is_done()) {
    status = snapshot->Next().status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               "--snapshot-memory"));
  round(2);
}

TEST(TableShardImage, TableSavedBeforeItsFirstValuesIsNotInitializedAfter) {
  const auto shard = Shard(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
  const auto restored = Shard(v1::TableSpec::DENSE, v1::TableSpec::SYNC);
  ASSERT_THAT(restored->Restore(shard->Save()), IsOk());
  EXPECT_FALSE(restored->Stats().initialized());
  ASSERT_THAT(shard->Initialize(Tensor::Ones({5})), IsOk());
  ASSERT_THAT(restored->Restore(shard->Save()), IsOk());
  EXPECT_TRUE(restored->Stats().initialized());
}

TEST(TableShardImage, AnImageMovesToAnotherNumberOfServers) {
  const v1::TableSpec spec = Spec(v1::TableSpec::SPARSE, v1::TableSpec::SYNC);
  const auto one = *TableShard::Create(spec, 0, 1);
  Worker a(one.get(), 0), b(one.get(), 1);
  std::vector<int64_t> keys;
  for (int64_t k = 0; k < 100; ++k) keys.push_back(k * k);
  a.Sparse(0, keys, 1.0f).OnReady([](const auto&) {});
  ASSERT_THAT(Now(b.Sparse(0, keys, 3.0f)), IsOk());

  const Placement three("t", kPartitions, 3);
  int64_t rows = 0;
  for (int server = 0; server < 3; ++server) {
    const auto shard = *TableShard::Create(spec, server, 3);
    ASSERT_THAT(shard->Restore(one->Save()), IsOk());
    rows += shard->Stats().rows();
    EXPECT_EQ(shard->Stats().version(), 1);
    std::vector<int64_t> here;
    for (int64_t key : keys) {
      if (three.ServerOf(three.PartitionOfKey(key)) == server) {
        here.push_back(key);
      }
    }
    v1::Request pull;
    pull.set_pull(true);
    pull.set_round(1);
    const auto read =
        Now(shard->Handle(pull, Tensor(), Tensor(), Tensor::FromVector(here),
                          Instant::Infinite()));
    ASSERT_THAT(read, IsOk());
    EXPECT_THAT(read->values.ToVector<float>(), Each(-2.0f));
  }
  EXPECT_EQ(rows, 100);
}

TEST(TableShardImage, RefusesAnImageOfAnotherTable) {
  const auto shard = Shard(v1::TableSpec::SPARSE, v1::TableSpec::ASYNC);
  TableShard::Image image;
  image.partitions.emplace_back(0, PartitionImage{});
  image.partitions[0].second.keys = {7};
  image.partitions[0].second.steps = {1};
  image.partitions[0].second.weights = {1, 2, 3};
  EXPECT_THAT(shard->Restore(image),
              StatusIs(absl::StatusCode::kInvalidArgument, "'t'"));
  image.partitions[0].first = 99;
  EXPECT_THAT(shard->Restore(image),
              StatusIs(absl::StatusCode::kInvalidArgument, "partition 99"));
}

}  // namespace
}  // namespace weft::ps
