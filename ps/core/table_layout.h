// TableLayout: what a TableSpec means for a row: its length, its slots, its
// first values and how it learns.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_CORE_TABLE_LAYOUT_H_
#define WEFT_PS_CORE_TABLE_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/proto/ps.pb.h"

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

// Of a dense table.
int64_t SlicesOf(int64_t elements);

// Fills in defaults (partitions). kInvalidArgument names the field, what was
// found and what is allowed.
absl::StatusOr<v1::TableSpec> CheckedSpec(v1::TableSpec spec);

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

  // Elements of row `key`. DENSE: slices are dim() long but the last.
  int64_t RowLength(uint64_t key) const;
  int64_t slices() const;  // DENSE: how many rows there are

  void InitialWeights(uint64_t key, absl::Span<float> weights) const;

  // A row is `dim()` weights, then `dim()` elements of each slot; of these the
  // first `length` count.
  void InitialSlots(float* row, int64_t length) const;
  void Apply(const optimizer::StepContext& step, float* row,
             const float* gradient, int64_t length) const {
    ApplyTo(step, row, dim_, gradient, length);
  }
  // As Apply, on weights and slots that lie `stride` floats apart.
  void ApplyTo(const optimizer::StepContext& step, float* weights,
               int64_t stride, const float* gradient, int64_t length) const;
  // Whether the result of Apply depends on the step.
  bool uses_step() const { return uses_step_; }

 private:
  TableLayout(v1::TableSpec spec, std::unique_ptr<optimizer::UpdateRule> rule);

  const v1::TableSpec spec_;
  const std::unique_ptr<optimizer::UpdateRule> rule_;
  const int slots_;
  const bool uses_step_;
  const int64_t dim_;
  const uint64_t seed_;  // of the initial values, the table's name mixed in
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_TABLE_LAYOUT_H_
