#include "weft/collectives/backends/device/device_agreement.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {
namespace {

constexpr int64_t kOnDevice = 1;
constexpr int64_t kHasFactor = 2;

// What a rank tells each other one where only pairs know the counts.
struct PairCounts {
  int64_t sent = 0;    // elements to that rank
  int64_t wanted = 0;  // and from it
  int64_t flags = 0;
};
constexpr int64_t kPairWords = sizeof(PairCounts) / sizeof(int64_t);

int64_t FlagsOf(const Operation& operation) {
  return (operation.ready != nullptr ? kOnDevice : 0) |
         (operation.reduction.factor != 1 ? kHasFactor : 0);
}

DeviceAgreement AgreementOf(int64_t flags) {
  return {(flags & kOnDevice) != 0, (flags & kHasFactor) != 0};
}

Operation StepOf(const Operation& operation, uint64_t number) {
  Operation step;
  step.sequence = number;
  step.deadline = operation.deadline;
  step.site = operation.site;
  step.whole = &operation;
  return step;
}

Block BlockOf(int64_t* words, int64_t count) {
  return {reinterpret_cast<std::byte*>(words), count};
}

PairCounts CountsWith(const Operation& operation, int rank, int peer) {
  PairCounts counts;
  counts.flags = FlagsOf(operation);
  const bool from_root = operation.verb == Verb::kScatter;
  const bool to_root = operation.verb == Verb::kGather;
  const Blocks& in = operation.inputs;
  const Blocks& out = operation.outputs;
  if (to_root) {
    if (peer == operation.root) counts.sent = in[0].elements;
    if (rank == operation.root) counts.wanted = out[peer].elements;
  } else if (from_root) {
    if (rank == operation.root) counts.sent = in[peer].elements;
    if (peer == operation.root) counts.wanted = out[0].elements;
  } else {
    counts.sent = in[peer].elements;
    counts.wanted = out[peer].elements;
  }
  return counts;
}

absl::Status CountsDiffer(int from, int64_t sent, int to, int64_t wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks called different operations: rank ", from, " sends ", sent,
      " elements to rank ", to, ", which wants ", wanted));
}

absl::StatusOr<DeviceAgreement> AgreeByPairs(Backend& host,
                                             const Operation& operation,
                                             uint64_t number) {
  const int n = host.size(), rank = host.rank();
  std::vector<PairCounts> mine, theirs(n);
  for (int r = 0; r < n; ++r) mine.push_back(CountsWith(operation, rank, r));
  Operation step = StepOf(operation, number);
  step.verb = Verb::kAllToAll;
  step.dtype = DType::kI64;
  for (int r = 0; r < n; ++r) {
    step.inputs.push_back(BlockOf(&mine[r].sent, kPairWords));
    step.outputs.push_back(BlockOf(&theirs[r].sent, kPairWords));
  }
  WEFT_RETURN_IF_ERROR(host.Run(step));
  int64_t flags = 0;
  for (int r = 0; r < n; ++r) {
    flags |= theirs[r].flags;
    if (theirs[r].sent != mine[r].wanted) {
      return CountsDiffer(r, theirs[r].sent, rank, mine[r].wanted);
    }
    if (mine[r].sent != theirs[r].wanted) {
      return CountsDiffer(rank, mine[r].sent, r, theirs[r].wanted);
    }
  }
  return AgreementOf(flags);
}

}  // namespace

bool HasPairCounts(Verb verb) {
  return verb == Verb::kGather || verb == Verb::kScatter ||
         verb == Verb::kAllToAll;
}

bool MovesNothing(const Operation& operation) {
  const Blocks& known =
      operation.verb == Verb::kBroadcast || operation.verb == Verb::kAllGather
          ? operation.outputs
          : operation.inputs;
  return std::all_of(known.begin(), known.end(),
                     [](const Block& block) { return block.elements == 0; });
}

absl::StatusOr<DeviceAgreement> AgreeOnOperation(Backend& host,
                                                 const Operation& operation,
                                                 uint64_t number) {
  if (HasPairCounts(operation.verb)) {
    return AgreeByPairs(host, operation, number);
  }
  int64_t mine = FlagsOf(operation), all = 0;
  Operation step = StepOf(operation, number);
  step.verb = Verb::kAllReduce;
  step.dtype = DType::kI64;
  step.reduction = ReduceOp::kOr;
  step.inputs = {BlockOf(&mine, 1)};
  step.outputs = {BlockOf(&all, 1)};
  WEFT_RETURN_IF_ERROR(host.Run(step));
  return AgreementOf(all);
}

}  // namespace weft::collectives
