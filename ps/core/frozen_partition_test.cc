// Partitions that are copied while pushes go on.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/frozen_rows.h"
#include "weft/ps/core/partition.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

void ExpectEqual(const PartitionImage& found, const PartitionImage& wanted) {
  EXPECT_EQ(found.keys, wanted.keys);
  EXPECT_EQ(found.steps, wanted.steps);
  EXPECT_EQ(found.weights, wanted.weights);
  EXPECT_EQ(found.slots, wanted.slots);
  EXPECT_EQ(found.touched, wanted.touched);
  EXPECT_EQ(found.life, wanted.life);
}

v1::TableSpec Spec(int dim) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(v1::TableSpec::SPARSE);
  spec.set_dim(dim);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_adagrad()->set_lr(0.5);
  return spec;
}

// A table of any kind, by chance.
v1::TableSpec AnySpec(std::mt19937_64& random) {
  v1::TableSpec spec = Spec(random() % 2 == 0 ? 2 : 20);
  spec.set_partitions(1);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_scale(0.5);
  if (random() % 5 == 0) {  // of 1 to 4 slices, the last one short
    spec.set_kind(v1::TableSpec::DENSE);
    spec.set_elements(static_cast<int64_t>(1 + random() % 4000));
    return spec;
  }
  if (random() % 4 == 0) spec.mutable_rule()->mutable_rowwise_adagrad();
  switch (random() % 4) {
    case 0:
      spec.mutable_life()->set_max_rows(20 + random() % 60);
      spec.mutable_life()->set_drop_versions(random() % 2 * 5);
      break;
    case 1:
      spec.mutable_life()->set_idle_versions(1 + random() % 8);
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

// A partition, and a snapshot of it that is being read.
class Frozen {
 public:
  explicit Frozen(Partition* partition, int64_t piece_bytes,
                  std::shared_ptr<ByteBudget> copies = nullptr)
      : wanted_(partition->Image()),
        partition_(partition),
        piece_bytes_(piece_bytes),
        rows_(partition->Freeze(std::move(copies))) {
    is_done_ = rows_->is_done();
  }

  bool is_done() const { return is_done_; }
  FrozenRows& rows() { return *rows_; }
  void CopySome() {
    pieces_.push_back(rows_->MakePiece(piece_bytes_));
    is_done_ = partition_->CopyFrozen(*rows_, pieces_.back());
  }
  void CopyAll() {
    while (!is_done_) CopySome();
  }
  void Check(const TableLayout& layout) {
    CopyAll();
    ASSERT_THAT(rows_->status(), IsOk());
    ExpectEqual(ImageOf(layout, *rows_, pieces_), wanted_);
  }

 private:
  const PartitionImage wanted_;
  Partition* const partition_;
  const int64_t piece_bytes_;
  const std::shared_ptr<FrozenRows> rows_;
  std::vector<FrozenRows::Piece> pieces_;
  bool is_done_ = false;
};

class Pusher {
 public:
  Pusher(Partition* partition, const TableLayout* layout, uint64_t seed)
      : partition_(partition), layout_(layout), random_(seed) {}

  // Pushes to so many of `range` keys; in a dense table to all slices.
  void Push(int keys, uint64_t range) {
    if (layout_->is_dense()) return PushSlices();
    std::vector<uint64_t> names;
    for (int i = 0; i < keys; ++i) names.push_back(random_() % range);
    std::sort(names.begin(), names.end(), [](uint64_t a, uint64_t b) {
      return Mix64(a) != Mix64(b) ? Mix64(a) < Mix64(b) : a < b;
    });
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::vector<float> values(names.size() * layout_->dim());
    for (float& value : values) value = 1.0f * (random_() % 9) - 4.0f;
    PushSpan span;
    span.keys = names;
    span.values = values.data();
    partition_->ApplySum({span}, 1);
  }

 private:
  // The round of one or two shards, with and without a pull.
  void PushSlices() {
    std::vector<uint64_t> slices(static_cast<size_t>(layout_->slices()));
    std::iota(slices.begin(), slices.end(), 0);
    const auto elements = static_cast<size_t>(layout_->spec().elements());
    std::vector<float> values(elements + 1);
    for (float& value : values) value = 1.0f * (random_() % 9) - 4.0f;
    PushSpan span;
    span.keys = slices;
    span.values = values.data();
    std::vector<PushSpan> spans(1 + random_() % 2, span);
    spans.back().values = values.data() + 1;
    std::vector<float> read(elements);
    if (random_() % 2 == 0) {
      partition_->ApplySum(spans, 0.5);
    } else {
      partition_->ApplySumAndRead(spans, 0.5, 1, read.data());
    }
  }

  Partition* const partition_;
  const TableLayout* const layout_;
  std::mt19937_64 random_;
};

// Pushes, evictions and admissions in any order with what the reader does; two
// snapshots of different moments at once.
void CheckOne(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto layout = *TableLayout::Create(AnySpec(random));
  Partition partition(layout.get());
  Pusher pusher(&partition, layout.get(), seed);
  const auto push = [&] {
    pusher.Push(static_cast<int>(random() % 12), 1 + random() % 150);
  };
  for (int i = static_cast<int>(random() % 40); i > 0; --i) push();
  const auto budget = ByteBudget::Of(int64_t{1} << 30);
  {
    Frozen first(&partition, 1 + static_cast<int64_t>(random() % 300), budget);
    std::unique_ptr<Frozen> second;
    while (!first.is_done()) {
      switch (random() % 8) {
        case 0:
        case 1:
          first.CopySome();
          break;
        case 2:
          if (second == nullptr) {
            second = std::make_unique<Frozen>(&partition, 500, budget);
          } else if (!second->is_done()) {
            second->CopySome();
          }
          break;
        case 3:
          if (random() % 30 == 0) partition.Load(partition.Image());
          break;
        default:
          push();
          break;
      }
    }
    push();
    first.Check(*layout);
    if (second != nullptr) second->Check(*layout);
  }
  push();  // nobody reads any more
  EXPECT_EQ(budget->held(), 0);
}

TEST(FrozenPartition, CopyIsThePartitionAsItWasWhateverHappensMeanwhile) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    CheckOne(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(FrozenPartition, PushesCopyOnlyTheRowsThatTheyChange) {
  const auto layout = *TableLayout::Create(Spec(20));
  Partition partition(layout.get());
  Pusher pusher(&partition, layout.get(), 1);
  for (int i = 0; i < 100; ++i) pusher.Push(100, 5000);
  const auto budget = ByteBudget::Of(int64_t{1} << 30);
  Frozen frozen(&partition, 65536, budget);
  EXPECT_EQ(budget->held(), 0);  // nothing is copied by freezing
  pusher.Push(20, 5000);
  EXPECT_LE(budget->held(), 4096);
  frozen.CopyAll();
  const int64_t held = budget->held();
  for (int i = 0; i < 100; ++i) pusher.Push(100, 5000);
  EXPECT_EQ(budget->held(), held);  // all was copied
  frozen.Check(*layout);
}

// A round of a dense table, also one that is applied and read in one pass.
TEST(FrozenPartition, RoundCopiesTheSlicesThatItChanges) {
  v1::TableSpec spec = Spec(1);
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_mode(v1::TableSpec::SYNC);
  spec.set_shards(2);
  spec.set_partitions(1);
  spec.set_elements(2500);
  const auto layout = *TableLayout::Create(spec);
  const std::vector<uint64_t> slices = {0, 1, 2};
  const std::vector<float> ones(2500, 1);
  PushSpan span;
  span.keys = slices;
  span.values = ones.data();
  const std::vector<PushSpan> one = {span}, two = {span, span};
  for (const bool is_read : {false, true}) {
    for (const auto* spans : {&one, &two}) {
      for (const float scale : {1.0f, 0.5f}) {
        SCOPED_TRACE(absl::StrCat(is_read, " ", spans->size(), " ", scale));
        Partition partition(layout.get());
        partition.ApplySum(one, 1);
        Frozen frozen(&partition, 1);  // a slice at a time
        frozen.CopySome();
        std::vector<float> values(2500);
        for (int round = 0; round < 2; ++round) {
          if (is_read) {
            partition.ApplySumAndRead(*spans, scale, 1, values.data());
          } else {
            partition.ApplySum(*spans, scale);
          }
        }
        frozen.Check(*layout);
      }
    }
  }
}

TEST(FrozenPartition, CopiesBeyondTheirBudgetEndTheReaderAndNoPush) {
  const auto layout = *TableLayout::Create(Spec(20));
  Partition partition(layout.get());
  Pusher pusher(&partition, layout.get(), 1);
  for (int i = 0; i < 100; ++i) pusher.Push(100, 5000);
  const auto budget = ByteBudget::Of(20000);
  Frozen frozen(&partition, 65536, budget);
  for (int i = 0; i < 100; ++i) pusher.Push(100, 5000);
  EXPECT_TRUE(frozen.rows().is_done());
  EXPECT_EQ(budget->held(), 0);
  EXPECT_THAT(
      frozen.rows().status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "more than 20000 bytes"));
  // The next one is whole.
  Frozen next(&partition, 65536, budget);
  next.CopySome();
  pusher.Push(2, 5000);
  next.Check(*layout);
}

TEST(FrozenPartition, ASnapshotThatIsDroppedCostsNothingAnyMore) {
  const auto layout = *TableLayout::Create(Spec(20));
  Partition partition(layout.get());
  Pusher pusher(&partition, layout.get(), 1);
  for (int i = 0; i < 10; ++i) pusher.Push(100, 5000);
  const auto budget = ByteBudget::Of(int64_t{1} << 30);
  {
    Frozen frozen(&partition, 65536, budget);
    pusher.Push(50, 5000);
    EXPECT_GT(budget->held(), 0);
  }
  EXPECT_EQ(budget->held(), 0);
  pusher.Push(50, 5000);
  EXPECT_EQ(budget->held(), 0);
}

TEST(FrozenPartition, APartitionWithoutRowsIsDoneAtOnce) {
  const auto layout = *TableLayout::Create(Spec(2));
  Partition partition(layout.get());
  const auto frozen = partition.Freeze(nullptr);
  EXPECT_TRUE(frozen->is_done());
  EXPECT_THAT(ImageOf(*layout, *frozen, {}).keys, IsEmpty());
}

}  // namespace
}  // namespace weft::ps
