#include "weft/rpc/session/outcome.h"

#include "absl/strings/cord.h"

namespace weft::rpc {
namespace {

constexpr char kOutcomeUrl[] = "weft.rpc.v1/outcome";

}  // namespace

bool OutcomeUnknown(const absl::Status& status) {
  return status.GetPayload(kOutcomeUrl).has_value();
}

absl::Status WithOutcomeUnknown(absl::Status status) {
  status.SetPayload(kOutcomeUrl, absl::Cord("unknown"));
  return status;
}

absl::Status WithOutcomeKnown(absl::Status status) {
  status.ErasePayload(kOutcomeUrl);
  return status;
}

}  // namespace weft::rpc
