// DifferenceBetween: what has changed from one checkpoint to another.
//
// Both are read partition by partition, in the order of their keys, as they
// lie: nothing is held in memory.
//
// Thread-safety: functions without state.

#ifndef WEFT_PS_EXPORT_DIFFERENCE_H_
#define WEFT_PS_EXPORT_DIFFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/ps/export/saved_checkpoint.h"

namespace weft::ps {

// How far two tables differ: counts elements that are not equal to the bit. A
// difference to or from a value that is not finite is infinite.
struct Change {
  int64_t elements = 0;  // that differ
  double largest = 0;    // |b - a|
};

struct TableDifference {
  std::string name;
  bool is_dense = false;
  bool is_in_a = true;
  bool is_in_b = true;
  int64_t version_a = 0;
  int64_t version_b = 0;
  // How the specs differ, in words. If they differ in kind, partitions, dim or
  // elements, rows are not compared.
  std::string spec;
  bool is_compared = false;
  int64_t rows_a = 0;
  int64_t rows_b = 0;
  int64_t added = 0;    // rows that only b has
  int64_t removed = 0;  // rows that only a has
  int64_t changed = 0;  // rows of both with other weights
  // Rows with equal weights, but another step or other slots.
  int64_t state_changed = 0;
  Change weights;            // of rows of both
  uint64_t largest_key = 0;  // the row of the largest difference, if any
};

// A tensor of a trainer's own file.
struct TensorDifference {
  std::string name;
  bool is_in_a = true;
  bool is_in_b = true;
  // "f32[2, 3]"; empty where it is not. Elements are compared if they are
  // equal.
  std::string type_a;
  std::string type_b;
  Change elements;  // `largest` of F32 and F64 only
};

struct Difference {
  std::vector<TableDifference> tables;    // by name
  std::vector<TensorDifference> tensors;  // by name; unchanged ones too

  bool IsNone() const;
};

// kDataLoss if a tensor's name is in two files of one of them.
absl::StatusOr<Difference> DifferenceBetween(const SavedCheckpoint& a,
                                             const SavedCheckpoint& b);

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_DIFFERENCE_H_
