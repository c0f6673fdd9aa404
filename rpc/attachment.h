// Attachment: what a library above rpc sends along with a request or a reply,
// beside its values, and learns the fate of.
//
// A library that keeps books of what travels (references count their holders,
// a distributed backward its messages) needs three things of a call: a place
// for its own bytes beside the arguments, a time at the other side before the
// function runs, and the truth about whether the other side has the bytes. It
// implements an Attachment for the sending side and an AttachmentReceiver for
// the receiving side, both of one kind. rpc knows the kind as a name only.
//
//   sender                                receiver
//   Codec<T>::Encode: encoder.Stage()
//   Attachment::Freeze: the bytes
//        ---- request or reply ---->      AttachmentReceiver::Take
//                                         ReceivedAttachment::Settled is ready
//                                         Codec<T>::Decode:
//                                         decoder.attachment() the function
//                                         runs, or the result is given to its
//                                         caller
//   Attachment::OnOutcome(kDelivered)  <--
//
// Guarantees, each with its test in docs/rpc_protocol.md:
//   A1  OnOutcome runs exactly once for each Attachment that was staged.
//   A2  kDelivered: Take has succeeded there, once, and what it returned is
//       settled.
//   A3  kRefused: Take did not succeed there and never will. Undo what was
//       staged.
//   A4  kAbandoned: nobody can tell any more. The other side is gone for good
//       (its incarnation, or the session of a client), this agent has ended, or
//       the callee has forgotten the session of a request that was out.
//
// Calls of an agent by itself have no session; it takes their attachments from
// itself, with the same guarantees. Untyped calls of a client have none. Nor do
// values of a stream, nor calls by WithRetry(), which may go to another
// incarnation. There Stage() fails the encoding with kFailedPrecondition.

#ifndef WEFT_RPC_ATTACHMENT_H_
#define WEFT_RPC_ATTACHMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::device {
class Stream;
}

namespace weft::rpc {

class Agent;
class DeviceTensors;

// The message that a value belongs to, as its Codec sees it
// (Encoder::context(), Decoder::context()).
struct CodecContext {
  enum class Message {
    kNone,  // of no call: a value of a stream, a detail of a Status
    kRequest,
    kReply,
  };

  Message message = Message::kNone;
  // The agent of this side; null only of kNone.
  Agent* agent = nullptr;
  // The other side: the callee of a request that is written and of a reply that
  // is read, the caller of the others.
  rendezvous::WorkerKey peer;
  // The id of the call, unique for (caller, callee) over all sessions of the
  // two incarnations. 0 of a request that is being written: it is numbered when
  // it is handed to its session. 0, too, of untyped calls of a client.
  uint64_t call = 0;
  // How tensors of devices travel (device_tensors.h); null: not in this
  // message. The rest is for it alone. All outlive the coding of the message.
  DeviceTensors* devices = nullptr;
  absl::string_view peer_name = {};
  // Those of who waits for the reply that is read, one for each device; null:
  // the current ones of the thread.
  const std::vector<device::Stream>* streams = nullptr;
};

enum class AttachmentOutcome {
  kDelivered,
  kRefused,
  kAbandoned,
};
const char* NameOf(AttachmentOutcome outcome);

// The sender's half.
//
// Thread-safety: one thread at a time; OnOutcome may run on another one than
// Freeze, after it.
class Attachment {
 public:
  virtual ~Attachment() = default;
  // The bytes that travel, the same each time they are sent again. Called once,
  // after the last value of the message was encoded; not called if one could
  // not be. An error fails the encoding.
  virtual absl::StatusOr<Bytes> Freeze() = 0;
  // `call`: the id of the call; 0: it was never numbered, and the outcome is
  // kRefused. Runs on a thread of the transport or on the caller's, under no
  // lock of rpc, and before the caller's Future of the call is ready. Must not
  // block, wait or throw; may make calls.
  virtual void OnOutcome(uint64_t call, AttachmentOutcome outcome) = 0;
};

// The receiver's half of one attachment, from Take() on. Lives until the call
// has ended, of a reply until its result was decoded: the destructor releases
// what no value was made of.
//
// Thread-safety: values are decoded by one thread at a time.
class ReceivedAttachment {
 public:
  virtual ~ReceivedAttachment() = default;
  // Called once, right after Take(). Until it is ready the sender learns no
  // outcome, the function does not run and the caller does not get the result;
  // no thread is held meanwhile. An error ends the call with it, unrun; the
  // sender receives kDelivered nevertheless, since the bytes were taken.
  // REQUIRES: it becomes ready, at the latest when the agent ends (so does what
  // waits for calls of the agent). The call itself ends at its deadline or when
  // it is given up, whether this is ready or not.
  virtual Future<void> Settled() { return MakeReady(); }
};

// Takes the attachments of one kind at an agent.
//
// Thread-safety: thread-safe.
class AttachmentReceiver {
 public:
  virtual ~AttachmentReceiver() = default;
  // The attachment of a request or reply has come: once for each message,
  // whatever its connections did. Runs on a thread of the transport, before
  // anything of the message is decoded, under no lock of rpc; must not block,
  // wait or throw. An error refuses the whole message: the call ends with it,
  // unrun, and the sender receives kRefused. Bytes of a peer are hostile.
  virtual absl::StatusOr<std::unique_ptr<ReceivedAttachment>> Take(
      const CodecContext& context, const Bytes& bytes) = 0;
};

// ---- How rpc carries them.

// As it travels.
struct FrozenAttachment {
  // A message carries at most so much.
  static constexpr size_t kMostOfAMessage = 16;
  static constexpr size_t kMostKindBytes = 64;
  static constexpr size_t kMostBytes = size_t{1} << 20;  // all together

