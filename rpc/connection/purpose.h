// ConnectionPurpose: of the connections that carry calls between workers.

#ifndef WEFT_RPC_CONNECTION_PURPOSE_H_
#define WEFT_RPC_CONNECTION_PURPOSE_H_

#include "weft/net/tls/roles.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Any role may connect: the agent checks which roles may call a function. An
// agent registers it at its transport; where that is a gRPC transport with an
// endpoint, it must be registered before the endpoint starts.
inline const transport::Purpose& ConnectionPurpose() {
  static const auto* const kPurpose = new transport::Purpose{
      "rpc", "/weft.rpc.v1.Worker/Connect", net::Roles::Any()};
  return *kPurpose;
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_CONNECTION_PURPOSE_H_
