// RingConnection: a connection within a host whose messages leave a stream,
// once both ends have agreed, for rings in memory that they share.
//
// The end that opens the connection makes the memory and two eventfds, hands
// them to the other process, and names them as it opens the stream. An end that
// goes over to the ring says so by an empty message, its last on the stream:
//
//   caller                                  callee
//   opens, naming what it offers  ------->  takes it
//        <--- empty: from now on by the ring, also in what it sends first
//   once nothing is under way: empty --->   from now on it reads the ring
//
// So the order of messages holds, and an end that has no ring, or cannot take
// it, uses the stream alone. The stream says when the connection ends; what the
// other end wrote before is read first.
//
// The memory has room for large bodies too, agreed on with the rings. It gets
// its pages when one of the ends first needs it.

#ifndef WEFT_TRANSPORT_SHM_RING_CONNECTION_H_
#define WEFT_TRANSPORT_SHM_RING_CONNECTION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/base/mutex.h"
#include "weft/memory/segment.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/transport/shm/memory_budget.h"
#include "weft/transport/shm/message_ring.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// What the two ends of a connection share, as one of them holds it: two rings,
// and behind them memory for bodies. The memory gets its pages as it is used.
struct SharedRings {
  static constexpr uint64_t kCapacity = 256 << 10;  // of each direction
  // The bytes of the rings, up to a page's end.
  static constexpr int64_t kRingBytes =
      (2 * RingMemory::BytesFor(kCapacity) + 4095) / 4096 * 4096;
  static constexpr int64_t kBytes = kRingBytes + 2 * BodyMemory::kBytes;

  std::shared_ptr<memory::Segment> memory;
  net::EventFd own;   // the other end rings it for this one
  net::EventFd peer;  // and this one rings for the other
  bool is_offerer = false;
  // Counts the pages for bodies, before they are allocated; null: they are not
  // counted.
  std::function<absl::StatusOr<MemoryBudget::Reservation>()> reserve_bodies =
      nullptr;
  // At the end that offers them: the other end can take them while this is
  // open.
  net::Descriptor offer = {};

  static absl::StatusOr<memory::Segment> CreateMemory();
  // Owns `fd`, also when it fails.
  static absl::StatusOr<memory::Segment> MapMemory(int fd);

  // Neither may outlive `memory`.
  MessageWriter MakeWriter() const;
  MessageReader MakeReader() const;

 private:
  RingMemory Ring(int direction) const;
  RingPages Pages(int direction) const;
};

// Thread-safety: thread-safe; what it hears, one event at a time, those of
// `watch` included.
class RingConnection final
    : public ConnectionObserver,
      public net::MemorySource,
      public std::enable_shared_from_this<RingConnection> {
 public:
  RingConnection(SharedRings rings, std::shared_ptr<net::MemoryWatch> watch);

  // An error means: do without, and forget this.
  absl::Status Start();
  // Gives it the stream, whose observer it is, and who hears what comes. Each
  // once; the callee's observer may come later than its stream, but not later
  // than the stream's first event. Returns the end that is written to.
  std::unique_ptr<Connection> Attach(std::shared_ptr<Connection> stream)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Observe(std::shared_ptr<ConnectionObserver> observer);
  // Nobody will observe it.
  void Discard() ABSL_LOCKS_EXCLUDED(mu_);

  void OnMessage(Slices message) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnClosed(absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_);

  bool HasWork() override ABSL_LOCKS_EXCLUDED(mu_);
  bool BeginSleep() override ABSL_LOCKS_EXCLUDED(mu_);
  void EndSleep() override ABSL_LOCKS_EXCLUDED(mu_);
  void Handle() override ABSL_LOCKS_EXCLUDED(mu_);
  const net::EventFd& event_fd() const override { return rings_.own; }

 private:
  using Written = Connection::Written;
  class End;

  Written Write(Slices message) ABSL_LOCKS_EXCLUDED(mu_);
  void RequestOnWritten() ABSL_LOCKS_EXCLUDED(mu_);
  void Close(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<BodyMemory> UseBodyMemory() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status WriteToRing(Slices message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WaitForRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Written WriteToStream(Connection& stream, Slices message)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnHandleDestroyed() ABSL_LOCKS_EXCLUDED(mu_);
  void StopListening();
  void DoWithoutRings() ABSL_LOCKS_EXCLUDED(mu_);
  void SwitchToRings() ABSL_LOCKS_EXCLUDED(mu_);
  void GoOnWriting() ABSL_LOCKS_EXCLUDED(mu_);
  void WakePeer() ABSL_LOCKS_EXCLUDED(mu_);
  // True if there was a message.
  bool ReadOne() ABSL_LOCKS_EXCLUDED(mu_);

  SharedRings rings_;  // its memory, guarded by mu_, is null once refused
  const std::shared_ptr<net::MemoryWatch> watch_;

  // Events use these, and rings_.offer, one at a time.
  std::shared_ptr<ConnectionObserver> observer_;
  MessageReader reader_;
  bool answered_ = false;  // the other end has said something

  // Told to those who look.
  std::atomic<bool> reads_ring_{false};
  // The other end has the memory too.
  std::atomic<bool> is_agreed_{false};
  std::atomic<bool> is_waiting_for_room_{false};
  // Told by those who look: they slept, so the peer may sleep too.
  std::atomic<bool> slept_{false};

  mutable Mutex mu_;
  MemoryBudget::Reservation reserved_bodies_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Connection> stream_ ABSL_GUARDED_BY(mu_);
  MessageWriter writer_ ABSL_GUARDED_BY(mu_);
  bool stream_is_busy_ ABSL_GUARDED_BY(mu_) = false;
  bool switches_ ABSL_GUARDED_BY(mu_) = false;  // as soon as it may
  bool writes_ring_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_RING_CONNECTION_H_
