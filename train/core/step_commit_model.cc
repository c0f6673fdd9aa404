#include "weft/train/core/step_commit_model.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::train {
namespace {

constexpr uint64_t kFingerprint = 7;
// Stands for a rank that has died, and does not send its part any more.
constexpr int kNobody = -1;

}  // namespace

StepCommitModel::StepCommitModel(const Bounds& bounds) : bounds_(bounds) {
  options_.leave_after = bounds.leave_after;
  options_.meets_ahead = bounds.meets_ahead;
  options_.has_tables = bounds.has_tables;
  ranks_.assign(bounds.ranks, Rank(options_));
  for (int r = 0; r < bounds.ranks - bounds.late; ++r) Come(r, false);
}

// --- What may happen. --------------------------------------------------------

// Whether `rank` sends no more to the others of `group`.
bool StepCommitModel::IsGone(int rank, int group) const {
  const Rank& one = ranks_[rank];
  return one.life != Life::kAlive ||
         (one.group != group && one.next_group != group);
}

bool StepCommitModel::NeedsAll(const Call& call) const {
  switch (call.doing) {
    case Doing::kShare:
      return false;
    case Doing::kBegin:
      return call.part == 0;
    case Doing::kFinish:
      return call.part == 1;
    default:
      return true;
  }
}

bool StepCommitModel::CanComplete(int rank) const {
  const Rank& one = ranks_[rank];
  if (one.doing == Doing::kNothing) return false;
  if (one.doing == Doing::kPush) return one.part == 0 || HasAllParts(rank);
  const Group& group = groups_.at(one.group);
  const Call& call = group.calls[one.calls - 1];
  if (NeedsAll(call)) return call.parts.size() == group.members.size();
  return call.parts.count(group.members[call.root]) > 0;
}

bool StepCommitModel::CanFail(int rank) const {
  const Rank& one = ranks_[rank];
  if (one.doing == Doing::kNothing) return false;
  const std::vector<int>& members = groups_.at(one.group).members;
  return std::any_of(members.begin(), members.end(),
                     [&](int other) { return IsGone(other, one.group); });
}

// As a roll call closes (rendezvous/core/roll_call_core.h): once all that live
// have come, or as many as may with all of the newest group.
std::vector<int> StepCommitModel::NextGroup() const {
  std::vector<int> members, waiting;
  bool lacks = false, lacks_former = false;
  for (int r = 0; r < bounds_.ranks; ++r) {
    if (ranks_[r].life != Life::kAlive) continue;
    const bool is_former =
        std::find(newest_.begin(), newest_.end(), r) != newest_.end();
    if (ranks_[r].meets || ranks_[r].meets_ahead) {
      (is_former ? members : waiting).push_back(r);
    } else {
      lacks = true;
      lacks_former |= is_former;
    }
  }
  members.insert(members.end(), waiting.begin(), waiting.end());
  const int count = static_cast<int>(members.size());
  if (count < bounds_.min || lacks_former || (lacks && count < bounds_.max)) {
    return {};
  }
  if (count > bounds_.max) members.resize(bounds_.max);
  std::sort(members.begin(), members.end());
  return members;
}

bool StepCommitModel::SomebodyWaits() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& one) {
    return one.life == Life::kAlive && one.meets;
  });
}

std::vector<StepCommitModel::Event> StepCommitModel::Events() const {
  std::vector<Event> events;
  if (!NextGroup().empty()) events.push_back({Event::kMeet, 0});
  for (int r = 0; r < bounds_.ranks; ++r) {
    if (CanComplete(r)) events.push_back({Event::kComplete, r});
    if (CanFail(r)) events.push_back({Event::kFail, r});
    const Rank& one = ranks_[r];
    if (one.life == Life::kAlive) {
      if (one.meets && one.is_asked_to_leave) {
        events.push_back({Event::kGiveUp, r});
      }
      if (deaths_ < bounds_.deaths) events.push_back({Event::kDie, r});
      if (pauses_ < bounds_.pauses) events.push_back({Event::kPause, r});
      if (leaves_ < bounds_.leaves && !one.is_asked_to_leave) {
        events.push_back({Event::kAskToLeave, r});
      }
    }
    if (r == 0 && server_deaths_ < bounds_.server_deaths) {
      events.push_back({Event::kServerDies, r});
    }
    if (one.life == Life::kAbsent && comings_ < bounds_.comings) {
      events.push_back({Event::kCome, r});
      if (others_ < bounds_.others) events.push_back({Event::kComeOther, r});
    }
  }
  return events;
}

