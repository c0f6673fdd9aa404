// StepCommit: which step of a data-parallel training is committed where ranks
// die and come while it trains, and from whom a rank takes the state.
//
// One object for each rank. The ranks form a group, compute gradients, reduce
// them, and each applies the optimizer. The reduction of the gradients and of a
// vote is the last operation of a step for which a rank needs the others. Only
// a rank that has the result of both takes the step; it has the result only if
// every rank of the group has sent its part. So when a rank is lost, those that
// are left differ by one step at most. They form a new group, tell each other
// their places, and go on from the furthest one: a step is committed once one
// rank has taken it that is left. A rank that is behind gets the state
// (parameters, buffers, optimizer) of the furthest rank; until it has all of it
// it keeps its own. If nobody is left that has taken the step, all abandon what
// they have of it and repeat it.
//
// What holds, whatever ranks die, come, stand still or are asked to leave at
// any message:
//   C1  The ranks of a group begin each step after the same one, with the state
//       as of that step.
//   C2  A rank takes step n + 1 only with the state as of step n, once, and
//       only with gradients that all ranks of its group have computed for it.
//   C3  A group goes on from the furthest step that one of its ranks has taken,
//       which is at most one behind what any rank had taken, while one rank
//       that had trained is left: a death costs at most the step under way.
//   C4  The source of the state is the lowest rank that has gone furthest.
//   C5  A newcomer counts from the second step, at the latest, after those that
//       the others were at when a group with it was made, and for none that
//       they took before.
//   C6  All ranks of a group call the same operations in the same order, and
//       leave it after the same step: to stop, to form the next one, or because
//       one of them is lost.
//   C7  Once no more ranks die, come or are asked to leave, all end, after the
//       same step.
// With Options::has_tables a step also changes tables of parameter servers,
// whose round n + 1 (from 1) takes the parts of step n + 1:
//   C8  No step n + 1 is taken but with gradients that all were computed while
//       the tables had all parts of step n, stable, and none of step n + 1: so
//       whoever repeats a step reads the same rows.
//   C9  Where the training ends the tables have the parts of all its steps.
// step_commit_exploration_test explores every order of events of three ranks,
// step_commit_simulation_test runs up to 32 in virtual time.
//
// C1 needs that a repeated step gives the same bits: virtual shards
// (ddp/virtual_shards.h).
//
// C8 needs that no part of a step is pushed while any rank of the group may
// still repeat it, and that the parts of a rank that dies are not lost with it.
// So all ranks have all parts of a step before they take it (they come with the
// gradients), and after each step, and whenever a group has its state, all tell
// that they have taken it (Settle) before any of them pushes (Push).
//
// Where others wait to take part, the next group is made while this one trains
// (MeetAhead), and all go over to it after the step at which each has said that
// it is made: they stop for the state that is sent, not until others have come.
//
// Pure: no lock, clock, thread or network. OnEvent appends what is to be done,
// in this order; the last action that has a result is followed by an event. The
// driver is train::DataParallelTraining. With Options::is_elastic false the
// group is fixed, and a lost rank ends the training.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_CORE_STEP_COMMIT_H_
#define WEFT_TRAIN_CORE_STEP_COMMIT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::train {

// The position of a rank: the step that it has taken last.
struct StepPosition {
  int64_t steps = 0;  // taken since the training began
  int64_t epoch = 0;  // of the next batch
  bool was_stopped = false;

  friend bool operator==(const StepPosition& a, const StepPosition& b) {
    return a.steps == b.steps && a.epoch == b.epoch &&
           a.was_stopped == b.was_stopped;
  }
};
// Whether `a` is after more steps; of equal ones, whether it has ended the
// epoch, or the training.
bool IsFurther(const StepPosition& a, const StepPosition& b);

// What each rank tells the others when they have met.
struct RankPlace {
  bool is_known = false;     // false: this rank has just come
  uint64_t fingerprint = 0;  // of model, optimizer and settings
  StepPosition position;
};
// The rank from which the others take the state: of those that know a place the
// lowest that has gone furthest; -1: none knows one.
int SourceOf(const std::vector<RankPlace>& places);

