// Reworded: the same error in other words.

#ifndef WEFT_BASE_REWORDED_H_
#define WEFT_BASE_REWORDED_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft {

// `status` with `message` for its own, and its payloads; OK stays OK. Of `code`
// where one is given, which is not kOk.
absl::Status Reworded(const absl::Status& status, absl::string_view message);
absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                      absl::string_view message);

}  // namespace weft

#endif  // WEFT_BASE_REWORDED_H_
