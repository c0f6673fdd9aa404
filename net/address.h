// Address: where an endpoint is reached, `unix:/path` or `host:port`.
//
// IPv6 hosts are written in brackets: `[::1]:7000`. Port 0 asks the system to
// choose.

#ifndef WEFT_NET_ADDRESS_H_
#define WEFT_NET_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::net {

struct Address {
  enum class Kind { kUnix, kTcp };

  Kind kind = Kind::kUnix;
  std::string path;  // kUnix: absolute, at most 107 bytes
  std::string host;  // kTcp: without brackets
  int port = 0;      // kTcp

  std::string ToString() const;

  // True for a name or number that never leaves this host. A unix socket is
  // one.
  bool IsLocal() const;
};

// kInvalidArgument says what was found and which forms there are.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace weft::net

#endif  // WEFT_NET_ADDRESS_H_
