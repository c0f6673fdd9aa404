// StepCommitModel: ranks that train by StepCommit, their groups, their state
// and what may befall them, as a value that can be copied: the tests explore it
// and run it in virtual time.
//
// An operation of a group is a call of each rank. A rank may complete one once
// those have called it from whom it needs something: all, or the root of a
// broadcast. It may fail in one once a rank of the group is gone, whether it
// could have completed it or not: so a rank that ends has sent its part to any
// of the others, and to no more, which is what a death at each message of any
// algorithm comes to.
//
// The state of a rank is two numbers: the steps that its parameters and its
// optimizer have taken. A rank that is given another one has for a while those
// of two.
//
// With tables there is a third, the step of which it has all parts. The table
// has two partitions, each of which closes its rounds by itself; a rank pushes
// to one and then to the other. Parts of a round that is open are on one server
// and with their ranks only: if both die, they are lost. Nothing is saved then:
// ranks that begin anew where the tables are not new end.

#ifndef WEFT_TRAIN_CORE_STEP_COMMIT_MODEL_H_
#define WEFT_TRAIN_CORE_STEP_COMMIT_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/clock.h"
#include "weft/train/core/step_commit.h"

namespace weft::train {

class StepCommitModel {
 public:
  struct Bounds {
    int ranks = 3;
    int late = 0;  // of these, so many come later
    int min = 1;
    int max = 64;
    int64_t steps_of_epoch = 2;
    int64_t epochs = 1;
    // How often each may happen.
    int deaths = 0;
    int comings = 0;  // of ranks that have died, or are late
    int pauses = 0;   // a rank counts as gone, and goes on for a while
    int leaves = 0;   // ranks that are asked to leave
    int others = 0;   // of the comings, that train something else
    absl::Duration leave_after = absl::ZeroDuration();
    bool meets_ahead = true;
    bool has_tables = false;
    int server_deaths = 0;
  };

  // What may happen next.
  struct Event {
    enum Kind {
      kComplete,  // the operation of `rank`
      kFail,
      kMeet,    // those who have come form a group
      kGiveUp,  // `rank` was asked to leave, and waits for no group
      // Faults and wishes, within the bounds:
      kDie,
      kCome,
      kComeOther,  // with another model
      kPause,
      kAskToLeave,
      kServerDies,
    };
    Kind kind = kComplete;
    int rank = 0;
    bool is_fault() const { return kind >= kDie; }
    friend bool operator<(const Event& a, const Event& b) {
      return a.kind != b.kind ? a.kind < b.kind : a.rank < b.rank;
    }
  };

  explicit StepCommitModel(const Bounds& bounds);

  std::vector<Event> Events() const;
  void Do(const Event& event, Instant now = Instant());
  // Does what is left, without more faults, and checks how it ends.
  void Settle();

  // What was violated first; empty: nothing.
  const std::string& violation() const { return violation_; }
  // Equal texts, equal states.
  std::string Snapshot() const;
  // Steps that ranks began and did not take.
  int64_t abandoned() const { return abandoned_; }
  int64_t groups() const { return groups_made_; }
  // Ranks that were given a state in place of their own.
  int64_t restored() const { return restored_; }
  // Parts of open rounds that were lost with a server and the rank that had
  // pushed them.
  int64_t lost_parts() const { return lost_parts_; }
  bool is_alive(int rank) const { return ranks_[rank].life == Life::kAlive; }

 private:
  enum class Life { kAbsent, kAlive, kPaused, kFinished };
  // Operations, each in parts.
  enum class Doing {
    kNothing,
    kTell,
    kDiffer,
    kBegin,
    kShare,
    kReduce,
    kSettle,
    kPush,  // of no group: to each partition, then until both have closed
    kFinish
  };

  struct State {
    int64_t parameters = 0;
    int64_t optimizer = 0;
    int64_t parts = -1;  // of the step after which it is; -1: of none
  };
  struct Table {
    int64_t open = 0;          // rounds that are closed
    std::map<int, int> given;  // of the open one: by shard, the rank
  };
  struct Rank {
    explicit Rank(const StepCommit::Options& options) : core(options) {}
    StepCommit core;
    Life life = Life::kAbsent;
    bool meets = false;        // has come to the next group, and waits
    bool meets_ahead = false;  // has come to it, and trains
    int next_group = -1;       // that was made meanwhile
    int group = -1;
    int calls = 0;  // in the group, the one under way included
    Doing doing = Doing::kNothing;
    int part = 0;
    int root = 0;
    StepVote vote;
    State state;
    std::optional<State> kept;
    int run = 0;  // which beginning it goes back to
    bool is_asked_to_leave = false;
    bool is_other = false;
    bool has_gradients = false;   // of a step that is not taken yet
    bool has_counted = false;     // computed a gradient
    bool has_other_rows = false;  // than those of its step, in that gradient
    // The furthest step after which the others of its first group were when
    // that group was made, if they trained; and their run.
    std::optional<int64_t> awaited_at;
    int awaited_by = 0;
  };
  // What a rank sends.
  struct Part {
    RankPlace place;
    int64_t steps = 0;  // of a state, or of a gradient
    int64_t parts = -1;
    bool has_other_rows = false;
    int run = 0;
    StepVote vote;
  };
  struct Call {
    Doing doing = Doing::kNothing;
    int part = 0;
    int root = 0;
    std::map<int, Part> parts;  // by member
  };
  struct Group {
    std::vector<int> members;
    std::vector<Call> calls;
    bool is_full = false;  // others wait outside
  };

  bool IsGone(int rank, int group) const;
  bool NeedsAll(const Call& call) const;
  bool CanComplete(int rank) const;
  bool CanFail(int rank) const;
  std::vector<int> NextGroup() const;
  bool SomebodyWaits() const;
  void Enter(int rank);

  void Come(int rank, bool is_other);
  void FormGroup();
  void Complete(int rank);
  void Handle(int rank, const StepCommit::Event& event);
  void Perform(int rank, const StepCommit::Action& action);
  void Begin(int rank, Doing doing, int root = 0);
  void CallPart(int rank);
  void FinishOperation(int rank, const Call& call);
  void Train(int rank);
  void ComputeGradients(int rank);
  void TakeStep(int rank);
  void TakePlace(int rank);
  void PushTo(int rank, int partition);
  bool HasAllParts(int rank) const;
  void LoseParts();
  void SaveIfFirst(int rank);
  void End(int rank, Life life);
  bool IsAtEnd(int rank) const;
  void Check(bool holds, int rank, const char* what);
  void CheckEnd();

  const Bounds bounds_;
  StepCommit::Options options_;
  Instant now_;
  std::vector<Rank> ranks_;
  std::map<int, Group> groups_;
  std::vector<int> newest_;  // members of the newest group
  int64_t groups_made_ = 0;
  int runs_ = 0;
  StepPosition saved_;
  std::map<int, int64_t> furthest_;  // of each run, that any rank has taken
  std::map<int, int64_t> ended_at_;  // of each run
  int deaths_ = 0, comings_ = 0, pauses_ = 0, leaves_ = 0, others_ = 0;
  int64_t abandoned_ = 0;
  int64_t restored_ = 0;
  int tables_run_ = 0;  // of which beginning the tables are; 0: of none
  Table tables_[2];     // by partition
  int server_deaths_ = 0;
  int64_t lost_parts_ = 0;
  std::string violation_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_CORE_STEP_COMMIT_MODEL_H_
