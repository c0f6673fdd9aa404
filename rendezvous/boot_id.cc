#include "weft/rendezvous/boot_id.h"

#include <fstream>

namespace weft::rendezvous {

std::string BootId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

}  // namespace weft::rendezvous