// --- What happens. -----------------------------------------------------------

void StepCommitModel::Do(const Event& event, Instant now) {
  now_ = now;
  Rank& one = ranks_[event.rank];
  switch (event.kind) {
    case Event::kComplete:
      return Complete(event.rank);
    case Event::kFail: {
      one.doing = Doing::kNothing;
      return Handle(event.rank, StepCommit::Failed{/*is_lost=*/true});
    }
    case Event::kMeet:
      return FormGroup();
    case Event::kGiveUp:
      one.meets = false;
      return Handle(event.rank, StepCommit::MeetingFailed{/*by_signal=*/true});
    case Event::kDie:
      ++deaths_;
      return End(event.rank, Life::kAbsent);
    case Event::kCome:
    case Event::kComeOther:
      ++comings_;
      others_ += event.kind == Event::kComeOther;
      return Come(event.rank, event.kind == Event::kComeOther);
    case Event::kPause:
      ++pauses_;
      one.life = Life::kPaused;
      // Who waits for a group is on no roll any more.
      if (one.meets) End(event.rank, Life::kAbsent);
      return;
    case Event::kAskToLeave:
      ++leaves_;
      one.is_asked_to_leave = true;
      return;
    case Event::kServerDies:
      ++server_deaths_;
      return LoseParts();
  }
}

void StepCommitModel::Come(int rank, bool is_other) {
  Rank& one = ranks_[rank];
  one = Rank(options_);
  one.life = Life::kAlive;
  one.is_other = is_other;
  one.state = {-1, -1, -1};
  Handle(rank, StepCommit::Started{});
}

void StepCommitModel::End(int rank, Life life) {
  Rank& one = ranks_[rank];
  one.life = life;
  one.meets = one.meets_ahead = false;
  one.next_group = -1;
  one.doing = Doing::kNothing;
  for (Table& table : tables_) {
    for (auto& [shard, giver] : table.given) {
      if (giver == rank) giver = kNobody;
    }
  }
}

void StepCommitModel::FormGroup() {
  const std::vector<int> members = NextGroup();
  const int id = static_cast<int>(groups_made_++);
  newest_ = members;
  for (auto at = groups_.begin(); at != groups_.end();) {
    const bool is_used =
        std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& one) {
          return (one.doing != Doing::kNothing && one.group == at->first) ||
                 one.next_group == at->first;
        });
    at = is_used ? std::next(at) : groups_.erase(at);
  }
  groups_[id].members = members;
  groups_[id].is_full = static_cast<int>(members.size()) == bounds_.max;
  std::optional<int64_t> furthest;
  int run = 0;
  std::vector<int> entering;
  for (const int r : members) {
    Rank& one = ranks_[r];
    one.next_group = id;
    if (!std::exchange(one.meets_ahead, false)) {
      one.meets = false;
      entering.push_back(r);
      continue;
    }
    furthest = std::max(furthest.value_or(0), one.core.position().steps);
    run = one.run;
  }
  for (const int r : entering) {
    ranks_[r].awaited_at = ranks_[r].core.is_known() ? std::nullopt : furthest;
    ranks_[r].awaited_by = run;
  }
  for (const int r : entering) Enter(r);
}

// The group that was made for it.
void StepCommitModel::Enter(int rank) {
  Rank& one = ranks_[rank];
  one.group = std::exchange(one.next_group, -1);
  one.calls = 0;
  const std::vector<int> members = groups_.at(one.group).members;
  const auto place = std::find(members.begin(), members.end(), rank);
  Handle(rank, StepCommit::Met{static_cast<int>(place - members.begin()),
                               static_cast<int>(members.size())});
}

