// Over the network: the coordinator at an Endpoint, its members behind
// Channels, all on one Loop.

#ifndef WEFT_RENDEZVOUS_GRPC_COORDINATOR_H_
#define WEFT_RENDEZVOUS_GRPC_COORDINATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"

namespace weft::rendezvous {

// Timers of `loop`, which must outlive them.
std::unique_ptr<TimerSource> MakeLoopTimers(net::Loop& loop);

// Reaches the coordinator at `address`. `host` names the endpoint that hosts it
// (ps0), which its certificate must be for. `loop` must outlive it.
absl::StatusOr<std::unique_ptr<CoordinatorLink>> MakeGrpcLink(
    net::Loop& loop, absl::string_view address, absl::string_view host);

// Reaches etcd at `address`, by the methods of its v3 API: "KV/Range". Over TLS
// its certificate must be of the job's authority, for etcd0.<job>.weft.
absl::StatusOr<std::unique_ptr<CoordinatorLink>> MakeEtcdLink(
    net::Loop& loop, absl::string_view address);

// Registers the methods of weft.rendezvous.v1.Coordinator at `endpoint`, before
// it starts. A caller with a certificate may speak only for the worker that it
// names; role admin for any. `coordinator` must outlive the endpoint.
void Serve(Coordinator& coordinator, net::Endpoint& endpoint);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_GRPC_COORDINATOR_H_
