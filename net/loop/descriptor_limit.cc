#include "weft/net/loop/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

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
