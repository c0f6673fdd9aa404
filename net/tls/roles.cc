#include "weft/net/tls/roles.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::net {

bool Roles::Allow(absl::string_view role) const {
  return any_ || std::find(roles_.begin(), roles_.end(), role) != roles_.end();
}

std::string Roles::ToString() const {
  return any_ ? "any" : absl::StrJoin(roles_, ", ");
}

absl::Status Roles::Check(const Peer& peer, absl::string_view what) const {
  if (!peer.identity.has_value()) return absl::OkStatus();
  return Check(peer.ToString(), peer.identity->role, what);
}

absl::Status Roles::Check(absl::string_view who, absl::string_view role,
                          absl::string_view what) const {
  if (Allow(role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      who, " has role ", role, "; ", what, " is for ",
      roles_.empty() ? "nobody" : absl::StrCat("role ", ToString()),
      ": call with a certificate of such a role, or let the server allow it"));
}

}  // namespace weft::net
