// CoordinatorChannel: see the header.

#include "weft/launch/run/coordinator_channel.h"

#include <utility>

#include "weft/base/status_macros.h"
#include "weft/net/tls/credentials.h"
#include "weft/rendezvous/init_url.h"
#include "weft/worker/hosted_coordinator.h"

namespace weft::launch {

CoordinatorChannel::CoordinatorChannel(
    const CoordinatorChannelOptions& options) {
  options_.job = options.job;
  options_.coordinator = options.coordinator;
  options_.init = options.init;
  options_.coordinator_host = options.host;
  options_.certs = options.certs;
  options_.insecure = options.insecure;
}

absl::StatusOr<rendezvous::CoordinatorLink*> CoordinatorChannel::Get() {
  if (link_ != nullptr) return link_.get();
  if (!options_.init.empty()) {
    WEFT_ASSIGN_OR_RETURN(options_.init_url,
                          rendezvous::ParseInitUrl(options_.init));
    if (!options_.init_url.is_found()) {
      options_.coordinator = options_.init_url.address;
    }
  }
  net::LoopOptions options;
  if (!options_.certs.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.credentials, net::Credentials::ForMember(
                                                   options_.certs, "admin0"));
  } else if (options_.insecure) {
    options.credentials = net::Credentials::Insecure();
  }
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(options)));
  WEFT_ASSIGN_OR_RETURN(link_, worker::LinkToCoordinator(options_, *loop_));
  return link_.get();
}

}  // namespace weft::launch
