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

namespace weft::collectives {

// Each ordered pair of ranks has a ring of bytes in the segment, through which
// its messages go one after the other, each with a header. What arrives before
// it is asked for is kept in memory of the receiver, up to `max_unasked_bytes`
// (and one message) of each sender: then nothing is taken from its ring.
//
// Thread-safety: one thread at a time, but for events and AwaitEvent.
class HostTransfers {
 public:
  // `segment` must outlive it.
  HostTransfers(HostSegment& segment, int64_t max_unasked_bytes);

  // As Backend::Advance, without looking who has ended. kResourceExhausted: no
  // memory for the first message to a rank.
  absl::StatusOr<bool> Advance(Transfer& transfer);

  uint64_t events() const;
  void AwaitEvent(uint64_t seen, Instant until) const;
  // Wakes all ranks that wait for events.
  void WakeAll() const;

 private:
  struct Header {
    uint64_t tag;
    uint64_t elements;
    uint32_t dtype;
    uint32_t magic;
  };
  struct Message {
    Header header;
    std::vector<std::byte> bytes;
  };
  // What has come of a message so far.
  struct Incoming {
    Header header;
    int64_t header_bytes = 0;
    std::vector<std::byte> bytes;
    int64_t content_bytes = 0;
    std::deque<Message> complete;
    int64_t kept_bytes = 0;  // of complete
  };

  absl::StatusOr<bool> Send(Transfer& transfer);
  absl::Status ReceiveAll(int from);
  absl::StatusOr<bool> Take(Transfer& transfer, int from);
  // Moves up to `bytes`; returns how many.
  absl::StatusOr<int64_t> WriteSome(int to, const std::byte* from,
                                    int64_t bytes);
  absl::StatusOr<int64_t> ReadSome(int from, std::byte* to, int64_t bytes);
  void Ring(int rank) const;

  HostSegment& segment_;
  const int64_t max_unasked_bytes_;
  std::vector<const Transfer*> sending_;  // by receiver: the one half sent
  std::vector<Incoming> incoming_;        // by sender
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HOST_TRANSFERS_H_
