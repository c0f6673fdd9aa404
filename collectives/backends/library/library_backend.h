// LibraryBackend: a backend whose elements a collectives library moves (gloo,
// MPI), behind Weft's own agreement.
//
// The ranks have a Mesh besides, over the library's messages. An operation that
// the library has begins with an empty exchange on the mesh, in which every
// rank learns that all others have called the same: the library itself would
// hang or end the process where they have not. What the library lacks, or what
// it cannot check (counts that only pairs of ranks know), runs over the mesh:
//
//   library  AllReduce, Reduce, Broadcast, AllGather
//   mesh     Gather, Scatter, ReduceScatter, AllToAll, Barrier, Send, Receive
//
// Elements are reduced by accumulate.h in both, so results do not depend on
// what the library knows of dtypes and reductions.

#ifndef WEFT_COLLECTIVES_BACKENDS_LIBRARY_LIBRARY_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_LIBRARY_LIBRARY_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/collectives/backends/stream/mesh_backend.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Thread-safety: as Backend.
class LibraryBackend : public MeshBackend {
 public:
  absl::Status Run(const Operation& operation) final;

 protected:
  using MeshBackend::MeshBackend;

  // Accumulators of an operation's dtype: see accumulate.h.
  struct Accumulators {
    std::byte* memory = nullptr;
    int64_t count = 0;  // above 0
  };

  // Each is called on all ranks, of which there are several, with as many
  // elements on each. It returns when the memory is no longer used; errors are
  // those of Backend::Run.

  // Every rank's accumulators become the reduction of all.
  virtual absl::Status AllReduce(const Operation& operation,
                                 Accumulators accumulators) = 0;
  // As AllReduce at operation.root; on other ranks they become undefined.
  virtual absl::Status Reduce(const Operation& operation,
                              Accumulators accumulators) = 0;
  // Every rank's bytes become those of operation.root.
  virtual absl::Status Broadcast(const Operation& operation,
                                 absl::Span<std::byte> bytes) = 0;
  // bytes[r] becomes that of rank r, for each r; part r of `memory` has
  // counts[r] bytes, some of which may be 0.
  virtual absl::Status AllGather(const Operation& operation, std::byte* memory,
                                 const std::vector<size_t>& counts) = 0;

  // Leaves the group: sends what is still queued, and hears what the others
  // have sent, for a bounded time. Called before the connections end.
  void Leave();

  // Why a call of the library failed with `what`: the mesh knows which rank has
  // ended, or who aborted the group.
  absl::Status FailureOf(const Operation& operation, absl::string_view what);

 private:
  absl::Status RunAllReduce(const Operation& operation);
  absl::Status RunReduce(const Operation& operation);
  absl::Status RunAllGather(const Operation& operation);
  absl::Status RunInLibrary(const Operation& operation);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_LIBRARY_LIBRARY_BACKEND_H_
