// Link: one connection to a peer: what leaves is gathered, what arrives is
// taken apart.
//
// Frames are appended under the owner's lock, which costs memory only; one
// drainer writes them. While a write is in flight all that comes is gathered
// into the next. Large bodies leave in chunks, between which small frames
// overtake them, and are assembled in memory of their own at the other end.
//
// Between two processes of one host chunks pass through shared memory if the
// connection has it: before the first large body leaves, or once a chunk in it
// arrives. See docs/shared_memory.md.

#ifndef WEFT_RPC_CONNECTION_LINK_H_
#define WEFT_RPC_CONNECTION_LINK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/session/message.h"
#include "weft/transport/shm/payload_ring.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

class Link;

// The owner of a link. Called on the transport's threads, one call at a time.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;

  // Requests and replies come whole. An error closes the link with it.
  virtual absl::Status OnFrame(Link& link, Frame&& frame) = 0;
  // Whether a body is to be put together: that of a request or reply, `frame`,
  // which announces it, or the one that a Chunk is of, where none is begun. If
  // not, its chunks are passed over and nothing of it is kept. An error closes
  // the link with it.
  virtual absl::StatusOr<bool> WantsBody(Link& link, const Frame& frame) = 0;
  // There is no room for the body that `frame`, a request or reply, announces
  // and that is wanted. Ok if it no longer is; an error closes the link with
  // it.
  virtual absl::Status OnNoRoom(Link&, const Frame& /*frame*/,
                                absl::Status why) {
    return why;
  }
  // Nothing more comes of it.
  virtual void OnLinkClosed(Link& link, absl::Status status) = 0;
};

// Gives the memory of a body of `size` bytes back.
struct FreeBody {
  size_t size = 0;
  void operator()(uint8_t* begin) const;
};

