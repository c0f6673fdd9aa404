#include "weft/launch/failure/exit.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {

std::string Exit::ToString() const {
  if (signal != 0) {
    const char* name = sigabbrev_np(signal);
    return absl::StrCat("killed by SIG",
                        name != nullptr ? name : absl::StrCat(signal));
  }
  return absl::StrCat("exit code ", code, " (",
                      worker::NameOf(static_cast<worker::ExitCode>(code)), ")");
}

}  // namespace weft::launch
