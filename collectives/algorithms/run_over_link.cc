#include "weft/collectives/algorithms/run_over_link.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/algorithms/direct.h"
#include "weft/collectives/algorithms/doubling_all_reduce.h"
#include "weft/collectives/algorithms/halving_all_reduce.h"
#include "weft/collectives/algorithms/ring.h"
#include "weft/collectives/algorithms/tree_broadcast.h"

namespace weft::collectives {
namespace {

absl::Status RunScheme(AllReduceScheme scheme, Link& link,
                       const Operation& operation, const Block& block) {
  switch (scheme) {
    case AllReduceScheme::kRing:
      return RingAllReduce(link, operation, block);
    case AllReduceScheme::kDoubling:
      return DoublingAllReduce(link, operation, block);
    case AllReduceScheme::kHalving:
      return HalvingAllReduce(link, operation, block);
  }
  return absl::InternalError("no scheme of an all-reduce");
}

absl::Status RunAllReduce(Link& link, const Operation& operation,
                          const LinkCost& cost) {
  const Block& block = operation.outputs[0];
  CopyBlock(operation, operation.inputs[0], block);
  const int64_t item = ItemSize(operation.dtype);
  const int64_t accumulator = AccumulatorBytes(operation.dtype);
  const AllReduceScheme scheme = cost.all_reduce.value_or(
      ChooseAllReduce(cost, link.size(), block.elements * accumulator));
  const bool is_in_place =
      accumulator == item &&
      (scheme == AllReduceScheme::kHalving ||
       (scheme == AllReduceScheme::kRing && operation.reduction.factor == 1 &&
        link.size() <= 2));
  const int64_t segment =
      is_in_place ? block.elements : cost.segment_bytes / accumulator;
  int64_t begin = 0;
  do {
    const Block part = {block.memory + begin * item,
                        std::min(segment, block.elements - begin)};
    WEFT_RETURN_IF_ERROR(RunScheme(scheme, link, operation, part));
    begin += part.elements;
  } while (begin < block.elements);
  return absl::OkStatus();
}

}  // namespace

double SecondsOf(AllReduceScheme scheme, const LinkCost& cost, int ranks,
                 int64_t bytes) {
  const double n = ranks;
  const double message = cost.seconds_per_message;
  const double all = static_cast<double>(bytes) / cost.bytes_per_second;
  const double log = std::floor(std::log2(n));
  const double power = std::exp2(log);
  const double folded = power < n ? 2 : 0;  // steps with all bytes
  // One of the two steps is a reduction of all bytes.
  const double reduction =
      cost.seconds_per_reduced_byte * static_cast<double>(bytes);
  switch (scheme) {
    case AllReduceScheme::kRing:
      return 2 * (n - 1) * message + 2 * (n - 1) / n * all +
             (n - 1) / n * reduction;
    case AllReduceScheme::kDoubling:
      return (log + folded) * (message + all) + (log + folded / 2) * reduction;
    case AllReduceScheme::kHalving:
      return (2 * log + folded) * message +
             (2 * (power - 1) / power + folded) * all +
             ((power - 1) / power + folded / 2) * reduction;
  }
  return 0;
}

AllReduceScheme ChooseAllReduce(const LinkCost& cost, int ranks,
                                int64_t bytes) {
  AllReduceScheme best = AllReduceScheme::kDoubling;
  // Halving before the ring: of two ranks they send the same, and halving adds
  // in place what arrives.
  for (const AllReduceScheme scheme :
       {AllReduceScheme::kHalving, AllReduceScheme::kRing}) {
    if (SecondsOf(scheme, cost, ranks, bytes) <
        SecondsOf(best, cost, ranks, bytes)) {
      best = scheme;
    }
  }
  return best;
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
    case Verb::kSplit:
    case Verb::kSubgroup:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(operation.verb), " is no collective operation"));
}

}  // namespace weft::collectives