void StepCommitModel::Handle(int rank, const StepCommit::Event& event) {
  std::vector<StepCommit::Action> actions;
  ranks_[rank].core.OnEvent(event, &actions);
  for (const StepCommit::Action& action : actions) Perform(rank, action);
}

void StepCommitModel::Perform(int rank, const StepCommit::Action& action) {
  Rank& one = ranks_[rank];
  if (std::holds_alternative<StepCommit::MeetAhead>(action)) {
    // Who was taken for dead is on no roll.
    one.meets_ahead = one.life == Life::kAlive;
  } else if (std::holds_alternative<StepCommit::Meet>(action)) {
    one.group = -1;
    one.meets_ahead = false;
    if (one.next_group >= 0) return Enter(rank);
    one.awaited_at.reset();
    one.meets = one.life == Life::kAlive;
    // Who was taken for dead is no member of the job any more.
    if (!one.meets) Handle(rank, StepCommit::MeetingFailed{});
  } else if (std::holds_alternative<StepCommit::TellPlaces>(action)) {
    Begin(rank, Doing::kTell);
  } else if (const auto* tell =
                 std::get_if<StepCommit::TellDifferences>(&action)) {
    Begin(rank, Doing::kDiffer, tell->source);
  } else if (std::holds_alternative<StepCommit::Begin>(action)) {
    Check(!one.core.is_known(), rank, "begins anew with a place");
    Begin(rank, Doing::kBegin);
  } else if (std::holds_alternative<StepCommit::KeepState>(action)) {
    one.kept = one.state;
  } else if (const auto* share = std::get_if<StepCommit::ShareState>(&action)) {
    Begin(rank, Doing::kShare, share->source);
  } else if (std::holds_alternative<StepCommit::RestoreState>(action)) {
    Check(one.kept.has_value(), rank, "restores what it has not kept");
    one.state = one.kept.value_or(State());
    one.kept.reset();
    ++restored_;
  } else if (std::holds_alternative<StepCommit::TakePlace>(action)) {
    TakePlace(rank);
  } else if (std::holds_alternative<StepCommit::Train>(action)) {
    Train(rank);
  } else if (const auto* reduce = std::get_if<StepCommit::Reduce>(&action)) {
    one.vote = reduce->vote;
    Begin(rank, Doing::kReduce);
  } else if (std::holds_alternative<StepCommit::AbandonStep>(action)) {
    ++abandoned_;
    one.has_gradients = false;
  } else if (std::holds_alternative<StepCommit::TakeStep>(action)) {
    TakeStep(rank);
  } else if (std::holds_alternative<StepCommit::Settle>(action)) {
    Begin(rank, Doing::kSettle);
  } else if (std::holds_alternative<StepCommit::Push>(action)) {
    one.doing = Doing::kPush;
    one.part = 0;
    PushTo(rank, 0);
  } else if (std::holds_alternative<StepCommit::Save>(action)) {
    SaveIfFirst(rank);
  } else if (std::holds_alternative<StepCommit::SaveAlone>(action)) {
    const bool saves = !bounds_.has_tables;
    if (saves && IsFurther(one.core.position(), saved_)) {
      saved_ = one.core.position();
    }
  } else if (std::holds_alternative<StepCommit::Stop>(action)) {
    SaveIfFirst(rank);
    Begin(rank, Doing::kFinish);
  } else if (std::holds_alternative<StepCommit::Leave>(action)) {
    End(rank, Life::kFinished);
  } else {
    End(rank, Life::kAbsent);
  }
}

void StepCommitModel::Begin(int rank, Doing doing, int root) {
  Rank& one = ranks_[rank];
  one.doing = doing;
  one.part = 0;
  one.root = root;
  CallPart(rank);
}

