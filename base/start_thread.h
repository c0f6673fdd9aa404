// StartThread: a thread, or a Status where the system has none left.

#ifndef WEFT_BASE_START_THREAD_H_
#define WEFT_BASE_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"

namespace weft {

// `fn()` on a thread of its own. kResourceExhausted, with `what` it is for, if
// there can be no more. Failpoint: base/start_thread.
template <typename Fn>
absl::StatusOr<std::thread> StartThread(absl::string_view what, Fn fn) {
  WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("base/start_thread"));
  try {
    return std::thread(std::move(fn));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, ": cannot start a thread: ", error.what(),
        "; raise `ulimit -u`, `ulimit -v`, or the group's limit of "
        "pids or memory"));
  }
}

}  // namespace weft

#endif  // WEFT_BASE_START_THREAD_H_
