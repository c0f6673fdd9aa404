// LocalTransport: ranks as threads of one process.
//
// A LocalNetwork joins the transports that are made on it, by address. Each has
// one thread, on which its observers and timers run.

#ifndef WEFT_TRANSPORT_LOCAL_TRANSPORT_H_
#define WEFT_TRANSPORT_LOCAL_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Thread-safety: thread-safe. Its transports keep what they need of it.
class LocalNetwork {
 public:
  LocalNetwork();

  // A transport reached at `address` while it lives. kResourceExhausted: the
  // system has no thread for it. REQUIRES: no other has the address.
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string address);

  // Breaks every connection to or from `address`, as a lost network would.
  void Break(const std::string& address);

 private:
  class Switch;
  class LocalTransport;
  class Pipe;

  const std::shared_ptr<Switch> switch_;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_LOCAL_TRANSPORT_H_