// Sends this rank's part.
void StepCommitModel::CallPart(int rank) {
  Rank& one = ranks_[rank];
  Group& group = groups_.at(one.group);
  if (static_cast<int>(group.calls.size()) == one.calls) {
    group.calls.push_back({one.doing, one.part, one.root, {}});
  }
  Call& call = group.calls[one.calls++];
  Check(
      call.doing == one.doing && call.part == one.part && call.root == one.root,
      rank, "C6: calls another operation than the others of its group");
  Part part;
  part.place.is_known = one.core.is_known();
  part.place.fingerprint = one.is_other ? kFingerprint + 1 : kFingerprint;
  part.place.position = one.core.position();
  part.run = one.run;
  part.steps = one.part == 0 ? one.state.parameters : one.state.optimizer;
  if (one.doing == Doing::kBegin) {
    part.place.position = saved_;
    part.place.position.was_stopped = false;
    if (one.part == 1 && group.members[0] == rank) part.run = ++runs_;
  }
  part.parts = one.state.parts;
  if (one.doing == Doing::kSettle) part.steps = one.core.position().steps;
  if (one.doing == Doing::kReduce) {
    part.vote = one.vote;
    part.steps = one.core.position().steps;  // whose gradients it has computed
    if (one.part == 0) ComputeGradients(rank);
    part.has_other_rows = one.has_other_rows;
  }
  call.parts[rank] = part;
}

void StepCommitModel::Complete(int rank) {
  Rank& one = ranks_[rank];
  if (one.doing == Doing::kPush) {
    if (one.part++ == 0) return PushTo(rank, 1);
    one.doing = Doing::kNothing;
    return Handle(rank, StepCommit::Pushed{});
  }
  const Call call = groups_.at(one.group).calls[one.calls - 1];
  const int root = groups_.at(one.group).members[call.root];
  if (one.doing == Doing::kShare) {
    (one.part == 0 ? one.state.parameters : one.state.optimizer) =
        call.parts.at(root).steps;
    one.run = call.parts.at(root).run;
    if (one.part == 1) one.state.parts = call.parts.at(root).parts;
  }
  if (one.doing == Doing::kReduce) {
    for (const auto& [other, part] : call.parts) {
      Check(part.steps == one.core.position().steps && part.run == one.run,
            rank, "C2: gradients of different steps are added up");
      // Who counts as gone may take a step by rows that the others have changed
      // since. It pushes nothing: they settle no step with it.
      Check(one.life == Life::kPaused || !part.has_other_rows, rank,
            "C8: gradients are of rows that are not those of the step");
    }
  }
  const bool is_single = one.doing == Doing::kTell ||
                         one.doing == Doing::kDiffer ||
                         one.doing == Doing::kSettle;
  if (one.part == 0 && !is_single) {
    ++one.part;
    return CallPart(rank);
  }
  FinishOperation(rank, call);
}

void StepCommitModel::FinishOperation(int rank, const Call& call) {
  Rank& one = ranks_[rank];
  const Doing doing = std::exchange(one.doing, Doing::kNothing);
  switch (doing) {
    case Doing::kNothing:
    case Doing::kPush:
      return;
    case Doing::kSettle:
      for (const auto& [other, part] : call.parts) {
        Check(part.steps == one.core.position().steps &&
                  part.parts == one.state.parts,
              rank, "C1: settles another step than others");
      }
      return Handle(rank, StepCommit::Settled{});
    case Doing::kTell: {
      StepCommit::PlacesTold told;
      for (const auto& [other, part] : call.parts) {
        told.places.push_back(part.place);
      }
      return Handle(rank, told);
    }
    case Doing::kDiffer:
      return Handle(rank, StepCommit::DifferencesTold{});
    case Doing::kBegin: {
      const Part& first = call.parts.at(groups_.at(one.group).members[0]);
      one.run = first.run;
      const StepPosition begin = first.place.position;
      one.state = {begin.steps, begin.steps, -1};
      furthest_[one.run] = std::max(furthest_[one.run], begin.steps);
      return Handle(rank, StepCommit::Begun{begin});
    }
    case Doing::kShare:
      return Handle(rank, StepCommit::StateShared{});
    case Doing::kReduce: {
      StepCommit::Reduced reduced;
      for (const auto& [other, part] : call.parts) {
        reduced.votes.stops += part.vote.stops;
        reduced.votes.newcomers_wait += part.vote.newcomers_wait;
        reduced.votes.asked_to_leave += part.vote.asked_to_leave;
        reduced.votes.leaves += part.vote.leaves;
        reduced.votes.next_group_is_made += part.vote.next_group_is_made;
      }
      reduced.is_last = one.core.position().steps + 1 ==
                        bounds_.steps_of_epoch * bounds_.epochs;
      return Handle(rank, reduced);
    }
    case Doing::kFinish: {
      const auto [at, is_first] =
          ended_at_.emplace(one.run, one.core.position().steps);
      Check(is_first || at->second == one.core.position().steps, rank,
            "C7: ends after another step than others");
      Check(one.core.position().was_stopped ||
                one.core.position().steps ==
                    bounds_.steps_of_epoch * bounds_.epochs,
            rank, "C7: ends before the training does");
      return End(rank, Life::kFinished);
    }
  }
}

