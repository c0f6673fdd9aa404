#include "weft/train/core/step_commit.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::train {
namespace {

const char* NameOf(StepCommit::Phase phase) {
  switch (phase) {
    case StepCommit::Phase::kMeeting:
      return "meeting";
    case StepCommit::Phase::kTellingPlaces:
      return "telling places";
    case StepCommit::Phase::kTellingDifferences:
      return "telling differences";
    case StepCommit::Phase::kBeginning:
      return "beginning";
    case StepCommit::Phase::kSharingState:
      return "sharing state";
    case StepCommit::Phase::kTraining:
      return "training";
    case StepCommit::Phase::kReducing:
      return "reducing";
    case StepCommit::Phase::kTakingStep:
      return "taking a step";
    case StepCommit::Phase::kSettling:
      return "settling a step";
    case StepCommit::Phase::kPushing:
      return "pushing a step";
    case StepCommit::Phase::kStopped:
      return "stopped";
    case StepCommit::Phase::kLeft:
      return "left";
    case StepCommit::Phase::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace

bool IsFurther(const StepPosition& a, const StepPosition& b) {
  return std::tie(a.steps, a.epoch, a.was_stopped) >
         std::tie(b.steps, b.epoch, b.was_stopped);
}

int SourceOf(const std::vector<RankPlace>& places) {
  int source = -1;
  for (size_t r = 0; r < places.size(); ++r) {
    if (!places[r].is_known) continue;
    if (source < 0 || IsFurther(places[r].position, places[source].position)) {
      source = static_cast<int>(r);
    }
  }
  return source;
}

void StepCommit::OnEvent(const Event& event, std::vector<Action>* actions) {
  std::visit([&](const auto& e) { On(e, actions); }, event);
}

std::string StepCommit::ToString() const {
  std::string text =
      absl::StrCat(NameOf(phase_), ", ", position_.steps, " steps taken");
  if (!is_known_) absl::StrAppend(&text, ", no place yet");
  absl::StrAppend(&text, ", epoch ", position_.epoch, ", rank ", rank_, " of ",
                  size_);
  if (phase_ == Phase::kSharingState || phase_ == Phase::kTellingDifferences) {
    absl::StrAppend(&text, ", source rank ", source_, " after ",
                    source_position_.steps, ".", source_position_.epoch,
                    source_position_.was_stopped ? " stopped" : "",
                    keeps_state_ ? ", keeps its own" : "",
                    differs_ ? ", differs" : "");
  }
  if (phase_ == Phase::kReducing) {
    absl::StrAppend(&text, ", votes ", vote_.stops, vote_.newcomers_wait,
                    vote_.asked_to_leave, vote_.leaves,
                    vote_.next_group_is_made);
  }
  if (meets_ahead_) text += ", meets ahead";
  if (phase_ == Phase::kTakingStep || phase_ == Phase::kSettling ||
      phase_ == Phase::kPushing) {
    absl::StrAppend(&text, ", then ", static_cast<int>(next_));
  }
  if (asked_to_leave_at_.has_value()) {
    absl::StrAppend(&text, ", asked to leave at ",
                    asked_to_leave_at_->nanoseconds());
  }
  if (position_.was_stopped) absl::StrAppend(&text, ", to stop");
  return text;
}

void StepCommit::GoToMeeting(Reason reason, std::vector<Action>* actions) {
  phase_ = Phase::kMeeting;
  meets_ahead_ = false;
  actions->push_back(Meet{reason});
}

void StepCommit::GoToEnd(std::vector<Action>* actions) {
  phase_ = Phase::kEnded;
  actions->push_back(End{});
}

void StepCommit::GoToSettling(std::vector<Action>* actions) {
  phase_ = Phase::kSettling;
  actions->push_back(Settle{});
}

void StepCommit::On(const Started&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kMeeting) << ToString();
  GoToMeeting(Reason::kStart, actions);
}

void StepCommit::On(const Met& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kMeeting) << ToString();
  rank_ = event.rank;
  size_ = event.size;
  differs_ = false;
  if (options_.is_elastic) {
    phase_ = Phase::kTellingPlaces;
    actions->push_back(TellPlaces{});
  } else {
    phase_ = Phase::kBeginning;
    actions->push_back(Begin{});
  }
}

void StepCommit::On(const MeetingFailed& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kMeeting) << ToString();
  if (is_known_ && event.by_signal) actions->push_back(SaveAlone{});
  GoToEnd(actions);
}

void StepCommit::On(const PlacesTold& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kTellingPlaces) << ToString();
  const std::vector<RankPlace>& places = event.places;
  WEFT_CHECK_EQ(places.size(), static_cast<size_t>(size_));
  const int furthest = SourceOf(places);
  source_ = std::max(furthest, 0);
  source_position_ = places[source_].position;
  const uint64_t wanted = places[source_].fingerprint;
  if (std::any_of(places.begin(), places.end(), [&](const RankPlace& place) {
        return place.fingerprint != wanted;
      })) {
    differs_ = places[rank_].fingerprint != wanted;
    phase_ = Phase::kTellingDifferences;
    actions->push_back(TellDifferences{source_});
    return;
  }
  if (furthest < 0) {
    phase_ = Phase::kBeginning;
    actions->push_back(Begin{});
    return;
  }
  // Nothing of this rank's place changes before it has all that belongs to the
  // new one: the source may be lost meanwhile, and this rank be the furthest.
  // After the same step both have the same bits.
  phase_ = Phase::kSharingState;
  keeps_state_ = is_known_ && position_.steps != source_position_.steps;
  if (keeps_state_) actions->push_back(KeepState{});
  actions->push_back(ShareState{source_});
}

