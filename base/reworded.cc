#include "weft/base/reworded.h"

#include "absl/strings/cord.h"

namespace weft {

absl::Status Reworded(const absl::Status& status, absl::string_view message) {
  return Reworded(status, status.code(), message);
}

absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                      absl::string_view message) {
  if (status.ok()) return status;
  absl::Status other(code, message);
  status.ForEachPayload(
      [&other](absl::string_view url, const absl::Cord& payload) {
        other.SetPayload(url, payload);
      });
  return other;
}

}  // namespace weft
