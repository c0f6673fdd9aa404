// BootId: which boot of which machine this process runs on.

#ifndef WEFT_RENDEZVOUS_BOOT_ID_H_
#define WEFT_RENDEZVOUS_BOOT_ID_H_

#include <string>

namespace weft::rendezvous {

// Equal for all processes of one machine, in containers too, until it boots
// again. "" where /proc does not tell.
std::string BootId();

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_BOOT_ID_H_
