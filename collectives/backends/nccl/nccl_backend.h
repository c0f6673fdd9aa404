// The NCCL backend: ranks that have a GPU each.
//
// Only its interface is here: Weft has no tensors on GPUs yet, so ConnectNccl
// is kUnimplemented in every build (no_nccl.cc) and IsAvailable("nccl") says
// so.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/group_endpoint.h"

namespace weft::collectives {

// In its store the ranks agree on NCCL's identifier.
struct NcclOptions : GroupEndpoint {
  // Of this rank: the number of its GPU.
  int device = 0;
  // NCCL's own traffic between hosts is neither encrypted nor authenticated:
  // ranks on several hosts want this.
  bool insecure = false;
};

// kUnimplemented: this build has no NCCL; the message says what is needed.
absl::StatusOr<std::unique_ptr<Backend>> ConnectNccl(NcclOptions options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_BACKEND_H_
