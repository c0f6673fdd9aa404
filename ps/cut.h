// Cut: how a table's rows are laid out over servers and partitions, as both
// ends of a push or pull see it.
//
// A message to a server has its rows grouped by partition, partitions in
// ascending order, and within one the keys strictly ascending. For a dense
// table those are all the slices that the server holds.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_CUT_H_
#define WEFT_PS_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "weft/ps/placement.h"
#include "weft/ps/table_layout.h"

namespace weft::ps {

// The slices of a dense table that one server holds.
struct DensePart {
  struct Group {
    int partition = 0;
    std::vector<uint64_t> slices;  // ascending
    int64_t elements = 0;
  };
  std::vector<Group> groups;  // by ascending partition
  int64_t elements = 0;
};

// One for each server. REQUIRES: `layout` is dense.
std::vector<DensePart> CutDense(const TableLayout& layout,
                                const Placement& placement);

// Sparse keys, sorted into the order of the messages to the servers.
struct SparsePart {
  struct Group {
    int partition = 0;
    int64_t begin = 0;  // its keys are keys[begin, end)
    int64_t end = 0;
  };
  std::vector<Group> groups;
  std::vector<uint64_t> keys;
};

struct SparseCut {
  std::vector<SparsePart> parts;  // one for each server
  // For each of the caller's keys, which of the unique ones it is, counted
  // through the servers in order. [n]
  std::vector<int64_t> unique_of;
  int64_t unique = 0;
};

// Sorts and removes repetitions: O(n log n).
SparseCut CutSparse(absl::Span<const int64_t> keys, const Placement& placement);

}  // namespace weft::ps

#endif  // WEFT_PS_CUT_H_
