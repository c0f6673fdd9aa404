// Roles: whose certificates may do something, by the role in them.

#ifndef WEFT_NET_TLS_ROLES_H_
#define WEFT_NET_TLS_ROLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/net/tls/peer.h"

namespace weft::net {

// Thread-safety: a value.
class Roles {
 public:
  // Those that a job consists of: ps, trainer, admin.
  static Roles Members() { return Only({"ps", "trainer", "admin"}); }
  // All that have a certificate of the job, clients too.
  static Roles Any() { return Roles(true, {}); }
  static Roles Only(std::vector<std::string> roles) {
    return Roles(false, std::move(roles));
  }

  bool Allow(absl::string_view role) const;
  std::string ToString() const;  // "ps, trainer, admin"; "any"

  // kPermissionDenied names who, what, and what to do. A peer that proved
  // nothing is this user, by a unix socket, or trusted by --insecure: allowed.
  absl::Status Check(const Peer& peer, absl::string_view what) const;
  absl::Status Check(absl::string_view who, absl::string_view role,
                     absl::string_view what) const;

 private:
  Roles(bool any, std::vector<std::string> roles)
      : any_(any), roles_(std::move(roles)) {}

  bool any_;
  std::vector<std::string> roles_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TLS_ROLES_H_
