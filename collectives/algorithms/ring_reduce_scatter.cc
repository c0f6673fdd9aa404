#include "weft/collectives/algorithms/ring_reduce_scatter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {

absl::Status RingReduceScatter(Link& link, const Operation& operation,
                               const Blocks& inputs, const Block& output) {
  const int n = link.size();
  const int rank = link.rank();
  const DType dtype = operation.dtype;
  const int64_t item = AccumulatorBytes(dtype);
  int64_t most = 0;
  for (const Block& block : inputs) most = std::max(most, block.elements);
  std::vector<std::byte> leaving(most * item);
  std::vector<std::byte> arriving(most * item);
  const auto bytes_of = [&](std::vector<std::byte>& buffer, int block) {
    return absl::MakeSpan(buffer.data(), inputs[block].elements * item);
  };

  // Block `rank - 1` begins its way here, where it has one rank's elements.
  int block = Wrap(rank - 1, n);
  LoadElements(dtype, operation.reduction, inputs[block].memory, leaving.data(),
               inputs[block].elements);
  for (int step = 0; step < n - 1; ++step) {
    const int next = Wrap(block - 1, n);
    WEFT_RETURN_IF_ERROR(
        link.SendReceive(Wrap(rank + 1, n), bytes_of(leaving, block),
                         Wrap(rank - 1, n), bytes_of(arriving, next)));
    AddElements(dtype, operation.reduction, inputs[next].memory,
                arriving.data(), inputs[next].elements);
    std::swap(leaving, arriving);
    block = next;
  }
  StoreElements(dtype, operation.reduction.op, n, leaving.data(), output.memory,
                output.elements);
  return absl::OkStatus();
}

}  // namespace weft::collectives
