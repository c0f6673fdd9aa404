// Partitions of tables with RowLife, against a model of it in plain containers.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_store.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

v1::TableSpec Spec() {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(1);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.set_partitions(1);
  spec.mutable_rule()->mutable_adagrad()->set_lr(1);
  return spec;
}

std::unique_ptr<TableLayout> LayoutOf(const v1::RowLife& life) {
  v1::TableSpec spec = Spec();
  *spec.mutable_life() = life;
  return *TableLayout::Create(spec);
}

// `n` keys below `below`, in the order of messages.
std::vector<uint64_t> SomeKeys(std::mt19937_64& random, size_t n,
                               uint64_t below) {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(random() % below);
  std::sort(keys.begin(), keys.end(),
            [](uint64_t a, uint64_t b) { return Mix64(a) < Mix64(b); });
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void Push(Partition& partition, const std::vector<uint64_t>& keys,
          float value = 1) {
  const std::vector<float> values(keys.size(), value);
  PushSpan span;
  span.keys = keys;
  span.values = values.data();
  partition.ApplySum({span}, 1);
}

std::vector<uint64_t> KeysIn(const Partition& partition) {
  return partition.Image().keys;
}

// Which rows there are, by the words of proto/ps.proto.
class Model {
 public:
  explicit Model(const v1::RowLife& life) : life_(life) {}

  void Push(const std::vector<uint64_t>& keys) {
    ++now_;
    for (uint64_t key : keys) {
      const auto gone = gone_.find(key);
      const bool is_late =
          gone != gone_.end() && now_ - gone->second <= life_.drop_versions();
      if (rows_.count(key) != 0 || !is_late) rows_[key] = now_;
    }
    for (;;) {
      const auto oldest = std::min_element(
          rows_.begin(), rows_.end(), [](const auto& a, const auto& b) {
            return std::make_pair(a.second, Mix64(a.first)) <
                   std::make_pair(b.second, Mix64(b.first));
          });
      if (oldest == rows_.end()) return;
      const bool is_idle = life_.idle_versions() > 0 &&
                           now_ - oldest->second > life_.idle_versions();
      const bool is_full =
          life_.max_rows() > 0 &&
          static_cast<int64_t>(rows_.size()) > life_.max_rows();
      if (!is_idle && !is_full) return;
      gone_[oldest->first] = now_;
      rows_.erase(oldest);
    }
  }
  std::vector<uint64_t> keys() const {
    std::vector<uint64_t> keys;
    for (const auto& [key, touched] : rows_) keys.push_back(key);
    return keys;
  }

 private:
  const v1::RowLife life_;
  int64_t now_ = 0;
  std::map<uint64_t, int64_t> rows_;
  std::map<uint64_t, int64_t> gone_;
};

v1::RowLife LifeOf(int64_t max_rows, int64_t idle_versions,
                   int64_t drop_versions) {
  v1::RowLife life;
  life.set_max_rows(max_rows);
  life.set_idle_versions(idle_versions);
  life.set_drop_versions(drop_versions);
  return life;
}

TEST(BoundedPartition, KeepsTheRowsThatAModelKeeps) {
  for (const v1::RowLife& life :
       {LifeOf(40, 0, 0), LifeOf(0, 7, 0), LifeOf(30, 5, 0), LifeOf(40, 9, 4),
        LifeOf(1, 0, 1)}) {
    const auto layout = LayoutOf(life);
    Partition partition(layout.get());
    Model model(life);
    std::mt19937_64 random(11);
    for (int push = 0; push < 3000; ++push) {
      const auto keys = SomeKeys(random, random() % 12, 120);
      Push(partition, keys);
      model.Push(keys);
      if (life.max_rows() > 0) {
        ASSERT_LE(partition.rows(), life.max_rows());
      }
      ASSERT_EQ(KeysIn(partition), model.keys())
          << "push " << push << " " << life.ShortDebugString();
    }
    const RowCounts counts = partition.counts();
    EXPECT_EQ(counts.evicted_full > 0, life.max_rows() > 0);
    EXPECT_EQ(counts.dropped_late > 0, life.drop_versions() > 0);
  }
}

TEST(BoundedPartition, PushOfMoreRowsThanThereMayBeKeepsTheLast) {
  const auto layout = LayoutOf(LifeOf(100, 0, 0));
  Partition partition(layout.get());
  std::mt19937_64 random(4);
  std::vector<uint64_t> keys = SomeKeys(random, 5000, 1 << 30);
  Push(partition, keys);
  EXPECT_EQ(partition.rows(), 100);
  keys.erase(keys.begin(), keys.end() - 100);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(KeysIn(partition), keys);
}

// A gradient of a row that is not made goes nowhere else.
TEST(BoundedPartition, OtherRowsOfAPushLearnAsIfNoneWereRefused) {
  v1::RowLife life;
  life.set_admit_after(2);
  const auto layout = LayoutOf(life);
  const auto unbounded = *TableLayout::Create(Spec());
  Partition partition(layout.get());
  Partition all(unbounded.get());
  std::mt19937_64 random(8);
  std::map<uint64_t, int> pushed;
  for (int push = 0; push < 100; ++push) {
    std::vector<uint64_t> keys = SomeKeys(random, 600, 2000);
    std::vector<float> values;
    for (uint64_t key : keys) values.push_back(static_cast<float>(key % 13));
    PushSpan span;
    span.keys = keys;
    span.values = values.data();
    // What there is before, or is made, is what learns.
    partition.ApplySum({span}, 1);
    const PartitionImage image = partition.Image();
    std::vector<uint64_t> learn;
    std::vector<float> gradients;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!std::binary_search(image.keys.begin(), image.keys.end(), keys[i])) {
        continue;
      }
      learn.push_back(keys[i]);
      gradients.push_back(values[i]);
    }
    span.keys = learn;
    span.values = gradients.data();
    all.ApplySum({span}, 1);
    ASSERT_EQ(image.keys, all.Image().keys);
    ASSERT_EQ(image.weights, all.Image().weights) << push;
    ASSERT_EQ(image.slots, all.Image().slots);
    ASSERT_EQ(image.steps, all.Image().steps);
  }
  EXPECT_GT(partition.counts().not_admitted, 1000);
}

