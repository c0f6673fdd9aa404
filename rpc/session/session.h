// Session: what a caller and a callee owe each other, as two pure cores.
//
// A session joins one incarnation of a caller to one of a callee and outlives
// their connections. The caller numbers its calls 1, 2, 3, ...; from then on
// exactly these hold (docs/rpc_protocol.md names the test of each):
//   G1  A call's function starts at most once.
//   G2  While both live and can connect, each call ends with the function's
//       reply, unless its caller gave it up; it ends once.
//   G3  A closed call never starts, however late its first copy arrives.
//   G4  What both sides remember of closed calls is a set of intervals.
//   G5  If the callee's memory of the session is gone, sent calls end with
//       OutcomeUnknown; nothing repeats them.
//   A1-A4 of attachment.h, for the attachments of requests and replies.
//
// A call is over for the callee by an Ack or a Cancel. An Ack says that the
// caller has the reply and that its attachments are settled there. A Cancel
// says that the caller takes no reply; the callee answers whether the call had
// come ("seen") or never will ("never"), and the sender of its attachments
// receives that answer. A message that must be answered is sent again on each
// connection until it is.
//
// Messages of a connection arrive in order, or not at all once it breaks; the
// cores also bear loss, repetition and any order. A new connection repeats the
// set of closed calls and the requests that have no reply yet.
//
// No threads, clocks or I/O: OnEvent(event, now) appends what is to be done.
// Sends go to the wire in the order of emission.

#ifndef WEFT_RPC_SESSION_SESSION_H_
#define WEFT_RPC_SESSION_SESSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/id_map.h"
#include "weft/rpc/session/interval_set.h"
#include "weft/rpc/session/limits.h"
#include "weft/rpc/session/message.h"
#include "weft/rpc/session/outcome.h"

namespace weft::rpc {

// The caller's half.
//
// Thread-safety: one thread at a time.
class CallerSession {
 public:
  // How long an acknowledgement may wait for a request to travel with, and how
  // much may wait for it.
  static constexpr absl::Duration kAckDelay = absl::Milliseconds(20);
  static constexpr int64_t kAckCalls = 64;
  static constexpr int64_t kAckBytes = int64_t{1} << 20;

  // ---- Events.
  struct Start {
    std::shared_ptr<Request> request;  // its id is set
  };
  // The caller gives a call up.
  struct Abandon {
    uint64_t id = 0;
    absl::Status why;
  };
  // The callee knows the session and grants `limits`.
  struct Connected {
    Limits limits;
    // What the callee serves; none: all that this side knows.
    std::optional<FunctionTable> functions;
    std::string build;  // the callee's, for messages
  };
  struct Disconnected {};
  // The callee has forgotten the session: its next generation is another one.
  struct Forgotten {};
  struct Arrived {
    ReplyPtr reply;
  };
  // The attachments of the reply were taken here and are settled; or they were
  // not taken. Once for each Complete whose reply has some.
  struct Settled {
    uint64_t id = 0;
    bool taken = true;
  };
  // The callee answers Acks and Cancels.
  struct Answered {
    rpc::Closed closed;
  };
  // It could not be reached for too long: all calls end, the session goes on.
  struct Unreachable {
    absl::Status why;
  };
  // The callee's incarnation is no more: all calls end, so will later ones.
  struct PeerGone {
    absl::Status why;
  };
  struct Tick {};
  // The caller ends: once no call is open it closes the connection, and later
  // calls end with `why`.
  struct Ending {
    absl::Status why;
  };
  using Event =
      std::variant<Start, Abandon, Connected, Disconnected, Forgotten, Arrived,
                   Settled, Answered, Unreachable, PeerGone, Tick, Ending>;