  std::string kind;
  Bytes bytes;
};
using FrozenAttachments = std::vector<FrozenAttachment>;
inline int64_t TotalSize(const FrozenAttachments& attachments) {
  int64_t size = 0;
  for (const FrozenAttachment& one : attachments) {
    size += static_cast<int64_t>(one.kind.size() + one.bytes.size());
  }
  return size;
}

// The sender's halves of one message. Tells each its outcome once; kRefused by
// its destructor, if it has told none before.
//
// Thread-safety: Tell may be called by any thread; the rest by one at a time,
// before.
class StagedAttachments {
 public:
  StagedAttachments() = default;
  StagedAttachments(const StagedAttachments&) = delete;
  StagedAttachments& operator=(const StagedAttachments&) = delete;
  ~StagedAttachments() { Tell(0, AttachmentOutcome::kRefused); }

  // Null if there is none of this kind.
  Attachment* Find(absl::string_view kind) const;
  Attachment* Add(absl::string_view kind,
                  std::unique_ptr<Attachment> attachment);
  // In the order of their kinds. kResourceExhausted beyond the limits above.
  absl::StatusOr<FrozenAttachments> Freeze();
  // The first one counts.
  void Tell(uint64_t call, AttachmentOutcome outcome);

 private:
  absl::btree_map<std::string, std::unique_ptr<Attachment>> staged_;
  std::atomic<bool> told_{false};
};

// The receiver's halves of one message.
//
// Thread-safety: thread-safe, once filled.
class ReceivedAttachments {
 public:
  // Null if there is none of this kind.
  ReceivedAttachment* Find(absl::string_view kind) const;
  void Add(absl::string_view kind,
           std::unique_ptr<ReceivedAttachment> attachment);
  // `settled(status)` runs once: when all are settled, with the first error, in
  // the order of kinds, if there was one; at once if all are. Call it once.
  void WhenSettled(std::function<void(const absl::Status&)> settled) const;

 private:
  absl::btree_map<std::string, std::unique_ptr<ReceivedAttachment>> received_;
};

// The receivers of an agent, by the kind of attachment.
//
// Thread-safety: thread-safe.
class AttachmentReceivers {
 public:
  // kAlreadyExists if somebody takes this kind; kInvalidArgument for an empty
  // kind, or one of more than kMostKindBytes.
  absl::Status Add(absl::string_view kind,
                   std::shared_ptr<AttachmentReceiver> receiver)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes all of a message, or none: those before the one that was refused are
  // released again. Null if it has none. kUnimplemented for a kind that nobody
  // takes; what a receiver throws is its error.
  absl::StatusOr<std::shared_ptr<ReceivedAttachments>> Take(
      const CodecContext& context, const FrozenAttachments& attachments) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  absl::btree_map<std::string, std::shared_ptr<AttachmentReceiver>> receivers_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_ATTACHMENT_H_
