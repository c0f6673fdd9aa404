// The limit of open descriptors of this process (RLIMIT_NOFILE).

#ifndef WEFT_NET_LOOP_DESCRIPTOR_LIMIT_H_
#define WEFT_NET_LOOP_DESCRIPTOR_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace weft::net {

// What gRPC, a Loop and one connection need. gRPC ends the process if it cannot
// have its own.
inline constexpr int kFewestDescriptors = 32;

// kResourceExhausted if fewer than `wanted` descriptors can be opened now; the
// message has the numbers and what to set.
absl::Status CheckDescriptors(int wanted = kFewestDescriptors);

// How many more the limit allows, by what is open now; the most that there are
// if the system does not tell.
int64_t FreeDescriptors();

// Raises the soft limit to the hard one, at most 1 Mi: a worker that shares
// memory with many others has up to four descriptors for each connection.
void RaiseDescriptorLimit();

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_DESCRIPTOR_LIMIT_H_
