#include "weft/net/loop/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/net/edge/descriptor.h"

namespace weft::net {

absl::Status CheckDescriptors(int wanted) {
  std::vector<Descriptor> opened;
  for (int i = 0; i < wanted; ++i) {
    Descriptor one(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (one.get() < 0) break;
    opened.push_back(std::move(one));
  }
  const int free = static_cast<int>(opened.size());
  if (free == wanted) return absl::OkStatus();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      "wanted at least ", wanted, " free descriptors, found ", free,
      " of a limit of ", limit.rlim_cur, "; raise it by `ulimit -n`"));
}

int64_t FreeDescriptors() {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kUnknown;
  const auto most =
      static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kUnknown));
  std::error_code error;
  int64_t open = -1;  // the directory has one itself
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end;
       !error && each != end; each.increment(error)) {
    // Those beyond a limit that was lowered take no place below it.
    int64_t number = 0;
    if (absl::SimpleAtoi(each->path().filename().string(), &number) &&
        number < most) {
      ++open;
    }
  }
  if (error == std::errc::too_many_files_open) return 0;
  return error ? most : std::max<int64_t>(0, most - open);
}

void RaiseDescriptorLimit() {
  constexpr rlim_t kMost = rlim_t{1} << 20;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t raised = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= raised) return;
  limit.rlim_cur = raised;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace weft::net