// --- The training of a rank. -------------------------------------------------

bool StepCommitModel::IsAtEnd(int rank) const {
  const StepPosition& position = ranks_[rank].core.position();
  return position.was_stopped || position.epoch >= bounds_.epochs;
}

void StepCommitModel::SaveIfFirst(int rank) {
  const Rank& one = ranks_[rank];
  if (groups_.at(one.group).members[0] != rank || bounds_.has_tables) return;
  if (IsFurther(one.core.position(), saved_)) saved_ = one.core.position();
}

void StepCommitModel::Train(int rank) {
  Rank& one = ranks_[rank];
  const auto& position = one.core.position();
  // All that had trained are gone, and the model with them.
  const bool is_lost =
      tables_run_ != 0 && one.run != tables_run_ &&
      (tables_[0].open > position.steps || tables_[1].open > position.steps);
  if (is_lost) return End(rank, Life::kAbsent);
  if (!IsAtEnd(rank) &&
      position.steps == (position.epoch + 1) * bounds_.steps_of_epoch) {
    SaveIfFirst(rank);
    Handle(rank, StepCommit::EpochEnded{});
  }
  if (IsAtEnd(rank)) return Begin(rank, Doing::kFinish);
  StepCommit::PassesDone done;
  done.now = now_;
  const Group& group = groups_.at(one.group);
  done.newcomers_wait =
      group.members[0] == rank && !group.is_full && SomebodyWaits();
  done.next_group_is_made = one.next_group >= 0;
  done.is_asked_to_leave = one.is_asked_to_leave;
  Handle(rank, done);
}

void StepCommitModel::ComputeGradients(int rank) {
  Rank& one = ranks_[rank];
  const int64_t steps = one.core.position().steps;
  Check(one.state.parameters == steps && one.state.optimizer == steps, rank,
        "C1: begins a step with the state of another one");
  Check(!std::exchange(one.has_gradients, true), rank,
        "C2: has gradients of a step that was not taken");
  // A step is under way when the group is made, and one more in which all say
  // so. One that counts as gone, and is in no next group, does not say so: they
  // go on until they find it lost.
  const std::vector<int>& members = groups_.at(one.group).members;
  const bool has_lost =
      std::any_of(members.begin(), members.end(),
                  [&](int member) { return IsGone(member, one.group); });
  for (Rank& other : ranks_) {
    const bool is_awaited =
        other.life == Life::kAlive && other.awaited_at.has_value() &&
        other.awaited_by == one.run && one.next_group >= 0 &&
        other.group == one.next_group;
    if (is_awaited && has_lost) other.awaited_at.reset();
    Check(!is_awaited || has_lost || steps <= *other.awaited_at + 1, rank,
          "C5: goes on without one with which it has a group");
  }
  one.has_other_rows =
      bounds_.has_tables && one.run == tables_run_ &&
      std::any_of(std::begin(tables_), std::end(tables_),
                  [&](const Table& table) {
                    return table.open != steps || !table.given.empty();
                  });
  if (!std::exchange(one.has_counted, true) && one.awaited_at.has_value() &&
      one.awaited_by == one.run) {
    Check(steps <= *one.awaited_at + 2, rank,
          "C5: does not count from the second step on");
  }
}

