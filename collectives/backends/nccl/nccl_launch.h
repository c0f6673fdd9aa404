// NcclLaunch: one operation on tensors of a device as calls of NCCL.
//
//   AllReduce      ncclAllReduce
//   Broadcast      ncclBroadcast
//   Reduce         ncclReduce
//   AllGather      ncclAllGather; if counts differ, ncclBroadcast by each rank
//   ReduceScatter  ncclReduceScatter; if they differ, ncclReduce to each rank
//   Gather         ncclSend and ncclRecv, all in one group;
//                  so are Scatter and AllToAll
//   Send, Receive  ncclSend or ncclRecv, with rank `root`
//
// Which calls there are depends on what all ranks know alike (verb, dtype,
// reduction and counts), never on where the blocks of one rank lie: ranks that
// make different calls would hang in their kernels.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_LAUNCH_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"
#include "weft/collectives/operation.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Whether NCCL does it as ProcessGroup promises it. It lacks arithmetic of
// bool, bitwise reductions, and products, minima and maxima of floating dtypes
// (a NaN would lose, and factors are for sums alone). All ranks that call the
// same find the same.
bool IsOfNccl(const Operation& operation);

// Whether only pairs of ranks know the counts of its blocks.
bool HasPairCounts(Verb verb);

// Whether it moves no element on any rank. REQUIRES: !HasPairCounts.
bool MovesNothing(const Operation& operation);

// The stream on which an operation runs, and the communicator and rank it uses.
struct NcclPlace {
  const NcclFunctions& functions;
  nccl::Comm comm = nullptr;
  int rank = 0;
  int size = 1;
  device::Context& context;
  device::Stream stream;
};

// What a launched operation uses besides its blocks, kept until it has run.
struct NcclScratch {
  std::vector<std::shared_ptr<device::Block>> memory;
  // To be put on the stream behind it, which NCCL may not have put there yet.
  struct Copy {
    const std::byte* from;
    std::byte* to;
    int64_t bytes;
  };
  std::vector<Copy> copies;
};

// Has NCCL put `operation`, whose blocks are memory of the stream's device, on
// place.stream, which is `native` for NCCL; `with_factors`: some rank has a
// factor other than 1. Does not wait: the communicator says when it is there.
// Errors are those of NCCL and of the Runtime. REQUIRES: IsOfNccl(operation),
// or a Send or Receive.
absl::Status LaunchOnNccl(const NcclPlace& place, const Operation& operation,
                          bool with_factors, nccl::NativeStream native,
                          NcclScratch& scratch);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_LAUNCH_H_
