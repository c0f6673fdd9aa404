// Peer: who is at the other end of a call.

#ifndef WEFT_NET_PEER_H_
#define WEFT_NET_PEER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/net/identity.h"

namespace weft::net {

struct Peer {
  std::string address;  // `unix:` or `ip:port`, for messages to people
  std::optional<Identity> identity;  // from its certificate; none on unix
                                     // sockets and under --insecure
  bool is_local = false;  // came by a unix socket: it runs as this user

  // trainer1 (10.0.0.7:4711)
  std::string ToString() const;
};

// Names are lower case; a name that ends in "-bin" may carry any bytes.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// The first value of `name`, or empty.
absl::string_view FindMetadata(const Metadata& metadata,
                               absl::string_view name);

}  // namespace weft::net

#endif  // WEFT_NET_PEER_H_
