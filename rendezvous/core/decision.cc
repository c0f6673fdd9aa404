#include "weft/rendezvous/core/decision.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rendezvous {

namespace {

std::string Names(const std::set<WorkerKey>& keys) {
  std::string text;
  for (const WorkerKey& key : keys) absl::StrAppend(&text, key.ToString(), ",");
  return text;
}

}  // namespace

// ------------------------------------------------------------ coordinator

DecisionCoordinator::DecisionCoordinator(std::set<WorkerKey> participants)
    : participants_(std::move(participants)) {}

void DecisionCoordinator::OnEvent(const Event& event,
                                  std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, actions); }, event);
}

void DecisionCoordinator::On(const Done& event, std::vector<Action>* actions) {
  if (participants_.count(event.from) == 0) return;
  done_.insert(event.from);
  if (done_.size() == participants_.size()) Decide(absl::OkStatus(), actions);
}

void DecisionCoordinator::On(const Failed& event,
                             std::vector<Action>* actions) {
  Decide(event.why, actions);
}

void DecisionCoordinator::On(const Cancelled& event,
                             std::vector<Action>* actions) {
  Decide(event.why, actions);
}

void DecisionCoordinator::On(const PeerGone& event,
                             std::vector<Action>* actions) {
  if (participants_.count(event.peer) == 0) return;
  lost_.insert(event.peer);
  Decide(absl::UnavailableError(absl::StrCat("worker ", event.peer.ToString(),
                                             " is gone before the commit")),
         actions);
  FinishIfAcknowledged(actions);
}

void DecisionCoordinator::On(const Asked& event, std::vector<Action>* actions) {
  if (is_decided_) actions->push_back(SendOutcome{event.from, outcome_});
}

void DecisionCoordinator::On(const Acknowledged& event,
                             std::vector<Action>* actions) {
  if (participants_.count(event.from) == 0) return;
  acknowledged_.insert(event.from);
  FinishIfAcknowledged(actions);
}

void DecisionCoordinator::Decide(Outcome outcome,
                                 std::vector<Action>* actions) {
  if (is_decided_) return;
  is_decided_ = true;
  outcome_ = std::move(outcome);
  for (const WorkerKey& to : participants_) {
    if (lost_.count(to) == 0) actions->push_back(SendOutcome{to, outcome_});
  }
  FinishIfAcknowledged(actions);
}

void DecisionCoordinator::FinishIfAcknowledged(std::vector<Action>* actions) {
  if (!is_decided_ || is_finished_ || !waiting_for().empty()) return;
  is_finished_ = true;
  actions->push_back(Finished{outcome_, lost_});
}

std::set<WorkerKey> DecisionCoordinator::waiting_for() const {
  const std::set<WorkerKey>& answered = is_decided_ ? acknowledged_ : done_;
  std::set<WorkerKey> missing;
  for (const WorkerKey& key : participants_) {
    if (answered.count(key) == 0 && lost_.count(key) == 0) missing.insert(key);
  }
  return missing;
}

std::string DecisionCoordinator::Fingerprint() const {
  return absl::StrCat(is_decided_, outcome_.ok(), is_finished_, "d",
                      Names(done_), "a", Names(acknowledged_), "l",
                      Names(lost_));
}

// ------------------------------------------------------------ participant

DecisionParticipant::DecisionParticipant(WorkerKey self, WorkerKey coordinator,
                                         std::set<WorkerKey> participants)
    : self_(self), coordinator_(coordinator), others_(std::move(participants)) {
  others_.erase(self);
}

void DecisionParticipant::OnEvent(const Event& event,
                                  std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, actions); }, event);
}

void DecisionParticipant::On(const WorkDone&, std::vector<Action>* actions) {
  if (state_ != State::kWorking) return;
  state_ = State::kDone;
  actions->push_back(SendDone{});
}

void DecisionParticipant::On(const WorkFailed& event,
                             std::vector<Action>* actions) {
  if (state_ != State::kWorking) return;
  actions->push_back(SendFailed{event.why});
  Decide(event.why, actions);
}

void DecisionParticipant::On(const OutcomeArrived& event,
                             std::vector<Action>* actions) {
  // A repeated outcome, which an AskCoordinator caused, changes nothing.
  if (!is_decided() && refuses_coordinator_) return;
  Decide(event.outcome, actions);
}

void DecisionParticipant::On(const Timer&, std::vector<Action>* actions) {
  if (state_ == State::kDone && !coordinator_is_gone_) {
    actions->push_back(AskCoordinator{});
  }
}

void DecisionParticipant::On(const PeerGone& event,
                             std::vector<Action>* actions) {
  others_.erase(event.peer);
  answered_.erase(event.peer);
  if (event.peer == coordinator_) {
    CoordinatorGone(actions);
  } else {
    AbortIfAllAnswered(actions);
  }
}

void DecisionParticipant::CoordinatorGone(std::vector<Action>* actions) {
  coordinator_is_gone_ = true;
  if (state_ == State::kWorking) {
    // The coordinator cannot have decided to commit, since this participant is
    // not done.
    return Decide(absl::UnavailableError(absl::StrCat(
                      "coordinator ", coordinator_.ToString(), " is gone")),
                  actions);
  }
  if (state_ != State::kDone) return;
  refuses_coordinator_ = true;
  for (const WorkerKey& to : others_) actions->push_back(AskParticipant{to});
  AbortIfAllAnswered(actions);
}

void DecisionParticipant::On(const Asked& event, std::vector<Action>* actions) {
  if (state_ == State::kWorking) {
    // The coordinator of whoever asks is gone, so it is this one's.
    Decide(absl::UnavailableError(absl::StrCat(
               "coordinator ", coordinator_.ToString(), " is gone")),
           actions);
  }
  if (state_ == State::kDone) refuses_coordinator_ = true;
  actions->push_back(Answer{event.from, state_});
}

void DecisionParticipant::On(const Answered& event,
                             std::vector<Action>* actions) {
  if (state_ != State::kDone || !coordinator_is_gone_) return;
  if (event.state == State::kCommitted) return Decide(Outcome(), actions);
  if (event.state == State::kAborted) {
    return Decide(absl::AbortedError(absl::StrCat(
                      "worker ", event.from.ToString(), " has aborted")),
                  actions);
  }
  if (others_.count(event.from) > 0) answered_.insert(event.from);
  AbortIfAllAnswered(actions);
}

void DecisionParticipant::AbortIfAllAnswered(std::vector<Action>* actions) {
  if (state_ != State::kDone || !coordinator_is_gone_) return;
  if (answered_.size() < others_.size()) return;
  Decide(absl::UnavailableError(
             absl::StrCat("coordinator ", coordinator_.ToString(),
                          " is gone and no participant knows of a commit")),
         actions);
}

void DecisionParticipant::Decide(Outcome outcome,
                                 std::vector<Action>* actions) {
  if (!is_decided()) {
    state_ = outcome.ok() ? State::kCommitted : State::kAborted;
    actions->push_back(Apply{std::move(outcome)});
  }
  if (!coordinator_is_gone_) actions->push_back(Acknowledge{});
}

std::string DecisionParticipant::Fingerprint() const {
  return absl::StrCat(static_cast<int>(state_), coordinator_is_gone_,
                      refuses_coordinator_, "o", Names(others_), "a",
                      Names(answered_));
}

}  // namespace weft::rendezvous
