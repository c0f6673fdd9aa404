// The host backend: ranks of one host, as processes or threads, meet in shared
// memory; ranks of several hosts over streams besides. The default on CPU.
//
//   HostOptions options;
//   options.store = &store;   // of the job; see rendezvous/store.h
//   options.rank = rank;
//   options.size = size;
//   options.directory = socket_directory;
//   WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
//                         ConnectHost(options));
//   auto group = ProcessGroup::Create(std::move(backend));
//
// A tensor of ProcessGroup::Allocate lies in the shared memory; operations read
// and write it where it is. Any other is read from the memory of its rank
// (HostOptions::least_read_bytes), or copied through shared memory in
// pieces.
//
// With ranks on several hosts, an all-reduce and a broadcast run in shared
// memory within each host and over streams between the hosts; other operations,
// and Sends, over streams. Every rank needs HostOptions::streams for that.
//
// A rank that ends is found by its peers within a tenth of a second if it is a
// process of this host, killed or not; one that is stopped is reported after
// DiagnosisOptions::report_after, and ends operations once
// HostOptions::check_member says that it is gone, or at their deadline.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_HOST_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_HOST_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/stream/stream_backend.h"
#include "weft/collectives/backends/stream/streams.h"
#include "weft/collectives/group_endpoint.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/transport.h"

namespace weft::collectives {

struct HostOptions : GroupEndpoint {
  // For sockets: the job's directory of mode 0700.
  std::string directory;
  // How much ProcessGroup::Allocate may hand out on each rank at the same time.
  // Taken from the system as it is used, and kept until the group ends.
  int64_t arena_bytes = int64_t{64} << 20;
  // Tensors in no arena are read from the memory of their ranks if they have so
  // many bytes on each rank and the kernel permits it to all ranks of the host;
  // else pieces are copied through shared memory, which is faster for less.
  // Those of a Send already with an eighth of that.
  int64_t least_read_bytes = int64_t{2} << 20;
  // What the segment is counted against: its beginning, some 260 KiB for each
  // rank, at the rank that makes it, the rest at the rank that uses it. Null:
  // no bound.
  std::shared_ptr<transport::MemoryBudget> memory_budget = nullptr;
  // OK while the job counts `rank` as alive; else why it does not. Called about
  // ten times a second while that rank is waited for, by any thread. May be
  // null.
  std::function<absl::Status(int rank)> check_member = nullptr;

  // --- For ranks on several hosts. ---

  // The streams of this process. Must outlive the group and the groups made
  // from it. Null: all ranks are on one host.
  Streams* streams = nullptr;
  // How the others reach `streams`, and the name that this rank can prove.
  transport::Destination own_stream;
  // What streams cost: see StreamOptions.
  LinkCost stream_cost = StreamCost();
  bool measures_cost = false;
  // The ranks of one machine that share memory are those of one `host` here: so
  // tests make several of one.
  std::string host;
};

// Waits for all ranks. kInvalidArgument: options that make no sense;
// kDeadlineExceeded names the ranks that did not come; kResourceExhausted: no
// memory for the segment, or more than memory_budget has; kUnimplemented: some
// ranks are on another host and there are no streams (on every rank). A rank
// that cannot map the segment of its host, as in another container, counts as a
// host of its own, and is reported through `diagnosis`.
absl::StatusOr<std::unique_ptr<Backend>> ConnectHost(HostOptions options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HOST_BACKEND_H_
