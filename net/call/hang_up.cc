#include "weft/net/call/hang_up.h"

#include "absl/strings/cord.h"

namespace weft::net {
namespace {

constexpr char kUrl[] = "weft.net/hang_up";

}  // namespace

bool WasHungUpOn(const absl::Status& status) {
  return status.GetPayload(kUrl).has_value();
}

absl::Status HungUpOn(absl::Status status) {
  status.SetPayload(kUrl, absl::Cord("1"));
  return status;
}

}  // namespace weft::net
