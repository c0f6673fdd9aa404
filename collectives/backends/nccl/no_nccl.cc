// The NCCL backend of a build without it.

#include "absl/strings/str_cat.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"

namespace weft::collectives {

absl::StatusOr<std::unique_ptr<Backend>> ConnectNccl(NcclOptions options) {
  return absl::UnimplementedError(absl::StrCat(
      "ConnectNccl, rank ", options.rank, " of ", options.size, " of group ",
      options.name,
      ": this build has no NCCL, which needs tensors on GPUs (Weft has none ",
      "yet), the CUDA toolkit and libnccl; take the host backend for tensors ",
      "on the CPU"));
}

}  // namespace weft::collectives
