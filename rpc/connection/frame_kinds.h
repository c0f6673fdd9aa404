// FramesOf: what a message of a connection between agents holds, in the words
// of a fault plan's rules.

#ifndef WEFT_RPC_CONNECTION_FRAME_KINDS_H_
#define WEFT_RPC_CONNECTION_FRAME_KINDS_H_

#include <vector>

#include "weft/base/bytes.h"
#include "weft/sim/fault_plan.h"

namespace weft::rpc {

// The kinds are "hello", "welcome", "request", "reply", "ack", "cancel",
// "closed", "chunk" and "memory", as in proto/rpc.proto; a request is of its
// function. Empty for a message that is none of an agent's.
std::vector<sim::FaultPlan::Message> FramesOf(const Slices& message);

}  // namespace weft::rpc

#endif  // WEFT_RPC_CONNECTION_FRAME_KINDS_H_
