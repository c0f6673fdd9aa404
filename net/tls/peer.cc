#include "weft/net/tls/peer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace weft::net {

std::string Peer::ToString() const {
  return identity.has_value()
             ? absl::StrCat(identity->Name(), " (", address, ")")
             : address;
}

std::string AddressOfUri(absl::string_view uri) {
  if (absl::ConsumePrefix(&uri, "ipv4:")) return std::string(uri);
  if (!absl::ConsumePrefix(&uri, "ipv6:")) return std::string(uri);
  return absl::StrReplaceAll(uri, {{"%5B", "["}, {"%5D", "]"}});
}

std::string AccountOf(const Peer& peer) {
  if (peer.identity.has_value()) return peer.identity->Uri();
  return peer.is_local ? "" : peer.address.substr(0, peer.address.rfind(':'));
}

absl::string_view FindMetadata(const Metadata& metadata,
                               absl::string_view name) {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace weft::net
