// UntypedCallService: weft.rpc.v1.Worker/Call and Describe at an endpoint: a
// worker's functions for clients in any language.
//
// A call is served by the agent as any other, under the name of the caller's
// certificate; it belongs to no session, so nothing repeats it. One whose
// client sets no deadline has kUntypedTimeout; none has more than
// kMaxUntypedTimeout. A client that goes away cancels its calls.

#ifndef WEFT_RPC_GATEWAY_UNTYPED_CALL_SERVICE_H_
#define WEFT_RPC_GATEWAY_UNTYPED_CALL_SERVICE_H_

#include <memory>

#include "absl/time/time.h"
#include "weft/base/executor.h"
#include "weft/net/endpoint.h"
#include "weft/rpc/agent.h"

namespace weft::rpc {

inline constexpr absl::Duration kUntypedTimeout = absl::Seconds(60);
inline constexpr absl::Duration kMaxUntypedTimeout = absl::Hours(1);

// Thread-safety: thread-safe.
class UntypedCallService {
 public:
  // Registers at `endpoint`, which must not have started. Values are read and
  // written on `executor`, which must outlive the endpoint. Until Serve() calls
  // are refused with kUnavailable.
  UntypedCallService(net::Endpoint& endpoint, Executor& executor);

  // Calls go to `agent` from now on. Once that has ended they are refused.
  void Serve(const Agent& agent);

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_GATEWAY_UNTYPED_CALL_SERVICE_H_
