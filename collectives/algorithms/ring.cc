#include "weft/collectives/algorithms/ring.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "weft/base/status_macros.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {
namespace {

// Adds this rank's elements to the accumulators of others.
class Step {
 public:
  Step(const Operation& operation, const Block& own)
      : operation_(operation),
        own_(own),
        item_(ItemSize(operation.dtype)),
        accumulator_(AccumulatorBytes(operation.dtype)) {}

  // Sets `accumulators` to the sums of `piece` and this rank's own elements.
  void AddTo(std::byte* accumulators, int64_t offset,
             absl::Span<const std::byte> piece) const {
    if (piece.empty()) return;  // of a block without elements
    memcpy(accumulators + offset, piece.data(), piece.size());
    AddOwn(accumulators + offset, offset, piece.size());
  }
  // Adds likewise, and stores the elements of the result in `output`.
  void StoreIn(const Block& output, int ranks, int64_t offset,
               absl::Span<const std::byte> piece) const {
    constexpr int64_t kPortion = 8 << 10;
    alignas(64) std::byte sums[kPortion];
    while (!piece.empty()) {
      const auto portion = piece.subspan(0, kPortion);
      memcpy(sums, portion.data(), portion.size());
      AddOwn(sums, offset, portion.size());
      StoreElements(operation_.dtype, operation_.reduction.op, ranks, sums,
                    output.memory + offset / accumulator_ * item_,
                    static_cast<int64_t>(portion.size()) / accumulator_);
      piece.remove_prefix(portion.size());
      offset += static_cast<int64_t>(portion.size());
    }
  }

 private:
  // accumulators[0] is that of the element at `offset` bytes of accumulators.
  void AddOwn(std::byte* accumulators, int64_t offset, size_t bytes) const {
    AddElements(operation_.dtype, operation_.reduction,
                own_.memory + offset / accumulator_ * item_, accumulators,
                static_cast<int64_t>(bytes) / accumulator_);
  }

  const Operation& operation_;
  const Block own_;
  const int64_t item_;
  const int64_t accumulator_;
};

// Not initialised: a vector would write it all first.
using Buffer = std::unique_ptr<std::byte[]>;
Buffer MakeBuffer(int64_t bytes) { return Buffer(new std::byte[bytes]); }

}  // namespace

absl::Status RingReduceScatter(Link& link, const Operation& operation,
                               const Blocks& inputs, const Block& output) {
  const int n = link.size();
  const int rank = link.rank();
  const DType dtype = operation.dtype;
  const int64_t item = AccumulatorBytes(dtype);
  int64_t most = 0;
  for (const Block& block : inputs) most = std::max(most, block.elements);
  Buffer leaving, arriving;

  // Block `rank - 1` begins its way here, where it has one rank's elements.
  int block = Wrap(rank - 1, n);
  const std::byte* out = inputs[block].memory;
  if (n == 1 || !ElementsAreAccumulators(dtype, operation.reduction)) {
    leaving = MakeBuffer(most * item);
    LoadElements(dtype, operation.reduction, out, leaving.get(),
                 inputs[block].elements);
    out = leaving.get();
  }
  for (int step = 0; step < n - 1; ++step) {
    const int next = Wrap(block - 1, n);
    const Step sum(operation, inputs[next]);
    const bool is_last = step == n - 2;
    if (!is_last && arriving == nullptr) arriving = MakeBuffer(most * item);
    WEFT_RETURN_IF_ERROR(link.SendReduce(
        Wrap(rank + 1, n),
        {out, static_cast<size_t>(inputs[block].elements * item)},
        Wrap(rank - 1, n), inputs[next].elements * item, item,
        [&](int64_t offset, absl::Span<const std::byte> piece) {
          if (is_last) {
            sum.StoreIn(output, n, offset, piece);
          } else {
            sum.AddTo(arriving.get(), offset, piece);
          }
        }));
    std::swap(leaving, arriving);
    out = leaving.get();
    block = next;
  }
  if (n == 1) {
    StoreElements(dtype, operation.reduction.op, n, out, output.memory,
                  output.elements);
  }
  return absl::OkStatus();
}

absl::Status RingAllGather(Link& link, const Operation& operation,
                           const Blocks& outputs) {
  const int n = link.size();
  const int rank = link.rank();
  for (int step = 0; step < n - 1; ++step) {
    WEFT_RETURN_IF_ERROR(link.SendReceive(
        Wrap(rank + 1, n), BytesOf(operation, outputs[Wrap(rank - step, n)]),
        Wrap(rank - 1, n),
        BytesOf(operation, outputs[Wrap(rank - step - 1, n)])));
  }
  return absl::OkStatus();
}

absl::Status RingAllReduce(Link& link, const Operation& operation,
                           const Block& block) {
  const Blocks parts = PartsOf(block, operation.dtype, link.size());
  WEFT_RETURN_IF_ERROR(
      RingReduceScatter(link, operation, parts, parts[link.rank()]));
  return RingAllGather(link, operation, parts);
}

}  // namespace weft::collectives
