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
#include "weft/collectives/backends/device/device_mover.h"
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

// The stream on which an operation runs, and the communicator and rank it uses.
struct NcclPlace {
  const NcclFunctions& functions;
  nccl::Comm comm = nullptr;
  int rank = 0;
  int size = 1;
  device::Context& context;
  device::Stream stream;
};

// Has NCCL put `operation`, whose blocks are memory of the stream's device, on
// place.stream, which is `native` for NCCL; `with_factors`: some rank has a
// factor other than 1. Does not wait: the communicator says when it is there.
// Errors are those of NCCL and of the Runtime. REQUIRES: IsOfNccl(operation),
// or a Send or Receive.
absl::Status LaunchOnNccl(const NcclPlace& place, const Operation& operation,
                          bool with_factors, nccl::NativeStream native,
                          DeviceScratch& scratch);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_LAUNCH_H_