  // ---- Actions.
  struct SendRequest {
    RequestPtr request;
    bool again = false;  // it was sent before, by another connection
  };
  struct SendAck {
    rpc::Ack ack;
  };
  struct SendCancel {
    rpc::Cancel cancel;
  };
  // The call has ended. `reply` is null where the session itself ended it.
  struct Complete {
    uint64_t id = 0;
    absl::Status status;
    ReplyPtr reply;
    RequestPtr request;
  };
  // A Tick is wanted then; replaces an earlier wish.
  struct WakeAt {
    Instant when;
  };
  // Closes the connection, if there is one, after what was sent.
  struct CloseConnection {};
  // What has become of the attachments of a request; before its Complete, but
  // where that waits for the answer to a Cancel.
  struct TellAttachments {
    uint64_t id = 0;
    std::shared_ptr<StagedAttachments> staged;
    AttachmentOutcome outcome = AttachmentOutcome::kRefused;
  };
  using Action = std::variant<SendRequest, SendAck, SendCancel, Complete,
                              WakeAt, TellAttachments, CloseConnection>;

  enum class State {  // of a call
    kUnknown,
    kWaiting,
    kSent,
    kSettling,    // it has ended; the attachments of its reply are not settled
    kConfirming,  // they are; the callee has not answered the Ack
    kCancelling,  // it was given up; the callee has not answered the Cancel
    kEnded,
  };

  // `peer` is the callee's name, for messages to people.
  explicit CallerSession(std::string peer) : peer_(std::move(peer)) {}

  void OnEvent(const Event& event, Instant now, std::vector<Action>* actions);

  // What a new connection says: which generation of the session this is, and
  // whether the callee must remember it. Each has a generation of its own until
  // one was welcomed: an earlier one that comes late, perhaps when all was
  // forgotten, must not begin the generation that this one resumes.
  uint64_t generation() const { return generation_; }
  bool resumes() const { return resumes_; }

  bool is_connected() const { return connected_; }
  bool is_gone() const { return !gone_.ok(); }
  // Calls that have not ended.
  size_t pending_calls() const { return pending_.size(); }
  size_t settling_calls() const { return settling_.size(); }
  // Whether the callee has yet to answer an Ack or a Cancel; of a call that has
  // attachments, so that libraries wait to hear what has become of them.
  bool awaits_answers() const { return !closing_.empty(); }
  bool awaits_outcomes() const { return attached_closing_ > 0; }
  template <typename Fn>  // fn(const Request&, bool sent)
  void ForEachPending(Fn fn) const {
    for (const auto& [id, call] : pending_) fn(*call.request, call.sent);
  }

  // Those that have ended and are not over for the callee; fn(uint64_t id).
  template <typename Fn>
  void ForEachClosing(Fn fn) const {
    for (const auto& [id, credit] : settling_) fn(id);
    for (const auto& [id, closing] : closing_) fn(id);
  }

  State StateOf(uint64_t id) const;

  // What the callee grants to calls of depth 0, and what they take of it.
  struct Credit {
    Limits limits;
    int64_t calls = 0;    // that are out
    int64_t streams = 0;  // of them
    int64_t bytes = 0;
    int64_t waiting = 0;         // calls that wait for credit
    uint64_t first_waiting = 0;  // the id of the first of them; 0: none waits
  };
  // Without the count of those that wait, which takes longer.
  Credit credit() const;
  int64_t CountWaiting() const;
  // Whether a call waits for credit, perhaps one that has ended since.
  bool may_wait_for_credit() const {
    return connected_ && !(waiting_.empty() && waiting_streams_.empty());
  }

  // All state as text: equal cores have equal ones.
  std::string Fingerprint() const;

 private:
  struct Pending {
    RequestPtr request;
    bool sent = false;
  };
  using PendingMap = IdMap<Pending>;
  // What a call that is out takes of the credit.
  struct CallCredit {
    int depth = 0;
    int64_t bytes = 0;
    bool is_stream = false;
  };
  // What the callee must answer.
  struct Closing {
    bool is_cancel = false;                     // else an Ack
    std::shared_ptr<StagedAttachments> staged;  // of the request; of a Cancel
    bool is_attached() const { return !is_cancel || staged != nullptr; }
  };
  using ClosingMap = absl::btree_map<uint64_t, Closing>;