// What a rank says with its gradients, 0 or 1 each; added up over the group,
// how many ranks say so.
struct StepVote {
  int stops = 0;           // the training
  int newcomers_wait = 0;  // it knows of some
  int asked_to_leave = 0;
  int leaves = 0;  // was asked long enough ago
  int next_group_is_made = 0;
};

class StepCommit {
 public:
  struct Options {
    bool is_elastic = true;
    // From when a rank is asked to leave until it leaves: if all ranks are
    // asked meanwhile, the training stops.
    absl::Duration leave_after = absl::Seconds(1);
    // Whether the group of those who train and those who wait is made while
    // they train; if not, they stop until it is.
    bool meets_ahead = true;
    // Whether steps push to tables. Only with is_elastic.
    bool has_tables = false;
  };

  // ---- Events.
  struct Started {};
  // This rank is in a new group.
  struct Met {
    int rank = 0;
    int size = 1;
  };
  // This rank is in no group: too few came, it is no member of the job, or its
  // device fails.
  struct MeetingFailed {
    bool by_signal = false;  // this rank was asked to end
  };
  // REQUIRES: one for each rank.
  struct PlacesTold {
    std::vector<RankPlace> places;
  };
  struct DifferencesTold {};
  struct Begun {
    StepPosition position;  // of the checkpoint, if there was one
  };
  struct StateShared {};
  // This rank has run the passes of its shards.
  struct PassesDone {
    Instant now;
    bool is_asked_to_stop = false;
    bool newcomers_wait = false;
    bool is_asked_to_leave = false;
    bool next_group_is_made = false;  // after MeetAhead
  };
  // The gradients and the votes of all.
  struct Reduced {
    StepVote votes;
    bool is_last = false;  // of the training
  };
  struct StepTaken {};
  struct Settled {};
  struct Pushed {};
  struct EpochEnded {};
  // The last action failed, and those after it are not to be done; or an
  // operation outside a step.
  struct Failed {
    bool is_lost = false;  // a rank of the group: the others may go on
  };
  using Event =
      std::variant<Started, Met, MeetingFailed, PlacesTold, DifferencesTold,
                   Begun, StateShared, PassesDone, Reduced, StepTaken, Settled,
                   Pushed, EpochEnded, Failed>;

  // ---- Actions.
  // Why the group changes.
  enum class Reason {
    kStart,
    kLost,              // a rank, in a step or between two
    kLostWhileMeeting,  // a rank, before all had the state
    kDifferent,         // some train something else, and are left out
    kNewcomers,         // wait to take part
    kLeavers,           // were asked to leave, and have left
  };
  // Begin to form the next group, with those who wait and those who train, who
  // do the same; nothing follows. Train goes on.
  struct MeetAhead {};
  // Leave the group, if any, and form the next one with those who are there, at
  // least MIN of them; waits for them. The one that MeetAhead has begun, if it
  // has. Then: Met or MeetingFailed.
  struct Meet {
    Reason reason = Reason::kStart;
  };
  // All tell their RankPlace. Then: PlacesTold or Failed.
  struct TellPlaces {};
  // Some ranks train something else than `source`: all tell what. Then:
  // DifferencesTold or Failed.
  struct TellDifferences {
    int source = 0;
  };
  // Nobody has a place: all begin, or resume from a checkpoint. Then: Begun or
  // Failed.
  struct Begin {};
  // Keep a copy of the state: this rank is about to be given another.
  struct KeepState {};
  // `source` gives all ranks its state. Then: StateShared or Failed.
  struct ShareState {
    int source = 0;
  };
  // Put back what KeepState has kept.
  struct RestoreState {};
  // The place of `source` is that of this rank now.
  struct TakePlace {
    int source = 0;
    bool has_come = false;  // it had none before
  };
  // The group is ready for its next step: run it. Then: PassesDone, EpochEnded,
  // or Failed.
  struct Train {};
  // Reduce the gradients, then the votes. Then: Reduced or Failed.
  struct Reduce {
    StepVote vote;
  };
  // Drop gradients, and what the passes did to buffers.
  struct AbandonStep {};
  // Apply the optimizer. Then: StepTaken or Failed.
  struct TakeStep {};
  // All tell that they are after the same step. Then: Settled or Failed.
  struct Settle {};
  // Push the parts of the last step of this rank's shards, which all ranks of
  // the group have taken, and wait until the tables have those of all shards,
  // stable. Then: Pushed or Failed.
  struct Push {};
  // The group changes after this step: its first rank writes a checkpoint.
  struct Save {};
  // This rank is in no group, and ends with steps from which perhaps nobody
  // goes on, since the others were asked to end as well, or have died: it
  // writes a checkpoint.
  struct SaveAlone {};
  // The training stops on all ranks, with a checkpoint.
  struct Stop {};
  // This rank leaves the others, who go on.
  struct Leave {};
  // The training ends on this rank with the error of the last event.
  struct End {};
  using Action = std::variant<MeetAhead, Meet, TellPlaces, TellDifferences,
                              Begin, KeepState, ShareState, RestoreState,
                              TakePlace, Train, Reduce, AbandonStep, TakeStep,
                              Settle, Push, Save, SaveAlone, Stop, Leave, End>;

