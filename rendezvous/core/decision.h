// Decision: how several workers commit together or not at all: two-phase commit
// whose blocking window ends with the coordinator's incarnation.
//
// docs/rulings.md 6 gives the rules. The coordinator decides COMMIT once every
// participant is done; that is final, and a later death only shrinks the set of
// those who can acknowledge it. A participant that is done never aborts alone:
// it asks the coordinator. If the coordinator's incarnation ends, it asks all
// other participants: one that has committed commits it; one that aborted or
// was not done aborts it; and whoever answers "done" promises to refuse a
// COMMIT of the dead coordinator that is still on its way, so that "done" from
// all that live means abort.
//
// A worker that is asked about a decision that it has no part in yet answers
// kAborted and refuses the decision's work when it comes.
//
// What is guaranteed:
//   D1  No two participants that live at the end decide differently.
//   D2  COMMIT only if every participant was done.
//   D3  Each participant that lives decides, once all deaths are known.
//
// No threads, clocks or I/O: OnEvent appends what is to be done. Messages
// between two incarnations are delivered once (rpc::Session), in any order.
//
// Source: Bernstein, Hadzilacos, Goodman, "Concurrency Control and Recovery in
// Database Systems", 7.4 (cooperative termination).

#ifndef WEFT_RENDEZVOUS_CORE_DECISION_H_
#define WEFT_RENDEZVOUS_CORE_DECISION_H_

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// OK is COMMIT; any other status is ABORT and says why.
using Outcome = absl::Status;

// Thread-safety: one thread at a time.
class DecisionCoordinator {
 public:
  // ---- Events.
  struct Done {
    WorkerKey from;
  };
  // A participant has failed and aborts.
  struct Failed {
    WorkerKey from;
    absl::Status why;
  };
  // The caller gives up, or the deadline has passed. Too late once decided.
  struct Cancelled {
    absl::Status why;
  };
  struct PeerGone {
    WorkerKey peer;
  };
  // A participant that is done has waited for long and asks for the outcome.
  struct Asked {
    WorkerKey from;
  };
  // A participant has applied the outcome.
  struct Acknowledged {
    WorkerKey from;
  };
  using Event =
      std::variant<Done, Failed, Cancelled, PeerGone, Asked, Acknowledged>;

  // ---- Actions.
  struct SendOutcome {
    WorkerKey to;
    Outcome outcome;
  };
  // All participants that live have applied it; `lost` have not, being dead.
  struct Finished {
    Outcome outcome;
    std::set<WorkerKey> lost;
  };
  using Action = std::variant<SendOutcome, Finished>;

  // The coordinator's own part, if it has one, is a participant as others.
  explicit DecisionCoordinator(std::set<WorkerKey> participants);

  void OnEvent(const Event& event, std::vector<Action>* actions);

  bool is_decided() const { return is_decided_; }
  bool is_finished() const { return is_finished_; }
  // Those who are not done yet, or have not acknowledged the outcome.
  std::set<WorkerKey> waiting_for() const;
  std::string Fingerprint() const;

 private:
  void On(const Done& event, std::vector<Action>* actions);
  void On(const Failed& event, std::vector<Action>* actions);
  void On(const Cancelled& event, std::vector<Action>* actions);
  void On(const PeerGone& event, std::vector<Action>* actions);
  void On(const Asked& event, std::vector<Action>* actions);
  void On(const Acknowledged& event, std::vector<Action>* actions);

  void Decide(Outcome outcome, std::vector<Action>* actions);
  void FinishIfAcknowledged(std::vector<Action>* actions);

  const std::set<WorkerKey> participants_;
  std::set<WorkerKey> done_;
  std::set<WorkerKey> acknowledged_;
  std::set<WorkerKey> lost_;
  bool is_decided_ = false;
  bool is_finished_ = false;
  Outcome outcome_;
};

// Thread-safety: one thread at a time.
class DecisionParticipant {
 public:
  // kAborted and kCommitted are final.
  enum class State { kWorking, kDone, kCommitted, kAborted };

  // ---- Events.
  // This participant's part is ready to be committed.
  struct WorkDone {};
  struct WorkFailed {
    absl::Status why;
  };
  struct OutcomeArrived {
    Outcome outcome;
  };
  // This participant has waited long for the outcome since it was done.
  struct Timer {};
  // The coordinator or another participant is gone.
  struct PeerGone {
    WorkerKey peer;
  };
  // Another participant, which knows that the coordinator is gone, asks.
  struct Asked {
    WorkerKey from;
  };
  struct Answered {
    WorkerKey from;
    State state;
  };
  using Event = std::variant<WorkDone, WorkFailed, OutcomeArrived, Timer,
                             PeerGone, Asked, Answered>;

  // ---- Actions.
  struct SendDone {};
  struct SendFailed {
    absl::Status why;
  };
  // To the coordinator: what is the outcome?
  struct AskCoordinator {};
  struct AskParticipant {
    WorkerKey to;
  };
  struct Answer {
    WorkerKey to;
    State state;
  };
  // Applies the outcome here, once; then Acknowledge follows.
  struct Apply {
    Outcome outcome;
  };
  struct Acknowledge {};
  using Action = std::variant<SendDone, SendFailed, AskCoordinator,
                              AskParticipant, Answer, Apply, Acknowledge>;

  DecisionParticipant(WorkerKey self, WorkerKey coordinator,
                      std::set<WorkerKey> participants);

  void OnEvent(const Event& event, std::vector<Action>* actions);

  State state() const { return state_; }
  std::string Fingerprint() const;

 private:
  void On(const WorkDone& event, std::vector<Action>* actions);
  void On(const WorkFailed& event, std::vector<Action>* actions);
  void On(const OutcomeArrived& event, std::vector<Action>* actions);
  void On(const Timer& event, std::vector<Action>* actions);
  void On(const PeerGone& event, std::vector<Action>* actions);
  void On(const Asked& event, std::vector<Action>* actions);
  void On(const Answered& event, std::vector<Action>* actions);

  bool is_decided() const { return state_ >= State::kCommitted; }
  void Decide(Outcome outcome, std::vector<Action>* actions);
  void CoordinatorGone(std::vector<Action>* actions);
  void AbortIfAllAnswered(std::vector<Action>* actions);

  const WorkerKey self_;
  const WorkerKey coordinator_;
  State state_ = State::kWorking;
  std::set<WorkerKey> others_;    // that live
  std::set<WorkerKey> answered_;  // "done", after the coordinator's end
  bool coordinator_is_gone_ = false;
  // Set once it has answered "done" to another participant: a COMMIT of the
  // coordinator then comes too late.
  bool refuses_coordinator_ = false;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_DECISION_H_
