// Inbox: the messages that one peer of a group has sent and this rank has not
// taken yet, within the bounds of what may be under way.

#ifndef WEFT_COLLECTIVES_CORE_INBOX_H_
#define WEFT_COLLECTIVES_CORE_INBOX_H_

#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/collectives/core/frame.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// One message of a peer, as far as it has come.
struct Message {
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;  // of the operation, as the sender has called it
  uint64_t tag = 0;
  DType dtype = DType::kU8;  // of a transfer
  uint64_t total = 0;        // bytes
  uint64_t arrived = 0;
  uint64_t taken = 0;
  Slices content;  // that was not taken

  bool is_whole() const { return arrived == total; }
};

// How much of what a peer may keep is used by a transfer of so many bytes.
int64_t KeptBytes(uint64_t content);

// Parts are messages of operations, which come in the order in which they are
// wanted; transfers are those of Sends, found by their tags.
//
// What a hostile peer sends is refused with kInvalidArgument: its stream ends.
//
// Thread-safety: one thread at a time.
class Inbox {
 public:
  // Bytes of parts that a peer may have under way, of which each message takes
  // kMessageBytes besides its content.
  static constexpr int64_t kPartWindow = 16 << 20;
  static constexpr int64_t kMessageBytes = 1 << 10;
  // Each frame of a message but the last has so many bytes of it: what many
  // small ones would take besides is not counted.
  static constexpr int64_t kChunkBytes = 512 << 10;

  // `most_kept`: bytes of transfers that are whole.
  explicit Inbox(int64_t most_kept, int64_t chunk_bytes = kChunkBytes)
      : most_kept_(most_kept), chunk_bytes_(chunk_bytes) {}

  // --- Parts. ---

  // Keeps a kPart; drops one of an operation before `current`.
  absl::Status AddPart(Frame& frame, uint64_t current);
  // The message of that operation that comes next; drops those of operations
  // before it. Null: none has begun to come.
  Message* NextPart(uint64_t sequence);
  // `bytes` of NextPart() were taken; true if that was all of it.
  bool TookOfPart(uint64_t bytes);
  // How much of the window was taken or dropped, once they are many enough for
  // an ack; 0: no ack is due.
  int64_t TakeDueAck();

  // --- Transfers. ---

  // Keeps a kTransfer.
  absl::Status AddTransfer(Frame& frame);
  // The first one of that tag, if it is whole.
  std::optional<Message> TakeTransfer(uint64_t tag);
  // No message of that tag has begun to come.
  bool LacksTransfer(uint64_t tag) const;
  int64_t kept_bytes() const { return kept_bytes_; }
  // REQUIRES: kept_bytes() > 0.
  uint64_t oldest_tag() const { return transfers_.front().tag; }

  // See GroupCore::Snapshot.
  std::string Snapshot() const;

 private:
  absl::Status CheckChunk(const Frame& frame) const;
  void Free(uint64_t bytes);

  const int64_t most_kept_;
  const int64_t chunk_bytes_;
  // Lists: most are empty, and take nothing then.
  std::list<Message> parts_;
  int64_t parts_held_ = 0;   // of the window: arrived and not taken
  int64_t parts_freed_ = 0;  // since the last ack
  std::list<Message> transfers_;
  int64_t kept_bytes_ = 0;  // of transfers that are whole
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CORE_INBOX_H_