// Those that differ end; the others go on without them.
void StepCommit::On(const DifferencesTold&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kTellingDifferences) << ToString();
  if (differs_) {
    GoToEnd(actions);
  } else {
    GoToMeeting(Reason::kDifferent, actions);
  }
}

void StepCommit::On(const Begun& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kBeginning) << ToString();
  position_ = event.position;
  is_known_ = true;
  phase_ = Phase::kTraining;
  actions->push_back(Train{});
}

void StepCommit::On(const StateShared&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kSharingState) << ToString();
  const bool has_come = !is_known_;
  position_ = source_position_;
  is_known_ = true;
  keeps_state_ = false;
  actions->push_back(TakePlace{source_, has_come});
  next_ = Next::kTrain;
  if (options_.has_tables) return GoToSettling(actions);
  GoOn(actions);
}

void StepCommit::On(const PassesDone& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kTraining) << ToString();
  vote_ = StepVote();
  vote_.stops = event.is_asked_to_stop ? 1 : 0;
  vote_.newcomers_wait = event.newcomers_wait ? 1 : 0;
  if (event.is_asked_to_leave) {
    if (!asked_to_leave_at_.has_value()) asked_to_leave_at_ = event.now;
    vote_.asked_to_leave = 1;
    vote_.leaves =
        event.now - *asked_to_leave_at_ >= options_.leave_after ? 1 : 0;
  }
  vote_.next_group_is_made = meets_ahead_ && event.next_group_is_made ? 1 : 0;
  phase_ = Phase::kReducing;
  actions->push_back(Reduce{vote_});
}

// The same votes give the same result on all ranks, but for a rank that leaves.
StepCommit::Next StepCommit::AfterStep(const Reduced& event) const {
  if (event.is_last) return Next::kTrain;  // nothing is left to stop or share
  const StepVote& votes = event.votes;
  if (votes.stops > 0 || votes.asked_to_leave >= size_) return Next::kStop;
  if (votes.leaves > 0) return vote_.leaves > 0 ? Next::kLeave : Next::kPart;
  if (meets_ahead_) {
    return votes.next_group_is_made >= size_ ? Next::kMeet : Next::kTrain;
  }
  if (votes.newcomers_wait == 0) return Next::kTrain;
  return options_.meets_ahead ? Next::kMeetAhead : Next::kMeet;
}

void StepCommit::On(const Reduced& event, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kReducing) << ToString();
  next_ = AfterStep(event);
  phase_ = Phase::kTakingStep;
  actions->push_back(TakeStep{});
}

void StepCommit::On(const StepTaken&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kTakingStep) << ToString();
  ++position_.steps;
  // Also where it is lost that all have taken it.
  if (next_ == Next::kStop) position_.was_stopped = true;
  if (options_.has_tables) return GoToSettling(actions);
  GoOn(actions);
}

void StepCommit::On(const Settled&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kSettling) << ToString();
  phase_ = Phase::kPushing;
  actions->push_back(Push{});
}

void StepCommit::On(const Pushed&, std::vector<Action>* actions) {
  WEFT_CHECK(phase_ == Phase::kPushing) << ToString();
  GoOn(actions);
}

void StepCommit::GoOn(std::vector<Action>* actions) {
  phase_ = position_.was_stopped ? Phase::kStopped : Phase::kTraining;
  switch (next_) {
    case Next::kTrain:
      actions->push_back(Train{});
      return;
    case Next::kStop:
      actions->push_back(Stop{});
      return;
    case Next::kLeave:
      position_.was_stopped = true;
      phase_ = Phase::kLeft;
      actions->push_back(Save{});
      actions->push_back(Leave{});
      return;
    case Next::kPart:
      actions->push_back(Save{});  // the others may be asked to end meanwhile
      return GoToMeeting(Reason::kLeavers, actions);
    case Next::kMeetAhead:
      meets_ahead_ = true;
      actions->push_back(MeetAhead{});
      actions->push_back(Train{});
      return;
    case Next::kMeet:
      return GoToMeeting(Reason::kNewcomers, actions);
  }
}

void StepCommit::On(const EpochEnded&, std::vector<Action>*) {
  WEFT_CHECK(phase_ == Phase::kTraining) << ToString();
  ++position_.epoch;
}

void StepCommit::On(const Failed& event, std::vector<Action>* actions) {
  // What was to be put back before the end could not be.
  if (phase_ == Phase::kEnded) return GoToEnd(actions);
  const Phase failed = phase_;
  if (failed == Phase::kReducing) actions->push_back(AbandonStep{});
  if (keeps_state_) actions->push_back(RestoreState{});
  keeps_state_ = false;
  // While it meets its own state could not be put back, or it has none; a step
  // that was applied in part cannot be repeated.
  const bool can_go_on = failed != Phase::kMeeting &&
                         failed != Phase::kTakingStep && failed != Phase::kLeft;
  if (!options_.is_elastic || !event.is_lost || !can_go_on) {
    return GoToEnd(actions);
  }
  const bool trains = failed == Phase::kTraining ||
                      failed == Phase::kReducing ||
                      failed == Phase::kSettling || failed == Phase::kPushing ||
                      failed == Phase::kStopped;
  GoToMeeting(trains ? Reason::kLost : Reason::kLostWhileMeeting, actions);
}

}  // namespace weft::train
