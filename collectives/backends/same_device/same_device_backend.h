// The same_device backend: ranks that share a device, which NCCL refuses: as
// threads of one process, or as processes. Their tensors stay there: a rank's
// elements are read and written by work of the device, behind the streams of
// all ranks.
//
//   auto shared = SharedDevice::Create(devices, 0);  // one for each process
//   ... on the thread of each rank:
//   SameDeviceOptions options;
//   options.device = *shared;
//   auto host = ConnectHost(host_options);  // the same ranks; or another
//   auto backend = ConnectSameDevice(options, *std::move(host));
//   auto group = ProcessGroup::Create(*std::move(backend));
//
// As over nccl (device/device_backend.h), each operation is compared over the
// group of the host first, so ranks that differ, have ended or do not come are
// named; an operation ends by an event, and its Future is set after that.
//
//   on the device  AllReduce, Reduce and ReduceScatter, of every reduction and
//                  dtype; Broadcast, AllGather, Gather, Scatter, AllToAll; Send
//                  of a tensor on the device of more than `host_bytes`
//   host           Barrier, Split, other Sends, and what all ranks have on the
//                  CPU, after one exchange more
//
// Sums are added in the order of the ranks, with the bits of the host backend;
// no rank's tensor is copied to the host.
//
// Processes open each other's memory and events by handles of the Runtime
// (device/sharing.h), and meet in memory that rank 0 makes (shared_room.h).
// They are of one machine, user and pid namespace.
//
// Cost of a rank: two threads, two streams; for each rank that it sends to or
// receives from on the device, a stream more.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/same_device/shared_device.h"
#include "weft/collectives/group_endpoint.h"

namespace weft::collectives {

struct SameDeviceOptions : GroupTerms {
  // The same for all ranks, which are threads of one process; or one of each
  // rank's own, of the same GPU (simulated: of the same number), and they are
  // processes. REQUIRED. No other group on it has this `name`.
  std::shared_ptr<SharedDevice> device = nullptr;
  // A Send of at most so many bytes goes over the host; it is over once the
  // host's group has it, and not only once it was received.
  int64_t host_bytes = int64_t{64} << 10;
  // How long an operation that was given up waits for the device to be done
  // with its tensors; then it ends all the same. (Their memory is not handed
  // out before that.)
  absl::Duration longest_end = absl::Seconds(10);
  // Moves what all ranks have on the CPU through the device, too, and not over
  // the host; not so a Send.
  bool moves_host_tensors = false;
};

// Waits for all ranks, each of which has given its group of the host: `host`.
// Errors:
//   kInvalidArgument     options that make no sense
//   kFailedPrecondition  processes that are not on one device, or of other
//   users
//                        or pid namespaces
//   kUnimplemented       several processes, and several ranks in one of them;
//   or
//                        more than 64 ranks
//   else                 of the device, or why `host` was aborted; of absent
//                        ranks those of Backend::Run
// Where it fails on one rank, it fails on all: `host` is aborted.
absl::StatusOr<std::unique_ptr<Backend>> ConnectSameDevice(
    SameDeviceOptions options, std::unique_ptr<Backend> host);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_BACKEND_H_
