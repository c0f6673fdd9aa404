// Cut: how a table's rows are laid out over servers and partitions, as both
// ends of a push or pull see it.
//
// A message to a server has its rows grouped by partition. For a sparse table
// the partitions ascend, and within one the mixed keys (Mix64 of
// ps/placement.h) strictly ascend: sorting by them is a few counting passes,
// since they are spread evenly, and the server finds the rows in the order of
// its index. For a dense table the message has all slices that the server
// holds; partitions come in the order of their first slices, so that one
// server's message is the vector itself, unless a partition has several slices.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_CORE_CUT_H_
#define WEFT_PS_CORE_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"

namespace weft::ps {

// The slices of a dense table that one server holds.
struct DensePart {
  struct Group {
    int partition = 0;
    std::vector<uint64_t> slices;  // ascending
    int64_t elements = 0;
  };
  std::vector<Group> groups;
  int64_t elements = 0;
  // Whether the message is the whole vector in its own order.
  bool is_whole = false;
};

// Those of all groups, in their order.
std::vector<uint64_t> SlicesOf(const std::vector<DensePart::Group>& groups);

// One for each server. REQUIRES: `layout` is dense.
std::vector<DensePart> CutDense(const TableLayout& layout,
                                const Placement& placement);

// Sparse keys, sorted into the order of the messages to the servers.
struct SparsePart {
  struct Group {
    int partition = 0;
    int64_t begin = 0;  // its keys are those of the part in [begin, end)
    int64_t end = 0;
  };
  std::vector<Group> groups;
  int64_t begin = 0;  // its keys are SparseCut::keys[begin, end)
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

struct SparseCut {
  std::vector<SparsePart> parts;  // one for each server
  std::vector<uint64_t> keys;  // no key twice; the servers' follow each other
  // The positions [n] of the caller's keys in the order of the messages, those
  // of equal keys ascending.
  std::vector<uint32_t> order;
  // For each of `order`, which of `keys` it is. Empty if no key repeats: then
  // it is the place in `order`.
  std::vector<uint32_t> unique_of;
  // While it is made: how many of `order` belong to keys of groups.
  size_t sorted = 0;

  uint32_t UniqueOf(size_t i) const {
    return unique_of.empty() ? static_cast<uint32_t>(i) : unique_of[i];
  }
  absl::Span<const uint64_t> KeysOf(int server) const {
    return absl::MakeConstSpan(keys).subspan(parts[server].begin,
                                             parts[server].size());
  }
};

// Sorts and removes repetitions, in time proportional to the number of keys.
// REQUIRES: fewer than 2^32 keys.
SparseCut CutSparse(absl::Span<const int64_t> keys, const Placement& placement);

// The same. Meanwhile calls `grown` with what is there already: groups that
// are whole, and what belongs to them, to which nothing is added before.
SparseCut CutSparse(absl::Span<const int64_t> keys, const Placement& placement,
                    absl::FunctionRef<void(const SparseCut&)> grown);

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_CUT_H_
