#include "weft/ps/shard/snapshot.h"

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_life.h"
#include "weft/ps/core/table_layout.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

v1::TableSpec Sparse() {
  v1::TableSpec spec;
  spec.set_name("words");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(2);
  spec.mutable_rule()->mutable_sgd()->set_lr(0.1);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.set_partitions(4);
  return spec;
}

// Some key of that partition.
uint64_t KeyOf(int partition) {
  for (uint64_t key = 0;; ++key) {
    if (Placement("words", 4, 1).PartitionOfKey(key) == partition) return key;
  }
}

TableShard::Image Rows() {
  TableShard::Image image;
  image.version = 9;
  EXPECT_THAT(image.rates.Set(9, 0.1, 9), IsOk());
  for (const int partition : {1, 3}) {
    PartitionImage rows;
    rows.keys = {KeyOf(partition)};
    rows.steps = {5 + partition};
    rows.weights = {0.5f * partition, -1.0f};
    image.partitions.emplace_back(partition, rows);
  }
  return image;
}

TEST(Snapshot, RowsStepsAndTheLearningRateComeBack) {
  const auto shard = ToShard(2, Sparse(), Rows());
  ASSERT_THAT(shard.status(), IsOk());
  EXPECT_TRUE(IsTableShard(*shard));
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(*shard, "ps2", tables), IsOk());
  const LoadedTable& words = tables.at("words");
  EXPECT_EQ(words.spec.dim(), 2);
  EXPECT_EQ(words.image.version, 9);
  ASSERT_EQ(words.image.partitions.size(), 2u);
  const auto& [partition, rows] = words.image.partitions[1];
  EXPECT_EQ(partition, 3);
  EXPECT_THAT(rows.keys, ElementsAre(KeyOf(3)));
  EXPECT_THAT(rows.steps, ElementsAre(8));
  EXPECT_THAT(rows.weights, ElementsAre(1.5f, -1.0f));
  EXPECT_EQ(words.image.rates.At(8), 1);
  EXPECT_EQ(words.image.rates.At(9), 0.1);
}

TEST(Snapshot, SlotOfOneValueForARowHasThatShapeAndComesBack) {
  v1::TableSpec spec = Sparse();
  spec.mutable_rule()->mutable_rowwise_adagrad();
  TableShard::Image image = Rows();
  for (auto& [partition, rows] : image.partitions) {
    rows.slots = {{0.25f * partition}};
  }
  const auto shard = ToShard(2, spec, image);
  ASSERT_THAT(shard.status(), IsOk());
  const Tensor& slot = shard->tensors.at("slot.accumulator");
  EXPECT_EQ(slot.Describe(), Tensor::Zeros({2}).Describe());
  EXPECT_EQ(shard->tensors.at("weight").shape(), Shape({2, 2}));
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(*shard, "ps2", tables), IsOk());
  const auto& loaded = tables.at("words").image.partitions;
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_THAT(loaded[0].second.slots, ElementsAre(ElementsAre(0.25f)));
  EXPECT_THAT(loaded[1].second.slots, ElementsAre(ElementsAre(0.75f)));
  EXPECT_THAT(loaded[1].second.weights, ElementsAre(1.5f, -1.0f));

  for (const Shape& other : {Shape{1}, Shape{3}, Shape{2, 1}, Shape{2, 2}}) {
    checkpoint::Safetensors damaged = *shard;
    damaged.tensors["slot.accumulator"] = Tensor::Zeros(other);
    tables.clear();
    EXPECT_THAT(AddShard(damaged, "ps2", tables),
                StatusIs(absl::StatusCode::kDataLoss, "differ in length"));
  }
}

TEST(Snapshot, ShardOfAnotherLibraryIsNoTables) {
  EXPECT_FALSE(IsTableShard(checkpoint::Safetensors()));
}

