// TableLayout: what a TableSpec means for a row: its length, its slots, its
// first values and how it learns.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_CORE_TABLE_LAYOUT_H_
#define WEFT_PS_CORE_TABLE_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/row_life.h"

namespace weft::ps {

inline constexpr int kDefaultPartitions = 1024;
inline constexpr int kMaxPartitions = 65536;
inline constexpr int64_t kMaxDim = 65536;
// A dense table is cut into about 64 slices, so that a small one is shared
// among servers too, of sizes in these bounds (256 KiB of f32).
inline constexpr int64_t kMinSliceElements = 1024;
inline constexpr int64_t kMaxSliceElements = 65536;
inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr int kMaxShards = 65536;
inline constexpr int64_t kMostStaleness = int64_t{1} << 32;
// RowLife: rows of a table, and bytes.
inline constexpr int64_t kMaxRows = int64_t{1} << 40;
inline constexpr int64_t kMaxTableBytes = int64_t{1} << 50;

// The number of slices of a dense table with so many elements.
int64_t SlicesOf(int64_t elements);

// A dense table is slices of a vector, not rows: TableLayout::Create refuses a
// rule for it that must see rows or whole parameters (optimizer::Scope). In a
// sparse table a row is both.

// Fills in defaults (partitions). kInvalidArgument names the field, what was
// found and what is allowed; it is that of TableLayout::Create, so that what
// passes here can be made.
absl::StatusOr<v1::TableSpec> CheckedSpec(v1::TableSpec spec);

// The difference in words; empty if they are equal.
std::string DifferenceOf(const v1::TableSpec& found,
                         const v1::TableSpec& wanted);
// `restored` with what may change when a job goes on from a checkpoint: of the
// rule its numbers, not those that decide which slots there are.
v1::TableSpec WithChanges(v1::TableSpec restored, const v1::TableSpec& wanted);

class TableLayout {
 public:
  // As CheckedSpec().
  static absl::StatusOr<std::unique_ptr<TableLayout>> Create(
      v1::TableSpec spec);

  const v1::TableSpec& spec() const { return spec_; }
  bool is_dense() const { return spec_.kind() == v1::TableSpec::DENSE; }
  int64_t dim() const { return dim_; }  // elements of the longest row
  int slots() const { return slots_; }
  const std::string& slot_name(int i) const { return rule_->slots()[i].name; }
  // Whether slot `i` has one value for a row, as the rule's Slot says.
  bool slot_is_per_row(int i) const { return rule_->slots()[i].is_per_row; }
  // Elements of slot `i` of a row of `length`.
  int64_t SlotLength(int i, int64_t length) const {
    return slot_is_per_row(i) ? 1 : length;
  }
  // Where slot `i` begins in a row, and how long the longest row is with all.
  int64_t SlotOffset(int i) const { return slot_offsets_[i]; }
  int64_t row_floats() const { return slot_offsets_.back(); }

  // Elements of row `key`. DENSE: slices are dim() long but the last.
  int64_t RowLength(uint64_t key) const;
  int64_t slices() const;  // DENSE: how many rows there are

  void InitialWeights(uint64_t key, absl::Span<float> weights) const;

  // A row is `dim()` weights, then of each slot `dim()` elements, or one per
  // row; of `dim()` the first `length` count.
  void InitialSlots(float* row, int64_t length) const;
  void Apply(const optimizer::StepContext& step, float* row,
             const float* gradient, int64_t length) const;
  // Whether rows of one step may be one row for the rule: it works element by
  // element. Else each is given to it alone and whole.
  bool may_join_rows() const {
    return rule_->scope() == optimizer::Scope::kElement;
  }
  // As Apply, on weights and slots that lie `length` floats apart. REQUIRES:
  // may_join_rows().
  void ApplyJoined(const optimizer::StepContext& step, float* weights,
                   const float* gradient, int64_t length) const;
  // What bounds a partition; none of it: any() is false.
  const RowLimits& limits() const { return limits_; }

  // Whether the result of Apply depends on the step.
  bool uses_step() const { return uses_step_; }

 private:
  TableLayout(v1::TableSpec spec, std::unique_ptr<optimizer::UpdateRule> rule);

  const v1::TableSpec spec_;
  const std::unique_ptr<optimizer::UpdateRule> rule_;
  const int slots_;
  const bool uses_step_;
  const int64_t dim_;
  const std::vector<int64_t> slot_offsets_;  // and the end of the last one
  RowLimits limits_;
  const uint64_t seed_;  // of the initial values, the table's name mixed in
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_TABLE_LAYOUT_H_
