// Peer: who is at the other end of a call.

#ifndef WEFT_NET_TLS_PEER_H_
#define WEFT_NET_TLS_PEER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/net/tls/identity.h"

namespace weft::net {

struct Peer {
  std::string address;  // `unix:` or `ip:port`, for messages to people
  std::optional<Identity> identity;  // from its certificate; none on unix
                                     // sockets and under --insecure
  bool is_local = false;  // came by a unix socket: it runs as this user

  // trainer1 (10.0.0.7:4711)
  std::string ToString() const;
};

// ip:port of gRPC's name for a peer over TCP: ipv4:10.0.0.7:4711,
// ipv6:%5B::1%5D:4711.
std::string AddressOfUri(absl::string_view uri);

// The key by which calls and bytes of a peer are counted: its certificate, else
// its host; empty for local peers, which are this user's.
std::string AccountOf(const Peer& peer);

// Names are lower case; a name that ends in "-bin" may carry any bytes.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// The first value of `name`, or empty.
absl::string_view FindMetadata(const Metadata& metadata,
                               absl::string_view name);

}  // namespace weft::net

#endif  // WEFT_NET_TLS_PEER_H_