TEST(BoundedPartition, RowThatWentBeginsAnew) {
  const auto layout = LayoutOf(LifeOf(0, 1, 0));
  Partition partition(layout.get());
  Push(partition, {5}, 3);
  Push(partition, {6});
  Push(partition, {6});
  EXPECT_THAT(KeysIn(partition), ElementsAre(6));
  float value = 1;
  const std::vector<uint64_t> five = {5};
  partition.Read(five, &value);
  EXPECT_EQ(value, 0);
  Push(partition, {5}, 3);
  partition.Read(five, &value);
  EXPECT_EQ(value, -1);  // Adagrad's first step: its slot has gone too
}

TEST(BoundedPartition, RoundsWithoutKeysCount) {
  const auto layout = LayoutOf(LifeOf(0, 3, 0));
  Partition partition(layout.get());
  Push(partition, {5});
  for (int i = 0; i < 3; ++i) partition.ApplySum({}, 0.5f);
  EXPECT_EQ(partition.rows(), 1);
  partition.ApplySum({}, 0.5f);
  EXPECT_EQ(partition.rows(), 0);
}

// Parts of a round come in the order of shards, not of keys.
TEST(BoundedPartition, SumOfPartsAndTheSumThatIsLoggedKeepTheSameRows) {
  v1::RowLife life = LifeOf(60, 0, 0);
  life.set_admit_after(2);
  const auto layout = LayoutOf(life);
  Partition parts(layout.get());
  Partition logged(layout.get());
  std::mt19937_64 random(21);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<uint64_t>> keys;
    std::vector<std::vector<float>> values;
    std::vector<PushSpan> spans(3);
    for (int shard = 0; shard < 3; ++shard) {
      keys.push_back(SomeKeys(random, 10, 200));
      values.emplace_back(keys.back().size(), static_cast<float>(shard));
    }
    for (int shard = 0; shard < 3; ++shard) {
      spans[shard].keys = keys[shard];
      spans[shard].values = values[shard].data();
    }
    parts.ApplySum(spans, 0.25f);
    const SpanSum sum =
        InMessageOrder(*layout, SumSpans(*layout, spans, 0.25f));
    PushSpan one;
    one.keys = sum.keys;
    one.values = sum.values.data();
    logged.ApplySum({one}, 1);
    const PartitionImage a = parts.Image();
    const PartitionImage b = logged.Image();
    ASSERT_EQ(a.keys, b.keys) << round;
    ASSERT_EQ(a.weights, b.weights) << round;
    ASSERT_EQ(a.touched, b.touched);
    ASSERT_EQ(a.life, b.life);
  }
  EXPECT_GT(parts.counts().evicted_full, 100);
}

TEST(BoundedPartition, ImageGoesOnWithTheSameRows) {
  v1::RowLife by_count = LifeOf(50, 20, 5);
  by_count.set_admit_after(3);
  by_count.set_admit_counters(64);
  v1::RowLife by_chance = LifeOf(50, 20, 5);
  by_chance.set_admit_probability(0.5);
  for (const v1::RowLife& life : {by_count, by_chance}) {
    const auto layout = LayoutOf(life);
    Partition first(layout.get());
    std::optional<Partition> second;
    second.emplace(layout.get());
    std::mt19937_64 random(2);
    for (int push = 0; push < 4000; ++push) {
      if (push % 500 == 250) {
        const PartitionImage image = first.Image();
        ASSERT_THAT(CheckImage(*layout, Placement("t", 1, 1), 0, image),
                    IsOk());
        second.emplace(layout.get());
        second->Load(image);
      }
      const auto keys = SomeKeys(random, 8, 150);
      Push(first, keys);
      Push(*second, keys);
      if (push < 250) continue;
      ASSERT_EQ(KeysIn(*second), KeysIn(first)) << push;
    }
    EXPECT_EQ(second->Image().weights, first.Image().weights);
    EXPECT_EQ(second->Image().life, first.Image().life);
    EXPECT_EQ(second->Image().touched, first.Image().touched);
  }
}

