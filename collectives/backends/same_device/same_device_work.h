// PutWorkOfAll: an operation of ranks that share a device as work of one
// stream: copies between their blocks, and reductions.
//
//   AllReduce, Reduce           one kernel, which reads each input once and
//                               writes each output once
//   ReduceScatter               one kernel for each rank
//   Broadcast, AllGather, Gather, Scatter, AllToAll, Send with its Receive
//                               a copy from each rank to each that wants it

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORK_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/collectives/operation.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Whether it is an operation that PutWorkOfAll knows, of all ranks of a group.
bool IsOfSameDevice(Verb verb);

// `ranks`: what each has called, which fits; its blocks are memory of the
// stream's device. An AllToAll must not be in place. Sums are added in the
// order of the ranks, in the accumulators of accumulate.h. Errors of the
// Runtime; then some of it may be on the stream.
// REQUIRES: IsOfSameDevice, or a Send and a Receive of two ranks.
absl::Status PutWorkOfAll(device::Stream stream,
                          absl::Span<const Operation* const> ranks);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORK_H_
