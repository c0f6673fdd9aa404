// CoordinatorCore::CheckSize: whether a request is of a size that is taken.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/member.h"

namespace weft::rendezvous {
namespace {

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::JoinRequest& request) {
  const v1::Member& member = request.member();
  WEFT_RETURN_IF_ERROR(ValidateName(member.name()));
  const auto limit = static_cast<size_t>(options.max_member_bytes);
  if (member.ByteSizeLong() > limit) {
    size_t labels = 0;
    for (const auto& [name, value] : member.labels()) {
      labels += name.size() + value.size();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        member.name(), " joins with ", member.ByteSizeLong(),
        " bytes, which all others would be sent, and may with ", limit,
        ": its labels have ", labels, ", its address ", member.address().size(),
        ", its role ", member.role().size(), "; give it shorter ones"));
  }
  const size_t world = request.world().ByteSizeLong();
  if (world <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(member.name(), " expects a world of ", world,
                   " bytes, which may have ", limit, ": have fewer roles"));
}

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::HeartbeatRequest& request) {
  if (request.departed_size() <= options.max_names) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a heartbeat tells of ", request.departed_size(),
      " workers that are gone; a job has at most ", options.max_names));
}

absl::Status CheckSizeOf(const CoordinatorCore::Options& options,
                         const v1::BarrierRequest& request) {
  const auto tag_bytes = static_cast<int64_t>(request.tag().size());
  if (tag_bytes > options.max_tag_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Barrier ", request.tag().substr(0, 64), "...: the tag has ", tag_bytes,
        " bytes, at most ", options.max_tag_bytes));
  }
  if (request.members_size() > options.max_names) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Barrier ", request.tag(), " names ", request.members_size(),
        " members; a job has at most ", options.max_names));
  }
  if (request.unsettled_size() > options.barriers.arrivals) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Barrier ", request.tag(), ": its caller is at ",
                     request.unsettled_size(), " barriers, at most ",
                     options.barriers.arrivals, ": wait for some first"));
  }
  for (const std::string& name : request.members()) {
    const absl::Status valid = ValidateName(name);
    if (valid.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Barrier ", request.tag(), ": ", valid.message()));
  }
  return absl::OkStatus();
}

// Others are as long as what bounds a request.
template <typename T>
absl::Status CheckSizeOf(const CoordinatorCore::Options&, const T&) {
  return absl::OkStatus();
}

}  // namespace

absl::Status CoordinatorCore::CheckSize(const Options& options,
                                        const Request& request) {
  return std::visit([&](const auto& r) { return CheckSizeOf(options, r); },
                    request);
}

}  // namespace weft::rendezvous
