// invitation: no bytes harm the reader of what rank 0 says of NCCL's
// identifier, and what it takes is said again in the same bytes.

#include "weft/collectives/backends/nccl/nccl_meeting.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

using collectives::NcclInvitation;

std::vector<std::string> Seeds() {
  NcclInvitation made;
  made.host = "3f2b9c1e-0000-4000-8000-123456789abc";
  NcclInvitation failed;
  failed.status = absl::UnavailableError("ncclGetUniqueId: system error (2)");
  return {collectives::Encode(made), collectives::Encode(failed), "id short"};
}

std::vector<std::string> Words() { return {"id ", "error "}; }

void Run(absl::string_view text) {
  const auto invitation = collectives::DecodeInvitation(text);
  if (!invitation.ok()) return;
  Hold(collectives::Encode(*invitation) == text);
}

WEFT_FUZZ_TARGET(invitation, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