  void On(const Start& event, Instant now, std::vector<Action>* actions);
  void On(const Abandon& event, Instant now, std::vector<Action>* actions);
  void On(const Connected& event, Instant now, std::vector<Action>* actions);
  void On(const Disconnected&, Instant, std::vector<Action>*);
  void On(const Forgotten& event, Instant now, std::vector<Action>* actions);
  void On(const Arrived& event, Instant now, std::vector<Action>* actions);
  void On(const Settled& event, Instant now, std::vector<Action>* actions);
  void On(const Answered& event, Instant now, std::vector<Action>* actions);
  void On(const Unreachable& event, Instant now, std::vector<Action>* actions);
  void On(const PeerGone& event, Instant now, std::vector<Action>* actions);
  void On(const Tick&, Instant now, std::vector<Action>* actions);
  void On(const Ending& event, Instant, std::vector<Action>*);

  void CloseConnectionIfDone(std::vector<Action>* actions);
  // What the callee would answer to a request that it can never serve; null if
  // it may be sent.
  ReplyPtr Refuse(const Request& request);
  absl::Status CheckServed(const Request& request, Refusal* refusal);
  absl::Status CheckLimits(const Request& request) const;
  bool HasCredit(const Request& request) const;
  // The request that is made now need not wait for others that were made
  // before.
  bool IsNext(const Request& request) const;
  void Enqueue(const Request& request);
  // Where the next call to be sent waits; null if none does.
  std::deque<uint64_t>* NextQueue();
  bool StreamsHaveCredit() const {
    return streams_out_ < limits_.most_streams();
  }
  absl::Status NoCredit(const Request& request) const;
  // Sends a call, again if it was sent before, or ends one whose borrowed
  // elements have changed. The next call.
  PendingMap::iterator Send(PendingMap::iterator it,
                            std::vector<Action>* actions);
  void SendWaiting(Instant now, std::vector<Action>* actions);
  // Ends a call with `status` or `reply`, which has come or was made here for a
  // call that was not sent. Else a call that was sent is cancelled; `is_lost`:
  // its callee knows nothing of it any more, and is not asked.
  PendingMap::iterator End(PendingMap::iterator it, absl::Status status,
                           ReplyPtr reply, std::vector<Action>* actions,
                           bool is_lost = false);
  void EndAll(const absl::Status& why, std::vector<Action>* actions,
              bool is_lost);
  void Free(const CallCredit& credit);
  // Messages to the callee about a call that has ended.
  void Acknowledge(uint64_t id);
  void AskToClose(uint64_t id, Closing closing);
  IntervalSet& Unasked(const Closing& closing) {
    return closing.is_cancel ? unasked_cancels_ : unasked_acks_;
  }
  // Nothing of it will be answered any more.
  void LoseClosing(std::vector<Action>* actions);
  void FlushAcks(std::vector<Action>* actions);
  void AckSoon(Instant now, std::vector<Action>* actions);
  void Wake(Instant when, std::vector<Action>* actions);
  absl::Status Expired(const Pending& call) const;
  Phase PhaseOf(const Pending& call) const;
  // `why` as the end of this call: with its phase, and whether it may have run.
  absl::Status Unanswered(const Pending& call, absl::Status why) const;

  std::string peer_;
  absl::Status gone_;
  absl::Status ending_;  // not OK: why no more calls are made
  Limits limits_;
  std::optional<FunctionTable> functions_;
  std::vector<bool> served_;  // by Request::function_index: functions_ has it
  std::string build_;
  uint64_t generation_ = 1;
  bool resumes_ = false;
  bool connected_ = false;

  uint64_t next_id_ = 1;
  PendingMap pending_;
  // Unsent, depth 0; may name ended ones. Streams wait apart, for others may
  // overtake them when it is only streams of which there are too many.
  std::deque<uint64_t> waiting_;
  std::deque<uint64_t> waiting_streams_;
  int64_t calls_out_ = 0;    // sent, depth 0
  int64_t streams_out_ = 0;  // of them
  int64_t bytes_out_ = 0;
  int64_t nested_out_ = 0;
  int64_t nested_bytes_out_ = 0;

