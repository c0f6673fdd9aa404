// GrpcTransport: each connection is a bidirectional stream on the process's one
// Loop, of gRPC, or to a unix socket without it; within a host its messages
// pass through shared memory.

#ifndef WEFT_TRANSPORT_GRPC_TRANSPORT_H_
#define WEFT_TRANSPORT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/transport.h"

namespace weft::transport {

struct GrpcTransportOptions {
  // Messages, and large bodies, between processes of one user on one host pass
  // through memory that they share: where the peer's address is a unix socket,
  // or where its Destination names its memory socket. 0: never; else the most
  // connections of this transport that may have such memory.
  int max_shared_memories = 64;
  // The job's directory of sockets, of mode 0700, in which an endpoint at a TCP
  // address has its memory socket (Transport::memory_socket). Of peers at TCP
  // addresses only those share memory whose memory sockets are in it too.
  // Empty: none.
  std::string memory_directory = {};
  // Bounds the memory that its connections share, with that of others; a
  // connection for which there is none left uses its stream. Null: no bound.
  std::shared_ptr<MemoryBudget> memory_budget = nullptr;
};

// At `endpoint`, which must not have started, and must outlive it, as must
// `loop`. Register each purpose before the endpoint starts.
std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             net::Endpoint& endpoint,
                                             GrpcTransportOptions options = {});

// One that only connects.
std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             GrpcTransportOptions options = {});

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_GRPC_TRANSPORT_H_
