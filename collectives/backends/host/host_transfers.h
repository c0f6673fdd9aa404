// HostTransfers: sends and receives between ranks that share memory.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TRANSFERS_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TRANSFERS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/host/host_segment.h"
#include "weft/collectives/backends/host/peer_memory.h"

namespace weft::collectives {

// Each ordered pair of ranks has a ring of bytes in the segment, through which
// its messages go one after the other, each with a header. The content of a
// large one stays where it is, where both ranks read each other's memory
// (PeerMemory): the header names its address, and one byte follows, which is
// taken from the ring once the content has been read. Content goes to the
// memory of the Receive that asks for it. What arrives before it is asked for
// is kept in memory of the receiver, up to `max_unasked_bytes` (and one
// message) of each sender: then nothing is taken from its ring.
//
// Thread-safety: one thread at a time, but for events and AwaitEvent.
class HostTransfers {
 public:
  // `segment` and `peers` must outlive it. `least_read_bytes`: of content that
  // is read from the memory of its sender.
  HostTransfers(HostSegment& segment, const PeerMemory& peers,
                int64_t least_read_bytes, int64_t max_unasked_bytes);

  // As Backend::Advance, without looking who has ended. kResourceExhausted: no
  // memory for the first message to a rank. kUnavailable: the sender has ended,
  // or has given up the message, before its content was read.
  absl::StatusOr<bool> Advance(Transfer& transfer);
  // As Backend::WithdrawSends.
  void WithdrawSends();

  uint64_t events() const;
  void AwaitEvent(uint64_t seen, Instant until) const;
  // Wakes all ranks that wait for events.
  void WakeAll() const;

 private:
  struct Header {
    uint64_t tag;
    uint64_t elements;
    uint64_t address;  // of the content; 0: it follows in the ring
    uint32_t dtype;
    uint32_t magic;
  };
  struct Message {
    Header header;
    std::vector<std::byte> bytes;
  };
  struct Outgoing {
    const Transfer* transfer = nullptr;  // half sent; null: none is
    bool is_read = false;                // by the receiver, from this memory
  };
  // What has come of the messages of one rank.
  struct Incoming {
    Header header;  // of the one that is coming
    int64_t header_bytes = 0;
    int64_t content_bytes = 0;
    // Where its content goes: to this Receive, or, if null, to `kept`.
    const Transfer* receive = nullptr;
    std::vector<std::byte> kept;
    std::deque<Message> complete;  // those that no Receive has asked for
    int64_t complete_bytes = 0;
  };

  absl::StatusOr<bool> Send(Transfer& transfer);
  // Whether the content of a message is to be read from this rank's memory.
  bool IsRead(const Transfer& transfer) const;
  // Takes what has come of `from`, for `transfer` or to be kept, and wakes
  // `from`. True once `transfer` is complete.
  absl::StatusOr<bool> Receive(Transfer& transfer, int from);
  absl::StatusOr<bool> ReceiveAll(Transfer& transfer, int from);
  // Gives `transfer` the oldest message with its tag of those that are kept.
  absl::StatusOr<bool> TakeKept(Transfer& transfer, int from);
  // Each: true once it is there as a whole. A content goes to `transfer` if it
  // is the one that was asked for and none is kept.
  absl::StatusOr<bool> ReceiveHeader(int from);
  absl::StatusOr<bool> ReceiveContent(Transfer& transfer, int from);
  absl::Status ReadContent(int from, std::byte* to, int64_t bytes);
  // Moves up to `bytes`; returns how many.
  absl::StatusOr<int64_t> WriteSome(int to, const std::byte* from,
                                    int64_t bytes);
  absl::StatusOr<int64_t> ReadSome(int from, std::byte* to, int64_t bytes);
  // Whether there is anything in the ring from `from`, and in the one to `to`.
  bool HasBytes(int from) const;
  bool HasUnread(int to) const;
  void Ring(int rank) const;

  HostSegment& segment_;
  const PeerMemory& peers_;
  const int64_t least_read_bytes_;
  const int64_t max_unasked_bytes_;
  std::vector<Outgoing> sending_;   // by receiver
  std::vector<Incoming> incoming_;  // by sender
  bool has_read_ = false;           // anything of a ring, since Receive began
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TRANSFERS_H_