TEST(Snapshot, DamagedShardsAreRefusedWithTheirName) {
  const checkpoint::Safetensors good = *ToShard(2, Sparse(), Rows());
  for (const auto& [name, tensor] : good.tensors) {
    checkpoint::Safetensors damaged = good;
    damaged.tensors.erase(name);
    std::map<std::string, LoadedTable> tables;
    EXPECT_THAT(AddShard(damaged, "ps2", tables),
                StatusIs(absl::StatusCode::kDataLoss, name));
  }
  for (const auto& [key, value] : good.metadata) {
    checkpoint::Safetensors damaged = good;
    damaged.metadata[key] = "\xff";
    std::map<std::string, LoadedTable> tables;
    if (key == "server" || key == "name") continue;  // for people
    const absl::Status status = AddShard(damaged, "shard-of-ps2", tables);
    EXPECT_FALSE(status.ok()) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr("shard-of-ps2"))
        << key;
  }
}

v1::TableSpec Bounded() {
  v1::TableSpec spec = Sparse();
  spec.mutable_life()->set_max_rows(100);
  spec.mutable_life()->set_admit_after(2);
  spec.mutable_life()->set_admit_counters(16);
  return spec;
}

// As Rows(), of a bounded table.
TableShard::Image BoundedRows() {
  TableShard::Image image = Rows();
  const auto layout = *TableLayout::Create(Bounded());
  for (auto& [partition, rows] : image.partitions) {
    RowLife life(layout->limits());
    for (int i = 0; i < partition; ++i) life.Advance();
    rows.touched = {partition - 1};
    rows.life = life.Format();
  }
  return image;
}

TEST(Snapshot, WhatABoundedTableKeepsOfItsRowsComesBack) {
  const TableShard::Image image = BoundedRows();
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(*ToShard(2, Bounded(), image), "ps2", tables), IsOk());
  const LoadedTable& words = tables.at("words");
  ASSERT_EQ(words.image.partitions.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const PartitionImage& rows = words.image.partitions[i].second;
    EXPECT_EQ(rows.touched, image.partitions[i].second.touched);
    EXPECT_EQ(rows.life, image.partitions[i].second.life);
  }
}

TEST(Snapshot, DamagedShardsOfABoundedTableAreRefused) {
  const checkpoint::Safetensors good = *ToShard(2, Bounded(), BoundedRows());
  const auto refuses = [&](const char* name, const Tensor& in_place,
                           const char* why) {
    checkpoint::Safetensors damaged = good;
    damaged.tensors.erase(name);
    if (in_place.defined()) damaged.tensors[name] = in_place;
    std::map<std::string, LoadedTable> tables;
    EXPECT_THAT(AddShard(damaged, "ps2", tables),
                StatusIs(absl::StatusCode::kDataLoss, why));
  };
  for (const char* name : {"touched", "life", "life_bytes"}) {
    refuses(name, Tensor(), name);
  }
  const auto longs = [](std::vector<int64_t> values) {
    return Tensor::FromVector<int64_t>(values);
  };
  refuses("touched", longs({1}), "wanted touched i64[2]");
  refuses("life_bytes", longs({1}), "life_bytes i64[2]");
  refuses("life_bytes", longs({-1, 5}), "life_bytes has -1");
  refuses("life_bytes", longs({1 << 30, 5}), "are left of life");
  refuses("life_bytes", longs({1, 5}), "more than life_bytes says");
}

TEST(Snapshot, PartitionThatCameBeforeIsRefused) {
  const checkpoint::Safetensors shard = *ToShard(2, Sparse(), Rows());
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(shard, "ps2", tables), IsOk());
  const absl::Status again = AddShard(shard, "ps3", tables);
  EXPECT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.message()), HasSubstr("ps3"));
}

TEST(Snapshot, ShardsOfASyncTableThatDifferInVersionAreRefused) {
  v1::TableSpec spec = Sparse();
  spec.set_mode(v1::TableSpec::SYNC);
  spec.set_shards(1);
  TableShard::Image other = Rows();
  other.version = 10;
  for (auto& [partition, rows] : other.partitions) {
    partition -= 1;
    rows.keys = {KeyOf(partition)};
  }
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(*ToShard(0, spec, Rows()), "ps0", tables), IsOk());
  EXPECT_THAT(
      AddShard(*ToShard(1, spec, other), "ps1", tables),
      StatusIs(absl::StatusCode::kDataLoss, "at version 10, elsewhere at 9"));
}