  enum class Phase {
    kMeeting,
    kTellingPlaces,
    kTellingDifferences,
    kBeginning,
    kSharingState,
    kTraining,  // passes of the next step, or an operation outside a step
    kReducing,
    kTakingStep,
    kSettling,
    kPushing,
    kStopped,  // all have stopped: as kTraining, but there is no more step
    kLeft,
    kEnded,
  };

  explicit StepCommit(Options options) : options_(options) {}

  // REQUIRES: an event that may follow the last action.
  void OnEvent(const Event& event, std::vector<Action>* actions);

  Phase phase() const { return phase_; }
  // The position after the last step that this rank has taken or was given.
  const StepPosition& position() const { return position_; }
  // Whether it has a position.
  bool is_known() const { return is_known_; }
  // "reducing, 5 steps taken"; equal texts, equal states.
  std::string ToString() const;

 private:
  enum class Next { kTrain, kStop, kLeave, kPart, kMeetAhead, kMeet };

  void On(const Started& event, std::vector<Action>* actions);
  void On(const Met& event, std::vector<Action>* actions);
  void On(const MeetingFailed& event, std::vector<Action>* actions);
  void On(const PlacesTold& event, std::vector<Action>* actions);
  void On(const DifferencesTold& event, std::vector<Action>* actions);
  void On(const Begun& event, std::vector<Action>* actions);
  void On(const StateShared& event, std::vector<Action>* actions);
  void On(const PassesDone& event, std::vector<Action>* actions);
  void On(const Reduced& event, std::vector<Action>* actions);
  void On(const StepTaken& event, std::vector<Action>* actions);
  void On(const Settled& event, std::vector<Action>* actions);
  void On(const Pushed& event, std::vector<Action>* actions);
  void On(const EpochEnded& event, std::vector<Action>* actions);
  void On(const Failed& event, std::vector<Action>* actions);

  void GoToMeeting(Reason reason, std::vector<Action>* actions);
  void GoToEnd(std::vector<Action>* actions);
  void GoToSettling(std::vector<Action>* actions);
  // Goes to what follows the step: next_.
  void GoOn(std::vector<Action>* actions);
  Next AfterStep(const Reduced& event) const;

  Options options_;
  Phase phase_ = Phase::kMeeting;
  StepPosition position_;
  bool is_known_ = false;
  std::optional<Instant> asked_to_leave_at_;

  // The group.
  int rank_ = 0;
  int size_ = 1;
  int source_ = 0;
  StepPosition source_position_;
  bool differs_ = false;  // this rank, from the source
  bool keeps_state_ = false;
  bool meets_ahead_ = false;  // the next group is being made
  StepVote vote_;             // of the step under way
  Next next_ = Next::kTrain;  // after it
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_CORE_STEP_COMMIT_H_
