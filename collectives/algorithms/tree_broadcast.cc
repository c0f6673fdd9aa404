#include "weft/collectives/algorithms/tree_broadcast.h"

#include <vector>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {
namespace {

// Ranks counted from the root: place 0 is the root, the parent of place p is p
// without its lowest bit, its children are p plus each lower bit.
struct Place {
  Place(const Link& link, int root)
      : n(link.size()), root(root), place(Wrap(link.rank() - root, n)) {}

  int RankOf(int other) const { return Wrap(other + root, n); }
  int lowest_bit() const {
    int bit = 1;
    while (bit < n && (place & bit) == 0) bit *= 2;
    return bit;  // for place 0: the first power of two that is >= n
  }

  const int n;
  const int root;
  const int place;
};

}  // namespace

absl::Status TreeBroadcast(Link& link, const Operation& operation,
                           const Block& block) {
  const Place at(link, operation.root);
  const int lowest = at.lowest_bit();
  if (at.place != 0) {
    WEFT_RETURN_IF_ERROR(
        link.Receive(at.RankOf(at.place - lowest), BytesOf(operation, block)));
  }
  for (int bit = lowest / 2; bit > 0; bit /= 2) {
    if (at.place + bit >= at.n) continue;
    WEFT_RETURN_IF_ERROR(
        link.Send(at.RankOf(at.place + bit), BytesOf(operation, block)));
  }
  return absl::OkStatus();
}

absl::Status TreeReduce(Link& link, const Operation& operation,
                        const Block& input, const Block& output) {
  const Place at(link, operation.root);
  const DType dtype = operation.dtype;
  const int64_t count = input.elements;
  std::vector<std::byte> mine(count * AccumulatorBytes(dtype));
  std::vector<std::byte> theirs(mine.size());
  LoadElements(dtype, operation.reduction, input.memory, mine.data(), count);
  const int lowest = at.lowest_bit();
  for (int bit = 1; bit < lowest; bit *= 2) {
    if (at.place + bit >= at.n) break;
    WEFT_RETURN_IF_ERROR(
        link.Receive(at.RankOf(at.place + bit), absl::MakeSpan(theirs)));
    AddAccumulators(dtype, operation.reduction.op, theirs.data(), mine.data(),
                    count);
  }
  if (at.place != 0) return link.Send(at.RankOf(at.place - lowest), mine);
  StoreElements(dtype, operation.reduction.op, at.n, mine.data(), output.memory,
                count);
  return absl::OkStatus();
}

}  // namespace weft::collectives
