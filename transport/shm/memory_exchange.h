// MemoryExchange: how processes of one host share memory with this one: by a
// LocalSocket beside the endpoint's. Shared by all connections of a transport,
// and bounded.

#ifndef WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_
#define WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/memory/segment.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/local_socket.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Rings, and the name under which they were handed over.
struct OfferedRings {
  uint64_t token = 0;
  SharedRings rings;
};

// Every error means: do without. The first is logged.
//
// Thread-safety: thread-safe, but for Open.
class MemoryExchange : public std::enable_shared_from_this<MemoryExchange> {
 public:
  // At most `max_memories` of each kind: for bodies, and for messages.
  // `telemetry` must outlive it.
  MemoryExchange(telemetry::Telemetry& telemetry, int max_memories)
      : telemetry_(telemetry), max_memories_(max_memories) {}

  // Lets those that call `address` share memory. Before anything else.
  void Open(const std::string& address);
  bool is_open() const { return socket_ != nullptr; }
  // Whether one that listens at `address` may be offered memory.
  bool MayOffer(const std::string& address) const;

  // For bodies.
  absl::StatusOr<SharedMemory> Offer(const std::string& address, int64_t bytes);
  absl::StatusOr<SharedMemory> Take(uint64_t token, int64_t bytes);

  // For messages. That nobody listens at `address` yet is not logged.
  absl::StatusOr<OfferedRings> OfferRings(const std::string& address);
  absl::StatusOr<SharedRings> TakeRings(uint64_t token);

 private:
  absl::StatusOr<std::shared_ptr<void>> Reserve(std::atomic<int>& count);
  absl::StatusOr<std::vector<net::Descriptor>> TakeAll(uint64_t token,
                                                       size_t descriptors);
  absl::Status Note(absl::Status status);

  telemetry::Telemetry& telemetry_;
  const int max_memories_;
  std::unique_ptr<net::LocalSocket> socket_;  // set before anything runs
  std::atomic<int> memories_{0};
  std::atomic<int> rings_{0};
  std::atomic<bool> noted_{false};
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_