  // Calls that have ended are in one of these three.
  absl::btree_map<uint64_t, CallCredit> settling_;
  ClosingMap closing_;
  IntervalSet closed_;
  int64_t attached_closing_ = 0;  // of closing_
  // The calls of closing_ that this connection was not asked about yet.
  IntervalSet unasked_acks_;
  IntervalSet unasked_cancels_;
  IntervalSet unacked_;  // of closed_, what this connection was not told yet
  int64_t unacked_calls_ = 0;
  int64_t unacked_bytes_ = 0;
  Instant ack_due_ = Instant::Infinite();
  Instant wake_ = Instant::Infinite();  // the Tick that was asked for
};

// The callee's half.
//
// Thread-safety: one thread at a time.
class CalleeSession {
 public:
  // An honest caller never has more calls that it has not closed than this many
  // times what it is granted; beyond them not even a refusal is kept.
  static constexpr int64_t kMaxKnownCalls = 4;
  // A caller that connects again while the callee ends repeats its calls within
  // so long.
  static constexpr absl::Duration kRepeatTime = absl::Seconds(1);

  // ---- Events.
  struct Arrived {
    RequestPtr request;
  };
  struct Acked {
    Ack ack;
  };
  struct GivenUp {
    rpc::Cancel cancel;
  };
  // The attachments of the request were taken here and are settled. Once for
  // each Run whose request has some, unless it is refused: Finished then says
  // so by Reply::refusal.
  struct Settled {
    uint64_t id = 0;
  };
  // The function has ended, or was not run.
  struct Finished {
    ReplyPtr reply;
  };
  struct Connected {};
  struct Disconnected {};
  // The caller's incarnation, or this generation of the session, is no more.
  struct PeerGone {
    absl::Status why;
  };
  struct Tick {};
  // The callee ends: it closes the connection once the caller has acknowledged
  // all replies.
  struct Ending {};
  using Event = std::variant<Arrived, Acked, GivenUp, Settled, Finished,
                             Connected, Disconnected, PeerGone, Tick, Ending>;

  // ---- Actions.
  struct Run {
    RequestPtr request;
  };
  // Tells the function that nobody waits for it any more.
  struct Cancel {
    uint64_t id = 0;
    absl::Status why;
  };
  struct SendReply {
    ReplyPtr reply;
    bool again = false;  // it was sent before, by another connection
  };
  struct SendClosed {
    rpc::Closed closed;
  };
  struct WakeAt {
    Instant when;
  };
  // The caller breaks the protocol: its connection should be closed.
  struct Violation {
    absl::Status why;
  };
  // Closes the connection after what was sent.
  struct CloseConnection {};
  // The caller has not connected again in time: PeerGone should follow.
  struct Vanished {};
  // What has become of the attachments of the reply.
  struct TellAttachments {
    uint64_t id = 0;
    std::shared_ptr<StagedAttachments> staged;
    AttachmentOutcome outcome = AttachmentOutcome::kRefused;
  };
  using Action =
      std::variant<Run, Cancel, SendReply, SendClosed, WakeAt, Violation,
                   TellAttachments, CloseConnection, Vanished>;

  enum class State {  // of a call
    kUnknown,
    kSettling,  // the attachments of its request are not settled
    kRunning,
    kCancelled,  // it runs, and was notified that its deadline has passed
    kGivenUp,    // it runs, or they are not settled, and it is closed
    kAnswered,
    kClosed,
    kNever,  // closed before it came; its caller has not acknowledged that
  };

  // A caller whose connection is lost for `patience` has vanished. Infinite for
  // one of whose end somebody else tells.
  explicit CalleeSession(Limits limits,
                         absl::Duration patience = absl::InfiniteDuration())
      : limits_(limits), patience_(patience) {}

  // Only these look at `now`: Connected, Disconnected and Tick.
  void OnEvent(const Event& event, Instant now, std::vector<Action>* actions);

