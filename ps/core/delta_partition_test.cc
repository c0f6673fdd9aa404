// Partitions of which only what has changed is copied, against all of them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/changed_rows.h"
#include "weft/ps/core/frozen_rows.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/partition_image.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

void ExpectEqual(const PartitionImage& found, const PartitionImage& wanted) {
  EXPECT_EQ(found.keys, wanted.keys);
  EXPECT_EQ(found.steps, wanted.steps);
  EXPECT_EQ(found.weights, wanted.weights);
  EXPECT_EQ(found.slots, wanted.slots);
  EXPECT_EQ(found.touched, wanted.touched);
  EXPECT_EQ(found.life, wanted.life);
  EXPECT_EQ(found.is_delta, wanted.is_delta);
  EXPECT_EQ(found.removed, wanted.removed);
}

v1::TableSpec Spec() {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(3);
  spec.set_partitions(1);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_adagrad()->set_lr(0.5);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.5);
  return spec;
}

v1::TableSpec AnySpec(std::mt19937_64& random) {
  v1::TableSpec spec = Spec();
  if (random() % 6 == 0) {
    spec.set_kind(v1::TableSpec::DENSE);
    spec.set_elements(static_cast<int64_t>(1 + random() % 9000));
    return spec;
  }
  if (random() % 4 == 0) spec.mutable_rule()->mutable_rowwise_adagrad();
  if (random() % 4 == 0) spec.set_dim(20);
  switch (random() % 4) {
    case 0:
      spec.mutable_life()->set_max_rows(
          static_cast<int64_t>(1 + random() % 90));
      spec.mutable_life()->set_drop_versions(
          static_cast<int64_t>(random() % 2 * 5));
      break;
    case 1:
      spec.mutable_life()->set_idle_versions(
          static_cast<int64_t>(1 + random() % 12));
      break;
    case 2:
      spec.mutable_life()->set_max_rows(40);
      spec.mutable_life()->set_admit_after(2);
      spec.mutable_life()->set_admit_counters(64);
      break;
    default:
      break;
  }
  return spec;
}

// A partition of a table that is saved, and the checkpoints of it that were
// committed: each all rows, or what has changed since another.
class Saved {
 public:
  Saved(const v1::TableSpec& spec, uint64_t seed)
      : random_(seed),
        layout_(*TableLayout::Create(spec)),
        placement_("t", 1, 1),
        partition_(std::make_unique<Partition>(layout_.get())) {}

  void Push(int keys, uint64_t range) {
    std::vector<uint64_t> names;
    if (layout_->is_dense()) {
      for (int64_t slice = 0; slice < layout_->slices(); ++slice) {
        if (random_() % 2 == 0) names.push_back(slice);
      }
    } else {
      for (int i = 0; i < keys; ++i) names.push_back(random_() % range);
      std::sort(names.begin(), names.end(), [](uint64_t a, uint64_t b) {
        return Mix64(a) != Mix64(b) ? Mix64(a) < Mix64(b) : a < b;
      });
      names.erase(std::unique(names.begin(), names.end()), names.end());
    }
    int64_t elements = 0;
    for (uint64_t key : names) elements += layout_->RowLength(key);
    std::vector<float> values(static_cast<size_t>(elements));
    for (float& value : values) value = 1.0f * (random_() % 9) - 4.0f;
    PushSpan span;
    span.keys = names;
    span.values = values.data();
    std::vector<PushSpan> spans(1 + random_() % 2, span);
    if (layout_->is_dense() && !names.empty() && random_() % 2 == 0) {
      std::vector<float> read(values.size());
      partition_->ApplySumAndRead(spans, 0.5, 1, read.data());
    } else {
      partition_->ApplySum(spans, 1);
    }
  }
  void Put(uint64_t key) {
    if (layout_->is_dense()) return;
    const std::vector<float> ones(static_cast<size_t>(layout_->dim()), 1);
    partition_->Put(key, ones);
  }

