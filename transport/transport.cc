#include "weft/transport/transport.h"

#include "absl/strings/str_cat.h"

namespace weft::transport {

absl::StatusOr<BodyMemory> Connection::UseBodyMemory() {
  return absl::UnimplementedError("this connection shares no memory");
}

absl::Status NotServed(const Destination& peer, const Purpose& purpose,
                       absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat(
      peer.name.empty() ? "the peer" : absl::StrCat("worker ", peer.name),
      " at ", peer.address, " does not serve connections for ", purpose.name,
      " (", purpose.method, "): ", why,
      "; check that the address is a worker's, and that it runs the same "
      "version of Weft"));
}

}  // namespace weft::transport
