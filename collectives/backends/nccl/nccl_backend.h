// The nccl backend: ranks that have a GPU each, whose tensors NCCL moves from
// device to device; beside a group of the same ranks over the host.
//
//   NcclOptions options;
//   options.store = &store;                 // rendezvous/store.h
//   options.rank = rank;
//   options.size = size;
//   options.context = devices;              // device/context.h
//   options.device = local_rank;
//   auto host = ConnectHost(host_options);  // the same ranks
//   auto backend = ConnectNccl(options, *std::move(host));
//   auto group = ProcessGroup::Create(*std::move(backend));
//
// Each operation is compared over the group of the host before it is given to
// NCCL, so ranks that differ, have ended or do not come are named there, and
// hang in no kernel. What runs where:
//
//   NCCL  AllReduce, Reduce and ReduceScatter: sum and average of all dtypes
//         but bool, product, min and max of integers; Broadcast, AllGather,
//         Gather, Scatter, AllToAll; Send of a tensor on the device
//   host  the rest: other reductions, Barrier, Split, Send of a tensor of the
//         CPU or of few bytes; and what all ranks have on the CPU, after one
//         exchange more
//
// A Send that NCCL moves is over once it was received, and takes no memory
// before. One over the host is over once the host's group has it.
//
// An average of floating elements is NCCL's: each rank's elements times 1 / n,
// and then their sum. An operation ends by an event of its stream; its Future
// is set after that. It is aborted, on every rank, by Revoke, at its deadline,
// when a rank's process ends and when NCCL reports an error.
//
// Cost of a rank: two threads, two streams, and NCCL's own; for each rank that
// it sends to or receives from over NCCL, a stream and a communicator more.
// Where the library is missing, ConnectNccl says what to install; a build needs
// nothing of NCCL.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"
#include "weft/collectives/group_endpoint.h"
#include "weft/device/context.h"

namespace weft::collectives {

// Rank 0 puts NCCL's identifier into its store.
struct NcclOptions : GroupEndpoint {
  // The devices of this rank. REQUIRED.
  std::shared_ptr<device::Context> context = nullptr;
  // The index of the device whose tensors NCCL moves. NCCL refuses two ranks on
  // one GPU.
  int device = 0;
  // NCCL's own traffic between hosts is neither encrypted nor authenticated:
  // ranks on several hosts want this.
  bool insecure = false;
  // A Send of at most so many bytes goes over the host.
  int64_t host_bytes = int64_t{64} << 10;
  // Ranks of one `host` are on one host; "": the machine says. For tests.
  std::string host;
  // Moves what all ranks have on the CPU through the device, too, and not over
  // the host; not so a Send.
  bool moves_host_tensors = false;
  // Null: those of libnccl.so.2.
  std::shared_ptr<const NcclFunctions> functions = nullptr;
};

// Waits for all ranks, each of which has given its group of the host: `host`,
// with the same rank and size. Errors:
//   kInvalidArgument     options that make no sense
//   kUnimplemented       NCCL was not found; what to install
//   kFailedPrecondition  ranks on several hosts, and not insecure
//   kDeadlineExceeded    ranks have not come
//   else                 of the device, of NCCL, or why `host` was aborted
// Where it fails on one rank, it fails on all: `host` is aborted.
absl::StatusOr<std::unique_ptr<Backend>> ConnectNccl(
    NcclOptions options, std::unique_ptr<Backend> host);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
