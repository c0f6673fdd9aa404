// SessionWorld: a caller, a callee and an adversary between them, one step at a
// time. The exhaustive exploration and the random simulation both walk it.

#ifndef WEFT_RPC_SESSION_SESSION_WORLD_H_
#define WEFT_RPC_SESSION_SESSION_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/rpc/session/session.h"
#include "weft/rpc/session/session_hook.h"

namespace weft::rpc {

// Bugs planted into the world, each of which a walk must find.
enum class Fault {
  kNone,
  kNoDedupe,           // a repeated request runs again
  kNoFence,            // a restarted callee takes the old session's requests
  kAckBeforeDelivery,  // the callee forgets a reply when it is sent
  kSendOrderLost,      // the sends of one step leave in reverse
  // These are faults of attachments.
  kAckBeforeSettled,  // a reply is acknowledged before what came with it is
                      // settled
  kNoRollback,        // a reply that was given up is freed, and who sent its
                      // attachments is not told
  kNeverAfterStart,   // a Cancel is answered "never" for a call that has come
};

struct WorldOptions {
  int calls = 2;
  Limits limits;
  Fault fault = Fault::kNone;
  SessionHook* hook = nullptr;  // sees all events; must outlive the world
  // A connection delivers in order or breaks. Else any message may be
  // delivered at any time, lost or repeated, also after its connection broke.
  bool fifo = false;
  // What the adversary may still do.
  int drops = 0;
  int duplicates = 0;
  int disconnects = 0;
  int abandons = 0;
  int expiries = 0;
  int unreachables = 0;  // the caller has tried for too long
  int forgets = 0;       // the callee loses the session's table
  int crashes = 0;       // the callee is replaced by a new incarnation
  // Whether requests and replies have attachments; of such requests the callee
  // may refuse so many, of replies the caller.
  bool attached = false;
  int request_refusals = 0;
  int reply_refusals = 0;
};

// Copyable, so that a walk can branch.
class SessionWorld {
 public:
  explicit SessionWorld(WorldOptions options);

  // What can happen next, as text such as "deliver 3"; Apply does it.
  std::vector<std::string> Moves() const;
  void Apply(const std::string& move);

  // Lets everything happen that a fair network would do from here on, and
  // checks what must hold then. The world is of no use afterwards.
  void Settle();

  // What went wrong; empty if nothing did.
  const std::string& violation() const { return violation_; }
  std::string Fingerprint() const;

 private:
  struct Wire {
    enum class Kind { kRequest, kAck, kCancel, kReply, kClosed };
    bool is_of_callee() const {
      return kind == Kind::kReply || kind == Kind::kClosed;
    }

    Kind kind;
    std::string text;
    RequestPtr request = nullptr;
    ReplyPtr reply = nullptr;
    Ack ack = {};
    Cancel cancel = {};
    Closed closed = {};
  };
  // What became of the attachments of one message.
  struct Attached {
    bool staged = false;
    bool taken = false;    // at the other side
    bool settled = false;  // there
    int told = 0;
    AttachmentOutcome outcome = AttachmentOutcome::kRefused;
  };
  struct Fate {
    int started = 0;  // in any incarnation of the callee
    int ended = 0;
    bool given_up = false;  // the caller abandoned it, or its deadline passed
    absl::Status status;
    Attached request;
    Attached reply;
  };
  // A call at the callee, of this incarnation.
  struct Served {
    bool waits = false;  // for the attachments of its request
    bool is_cancelled = false;
  };

  // By way of the hook, if there is one.
  template <typename Session, typename Event, typename Action>
  void Give(Session& session, const Event& event,
            std::vector<Action>* actions) {
    if (options_.hook == nullptr) return session.OnEvent(event, now_, actions);
    options_.hook->OnEvent(session, event, now_, actions);
  }
  void Tell(const CallerSession::Event& event);
  void Tell(const CalleeSession::Event& event);
  void StartCall();
  void Connect();
  void Disconnect();
  void Deliver(size_t index, bool keep);
  void Finish(uint64_t id);
  void Refuse(uint64_t id);
  void SettleRequest(uint64_t id);
  void SettleReply(uint64_t id, bool taken);
  void Begin(const Request& request);
  void TellOutcome(const char* of, uint64_t id, AttachmentOutcome outcome,
                   Attached* attached);
  void Crash();
  void RunOnce(uint64_t id);
  void Fail(const std::string& what);
  void Ended(const CallerSession::Complete& complete);
  bool CanDeliver(size_t index) const;

  WorldOptions options_;
  Instant now_;
  CallerSession caller_;
  CalleeSession callee_;
  bool callee_is_fresh_ = true;  // it has no such session yet
  bool crashed_ = false;
  bool forgot_ = false;
  bool connected_ = false;
  std::vector<Wire> network_;
  std::map<uint64_t, Served> running_;     // at the callee
  std::set<uint64_t> unsettled_requests_;  // there
  std::set<uint64_t> unsettled_replies_;   // at the caller
  std::map<uint64_t, Fate> fates_;
  std::optional<Instant> caller_wake_;
  std::optional<Instant> callee_wake_;
  std::string violation_;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_SESSION_WORLD_H_
