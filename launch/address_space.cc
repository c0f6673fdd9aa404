// AddressSpace: see the header.

#include "weft/launch/address_space.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {

absl::Status CheckAddressSpace(int64_t wanted_bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= static_cast<rlim_t>(wanted_bytes)) {
    return absl::OkStatus();
  }
  // The same limit is there after a restart.
  return worker::WithoutRestart(absl::ResourceExhaustedError(absl::StrCat(
      "wanted an address space of at least ", wanted_bytes >> 10,
      " KiB for threads, found a limit of ", limit.rlim_cur >> 10,
      " KiB: raise it by `ulimit -v`; to limit memory, use the group's limit "
      "(cgroup) or --limits")));
}

}  // namespace weft::launch