// Since attempt "a": partition 1 has another row and not that before, 3 all.
TableShard::Image Changes() {
  TableShard::Image image = Rows();
  image.version = 12;
  image.base = "a";
  PartitionImage& first = image.partitions[0].second;
  first.is_delta = true;
  first.removed = {KeyOf(1)};
  uint64_t key = KeyOf(1) + 1;
  while (Placement("words", 4, 1).PartitionOfKey(key) != 1) ++key;
  first.keys = {key};
  return image;
}

std::map<std::string, LoadedTable> Loaded(const TableShard::Image& image,
                                          v1::TableSpec spec = Sparse()) {
  std::map<std::string, LoadedTable> tables;
  TableShard::Image all = image;
  for (const int partition : {0, 2}) {
    PartitionImage rows;
    rows.is_delta = !image.base.empty();
    all.partitions.emplace_back(partition, rows);
  }
  const auto shard = ToShard(0, spec, all);
  EXPECT_THAT(shard.status(), IsOk());
  EXPECT_EQ(BaseOf(shard->metadata), image.base);
  EXPECT_THAT(AddShard(*shard, "ps0", tables), IsOk());
  return tables;
}

TEST(Snapshot, DeltaComesBackAndIsAppliedToItsBase) {
  auto whole = Loaded(Rows());
  ASSERT_THAT(ApplyTo({}, "", "first", whole), IsOk());
  auto delta = Loaded(Changes());
  ASSERT_THAT(ApplyTo(std::move(whole), "a", "second", delta), IsOk());
  const TableShard::Image& image = delta.at("words").image;
  EXPECT_EQ(image.version, 12);
  EXPECT_EQ(image.base, "");
  ASSERT_EQ(image.partitions.size(), 4u);
  EXPECT_THAT(image.partitions[0].second.keys,
              ElementsAre(Changes().partitions[0].second.keys[0]));
  EXPECT_THAT(image.partitions[0].second.weights, ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(image.partitions[1].second.keys, ElementsAre(KeyOf(3)));
  for (const auto& [partition, rows] : image.partitions) {
    EXPECT_FALSE(rows.is_delta);
    EXPECT_TRUE(rows.removed.empty());
  }
}

TEST(Snapshot, DeltaThatDoesNotFitItsBaseIsRefused) {
  const auto refused = [](std::map<std::string, LoadedTable> base,
                          const std::string& attempt, const char* why) {
    auto delta = Loaded(Changes());
    EXPECT_THAT(ApplyTo(std::move(base), attempt, "second", delta),
                StatusIs(absl::StatusCode::kDataLoss, why));
  };
  refused({}, "", "was written as ");
  refused(Loaded(Rows()), "b", "since a, and its parent was written as b");
  refused({}, "a", "which its parent has not");
  v1::TableSpec other = Sparse();
  other.mutable_rule()->mutable_sgd()->set_lr(0.7);
  refused(Loaded(Rows(), other), "a", "another spec than in its parent");
  auto lacks = Loaded(Rows());
  lacks.at("words").image.partitions.erase(
      lacks.at("words").image.partitions.begin());
  refused(std::move(lacks), "a", "partition 1, which its parent has not");
  auto unsorted = Loaded(Rows());
  unsorted.at("words").image.partitions[0].second.keys = {KeyOf(2)};
  refused(std::move(unsorted), "a", "of its parent: ");
}

TEST(Snapshot, DamagedDeltasAreRefused) {
  const checkpoint::Safetensors good = *ToShard(0, Sparse(), Changes());
  std::map<std::string, LoadedTable> tables;
  ASSERT_THAT(AddShard(good, "ps0", tables), IsOk());
  const auto refused = [&](const std::string& name, const Tensor& tensor) {
    checkpoint::Safetensors damaged = good;
    damaged.tensors[name] = tensor;
    tables.clear();
    EXPECT_THAT(AddShard(damaged, "ps0", tables),
                StatusIs(absl::StatusCode::kDataLoss, "ps0"))
        << name << " " << tensor.Describe();
  };
  refused("delta", Tensor::FromVector<uint8_t>({1}));
  refused("delta", Tensor::FromVector<uint8_t>({2, 0}));
  refused("delta", Tensor::FromVector<uint8_t>({0, 0}));
  refused("removed", Tensor::FromVector<int64_t>({1, 2}));
  refused("removed_rows", Tensor::FromVector<int64_t>({2, 0}));
  refused("removed_rows", Tensor::FromVector<int64_t>({-1, 2}));
  refused("removed_rows", Tensor::FromVector<int64_t>({0, 1}));
  for (const char* name : {"delta", "removed", "removed_rows"}) {
    checkpoint::Safetensors damaged = good;
    damaged.tensors.erase(name);
    tables.clear();
    EXPECT_THAT(AddShard(damaged, "ps0", tables),
                StatusIs(absl::StatusCode::kDataLoss, name));
  }
  checkpoint::Safetensors nameless = good;
  nameless.metadata.erase("base");
  tables.clear();
  EXPECT_THAT(AddShard(nameless, "ps0", tables),
              StatusIs(absl::StatusCode::kDataLoss, "names no base"));
}

using Rows4 = std::map<uint64_t, float>;  // of the four partitions

// What servers would save: all of some partitions, and of others what has
// changed since `before`, with keys that have come and gone meanwhile.
std::map<std::string, LoadedTable> AnyDelta(const Rows4& before,
                                            const Rows4& after, int64_t version,
                                            const std::string& base,
                                            std::mt19937_64& random) {
  const Placement placement("words", 4, 1);
  TableShard::Image servers[2];
  for (int p = 0; p < 4; ++p) {
    PartitionImage rows;
    rows.is_delta = !base.empty() && random() % 4 > 0;
    const auto is_here = [&](uint64_t key) {
      return placement.PartitionOfKey(key) == p;
    };
    for (const auto& [key, value] : after) {
      const auto it = before.find(key);
      const bool is_equal = it != before.end() && it->second == value;
      if (!is_here(key) || (rows.is_delta && is_equal && random() % 8 > 0)) {
        continue;
      }
      rows.keys.push_back(key);
      rows.steps.push_back(version);
      rows.weights.insert(rows.weights.end(), {value, -value});
    }
    for (uint64_t key = 0; rows.is_delta && key < 60; ++key) {
      const bool was_there = before.count(key) > 0 || random() % 9 == 0;
      if (is_here(key) && was_there && after.count(key) == 0) {
        rows.removed.push_back(key);
      }
    }
    servers[random() % 2].partitions.emplace_back(p, std::move(rows));
  }
  std::map<std::string, LoadedTable> tables;
  for (int server = 0; server < 2; ++server) {
    servers[server].version = version;
    servers[server].base = base;
    const auto shard = ToShard(server, Sparse(), servers[server]);
    EXPECT_THAT(shard.status(), IsOk());
    EXPECT_THAT(AddShard(*shard, absl::StrCat("ps", server), tables), IsOk());
  }
  return tables;
}

TEST(Snapshot, SumOfAnyChainIsTheTable) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Rows4 rows;
    std::map<std::string, LoadedTable> sum;
    std::string attempt;
    const int links = 1 + static_cast<int>(random() % 6);
    for (int link = 0; link < links; ++link) {
      const Rows4 before = rows;
      for (int i = 0; i < 12; ++i) {
        const uint64_t key = random() % 60;
        if (random() % 3 == 0) {
          rows.erase(key);
        } else {
          rows[key] = 1.0f * (random() % 100);
        }
      }
      auto tables = AnyDelta(before, rows, link, attempt, random);
      ASSERT_THAT(ApplyTo(std::move(sum), attempt, "link", tables), IsOk());
      sum = std::move(tables);
      attempt = absl::StrCat("attempt", link);
    }
    Rows4 found;
    for (const auto& [p, image] : sum.at("words").image.partitions) {
      for (size_t i = 0; i < image.keys.size(); ++i) {
        found[image.keys[i]] = image.weights[2 * i];
        ASSERT_EQ(image.weights[2 * i + 1], -image.weights[2 * i]);
      }
    }
    ASSERT_EQ(found, rows);
  }
}

}  // namespace
}  // namespace weft::ps
