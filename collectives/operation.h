// Operation: what one rank asks of all ranks of its group, once its arguments
// are checked. This is what a Backend runs.

#ifndef WEFT_COLLECTIVES_OPERATION_H_
#define WEFT_COLLECTIVES_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/base/clock.h"
#include "weft/collectives/call_site.h"
#include "weft/collectives/reduction.h"
#include "weft/device/runtime.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

enum class Verb : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
  kSplit,     // as a whole (Operation::whole)
  kSubgroup,  // the same
};

// "AllReduce", ...
absl::string_view Name(Verb verb);

// `bytes()` of row-major elements, written by nobody else meanwhile: on the
// host, or on the device of Operation::ready.
struct Block {
  std::byte* memory = nullptr;
  int64_t elements = 0;
};
using Blocks = absl::InlinedVector<Block, 4>;

// The blocks of an operation with `size` ranks:
//   verb            inputs                  outputs
//   AllReduce       1                       1, of the same count
//   Broadcast       -                       1; the root's is read
//   Reduce          1                       1 at the root, else none
//   AllGather       1                       size; block r is rank r's input
//   Gather          1                       size at the root, else none
//   Scatter         size at the root        1
//   ReduceScatter   size                    1, of input `rank`'s count
//   AllToAll        size                    size
//   Barrier         -                       -
// An input may be the same memory as its output (block `rank` of size blocks);
// no other blocks overlap.
struct Operation {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  Reduction reduction;
  int root = 0;
  Blocks inputs;
  Blocks outputs;
  // Counts the collective operations of this rank on this group, from 0.
  uint64_t sequence = 0;
  uint64_t label = 0;  // CallOptions::label
  Instant deadline;
  CallSite site;
  // For blocks on a device: the event after which they may be read and written.
  // Null: they are on the host. Must outlive this.
  const device::Event* ready = nullptr;
  // What the user called, if this is only a step of it. That is what is
  // described and also compared between ranks. Must outlive this.
  const Operation* whole = nullptr;
  // A text of other arguments that must be equal on all ranks: at most
  // kMostDetailBytes.
  std::string detail;
  static constexpr size_t kMostDetailBytes = 63;

  int64_t BytesOf(const Block& block) const {
    return block.elements * ItemSize(dtype);
  }
};

// `operation`, or what it is a step of.
const Operation& WholeOf(const Operation& operation);

// A list for Operation::detail: "[2, 0, 1]", or "[0, 1, 2, ... of 70,
// #5f3a9c0112345678]" with a fingerprint of all.
std::string DescribeList(const std::vector<int>& list);

// Copies input to output, where both are there and not the same memory.
void CopyBlock(const Operation& operation, const Block& from, const Block& to);

// "AllReduce #12 (sum of f32[1024]) at train.cc:40".
std::string Describe(const Operation& operation);

// What must be equal on all ranks for the operation to make sense: verb, dtype,
// reduction operation, root, label, detail, and the counts where all ranks know
// them.
// Not the call site, and not counts of which a rank knows only its own.
uint64_t Fingerprint(const Operation& operation);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_OPERATION_H_
