// PartitionImage: the rows of a partition, or what has changed of them, as they
// are saved, restored and sent to other servers.
//
// Thread-safety: functions without state.

#ifndef WEFT_PS_CORE_PARTITION_IMAGE_H_
#define WEFT_PS_CORE_PARTITION_IMAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/ps/core/frozen_rows.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_store.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

// All rows of a partition, copied out, in ascending order of their keys. What
// was applied of which client is not kept: clients open a table that was
// restored again, and begin anew.
struct PartitionImage {
  std::vector<uint64_t> keys;  // [n]
  std::vector<int64_t> steps;  // [n], each below 2^32
  std::vector<float> weights;  // rows one after another
  // [slots], each like weights, or [n] where a slot is per row.
  std::vector<std::vector<float>> slots;
  // For a table with RowLife, else empty: the version that touched each row,
  // and RowLife::Format. A piece of a copy after the first has no `life`.
  std::vector<int64_t> touched = {};  // [n]
  std::string life = {};
  // Only the rows that have changed since a checkpoint, and the keys of those
  // that have gone since, which ascend; some of these it may not have had.
  bool is_delta = false;
  std::vector<uint64_t> removed = {};
};

// kInvalidArgument if `image` is not one of partition `partition` of such a
// table: lengths differ, a key belongs elsewhere, keys do not ascend, or it is
// a delta.
absl::Status CheckImage(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image);
// The same of one that may be a delta.
absl::Status CheckDelta(const TableLayout& layout, const Placement& placement,
                        int partition, const PartitionImage& image);

// The rows of `base` after the changes of `delta`. REQUIRES: CheckImage(base)
// and CheckDelta(delta) are OK, and `delta` is one.
PartitionImage WithDelta(const TableLayout& layout, const PartitionImage& base,
                         const PartitionImage& delta);

// The rows of `frozen`, of which `pieces` has what CopyFrozen gave.
// REQUIRES: frozen.is_done() and status() is OK.
PartitionImage ImageOf(const TableLayout& layout, const FrozenRows& frozen,
                       const std::vector<FrozenRows::Piece>& pieces);

// Adds a row, whose slots lie behind its weights.
void AppendRow(const TableLayout& layout, RowStore::Row row,
               const float* weights, PartitionImage& image);

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PARTITION_IMAGE_H_