  // Freezes, with pushes before all is copied; a checkpoint, or given up.
  void Save(const std::string& base, bool commits, bool ends) {
    const std::string id = absl::StrCat("attempt", ++attempts_);
    const PartitionImage wanted = partition_->Image();
    const auto frozen = partition_->Freeze(nullptr, {id, base});
    std::vector<FrozenRows::Piece> pieces;
    while (!frozen->is_done()) {
      if (!is_calm_ && random_() % 3 == 0) Push(5, 150);
      pieces.push_back(frozen->MakePiece(1 + random_() % 400));
      partition_->CopyFrozen(*frozen, pieces.back());
      if (!ends) return;
    }
    if (!commits) return;
    PartitionImage image = ImageOf(*layout_, *frozen, pieces);
    ASSERT_THAT(CheckDelta(*layout_, placement_, 0, image), IsOk());
    if (image.is_delta) {
      ++deltas_;
      saved_rows_ += static_cast<int64_t>(image.keys.size());
      ASSERT_EQ(checkpoints_.count(base), 1u) << "a delta since " << base;
      image = WithDelta(*layout_, checkpoints_.at(base), image);
      ASSERT_THAT(CheckImage(*layout_, placement_, 0, image), IsOk());
    }
    ExpectEqual(image, wanted);
    checkpoints_[id] = wanted;
    newest_ = id;
  }
  // A server that dies: others begin with what was saved.
  void Restore() {
    if (newest_.empty()) return;
    if (random_() % 2 == 0) {
      partition_ = std::make_unique<Partition>(layout_.get());
    }
    partition_->Load(checkpoints_.at(newest_));
  }

  // Nobody pushes while it is saved.
  void CalmDown() { is_calm_ = true; }

  const std::string& newest() const { return newest_; }
  // A checkpoint, or what is none: only those are named that were committed.
  std::string Any() {
    const std::string id =
        absl::StrCat("attempt", 1 + random_() % (attempts_ + 1));
    return checkpoints_.count(id) > 0 ? id : "another";
  }
  int deltas() const { return deltas_; }
  int64_t saved_rows() const { return saved_rows_; }
  Partition& partition() { return *partition_; }
  const TableLayout& layout() const { return *layout_; }
  uint64_t Random(uint64_t below) { return random_() % below; }

 private:
  std::mt19937_64 random_;
  const std::unique_ptr<TableLayout> layout_;
  const Placement placement_;
  std::unique_ptr<Partition> partition_;
  std::map<std::string, PartitionImage> checkpoints_;
  std::string newest_;
  uint64_t attempts_ = 0;
  bool is_calm_ = false;
  int deltas_ = 0;
  int64_t saved_rows_ = 0;
};

// Any pushes, evictions, freezes that are committed, given up or broken off,
// and restores, with bases that servers know and others.
int CheckOne(uint64_t seed) {
  std::mt19937_64 random(seed);
  Saved saved(AnySpec(random), seed);
  for (int i = 0; i < 60; ++i) {
    switch (saved.Random(9)) {
      case 0: {
        const uint64_t kind = saved.Random(8);
        const std::string base = kind == 0   ? ""
                                 : kind == 1 ? saved.Any()
                                             : saved.newest();
        saved.Save(base, saved.Random(4) > 0, saved.Random(6) > 0);
        break;
      }
      case 1:
        if (saved.Random(12) == 0) saved.Restore();
        break;
      case 2:
        saved.Put(saved.Random(150));
        break;
      default:
        saved.Push(static_cast<int>(saved.Random(9)), 1 + saved.Random(150));
        break;
    }
    if (::testing::Test::HasFailure()) break;
  }
  return saved.deltas();
}

TEST(DeltaPartition, SumOfAChainIsThePartitionWhateverHappensBetween) {
  int deltas = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(seed);
    deltas += CheckOne(seed);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(deltas, 4000);  // the model has met what it is about
}

TEST(DeltaPartition, HasTheRowsThatPushesNamedAndTombstones) {
  v1::TableSpec spec = Spec();
  spec.mutable_life()->set_max_rows(30);
  Saved saved(spec, 1);
  saved.CalmDown();
  for (int i = 0; i < 40; ++i) saved.Push(8, 1000);
  saved.Save("", true, true);
  ASSERT_EQ(saved.deltas(), 0);
  const auto frozen_before = saved.newest();
  saved.Push(3, 1000);
  saved.Save(frozen_before, true, true);
  EXPECT_EQ(saved.deltas(), 1);
  EXPECT_LE(saved.saved_rows(), 3 + 5);
}

