// AddressSpace: refuses to start below a limit (ulimit -v) at which libraries
// end the process, or wait for ever, for want of a thread.

#ifndef WEFT_LAUNCH_ADDRESS_SPACE_H_
#define WEFT_LAUNCH_ADDRESS_SPACE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace weft::launch {

// What a program that is a worker needs, and what the tool `weft` needs. Most
// of it is stacks of threads, of 8 MiB each, and is never touched.
inline constexpr int64_t kWorkerAddressSpace = int64_t{1} << 30;
inline constexpr int64_t kToolAddressSpace = int64_t{640} << 20;

// kResourceExhausted if this process may have less than `wanted_bytes`: names
// the limit and what to do.
absl::Status CheckAddressSpace(int64_t wanted_bytes);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_ADDRESS_SPACE_H_
