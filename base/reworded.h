// Reworded: the same error in other words.

#ifndef WEFT_BASE_REWORDED_H_
#define WEFT_BASE_REWORDED_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// `status` with `message` in place of its own, and with its payloads; OK stays
// OK. It has `code` where one is given, which must not be kOk.
absl::Status Reworded(const absl::Status& status, absl::string_view message);
absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                      absl::string_view message);

}  // namespace weft

#endif  // WEFT_BASE_REWORDED_H_
