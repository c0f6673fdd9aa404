// LostPartition: see the header.

#include "weft/ps/lost_partition.h"

#include "absl/strings/cord.h"

namespace weft::ps {
namespace {

constexpr char kPayload[] = "weft.ps/lost_partition";

}  // namespace

absl::Status LostPartition(absl::string_view message) {
  absl::Status status = absl::DataLossError(message);
  status.SetPayload(kPayload, absl::Cord("1"));
  return status;
}

bool IsLostPartition(const absl::Status& status) {
  return status.GetPayload(kPayload).has_value();
}

}  // namespace weft::ps
