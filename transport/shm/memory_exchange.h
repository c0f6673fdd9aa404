// MemoryExchange: how processes of one host share memory with this one: by a
// LocalSocket beside the endpoint's, or in the job's directory where the
// endpoint's address is TCP. Shared by all connections of a transport, and
// bounded.
//
// What comes over the socket proves that a process of this user sent it, not
// which: that is proven by the connection (over TCP by mutual TLS), on which
// the sender names the token under which it sent the memory. So memory is never
// used without a connection whose peer is authenticated, and a peer can only
// have memory taken that it, or whoever told it the token, has sent.

#ifndef WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_
#define WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/memory/segment.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/local_socket.h"
#include "weft/telemetry/telemetry.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Rings, and the name under which they were handed over.
struct OfferedRings {
  uint64_t token = 0;
  SharedRings rings;  // which hold the offer, until it is answered
};

// Every error means: do without. The first is logged.
//
// Thread-safety: thread-safe, but for Open.
class MemoryExchange : public std::enable_shared_from_this<MemoryExchange> {
 public:
  // At most `max_memories` connections, and what `budget` has; null: no bound.
  // `directory` is the job's directory of sockets, of mode 0700; empty: peers
  // at TCP addresses share no memory.
  // `telemetry` must outlive it.
  MemoryExchange(telemetry::Telemetry& telemetry, int max_memories,
                 std::string directory,
                 std::shared_ptr<MemoryBudget> budget = nullptr)
      : telemetry_(telemetry),
        max_memories_(max_memories),
        directory_(std::move(directory)),
        budget_(std::move(budget)) {}

  // Lets those that call the endpoint `name` at `address` share memory. Before
  // anything else.
  void Open(const std::string& address, const std::string& name);
  bool is_open() const { return socket_ != nullptr; }
  // Where others send memory to this process; empty: nowhere.
  const std::string& path() const { return path_; }

  // Where memory for `peer` is sent to; nothing if it may not be sent any. A
  // member says itself which socket it has, so one outside of the job's
  // directory is not used, nor one that is not there: on another host, in
  // another container.
  std::optional<std::string> PathTo(const Destination& peer) const;

  // `path` as PathTo. That nobody reads there is not logged.
  absl::StatusOr<OfferedRings> OfferRings(const std::string& path);
  absl::StatusOr<SharedRings> TakeRings(uint64_t token);
  // Lets go of what peers have offered and taken back: their connections ended
  // before this process saw them. To be called now and then.
  void DropAbandoned();

 private:
  absl::Status Bind(const std::string& path);
  class Place;

  // A place among the connections that share memory.
  absl::StatusOr<Place> Reserve();
  // Counted against the budget; empty where there is none.
  absl::StatusOr<MemoryBudget::Reservation> Count(int64_t bytes);
  std::function<absl::StatusOr<MemoryBudget::Reservation>()> CountBodies();
  // The segment, with what it takes.
  static std::shared_ptr<memory::Segment> Share(
      memory::Segment segment, Place place, MemoryBudget::Reservation counted);
  absl::StatusOr<std::vector<net::Descriptor>> TakeAll(uint64_t token,
                                                       size_t descriptors);
  absl::Status Note(absl::Status status);

  telemetry::Telemetry& telemetry_;
  const int max_memories_;
  const std::string directory_;
  const std::shared_ptr<MemoryBudget> budget_;
  // Set before anything runs.
  std::unique_ptr<net::LocalSocket> socket_;
  std::string path_;
  std::atomic<int> rings_{0};
  std::atomic<bool> noted_{false};
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_MEMORY_EXCHANGE_H_
