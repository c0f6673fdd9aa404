#include "weft/collectives/algorithms/doubling_all_reduce.h"

#include <utility>
#include <vector>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {
namespace {

using Bytes = std::vector<std::byte>;

// `mine` becomes lower op upper, on both partners.
absl::Status CombineWith(Link& link, const Operation& operation, int partner,
                         int64_t elements, Bytes& mine, Bytes& theirs) {
  WEFT_RETURN_IF_ERROR(
      link.SendReceive(partner, mine, partner, absl::MakeSpan(theirs)));
  if (partner < link.rank()) std::swap(mine, theirs);
  AddAccumulators(operation.dtype, operation.reduction.op, theirs.data(),
                  mine.data(), elements);
  return absl::OkStatus();
}

}  // namespace

absl::Status DoublingAllReduce(Link& link, const Operation& operation,
                               const Block& block) {
  const int n = link.size();
  const int rank = link.rank();
  int power = 1;
  while (power * 2 <= n) power *= 2;
  Bytes mine(block.elements * AccumulatorBytes(operation.dtype));
  Bytes theirs(mine.size());
  LoadElements(operation.dtype, operation.reduction, block.memory, mine.data(),
               block.elements);
  if (rank >= power) {
    WEFT_RETURN_IF_ERROR(link.Send(rank - power, mine));
    WEFT_RETURN_IF_ERROR(link.Receive(rank - power, absl::MakeSpan(mine)));
  } else {
    const int extra = rank + power;
    if (extra < n) {
      WEFT_RETURN_IF_ERROR(link.Receive(extra, absl::MakeSpan(theirs)));
      AddAccumulators(operation.dtype, operation.reduction.op, theirs.data(),
                      mine.data(), block.elements);
    }
    for (int distance = 1; distance < power; distance *= 2) {
      WEFT_RETURN_IF_ERROR(CombineWith(link, operation, rank ^ distance,
                                       block.elements, mine, theirs));
    }
    if (extra < n) WEFT_RETURN_IF_ERROR(link.Send(extra, mine));
  }
  StoreElements(operation.dtype, operation.reduction.op, n, mine.data(),
                block.memory, block.elements);
  return absl::OkStatus();
}

}  // namespace weft::collectives
