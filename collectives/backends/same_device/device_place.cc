#include "weft/collectives/backends/same_device/device_place.h"

#include <limits.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/device/sharing.h"
#include "weft/rendezvous/boot_id.h"

namespace weft::collectives {

absl::StatusOr<std::string> DevicePlaceOf(device::Runtime& runtime,
                                          device::Device device) {
  if (device::Sharing::Of(runtime) == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        Name(device), ": its memory cannot be opened by other processes"));
  }
  WEFT_ASSIGN_OR_RETURN(const device::Properties properties,
                        runtime.GetProperties(device));
  char space[PATH_MAX];
  const ssize_t size = readlink("/proc/self/ns/pid", space, sizeof space);
  const std::string boot = rendezvous::BootId();
  if (size <= 0 || boot.empty()) {
    return absl::UnavailableError(
        absl::StrCat(Name(device),
                     ": wanted the boot id and pid namespace of this process "
                     "in /proc, found none"));
  }
  const std::string& bus = properties.pci_bus_id;
  return absl::StrCat(bus.empty() ? Name(device) : bus, "@", boot, "/",
                      absl::string_view(space, size), "/", getuid())
      .substr(0, 127);
}

}  // namespace weft::collectives
