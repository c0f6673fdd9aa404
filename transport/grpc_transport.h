// GrpcTransport: agents over gRPC: one bidirectional stream for each (caller,
// callee), on the process's one Loop.

#ifndef WEFT_TRANSPORT_GRPC_TRANSPORT_H_
#define WEFT_TRANSPORT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/transport/transport.h"

namespace weft::transport {

struct GrpcTransportOptions {
  // Messages, and large bodies, between processes of one user on one host pass
  // through memory that they share, where the peer's address is a unix socket.
  // 0: never; else the most connections of this transport that may have such
  // memory, of each of the two kinds.
  int max_shared_memories = 64;
  // The method of its streams. Transports of one endpoint that serve different
  // purposes have different ones, equal at both ends.
  std::string method = "/weft.rpc.v1.Worker/Connect";
  // Who may open them. Whom a function is for, the agent knows.
  net::Roles roles = net::Roles::Any();
};

// Registers options.method at `endpoint`, which must not have started, and must
// outlive it, as must `loop`. Until an acceptor is set, callers are refused
// with kUnavailable and try again. A peer that does not serve the method
// refuses with kUnimplemented, which names the peer, its address and the
// method.
std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             net::Endpoint& endpoint,
                                             GrpcTransportOptions options = {});

// One that only calls.
std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             GrpcTransportOptions options = {});

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_GRPC_TRANSPORT_H_