// Thread-safety: thread-safe.
class Link final : public transport::ConnectionObserver,
                   public std::enable_shared_from_this<Link> {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;
  // Bodies from this size on leave in chunks.
  static constexpr size_t kInChunks = size_t{128} << 10;
  // One message gathers about so much.
  static constexpr size_t kBatchBytes = size_t{32} << 10;
  // Bodies from this size on pass through shared memory, in chunks of at most
  // kMemoryChunkBytes; of it each direction has kPayloadRingBytes. What is
  // shorter than two such chunks goes in smaller ones, so that it is copied
  // out while it is copied in.
  static constexpr size_t kInMemory = size_t{32} << 10;
  static constexpr size_t kMemoryChunkBytes = size_t{512} << 10;
  static constexpr size_t kLeastMemoryChunkBytes = size_t{128} << 10;
  static constexpr size_t kPayloadRingBytes = transport::BodyMemory::kBytes;
  // An honest peer, which reads, never makes more frames wait. Beyond it the
  // link ends.
  static constexpr size_t kMaxWaiting = size_t{1} << 18;
  // Nor so many intervals of ids in control messages.
  static constexpr size_t kMaxControlIntervals = size_t{1} << 22;
  // What a body costs beside its bytes while it is put together: its request
  // or reply, its place here and what allocations take for themselves.
  static constexpr int64_t kBodyOverheadBytes = 1024;
  // A thread writes no more messages in one go: the rest is for those of the
  // transport, that a call of its own does not wait for those of all others.
  static constexpr int kInOneGo = 64;
  // After a wait for messages that did not come as many are answered without.
  static constexpr int kAloneAfterBurst = 16;
  // After so many messages in a row that were in no burst, only each 17th
  // message asks the connection, of which most kinds know no bursts.
  static constexpr int kMessagesWithoutBurst = 64;
  // Beyond so many bytes it is worth a Sweep().
  static constexpr size_t kHeavyBytes = size_t{1} << 20;

  // `max_bytes` bounds the bodies that are being assembled, each with
  // kBodyOverheadBytes and what the names in its request take. `owner` is held
  // until the link is closed.
  Link(std::shared_ptr<LinkOwner> owner, Clock& clock, int64_t max_bytes);

  // Gives it the connection whose observer it is. Once.
  void Attach(std::shared_ptr<transport::Connection> connection)
      ABSL_LOCKS_EXCLUDED(mu_);

  // What the drainer will write, in this order but for Ack, Cancel and Closed:
  // they are control messages, which overtake requests and replies and delay
  // nothing. Each is true if nothing else will write it: then Drain() must be
  // called.
  bool Append(RequestPtr request) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(ReplyPtr reply) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(std::unique_ptr<Hello> hello) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(std::unique_ptr<Welcome> welcome) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(Ack ack) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(Cancel cancel) ABSL_LOCKS_EXCLUDED(mu_);
  bool Append(Closed closed) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the requests and replies that wait here for calls which have ended,
  // as `has_ended` says of their ids, so that they do not pile up for a peer
  // that does not read. A body that has left in part is cut off there. True as
  // of Append.
  bool Sweep(absl::FunctionRef<bool(uint64_t)> has_ended)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether much was appended since the last Sweep(), as fast as that can be
  // told.
  bool is_heavy() const { return is_heavy_.load(std::memory_order_relaxed); }
  // Writes what was appended, unless a write is in flight or a message is being
  // taken apart: then that goes on with it. Never under a lock.
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);
  // `after_writing`: what was appended is written first.
  void End(absl::Status status, bool after_writing = false)
      ABSL_LOCKS_EXCLUDED(mu_);

  void OnMessage(Slices message) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnClosed(absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A body that leaves in chunks; `left` of it has not, from `offset` in
  // `slice` on.
  struct Bulk {
    uint64_t id = 0;
    Slices body;
    size_t left = 0;
    size_t slice = 0;
    size_t offset = 0;
    size_t memory_chunk = kMemoryChunkBytes;  // of shared memory, at most

    // The next bytes. REQUIRES: bytes <= left.
    Slices Take(size_t bytes);
  };
  // The memory shared with the peer.
  struct PayloadRings {
    explicit PayloadRings(transport::BodyMemory shared)
        : memory(std::move(shared)) {}
    const transport::BodyMemory memory;
    transport::PayloadWriter writer{kPayloadRingBytes};
    transport::PayloadReader reader{kPayloadRingBytes};
  };
  enum class MemoryState {
    kUntried,  // nobody wanted it yet
    kAsked,    // for a body that leaves
    kOpen,
    kNone,  // there is none
  };
  // What a drainer does once it holds no lock.
  struct Leaving {
    struct Copy {
      std::byte* to;
      Slices from;
    };
    std::shared_ptr<transport::Connection> connection;
    Slices message;
    std::shared_ptr<PayloadRings> rings;
    std::vector<Copy> copies;  // into `rings`, before the message is written
    bool wants_memory = false;
  };
  // A body that arrives in chunks.
  struct Assembly {
    std::shared_ptr<Request> request;  // one of these
    std::shared_ptr<Reply> reply;
    std::unique_ptr<uint8_t, FreeBody> memory;
    size_t size = 0;
    size_t filled = 0;
    int64_t cost = 0;  // of the bytes that are admitted
  };
  using AssemblyMap = absl::flat_hash_map<uint64_t, Assembly>;

  static size_t IntervalsOf(const Ack& ack) {
    return ack.ids.size() + ack.confirm.size();
  }
  static size_t IntervalsOf(const Cancel& cancel) { return cancel.ids.size(); }
  static size_t IntervalsOf(const Closed& closed) {
    return closed.seen.size() + closed.never.size();
  }

  using Control = std::variant<Ack, Cancel, Closed>;
  using Outgoing = std::variant<RequestPtr, ReplyPtr, std::unique_ptr<Hello>,
                                std::unique_ptr<Welcome>>;

  template <typename T>
  bool AppendControl(T control) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename T>
  bool AppendOutgoing(T frame, size_t body_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The call whose request or reply `frame` is, and how long its body is; 0 and
  // nothing of any other.
  struct Body {
    uint64_t id = 0;
    size_t bytes = 0;
  };
  static Body BodyOf(const Outgoing& frame);

  // Ends the taking apart of a message. What it caused leaves now, or waits for
  // those messages that follow at once.
  void EndMessage() ABSL_LOCKS_EXCLUDED(mu_);
  void EndBurst() ABSL_LOCKS_EXCLUDED(mu_);
  // Drain(), after *`ended`, one of writing_ and receiving_, has ended.
  void GoOn(bool Link::*ended) ABSL_LOCKS_EXCLUDED(mu_);
  bool MayLeave() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return connection_ != nullptr && !writing_ && !receiving_;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Overflows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // No more can wait than were appended, which takes less to tell.
    return control_intervals_ > kMaxControlIntervals ||
           (appended_ > kMaxWaiting &&
            control_.size() + outbox_.size() + bulk_.size() > kMaxWaiting);
  }
  // Writes one message; true if another may be written now, after what is then
  // in `ended`. Not after the last: then OnWritten comes.
  bool WriteOne(bool Link::** ended, bool is_last) ABSL_LOCKS_EXCLUDED(mu_);
  // True if the connection took it at once.
  static bool Write(Leaving* leaving);
  // Where no message leaves: too much waits, or it was to end after the last.
  void EndInstead(transport::Connection& connection, bool overflows)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The next message, or an empty one.
  void TakeMessage(Leaving* leaving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddOutgoing(const Outgoing& frame, BatchWriter* batch, Leaving* leaving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True if the body leaves in chunks: then it waits for its turn.
  bool AddBody(uint64_t id, const Slices& body, Leaving* leaving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how many bytes of a body it took; 0: none can leave now.
  size_t AddChunk(size_t room, BatchWriter* batch, Leaving* leaving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddConsumed(BatchWriter* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Asks the connection for shared memory. Never under a lock.
  absl::Status OpenMemory(transport::Connection& connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnConsumed(const Consumed& consumed) ABSL_LOCKS_EXCLUDED(mu_);
  // For a chunk that a peer has put there.
  absl::StatusOr<std::shared_ptr<PayloadRings>> RingsOfPeer()
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status TakeFrame(Frame&& frame);
  // Makes room for the body of `size` bytes that `frame`, of call `id`,
  // announces.
  absl::Status Begin(const Frame& frame, uint64_t id, uint64_t size,
                     Assembly assembly);
  // Room for a body of `size` bytes, of the request or reply in `assembly`.
  absl::Status Reserve(uint64_t size, Assembly* assembly);
  absl::Status Fill(AssemblyMap::iterator it, const Chunk& chunk);
  // Skips the chunk of a body that is not being put together.
  absl::Status PassOver(const Frame& frame);
  // `to`: where to, or null for nowhere.
  absl::Status CopyChunk(const Chunk& chunk, uint8_t* to, bool is_large)
      ABSL_LOCKS_EXCLUDED(mu_);

  Clock& clock_;
  const int64_t max_bytes_;

  // The transport's threads use these, one at a time.
  std::shared_ptr<LinkOwner> owner_;
  AssemblyMap assemblies_;
  int64_t assembling_bytes_ = 0;
  bool in_burst_ = false;   // EndBurst() will run; receiving_ until then
  int burst_messages_ = 0;  // of now
  int alone_ = 0;           // messages to come that wait for no others
  int messages_without_burst_ = 0;  // of now, in a row, that asked

  Mutex mu_;
  std::shared_ptr<transport::Connection> connection_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  bool close_when_written_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);
  std::deque<Control> control_ ABSL_GUARDED_BY(mu_);  // before the outbox
  size_t control_intervals_ ABSL_GUARDED_BY(mu_) = 0;
  size_t appended_ ABSL_GUARDED_BY(mu_) = 0;  // since nothing waited
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mu_);
  std::deque<Bulk> bulk_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> cut_ ABSL_GUARDED_BY(mu_);  // to be reported
  // Appended since the last sweep; how much makes it heavy.
  size_t unswept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t heavy_bytes_ ABSL_GUARDED_BY(mu_) = kHeavyBytes;
  std::atomic<bool> is_heavy_{false};
  MemoryState memory_state_ ABSL_GUARDED_BY(mu_) = MemoryState::kUntried;
  std::shared_ptr<PayloadRings> payload_rings_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_CONNECTION_LINK_H_
