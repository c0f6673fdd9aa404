#include "weft/collectives/algorithms/direct.h"

#include "weft/base/status_macros.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {

absl::Status DirectGather(Link& link, const Operation& operation,
                          const Block& input, const Blocks& outputs) {
  if (link.rank() != operation.root) {
    return link.Send(operation.root, BytesOf(operation, input));
  }
  CopyBlock(operation, input, outputs[link.rank()]);
  for (int r = 0; r < link.size(); ++r) {
    if (r == link.rank()) continue;
    WEFT_RETURN_IF_ERROR(link.Receive(r, BytesOf(operation, outputs[r])));
  }
  return absl::OkStatus();
}

absl::Status DirectScatter(Link& link, const Operation& operation,
                           const Blocks& inputs, const Block& output) {
  if (link.rank() != operation.root) {
    return link.Receive(operation.root, BytesOf(operation, output));
  }
  for (int r = 0; r < link.size(); ++r) {
    if (r == link.rank()) continue;
    WEFT_RETURN_IF_ERROR(link.Send(r, BytesOf(operation, inputs[r])));
  }
  CopyBlock(operation, inputs[link.rank()], output);
  return absl::OkStatus();
}

absl::Status PairwiseAllToAll(Link& link, const Operation& operation,
                              const Blocks& inputs, const Blocks& outputs) {
  const int n = link.size();
  const int rank = link.rank();
  CopyBlock(operation, inputs[rank], outputs[rank]);
  for (int step = 1; step < n; ++step) {
    const int to = Wrap(rank + step, n);
    const int from = Wrap(rank - step, n);
    WEFT_RETURN_IF_ERROR(link.SendReceive(to, BytesOf(operation, inputs[to]),
                                          from,
                                          BytesOf(operation, outputs[from])));
  }
  return absl::OkStatus();
}

absl::Status DisseminationBarrier(Link& link) {
  const int n = link.size();
  const int rank = link.rank();
  for (int distance = 1; distance < n; distance *= 2) {
    WEFT_RETURN_IF_ERROR(link.SendReceive(Wrap(rank + distance, n), {},
                                          Wrap(rank - distance, n), {}));
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
