#include "weft/net/stream.h"

namespace weft::net {

void StreamObserver::OnHalfClosed(Stream& stream) {
  stream.Close(absl::OkStatus());
}

}  // namespace weft::net
