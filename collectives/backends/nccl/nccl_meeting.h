// MeetForNccl: how the ranks of a group get the identifier of their
// communicator: rank 0 makes it and puts it in the store.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_MEETING_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_MEETING_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/collectives/backends/nccl/nccl_backend.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"

namespace weft::collectives {

// What rank 0 says, and how it lies in the store.
struct NcclInvitation {
  absl::Status status;  // why there is no communicator
  nccl::UniqueId id = {};
  std::string host;  // of rank 0
};
std::string Encode(const NcclInvitation& invitation);
// kInvalidArgument: no invitation.
absl::StatusOr<NcclInvitation> DecodeInvitation(absl::string_view text);

// Waits for rank 0. kFailedPrecondition: rank 0 is on another host, and not
// options.insecure; kDeadlineExceeded; errors of NCCL on rank 0, on every rank;
// of `check`, which ends the wait.
absl::StatusOr<nccl::UniqueId> MeetForNccl(
    const NcclOptions& options, const NcclFunctions& functions,
    Instant deadline, const std::function<absl::Status()>& check);
// Once all ranks have it, or none needs it: rank 0 removes it.
void EndNcclMeeting(const NcclOptions& options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_MEETING_H_