TEST(DeltaPartition, IsWholeWhereAllRowsHaveChangedOrTheBaseIsNotKnown) {
  Saved saved(Spec(), 1);
  for (uint64_t key = 0; key < 50; ++key) saved.Put(key);
  saved.Save("", true, true);
  for (int i = 0; i < 200; ++i) saved.Push(20, 50);
  saved.Save(saved.newest(), true, true);
  EXPECT_EQ(saved.deltas(), 0) << "all have changed";
  saved.Push(2, 50);
  saved.Save("attempt1", true, true);
  EXPECT_EQ(saved.deltas(), 0) << "that is no base any more";
  saved.Restore();
  saved.Push(2, 50);
  saved.Save(saved.newest(), true, true);
  EXPECT_EQ(saved.deltas(), 0) << "it was restored";
  saved.Push(2, 50);
  saved.Save(saved.newest(), true, true);
  EXPECT_EQ(saved.deltas(), 1);
}

TEST(DeltaPartition, ATableThatSavesNoDeltasKeepsTrackOfNothing) {
  Saved saved(Spec(), 1);
  for (int i = 0; i < 100; ++i) saved.Push(8, 5000);
  const auto frozen = saved.partition().Freeze(nullptr);
  saved.Push(1, 1);  // key 0
  const int64_t without = saved.partition().memory_bytes();
  (void)saved.partition().Freeze(nullptr, {"a", ""});
  for (int i = 0; i < 100; ++i) saved.Push(1, 1);
  EXPECT_GT(saved.partition().memory_bytes(), without);
  EXPECT_LT(saved.partition().memory_bytes(), without + 2048);
}

TEST(DeltaPartition, DamagedDeltasAreRefused) {
  const auto layout = *TableLayout::Create(Spec());
  const Placement placement("t", 1, 1);
  PartitionImage good;
  good.is_delta = true;
  good.keys = {3, 9};
  good.steps = {1, 1};
  good.weights.resize(6);
  good.slots = {std::vector<float>(6)};
  good.removed = {1, 4, 12};
  ASSERT_THAT(CheckDelta(*layout, placement, 0, good), IsOk());
  EXPECT_THAT(CheckImage(*layout, placement, 0, good),
              StatusIs(absl::StatusCode::kInvalidArgument, "all of its rows"));
  for (const std::vector<uint64_t>& removed :
       std::vector<std::vector<uint64_t>>{{4, 1}, {1, 1}, {3}, {1, 9}}) {
    PartitionImage damaged = good;
    damaged.removed = removed;
    EXPECT_THAT(CheckDelta(*layout, placement, 0, damaged),
                StatusIs(absl::StatusCode::kInvalidArgument, "can have gone"));
  }
  PartitionImage whole = good;
  whole.is_delta = false;
  EXPECT_THAT(CheckDelta(*layout, placement, 0, whole),
              StatusIs(absl::StatusCode::kInvalidArgument, "can have gone"));
  whole.keys.pop_back();
  EXPECT_FALSE(CheckDelta(*layout, placement, 0, whole).ok());
}

TEST(DeltaPartition, WithDeltaReplacesAddsAndRemovesRows) {
  const auto layout = *TableLayout::Create(Spec());
  PartitionImage base;
  base.keys = {1, 3, 5};
  base.steps = {1, 3, 5};
  base.weights = {1, 1, 1, 3, 3, 3, 5, 5, 5};
  base.slots = {base.weights};
  PartitionImage delta;
  delta.is_delta = true;
  delta.keys = {2, 3};
  delta.steps = {20, 30};
  delta.weights = {20, 20, 20, 30, 30, 30};
  delta.slots = {delta.weights};
  delta.removed = {0, 5, 7};
  const PartitionImage sum = WithDelta(*layout, base, delta);
  EXPECT_THAT(sum.keys, ElementsAre(1, 2, 3));
  EXPECT_THAT(sum.steps, ElementsAre(1, 20, 30));
  EXPECT_THAT(sum.weights, ElementsAre(1, 1, 1, 20, 20, 20, 30, 30, 30));
  EXPECT_THAT(sum.slots, ElementsAre(sum.weights));
  EXPECT_FALSE(sum.is_delta);
  EXPECT_THAT(sum.removed, IsEmpty());
  EXPECT_THAT(WithDelta(*layout, base, PartitionImage{{}, {}, {}, {{}}}).keys,
              SizeIs(3));
}

}  // namespace
}  // namespace weft::ps
