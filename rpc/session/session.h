// Session: what a caller and a callee owe each other, as two pure cores.
//
// A session joins one incarnation of a caller to one of a callee and outlives
// their connections. The caller numbers its calls 1, 2, 3, ...; from then on
// exactly these hold (docs/rpc.md names the test of each):
//   G1  A call's function starts at most once.
//   G2  While both live and can connect, each call ends with the function's
//       reply, unless its caller gave it up; it ends once.
//   G3  A closed call never starts, however late its first copy arrives.
//   G4  What both sides remember of closed calls is a set of intervals.
//   G5  If the callee's memory of the session is gone, sent calls end with
//       OutcomeUnknown; nothing repeats them.
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
#include <string>
#include <utility>
#include <variant>
#include <vector>

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
  static constexpr absl::Duration kCloseDelay = absl::Milliseconds(20);
  static constexpr int64_t kCloseCalls = 64;
  static constexpr int64_t kCloseBytes = int64_t{1} << 20;

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
    // What the callee serves; null: all that this side knows.
    std::shared_ptr<const FunctionTable> functions;
    std::string build;  // the callee's, for messages
  };
  struct Disconnected {};
  // The callee has forgotten the session: its next life is another one.
  struct Forgotten {};
  struct Arrived {
    ReplyPtr reply;
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
  // The caller ends: once no call is open it hangs up, and later calls end with
  // `why`.
  struct Ending {
    absl::Status why;
  };
  using Event = std::variant<Start, Abandon, Connected, Disconnected, Forgotten,
                             Arrived, Unreachable, PeerGone, Tick, Ending>;

  // ---- Actions.
  struct SendRequest {
    RequestPtr request;
  };
  struct SendClose {
    Close close;
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
  struct HangUp {};
  using Action = std::variant<SendRequest, SendClose, Complete, WakeAt, HangUp>;

  enum class State { kUnknown, kWaiting, kSent, kEnded };  // of a call

  // `peer` is the callee's name, for messages to people.
  explicit CallerSession(std::string peer) : peer_(std::move(peer)) {}

  void OnEvent(const Event& event, Instant now, std::vector<Action>* actions);

  // What a new connection says: which life of the session this is, and whether
  // the callee must remember it. Each has a life of its own until one was
  // welcomed: an earlier one that comes late, perhaps when all was forgotten,
  // must not begin the life that this one resumes.
  uint64_t life() const { return life_; }
  bool resumes() const { return resumes_; }

  bool is_connected() const { return connected_; }
  bool is_gone() const { return !gone_.ok(); }
  // Calls that have not ended, of those not handed to the wire yet.
  size_t pending_calls() const { return pending_.size(); }
  size_t waiting_calls() const;
  template <typename Fn>  // fn(const Request&, bool sent)
  void ForEachPending(Fn fn) const {
    for (const auto& [id, call] : pending_) fn(*call.request, call.sent);
  }

  State StateOf(uint64_t id) const;

  // All state as text: equal cores have equal ones.
  std::string Fingerprint() const;

 private:
  struct Pending {
    RequestPtr request;
    bool sent = false;
  };
  using PendingMap = IdMap<Pending>;

  void On(const Start& event, Instant now, std::vector<Action>* actions);
  void On(const Abandon& event, Instant now, std::vector<Action>* actions);
  void On(const Connected& event, Instant now, std::vector<Action>* actions);
  void On(const Disconnected&, Instant, std::vector<Action>*);
  void On(const Forgotten& event, Instant now, std::vector<Action>* actions);
  void On(const Arrived& event, Instant now, std::vector<Action>* actions);
  void On(const Unreachable& event, Instant now, std::vector<Action>* actions);
  void On(const PeerGone& event, Instant now, std::vector<Action>* actions);
  void On(const Tick&, Instant now, std::vector<Action>* actions);
  void On(const Ending& event, Instant, std::vector<Action>*);

  void HangUpIfDone(std::vector<Action>* actions);
  // What the callee would answer to a request that it can never serve; null if
  // it may be sent.
  ReplyPtr Refuse(const Request& request);
  absl::Status CheckServed(const Request& request, Refusal* refusal);
  absl::Status CheckLimits(const Request& request) const;
  bool HasCredit(const Request& request) const;
  absl::Status NoCredit(const Request& request) const;
  // Sends a call, again if it was sent before, or ends one whose borrowed
  // elements have changed. The next call.
  PendingMap::iterator Send(PendingMap::iterator it,
                            std::vector<Action>* actions);
  void SendWaiting(Instant now, std::vector<Action>* actions);
  // Ends a call with `status` or `reply` and closes its id.
  PendingMap::iterator End(PendingMap::iterator it, absl::Status status,
                           ReplyPtr reply, std::vector<Action>* actions);
  void EndAll(const absl::Status& why, std::vector<Action>* actions);
  void FlushCloses(std::vector<Action>* actions);
  void CloseSoon(Instant now, std::vector<Action>* actions);
  void Wake(Instant when, std::vector<Action>* actions);
  absl::Status Expired(const Pending& call) const;
  Phase PhaseOf(const Pending& call) const;
  // `why` as the end of this call: with its phase, and whether it may have run.
  absl::Status Unanswered(const Pending& call, absl::Status why) const;

  std::string peer_;
  absl::Status gone_;
  absl::Status ending_;  // not OK: why no more calls are made
  Limits limits_;
  std::shared_ptr<const FunctionTable> functions_;
  std::vector<bool> served_;  // by Request::function_index: functions_ has it
  std::string build_;
  uint64_t life_ = 1;
  bool resumes_ = false;
  bool connected_ = false;

  uint64_t next_id_ = 1;
  PendingMap pending_;
  std::deque<uint64_t> waiting_;  // unsent, depth 0; may name ended ones
  int64_t calls_out_ = 0;         // sent, depth 0
  int64_t bytes_out_ = 0;
  int64_t nested_out_ = 0;
  int64_t nested_bytes_out_ = 0;

  IntervalSet closed_;    // all that ended
  IntervalSet unclosed_;  // of these, what this connection was not told yet
  int64_t unclosed_calls_ = 0;
  int64_t unclosed_bytes_ = 0;
  Instant close_due_ = Instant::Infinite();
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
  struct Closed {
    Close close;
  };
  // The function has ended.
  struct Finished {
    std::shared_ptr<Reply> reply;
  };
  struct Connected {};
  struct Disconnected {};
  // The caller's incarnation, or this life of the session, is no more.
  struct PeerGone {
    absl::Status why;
  };
  struct Tick {};
  // The callee ends: it hangs up once the caller has acknowledged all replies.
  struct Ending {};
  using Event = std::variant<Arrived, Closed, Finished, Connected, Disconnected,
                             PeerGone, Tick, Ending>;

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
  };
  struct WakeAt {
    Instant when;
  };
  // The caller breaks the protocol: its connection should be closed.
  struct Violation {
    absl::Status why;
  };
  // Closes the connection after what was sent.
  struct HangUp {};
  // The caller has not connected again in time: PeerGone should follow.
  struct Vanished {};
  using Action =
      std::variant<Run, Cancel, SendReply, WakeAt, Violation, HangUp, Vanished>;

  enum class State {  // of a call
    kUnknown,
    kRunning,
    kCancelled,  // it runs, and was told that its deadline has passed
    kGivenUp,    // it runs, and is closed
    kAnswered,
    kClosed,
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
  template <typename Fn>  // fn(uint64_t id)
  void ForEachKnown(Fn fn) const {
    for (const auto& [id, call] : calls_) fn(id);
  }
  State StateOf(uint64_t id) const;

  std::string Fingerprint() const;

 private:
  // Runs while `reply` is null. A closed one is here only while it runs.
  struct Call {
    Instant deadline;
    int depth = 0;
    int64_t bytes = 0;  // what it costs now
    bool closed = false;
    bool cancelled = false;
    ReplyPtr reply;
  };
  using CallMap = IdMap<Call>;

  void On(const Arrived& event, Instant now, std::vector<Action>* actions);
  void On(const Closed& event, Instant now, std::vector<Action>* actions);
  void On(const Finished& event, Instant now, std::vector<Action>* actions);
  void On(const Connected&, Instant now, std::vector<Action>* actions);
  void On(const Disconnected&, Instant now, std::vector<Action>* actions);
  void On(const PeerGone& event, Instant now, std::vector<Action>* actions);
  void On(const Tick&, Instant now, std::vector<Action>* actions);
  void On(const Ending&, Instant, std::vector<Action>* actions);

  void HangUpIfDone(std::vector<Action>* actions);
  // Why the request may not run now.
  absl::Status Admit(const Request& request) const;
  void CancelCall(CallMap::iterator it, absl::Status why,
                  std::vector<Action>* actions);
  // A call that runs stays until it has finished; else it is forgotten.
  CallMap::iterator CloseCall(CallMap::iterator it,
                              std::vector<Action>* actions);
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
  size_t running_ = 0;
  int64_t open_calls_ = 0;  // not closed, depth 0
  int64_t bytes_ = 0;
  Instant wake_ = Instant::Infinite();
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_SESSION_H_
