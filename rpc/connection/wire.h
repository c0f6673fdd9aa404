// Wire: the messages of a connection as bytes, wire-compatible with
// weft.rpc.v1.Batch (proto/rpc.proto).
//
// Written and read by hand, so that a body travels as the slices that it is.
// What a peer sends is hostile: every length is compared with what is there,
// and a frame that is not well-formed is kInvalidArgument.

#ifndef WEFT_RPC_CONNECTION_WIRE_H_
#define WEFT_RPC_CONNECTION_WIRE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/bytes.h"
#include "weft/base/bytes_builder.h"
#include "weft/base/clock.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/rpc/session/limits.h"
#include "weft/rpc/session/message.h"

namespace weft::rpc {

inline constexpr uint32_t kMagic = 0x54464557;
inline constexpr uint32_t kProtocolVersion = 2;
// A Welcome with more is refused.
inline constexpr size_t kMaxFunctions = 1 << 14;

struct Hello {
  uint32_t magic = kMagic;
  uint32_t min_version = kProtocolVersion;
  uint32_t max_version = kProtocolVersion;
  std::string job;
  std::string build;
  std::string name;
  rendezvous::WorkerKey from;
  rendezvous::WorkerKey to;
  uint64_t registry = 0;
  uint64_t generation = 0;
  bool resumes = false;
};

struct Welcome {
  absl::Status status;
  uint32_t version = kProtocolVersion;
  bool forgotten = false;
  bool replaced = false;
  uint64_t registry = 0;
  std::string build;
  Limits limits;
  // What the callee serves; none where its registry equals the caller's.
  std::optional<FunctionTable> functions;
};

// A Request or Reply whose body is `body_bytes` long and follows in chunks, if
// that is not 0.
struct RequestFrame {
  std::shared_ptr<Request> request;
  uint64_t body_bytes = 0;
};
struct ReplyFrame {
  std::shared_ptr<Reply> reply;
  uint64_t body_bytes = 0;
};
struct Chunk {
  uint64_t id = 0;
  Slices data;
  // Not 0: so many bytes are next in the shared memory, and `data` is empty.
  uint64_t in_memory = 0;
};
// Its sender has copied out what lay in the shared memory before `position`:
// docs/shared_memory.md.
struct Consumed {
  uint64_t position = 0;
};

using Frame = std::variant<Hello, Welcome, RequestFrame, ReplyFrame, Ack,
                           Cancel, Closed, Chunk, Consumed>;

// Gathers frames into one message.
class BatchWriter {
 public:
  // Bodies from this size on are not copied into the message.
  static constexpr size_t kByReference = 1024;

  void Add(const Hello& hello);
  void Add(const Welcome& welcome);
  // With the body, or with only its length if it is to follow in chunks.
  void Add(const Request& request, Instant now, bool body_follows);
  void Add(const Reply& reply, bool body_follows);
  void Add(const Ack& ack);
  void Add(const Cancel& cancel);
  void Add(const Closed& closed);
  void Add(const Chunk& chunk);
  void Add(const Consumed& consumed);

  bool empty() const { return slices_.empty() && chunk_.empty(); }
  size_t size() const { return flushed_ + chunk_.size(); }
  Slices Finish() &&;

 private:
  // Begins frame `number`; what it returns is for End, which takes the body.
  size_t Begin(int number);
  void End(size_t start, const Slices* body = nullptr);
  void PutDetails(const absl::Status& status);
  void PutAttachments(int number, const FrozenAttachments& attachments);
  void Flush();

  BytesBuilder chunk_;  // not yet in slices_
  Slices slices_;
  size_t flushed_ = 0;  // bytes in slices_
};

// Gives each frame of `message` to `take`, up to the first error, its own or
// one that `take` returns. Deadlines are `now` plus what remains.
absl::Status ReadBatch(const Slices& message, Instant now,
                       absl::FunctionRef<absl::Status(Frame&&)> take);

}  // namespace weft::rpc

#endif  // WEFT_RPC_CONNECTION_WIRE_H_
