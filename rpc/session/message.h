// Request, Reply: what two agents send one another for a call.

#ifndef WEFT_RPC_SESSION_MESSAGE_H_
#define WEFT_RPC_SESSION_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/session/interval_set.h"
#include "weft/telemetry/trace_context.h"
#include "weft/tensor/payload.h"

namespace weft {
class StagedCall;
}

namespace weft::rpc {

// What one costs a quota, beside its body.
inline constexpr int64_t kMessageOverheadBytes = 256;

// Frozen once it was sent, for it may be sent again.
struct Request {
  uint64_t id = 0;  // given by the session; from 1
  // Lies in a registry, which outlives all calls, or in `name`, as it came.
  absl::string_view function;
  Bytes name;
  uint64_t signature = 0;
  Instant deadline;  // on the clock of whoever holds it; travels as a remainder
  int depth = 0;
  std::string chain;
  telemetry::TraceContext trace;
  // The result stays at the callee, under this id; the reply has no body.
  bool keeps_result = false;
  // Calls of the caller with the same one, unless it is 0, run in the order in
  // which they come, one at a time.
  uint64_t ordered_queue = 0;
  Slices body;
  FrozenAttachments attachments;
  bool is_private = false;  // see Received

  // These do not travel: when it was made here, or came; and of the call that
  // is served here and has made it, whose it is and its id.
  Instant began;
  std::string for_peer;
  uint64_t for_id = 0;

  // ---- Of the caller alone; these do not travel.
  size_t function_index = 0;  // in the caller's registry, from 1; 0: unknown
  // Fails at once, instead of waiting, where there is no credit.
  bool waits_for_credit = true;
  bool is_stream = false;          // it opens one: see Limits::most_streams
  bool is_part_of_stream = false;  // it is not the user's: see Function
  // The tensors whose elements `body` points to; it is not sent once they have
  // changed.
  std::vector<Payload> borrowed;
  // The copies that bring elements of `body`, which keeps them, from their
  // devices; it is handed to a session once they are done.
  std::vector<StagedCall*> copies;
  // See internal::Alias; then there is no body.
  std::shared_ptr<void> alias;
  // Notified of the outcome of `attachments`; null if there are none.
  std::shared_ptr<StagedAttachments> staged;

  int64_t bytes() const {
    return static_cast<int64_t>(TotalSize(body)) + TotalSize(attachments) +
           kMessageOverheadBytes;
  }
};

// What one worker knows of the functions of another.
struct FunctionSignature {
  std::string signature;
  uint64_t digest = 0;
};
using FunctionTable = absl::btree_map<std::string, FunctionSignature>;

// Why a callee answered without running the function.
enum class Refusal : uint8_t {
  kNone = 0,
  kUnknownFunction = 1,
  kSignatureDiffers = 2,
  kOverLimit = 3,
  kAttachments = 4,  // one was refused by its receiver, or has none
};

struct Reply {
  uint64_t id = 0;
  absl::Status status;
  Refusal refusal = Refusal::kNone;
  Slices body;                    // if status.ok()
  FrozenAttachments attachments;  // the same
  bool is_private = false;        // see Received

  // These are not sent. Of the callee: notified of the outcome of
  // `attachments`; of the caller: what was taken of them.
  std::shared_ptr<StagedAttachments> staged;
  std::shared_ptr<const ReceivedAttachments> received;
  rendezvous::WorkerKey from;  // with `received`: who sent it

  int64_t bytes() const {
    return static_cast<int64_t>(TotalSize(body)) + TotalSize(attachments) +
           kMessageOverheadBytes;
  }
};

using RequestPtr = std::shared_ptr<const Request>;
using ReplyPtr = std::shared_ptr<const Reply>;

// The closed calls of an honest caller never have more gaps.
inline constexpr size_t kMaxIntervals = size_t{1} << 20;

// The caller knows how these calls ended and has settled what came with their
// replies, or they were never sent: replies are freed, and what comes late of
// them does not run.
struct Ack {
  Intervals ids;
  // The same, of replies that had attachments. Answered, until it is; sent
  // again by each connection.
  std::vector<Interval> confirm;

  bool empty() const { return ids.empty() && confirm.empty(); }
};

// The caller has given these calls up, without a reply or without taking it:
// those that run are cancelled, the others never run, and the attachments of
// their replies are rolled back. Answered, and sent again as Ack::confirm.
struct Cancel {
  Intervals ids;
};

// What the callee answers to them, once the attachments of the requests are
// settled or refused. The same however often it is asked, until it is
// acknowledged.
struct Closed {
  std::vector<Interval>
      seen;  // they had come, and their attachments were taken
  std::vector<Interval> never;  // they had not, and never will

  bool empty() const { return seen.empty() && never.empty(); }
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_MESSAGE_H_
