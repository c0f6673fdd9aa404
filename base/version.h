// Version: which Weft this is.

#ifndef WEFT_WORKER_VERSION_H_
#define WEFT_WORKER_VERSION_H_

#include "absl/strings/string_view.h"

namespace weft::worker {

inline constexpr absl::string_view kVersion = "0.1.0";

}  // namespace weft::worker

#endif  // WEFT_WORKER_VERSION_H_