  bool is_connected() const { return connected_; }
  size_t running_calls() const { return running_; }
  size_t known_calls() const { return calls_.size(); }
  // Replies that a caller which is connected has not acknowledged.
  size_t unacknowledged() const {
    return connected_ ? calls_.size() - running_ : 0;
  }
  size_t closed_intervals() const { return closed_.size(); }
  size_t never_intervals() const { return never_.size(); }
  // Whether a call has attachments that were not acknowledged: of its request,
  // or of its reply.
  bool has_open_attachments() const;
  template <typename Fn>  // fn(uint64_t id)
  void ForEachKnown(Fn fn) const {
    for (const auto& [id, call] : calls_) fn(id);
  }
  State StateOf(uint64_t id) const;

  std::string Fingerprint() const;

 private:
  // A closed one is here only while it runs or is unsettled.
  struct Call {
    Instant deadline;
    int depth = 0;
    int64_t bytes = 0;  // what it costs now
    bool running = true;
    bool closed = false;
    bool cancelled = false;
    bool is_attached = false;  // its request has attachments
    bool unsettled = false;    // which are not settled
    bool taken = true;         // and were not refused
    bool is_asked = false;     // a Cancel is to be answered once they are
    ReplyPtr reply;            // not sent before they are
    bool was_sent = false;     // the reply
  };
  using CallMap = IdMap<Call>;

  void On(const Arrived& event, Instant now, std::vector<Action>* actions);
  void On(const Acked& event, Instant now, std::vector<Action>* actions);
  void On(const GivenUp& event, Instant now, std::vector<Action>* actions);
  void On(const Settled& event, Instant now, std::vector<Action>* actions);
  void On(const Finished& event, Instant now, std::vector<Action>* actions);
  void On(const Connected&, Instant now, std::vector<Action>* actions);
  void On(const Disconnected&, Instant now, std::vector<Action>* actions);
  void On(const PeerGone& event, Instant now, std::vector<Action>* actions);
  void On(const Tick&, Instant now, std::vector<Action>* actions);
  void On(const Ending&, Instant, std::vector<Action>* actions);

  void CloseConnectionIfDone(std::vector<Action>* actions);
  // Why the request may not run now.
  absl::Status Admit(const Request& request) const;
  void CancelCall(CallMap::iterator it, absl::Status why,
                  std::vector<Action>* actions);
  // The call is over for its caller; `outcome`: of the attachments of its
  // reply, if there is one. The next call.
  CallMap::iterator CloseCall(CallMap::iterator it, AttachmentOutcome outcome,
                              std::vector<Action>* actions);
  // Forgets a closed call that neither runs nor is unsettled. The next call.
  CallMap::iterator ForgetIfOver(CallMap::iterator it,
                                 std::vector<Action>* actions);
  // False: too many gaps would be kept.
  bool Acknowledge(Interval interval, std::vector<Action>* actions);
  // Answers a Cancel of ids between which no call is known.
  void AnswerUnknown(Interval interval, rpc::Closed* answer);
  // If so, that is a Violation.
  bool HasTooManyGaps(std::vector<Action>* actions) const;
  void Tell(uint64_t id, const Reply& reply, AttachmentOutcome outcome,
            std::vector<Action>* actions);
  void SendReplyOf(Call& call, std::vector<Action>* actions);
  void SetReply(CallMap::iterator it, ReplyPtr reply,
                std::vector<Action>* actions);
  void Wake(Instant when, std::vector<Action>* actions);

  Limits limits_;
  absl::Duration patience_;
  bool connected_ = false;
  bool gone_ = false;
  bool ending_ = false;
  Instant repeats_until_ = Instant::Infinite();  // while ending_ and connected_
  Instant vanishes_at_ = Instant::Infinite();    // while not connected_
  CallMap calls_;
  IntervalSet closed_;
  IntervalSet never_;  // of closed_, what was closed before it came
  size_t running_ = 0;
  int64_t open_calls_ = 0;  // not closed, depth 0
  int64_t bytes_ = 0;
  Instant wake_ = Instant::Infinite();
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_SESSION_H_
