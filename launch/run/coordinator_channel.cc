// CoordinatorChannel: see the header.

#include "weft/launch/run/coordinator_channel.h"

#include "weft/base/status_macros.h"
#include "weft/net/tls/credentials.h"

namespace weft::launch {

absl::StatusOr<net::Channel*> CoordinatorChannel::Get() {
  if (channel_ != nullptr) return channel_.get();
  net::LoopOptions options;
  if (!options_.certs.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.credentials, net::Credentials::ForMember(
                                                   options_.certs, "admin0"));
  } else if (options_.insecure) {
    options.credentials = net::Credentials::Insecure();
  }
  WEFT_ASSIGN_OR_RETURN(loop_, net::Loop::Create(std::move(options)));
  net::ChannelOptions channel;
  channel.name = options_.host;
  WEFT_ASSIGN_OR_RETURN(
      channel_, net::Channel::Create(*loop_, options_.coordinator, channel));
  return channel_.get();
}

}  // namespace weft::launch
