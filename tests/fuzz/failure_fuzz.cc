// failure: no details of an error harm who reads where a call failed.

#include "absl/status/status.h"
#include "weft/rpc/session/failure.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

constexpr char kUrl[] = "type.googleapis.com/weft.rpc.v1.ErrorDetails";

std::string DetailsOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::vector<std::string> Seeds() {
  const absl::Status one = rpc::internal::NameFailure(
      absl::DataLossError("lost"), "ps0", "ps::Push", rpc::Phase::kHandler);
  const absl::Status two =
      rpc::internal::ReceiveFailure(one, "ps1", "Merge", rpc::Phase::kQueue);
  return {DetailsOf(one), DetailsOf(two)};
}

std::vector<std::string> Words() {
  return {"\x18\x09", "\x20\xff\x01", "\x0a"};
}

void Run(absl::string_view input) {
  absl::Status status = absl::UnavailableError("failed");
  status.SetPayload(kUrl, absl::Cord(input));
  for (const rpc::Failure& failure : rpc::FailuresOf(status)) {
    Hold(rpc::NameOf(failure.phase) != nullptr);
    Hold(rpc::NameOf(failure.reason) != nullptr);
  }
  const absl::Status received =
      rpc::internal::ReceiveFailure(status, "ps0", "f", rpc::Phase::kHandler);
  Hold(received.code() == status.code());
}

WEFT_FUZZ_TARGET(failure, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