void StepCommitModel::TakeStep(int rank) {
  Rank& one = ranks_[rank];
  const int64_t steps = one.core.position().steps;
  Check(one.state.parameters == steps && one.state.optimizer == steps, rank,
        "C2: takes a step twice, or not the next one");
  ++one.state.parameters;
  ++one.state.optimizer;
  one.state.parts = steps + 1;  // they have come with the gradients
  one.has_gradients = false;
  int64_t& furthest = furthest_[one.run];
  Check(steps + 1 <= furthest + 1, rank, "C2: has left out a step");
  furthest = std::max(furthest, steps + 1);
  Handle(rank, StepCommit::StepTaken{});
}

void StepCommitModel::TakePlace(int rank) {
  Rank& one = ranks_[rank];
  one.kept.reset();
  const int64_t steps = one.core.position().steps;
  Check(one.state.parameters == steps && one.state.optimizer == steps, rank,
        "C1: has another state than its place says");
  // The others do not wait for a rank that is paused.
  Check(one.life == Life::kPaused || steps >= furthest_[one.run] - 1, rank,
        "C3: more than the step under way is lost");
  // C3 and C4, of what they told each other.
  const Call& told = groups_.at(one.group).calls[0];
  const Call& shared = groups_.at(one.group).calls[one.calls - 1];
  const int source = groups_.at(one.group).members[shared.root];
  for (const auto& [other, part] : told.parts) {
    if (!part.place.is_known) continue;
    const StepPosition& of_source = told.parts.at(source).place.position;
    Check(!IsFurther(part.place.position, of_source), rank,
          "C3: does not go on from the furthest rank");
    Check(other >= source || IsFurther(of_source, part.place.position), rank,
          "C4: a lower rank has gone as far as the source");
  }
}

// --- Tables. -----------------------------------------------------------------

// As RoundGate takes parts (ps/core/round_gate.h): the first of each shard.
void StepCommitModel::PushTo(int rank, int partition) {
  const Rank& one = ranks_[rank];
  const int64_t steps = one.core.position().steps;
  Check(one.state.parts == -1 || one.state.parts == steps, rank,
        "C8: has the parts of another step");
  Table& table = tables_[partition];
  if (one.state.parts != table.open + 1) return;
  if (tables_run_ == 0) tables_run_ = one.run;
  const std::vector<int>& members = groups_.at(one.group).members;
  const int place = static_cast<int>(
      std::find(members.begin(), members.end(), rank) - members.begin());
  const int size = static_cast<int>(members.size());
  for (int shard = place * bounds_.ranks / size;
       shard < (place + 1) * bounds_.ranks / size; ++shard) {
    // The former one may send it no more.
    table.given[shard] = rank;
  }
  if (static_cast<int>(table.given.size()) < bounds_.ranks) return;
  table.given.clear();
  ++table.open;
}

bool StepCommitModel::HasAllParts(int rank) const {
  const int64_t steps = ranks_[rank].core.position().steps;
  return tables_[0].open >= steps && tables_[1].open >= steps;
}

// What ranks that are dead had given to an open round.
void StepCommitModel::LoseParts() {
  for (Table& table : tables_) {
    for (auto at = table.given.begin(); at != table.given.end();) {
      const bool is_lost = at->second == kNobody;
      lost_parts_ += is_lost ? 1 : 0;
      at = is_lost ? table.given.erase(at) : std::next(at);
    }
  }
}

// --- How it ends. ------------------------------------------------------------

void StepCommitModel::Check(bool holds, int rank, const char* what) {
  if (holds || !violation_.empty()) return;
  violation_ = absl::StrCat(
      what, ": rank ", rank, ", ", ranks_[rank].core.ToString(), ", state ",
      ranks_[rank].state.parameters, "/", ranks_[rank].state.optimizer);
}

