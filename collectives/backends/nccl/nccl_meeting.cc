#include "weft/collectives/backends/nccl/nccl_meeting.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/await_key.h"
#include "weft/rendezvous/boot_id.h"

namespace weft::collectives {
namespace {

constexpr absl::Duration kToLeave = absl::Seconds(2);
constexpr absl::string_view kMade = "id ";
constexpr absl::string_view kFailed = "error ";

std::string KeyOf(const NcclOptions& options) {
  return absl::StrCat("nccl/", options.name, "/id");
}

std::string HostOf(const NcclOptions& options) {
  return options.host.empty() ? rendezvous::BootId() : options.host;
}

absl::Status CheckHost(const NcclOptions& options,
                       const NcclInvitation& invitation) {
  if (options.insecure || invitation.host == HostOf(options)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", options.rank, " is on another host than rank 0, and NCCL ",
      "neither encrypts nor authenticates what it sends between hosts; set ",
      "NcclOptions::insecure if all who can reach that network are trusted, ",
      "or take the host backend, which has TLS"));
}

}  // namespace

std::string Encode(const NcclInvitation& invitation) {
  if (!invitation.status.ok()) {
    return absl::StrCat(kFailed, invitation.status.message());
  }
  return absl::StrCat(
      kMade, absl::string_view(invitation.id.bytes, sizeof invitation.id.bytes),
      invitation.host);
}

absl::StatusOr<NcclInvitation> DecodeInvitation(absl::string_view text) {
  NcclInvitation invitation;
  if (text.substr(0, kFailed.size()) == kFailed) {
    text.remove_prefix(kFailed.size());
    invitation.status = absl::UnavailableError(text);
    return invitation;
  }
  const bool is_made = text.substr(0, kMade.size()) == kMade;
  if (is_made) text.remove_prefix(kMade.size());
  if (!is_made || text.size() < sizeof invitation.id.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted the identifier of a communicator of NCCL, found ",
                     text.size(), " bytes that are none"));
  }
  memcpy(invitation.id.bytes, text.data(), sizeof invitation.id.bytes);
  invitation.host = std::string(text.substr(sizeof invitation.id.bytes));
  return invitation;
}

absl::StatusOr<nccl::UniqueId> MeetForNccl(
    const NcclOptions& options, const NcclFunctions& functions,
    Instant deadline, const std::function<absl::Status()>& check) {
  NcclInvitation invitation;
  if (options.rank == 0) {
    invitation.status =
        NcclStatus(functions, functions.GetUniqueId(&invitation.id),
                   "ncclGetUniqueId", nullptr);
    invitation.host = HostOf(options);
    const absl::Duration left =
        std::max(deadline - SteadyClock().Now(), absl::Milliseconds(1));
    WEFT_RETURN_IF_ERROR(
        options.store->Set(KeyOf(options), Encode(invitation), left).status());
    WEFT_RETURN_IF_ERROR(invitation.status);
    return invitation.id;
  }
  const absl::StatusOr<std::string> text =
      AwaitKey(*options.store, KeyOf(options), deadline, check);
  if (!text.ok()) {
    return Reworded(text.status(),
                    absl::StrCat("waited for rank 0, which makes the ",
                                 "identifier: ", text.status().message()));
  }
  WEFT_ASSIGN_OR_RETURN(invitation, DecodeInvitation(*text));
  if (!invitation.status.ok()) {
    return Reworded(invitation.status,
                    absl::StrCat("on rank 0: ", invitation.status.message()));
  }
  WEFT_RETURN_IF_ERROR(CheckHost(options, invitation));
  return invitation.id;
}

void EndNcclMeeting(const NcclOptions& options) {
  if (options.rank != 0) return;
  options.store->Delete(KeyOf(options), kToLeave).IgnoreError();
}

}  // namespace weft::collectives
