// Which backends a binary has.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/collectives/linked_backends.h"
#include "weft/collectives/process_group.h"

namespace weft::collectives {

absl::Status IsAvailable(absl::string_view backend) {
  if (backend == "local" || backend == "host" || backend == "stream") {
    return absl::OkStatus();
  }
  struct Optional {
    absl::string_view name;
    bool is_linked;
    absl::string_view wants;
  };
  const Optional optional[] = {
      {"gloo", WeftCollectivesHasGloo != nullptr,
       "link //:collectives_gloo (Debian's libgloo-dev)"},
      {"mpi", WeftCollectivesHasMpi != nullptr,
       "link //:collectives_mpi (Debian's libopenmpi-dev)"},
      {"nccl", WeftCollectivesHasNccl != nullptr, "link //:collectives_nccl"},
      {"same_device", WeftCollectivesHasSameDevice != nullptr,
       "link //:collectives_same_device"},
  };
  std::string found = "local, host, stream";
  absl::string_view wants = "no such backend is known";
  for (const Optional& one : optional) {
    if (one.is_linked && one.name == backend) return absl::OkStatus();
    if (one.is_linked) absl::StrAppend(&found, ", ", one.name);
    if (one.name == backend) wants = one.wants;
  }
  return absl::UnimplementedError(
      absl::StrCat("backend ", backend, " is not in this binary, which has ",
                   found, ": ", wants));
}

}  // namespace weft::collectives