void StepCommitModel::Settle() {
  for (int i = 0; violation_.empty(); ++i) {
    std::vector<Event> events = Events();
    events.erase(std::remove_if(events.begin(), events.end(),
                                [](const Event& e) { return e.is_fault(); }),
                 events.end());
    if (events.empty()) return CheckEnd();
    if (i > 100000) {
      violation_ = "C7: they go on for ever";
      return;
    }
    Do(events[i % events.size()], now_);
  }
}

void StepCommitModel::CheckEnd() {
  int waiting = 0;
  for (int r = 0; r < bounds_.ranks; ++r) {
    const Rank& one = ranks_[r];
    if (one.life == Life::kAlive && one.meets) {
      ++waiting;
    } else {
      Check(one.life == Life::kFinished || one.life == Life::kAbsent, r,
            "C7: waits for ever");
    }
  }
  // Below MIN they wait for others, at a deadline of their own.
  for (int r = 0; r < bounds_.ranks; ++r) {
    Check(waiting < bounds_.min || !ranks_[r].meets, r,
          "C7: waits for a group though enough have come");
  }
}

std::string StepCommitModel::Snapshot() const {
  std::string text = absl::StrCat(
      deaths_, ".", comings_, ".", pauses_, ".", leaves_, ".", others_, "|",
      abandoned_, ".", saved_.steps, ".", saved_.epoch, "|",
      absl::StrJoin(newest_, ","), "|",
      absl::StrJoin(furthest_, ",", absl::PairFormatter(":")), "|",
      absl::StrJoin(ended_at_, ",", absl::PairFormatter(":")), "|", runs_, "|",
      tables_run_, ".", server_deaths_, ".", lost_parts_);
  for (const Table& table : tables_) {
    absl::StrAppend(&text, "|", table.open, " ",
                    absl::StrJoin(table.given, ",", absl::PairFormatter(":")));
  }
  std::map<int, int> first_call;  // of each group, that a rank is in
  for (const Rank& one : ranks_) {
    absl::StrAppend(
        &text, "{", static_cast<int>(one.life), one.meets, one.meets_ahead,
        one.next_group >= 0, one.is_asked_to_leave, one.is_other,
        one.has_counted, one.has_other_rows, "#", static_cast<int>(one.doing),
        one.part, one.root, "#", one.state.parameters, ".", one.state.optimizer,
        "#", one.state.parts, ".", one.kept ? one.kept->parameters : -2, "#",
        one.run, "#", one.awaited_at.value_or(-1), ".", one.awaited_by);
    if (one.life != Life::kAbsent && one.life != Life::kFinished) {
      absl::StrAppend(&text, one.core.ToString());
    }
    if (one.doing != Doing::kNothing) {
      const auto [at, is_new] = first_call.emplace(one.group, one.calls);
      if (!is_new) at->second = std::min(at->second, one.calls);
    }
    if (one.next_group >= 0) first_call[one.next_group] = 1;
    text += "}";
  }
  for (const auto& [id, first] : first_call) {
    const Group& group = groups_.at(id);
    absl::StrAppend(&text, "[", absl::StrJoin(group.members, ","));
    for (const int r : group.members) {
      absl::StrAppend(&text, IsGone(r, id) ? "-" : "+",
                      ranks_[r].group == id        ? ranks_[r].calls - first
                      : ranks_[r].next_group == id ? -2
                                                   : -1);
    }
    for (size_t i = first - 1; i < group.calls.size(); ++i) {
      absl::StrAppend(&text, "/", static_cast<int>(group.calls[i].doing),
                      group.calls[i].part);
      for (const auto& [r, part] : group.calls[i].parts) {
        absl::StrAppend(
            &text, " ", r, ":", part.place.is_known, part.place.position.steps,
            ".", part.place.position.epoch, part.place.position.was_stopped,
            ".", part.steps, ".", part.parts, ".", part.run,
            part.has_other_rows ? "!" : ".", part.vote.stops,
            part.vote.newcomers_wait, part.vote.asked_to_leave,
            part.vote.leaves, part.vote.next_group_is_made);
      }
    }
    text += "]";
  }
  return text;
}

}  // namespace weft::train