TEST(BoundedPartition, BoundsMayComeAndGoWithAnImage) {
  const auto bounded = LayoutOf(LifeOf(10, 0, 0));
  const auto unbounded = *TableLayout::Create(Spec());
  Partition partition(unbounded.get());
  std::mt19937_64 random(6);
  Push(partition, SomeKeys(random, 100, 1 << 20));
  const PartitionImage image = partition.Image();
  EXPECT_TRUE(image.touched.empty());
  EXPECT_TRUE(image.life.empty());
  Partition of_few(bounded.get());
  of_few.Load(image);
  Push(of_few, {1});
  EXPECT_EQ(of_few.rows(), 10);
  const PartitionImage few = of_few.Image();
  ASSERT_THAT(CheckImage(*unbounded, Placement("t", 1, 1), 0, few), IsOk());
  partition.Load(few);
  EXPECT_EQ(KeysIn(partition), few.keys);
}

TEST(BoundedPartition, ImagesThatCannotBeAreRefused) {
  const auto layout = LayoutOf(LifeOf(10, 0, 0));
  Partition partition(layout.get());
  Push(partition, {3});
  Push(partition, {4});
  const PartitionImage good = partition.Image();
  const Placement placement("t", 1, 1);
  const auto check = [&](auto change) {
    PartitionImage image = good;
    change(image);
    return CheckImage(*layout, placement, 0, image);
  };
  EXPECT_THAT(check([](auto&) {}), IsOk());
  EXPECT_THAT(check([](auto& image) { image.touched.pop_back(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "touched"));
  EXPECT_THAT(check([](auto& image) { image.touched[0] = 3; }),
              StatusIs(absl::StatusCode::kInvalidArgument, "version 3"));
  EXPECT_THAT(check([](auto& image) { image.touched[0] = -1; }),
              StatusIs(absl::StatusCode::kInvalidArgument, "version -1"));
  EXPECT_THAT(check([](auto& image) { image.life += "x"; }),
              StatusIs(absl::StatusCode::kInvalidArgument, "cannot be read"));
}

TEST(BoundedPartition, DuplicatePushCountsForNothing) {
  const auto layout = LayoutOf(LifeOf(0, 2, 0));
  Partition partition(layout.get());
  const std::vector<uint64_t> keys = {9};
  const float value = 1;
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(partition.ApplyOnce({1, 1, keys, &value}),
                IsOkAndHolds(i == 0));
  }
  EXPECT_EQ(partition.rows(), 1);
  EXPECT_EQ(partition.Image().touched, std::vector<int64_t>{1});
}

// --- Memory ------------------------------------------------------------------

TEST(PartitionMemory, RowsAreAccountedAndGivenBack) {
  const auto memory = ByteBudget::Of(1 << 20);
  {
    const auto layout = LayoutOf(LifeOf(0, 1, 0));
    Partition partition(layout.get(), memory);
    EXPECT_EQ(memory->held(), 0);
    std::mt19937_64 random(1);
    const auto keys = SomeKeys(random, 5000, 1 << 30);
    EXPECT_GT(partition.GrowthOf(keys), 5000 * 20);
    Push(partition, keys);
    EXPECT_GT(memory->held(), 5000 * 20);
    EXPECT_EQ(partition.GrowthOf(keys), 0);
    Push(partition, {});
    Push(partition, {});
    EXPECT_EQ(partition.rows(), 0);
    EXPECT_LT(memory->held(), 16384);
  }
  EXPECT_EQ(memory->held(), 0);
}

TEST(PartitionMemory, FullPartitionWantsNoMoreForOtherRows) {
  const auto layout = LayoutOf(LifeOf(100, 0, 0));
  Partition partition(layout.get());
  std::mt19937_64 random(1);
  EXPECT_GT(partition.GrowthOf(std::vector<uint64_t>{1}), 0);
  Push(partition, SomeKeys(random, 500, 1 << 30));
  ASSERT_EQ(partition.rows(), 100);
  EXPECT_EQ(partition.GrowthOf(std::vector<uint64_t>{1}), 0);
}

// Header, index and unused memory, of a partition with many rows.
TEST(PartitionMemory, OverheadIsAtMost48BytesARow) {
  for (const int64_t rows : {1000, 10000, 100000, 250000}) {
    const auto layout = LayoutOf(LifeOf(rows, 0, 0));
    Partition partition(layout.get());
    std::mt19937_64 random(1);
    while (partition.counts().evicted_full < 2 * rows) {
      Push(partition, SomeKeys(random, 100, uint64_t{1} << 40));
    }
    ASSERT_EQ(partition.rows(), rows);
    const int64_t of_floats =
        rows * layout->row_floats() * static_cast<int64_t>(sizeof(float));
    const double overhead =
        static_cast<double>(partition.memory_bytes() - of_floats) /
        static_cast<double>(rows);
    std::printf("%lld rows: %.1f bytes of overhead a row\n",
                static_cast<long long>(rows), overhead);
    EXPECT_LE(overhead, 48) << rows;
  }
}

}  // namespace
}  // namespace weft::ps
