// PayloadRing: how the bodies of one direction take turns in a chunk of shared
// memory: its writer's half and its reader's, both pure.
//
// The memory holds payload only. Where the next chunk lies both halves know by
// counting, so nothing in the memory is ever believed; chunks are named, and
// said to be consumed, by messages of the connection, in order. The writer
// copies into what it reserved before the message that names it leaves; the
// reader copies out before it says consumed.
//
// Messages themselves have rings of another kind: message_ring.h.

#ifndef WEFT_TRANSPORT_SHM_PAYLOAD_RING_H_
#define WEFT_TRANSPORT_SHM_PAYLOAD_RING_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::transport {

// Thread-safety: one thread at a time.
class PayloadWriter {
 public:
  // REQUIRES: `capacity` is a multiple of 1024, above 0.
  explicit PayloadWriter(uint64_t capacity);

  struct Place {
    size_t offset;
    size_t size;
  };
  // Where the next chunk goes, and how much of `bytes` fits there: at the end
  // of the memory and while the reader is behind, not all. Null: wait until the
  // reader has consumed more. REQUIRES: bytes > 0.
  std::optional<Place> Reserve(size_t bytes);

  // The reader says that it has consumed all before `position`.
  // kInvalidArgument if it cannot have.
  absl::Status Release(uint64_t position);

  uint64_t unread_bytes() const { return written_ - released_; }

 private:
  const uint64_t capacity_;
  uint64_t written_ = 0;   // positions only grow;
  uint64_t released_ = 0;  // modulo the capacity they are offsets
};

// Thread-safety: one thread at a time.
class PayloadReader {
 public:
  explicit PayloadReader(uint64_t capacity);

  // Where the next chunk, which is named to be of `size` bytes, lies.
  // kInvalidArgument if no chunk of that size can lie there.
  absl::StatusOr<size_t> Take(size_t size);
  // What was taken has been copied out.
  void Consume() { consumed_ = taken_; }

  // So much has been consumed that the writer must be notified.
  bool MustReport() const;
  // Something has been consumed, which a message that is sent anyway may
  // report.
  bool MayReport() const { return consumed_ > reported_; }
  // What to tell it.
  uint64_t Report();

 private:
  const uint64_t capacity_;
  uint64_t taken_ = 0;
  uint64_t consumed_ = 0;
  uint64_t reported_ = 0;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_PAYLOAD_RING_H_
