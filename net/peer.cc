#include "weft/net/peer.h"

#include "absl/strings/str_cat.h"

namespace weft::net {

std::string Peer::ToString() const {
  return identity.has_value()
             ? absl::StrCat(identity->Name(), " (", address, ")")
             : address;
}

absl::string_view FindMetadata(const Metadata& metadata,
                               absl::string_view name) {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace weft::net
