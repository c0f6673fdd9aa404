#include "weft/net/call/connection_reset.h"

#include "absl/strings/cord.h"

namespace weft::net {
namespace {

constexpr char kUrl[] = "weft.net/connection_reset";

}  // namespace

bool WasConnectionReset(const absl::Status& status) {
  return status.GetPayload(kUrl).has_value();
}

absl::Status MarkConnectionReset(absl::Status status) {
  status.SetPayload(kUrl, absl::Cord("1"));
  return status;
}

}  // namespace weft::net
