#include "weft/collectives/algorithms/run_over_link.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/algorithms/direct.h"
#include "weft/collectives/algorithms/doubling_all_reduce.h"
#include "weft/collectives/algorithms/ring_all_gather.h"
#include "weft/collectives/algorithms/ring_all_reduce.h"
#include "weft/collectives/algorithms/ring_reduce_scatter.h"
#include "weft/collectives/algorithms/tree_broadcast.h"

namespace weft::collectives {
namespace {

absl::Status RunAllReduce(Link& link, const Operation& operation,
                          const LinkCost& cost) {
  const Block& block = operation.outputs[0];
  CopyBlock(operation, operation.inputs[0], block);
  const int64_t bytes = block.elements * AccumulatorBytes(operation.dtype);
  return ChooseAllReduce(cost, link.size(), bytes) == AllReduceScheme::kRing
             ? RingAllReduce(link, operation, block)
             : DoublingAllReduce(link, operation, block);
}

}  // namespace

AllReduceScheme ChooseAllReduce(const LinkCost& cost, int ranks,
                                int64_t bytes) {
  if (ranks <= 1) return AllReduceScheme::kDoubling;
  const double all = static_cast<double>(bytes) / cost.bytes_per_second;
  const double steps = std::ceil(std::log2(ranks));
  const double ring = 2 * (ranks - 1) * cost.seconds_per_message +
                      2.0 * (ranks - 1) / ranks * all;
  const double doubling = steps * (cost.seconds_per_message + all);
  return ring < doubling ? AllReduceScheme::kRing : AllReduceScheme::kDoubling;
}

absl::Status RunOverLink(Link& link, const Operation& operation,
                         const LinkCost& cost) {
  const Blocks& inputs = operation.inputs;
  const Blocks& outputs = operation.outputs;
  const bool is_root = link.rank() == operation.root;
  switch (operation.verb) {
    case Verb::kAllReduce:
      return RunAllReduce(link, operation, cost);
    case Verb::kBroadcast:
      return TreeBroadcast(link, operation, outputs[0]);
    case Verb::kReduce:
      return TreeReduce(link, operation, inputs[0],
                        is_root ? outputs[0] : Block());
    case Verb::kAllGather:
      CopyBlock(operation, inputs[0], outputs[link.rank()]);
      return RingAllGather(link, operation, outputs);
    case Verb::kGather:
      return DirectGather(link, operation, inputs[0], outputs);
    case Verb::kScatter:
      return DirectScatter(link, operation, inputs, outputs[0]);
    case Verb::kReduceScatter:
      return RingReduceScatter(link, operation, inputs, outputs[0]);
    case Verb::kAllToAll:
      return PairwiseAllToAll(link, operation, inputs, outputs);
    case Verb::kBarrier:
      return DisseminationBarrier(link);
    case Verb::kSend:
    case Verb::kReceive:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(operation.verb), " is no collective operation"));
}

}  // namespace weft::collectives
