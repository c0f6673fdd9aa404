#include "weft/rpc/gateway/description.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/rendezvous/member.h"
#include "weft/rpc/connection/wire.h"

namespace weft::rpc {
namespace {

absl::Status Check(const v1::DescribeReply& reply) {
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(reply.name()));
  WEFT_RETURN_IF_ERROR(rendezvous::ValidateName(reply.job()));
  if (reply.key().epoch() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(reply.name(), " has no key of a coordinator"));
  }
  if (reply.functions_size() > static_cast<int>(kMaxFunctions)) {
    return absl::InvalidArgumentError(absl::StrCat(
        reply.functions_size(), " functions: at most ", kMaxFunctions));
  }
  for (const v1::Function& function : reply.functions()) {
    if (!function.name().empty()) continue;
    return absl::InvalidArgumentError("a function without a name");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::DescribeReply> ParseDescription(absl::string_view address,
                                                   absl::string_view bytes) {
  v1::DescribeReply reply;
  const absl::Status fit =
      reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))
          ? Check(reply)
          : absl::InvalidArgumentError("it cannot be read");
  if (fit.ok()) return reply;
  return absl::InternalError(
      absl::StrCat(address, " does not answer as a worker of this Weft does: ",
                   fit.message(), "; is it one, and of the same version?"));
}

}  // namespace weft::rpc
