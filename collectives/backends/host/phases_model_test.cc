// The protocol of phases.h, step by step, in all interleavings of its atomic
// steps. Memory is sequentially consistent here, as the accesses of the code
// that matter are.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "gtest/gtest.h"

namespace weft::collectives {
namespace {

// What can be broken on purpose, to see the model find it.
enum class Mutant {
  kNone,
  kOneSlot,            // the same slot in each phase
  kSleepWithoutLook,   // does not look again once is_sleeping is set
  kBellAfterFlag,      // reads the doorbell after it has looked
  kArriveWithoutWake,  // wakes nobody
};

constexpr int kMaxRanks = 3;

// Steps of one rank, of one phase.
enum Step : int8_t {
  kWriteSlot,
  kArrive,
  kWake,      // once for each other rank
  kLook,      // spins once
  kReadBell,  // then sets is_sleeping, looks, and sleeps
  kSetSleeping,
  kLookAgain,
  kSleep,
  kAsleep,
  kClearSleeping,
  kReadSlots,  // once for each rank
  kDone,
};

struct Rank {
  int8_t step = kWriteSlot;
  int8_t phase = 1;
  int8_t peer = 0;  // of kWake and kReadSlots
  int8_t bell_seen = 0;
};

struct State {
  std::array<Rank, kMaxRanks> ranks;
  std::array<int8_t, kMaxRanks> arrived{};
  std::array<int8_t, kMaxRanks> bell{};
  std::array<int8_t, kMaxRanks> sleeping{};
  std::array<std::array<int8_t, 2>, kMaxRanks> slot{};  // phase written

  // The whole state, in 27 bits for each rank.
  absl::uint128 Key() const {
    absl::uint128 key = 0;
    const auto add = [&key](int value, int bits) {
      if (value >= 1 << bits) abort();  // two states would have one key
      key = key << bits | static_cast<absl::uint128>(value);
    };
    for (int r = 0; r < kMaxRanks; ++r) {
      add(ranks[r].step, 4);
      add(ranks[r].phase, 3);
      add(ranks[r].peer, 2);
      add(ranks[r].bell_seen, 4);
      add(arrived[r], 3);
      add(bell[r], 4);
      add(sleeping[r], 1);
      add(slot[r][0], 3);
      add(slot[r][1], 3);
    }
    return key;
  }
};

class Model {
 public:
  Model(int ranks, int phases, Mutant mutant)
      : ranks_(ranks), phases_(phases), mutant_(mutant) {}

  // Explores everything; what went wrong first, or "".
  std::string Explore() {
    std::vector<State> stack = {State()};
    absl::flat_hash_set<absl::uint128> seen = {stack[0].Key()};
    while (!stack.empty() && error_.empty()) {
      const State state = stack.back();
      stack.pop_back();
      bool can_move = false;
      bool is_done = true;
      for (int r = 0; r < ranks_; ++r) {
        is_done = is_done && state.ranks[r].step == kDone;
        State next = state;
        if (!Move(next, r)) continue;
        can_move = true;
        if (seen.insert(next.Key()).second) stack.push_back(next);
      }
      if (!can_move && !is_done) error_ = "all sleep";
    }
    states_ = seen.size();
    return error_;
  }

  size_t states() const { return states_; }

 private:
  int SlotOf(int phase) const {
    return mutant_ == Mutant::kOneSlot ? 0 : phase % 2;
  }
  bool IsOver(const State& s, int phase) const {
    for (int r = 0; r < ranks_; ++r) {
      if (s.arrived[r] < phase) return false;
    }
    return true;
  }

  // One step of rank `r`; false if it sleeps or is done.
  bool Move(State& s, int r) {
    Rank& me = s.ranks[r];
    switch (me.step) {
      case kWriteSlot:
        s.slot[r][SlotOf(me.phase)] = me.phase;
        me.step = kArrive;
        return true;
      case kArrive:
        s.arrived[r] = me.phase;
        me.peer = 0;
        me.step = mutant_ == Mutant::kArriveWithoutWake ? kLook : kWake;
        return true;
      case kWake:
        if (me.peer != r && s.sleeping[me.peer]) {
          ++s.bell[me.peer];
          Rank& peer = s.ranks[me.peer];
          if (peer.step == kAsleep) peer.step = kClearSleeping;
        }
        if (++me.peer == ranks_) me.step = kLook;
        return true;
      case kLook:
        me.peer = 0;
        me.step = IsOver(s, me.phase) ? kReadSlots : kReadBell;
        if (mutant_ == Mutant::kBellAfterFlag && me.step == kReadBell) {
          me.step = kSetSleeping;
        }
        return true;
      case kReadBell:
        me.bell_seen = s.bell[r];
        me.step = mutant_ == Mutant::kBellAfterFlag ? kSleep : kSetSleeping;
        return true;
      case kSetSleeping:
        s.sleeping[r] = 1;
        me.step = mutant_ == Mutant::kSleepWithoutLook ? kSleep : kLookAgain;
        return true;
      case kLookAgain:
        me.step = IsOver(s, me.phase)                 ? kClearSleeping
                  : mutant_ == Mutant::kBellAfterFlag ? kReadBell
                                                      : kSleep;
        return true;
      case kSleep:  // the kernel compares and sleeps in one
        me.step = s.bell[r] == me.bell_seen ? kAsleep : kClearSleeping;
        return true;
      case kAsleep:
        return false;
      case kClearSleeping:
        s.sleeping[r] = 0;
        me.step = kLook;
        return true;
      case kReadSlots:
        if (s.slot[me.peer][SlotOf(me.phase)] != me.phase) {
          error_ = "a slot was read that is of another phase";
        }
        if (++me.peer < ranks_) return true;
        me.step = me.phase == phases_ ? kDone : kWriteSlot;
        ++me.phase;
        return true;
      default:
        return false;
    }
  }

  const int ranks_;
  const int phases_;
  const Mutant mutant_;
  std::string error_;
  size_t states_ = 0;
};

TEST(PhasesModel, NoWakeUpIsLostAndNoSlotIsOverwrittenInAnyInterleaving) {
  for (const auto& [ranks, phases] : {std::pair(2, 5), std::pair(3, 2)}) {
    Model model(ranks, phases, Mutant::kNone);
    EXPECT_EQ(model.Explore(), "");
    EXPECT_GT(model.states(), 1000u);
  }
}

TEST(PhasesModel, FindsEachPlantedMistake) {
  EXPECT_EQ(Model(2, 3, Mutant::kOneSlot).Explore(),
            "a slot was read that is of another phase");
  for (const Mutant mutant : {Mutant::kSleepWithoutLook, Mutant::kBellAfterFlag,
                              Mutant::kArriveWithoutWake}) {
    EXPECT_EQ(Model(2, 3, mutant).Explore(), "all sleep")
        << static_cast<int>(mutant);
  }
}

// --- An all-reduce through the slots: SharedRun::AllReduceThroughSlots.

// What a rank does, in this order, of which each is one step of the model; of
// kReduce and kTake one for each other rank.
struct Action {
  enum Kind { kStage, kArrive, kAwait, kReduce, kTake } kind;
  int phase;
  int piece;  // of all that is ever staged; -1: none
};

struct ReducingState {
  struct OneRank {
    int8_t at = 0;  // in the actions
    int8_t peer = 0;
    int8_t arrived = 0;
  };
  struct OneSlot {
    int8_t piece = 0;
    int8_t reduced = 0;  // bits of the ranks that have written their slices
    int8_t taken = 0;    // bits of slices
  };
  std::array<OneRank, kMaxRanks> ranks;
  std::array<std::array<OneSlot, 2>, kMaxRanks> slots{};

  absl::uint128 Key() const {
    absl::uint128 key = 0;
    const auto add = [&key](int value, int bits) {
      if (value >= 1 << bits) abort();
      key = key << bits | static_cast<absl::uint128>(value);
    };
    for (int r = 0; r < kMaxRanks; ++r) {
      add(ranks[r].at, 6);
      add(ranks[r].peer, 2);
      add(ranks[r].arrived, 4);
      for (const OneSlot& slot : slots[r]) {
        add(slot.piece, 3);
        add(slot.reduced, 3);
        add(slot.taken, 3);
      }
    }
    return key;
  }
};

class ReducingModel {
 public:
  enum class Mutant { kNone, kOneSlot, kReduceAtOnce, kTakeAtOnce };

  // Operations one after the other, of so many pieces each.
  ReducingModel(int ranks, int operations, int pieces, Mutant mutant)
      : ranks_(ranks), mutant_(mutant) {
    int phase = 1, staged = 1;
    for (int i = 0; i < operations; ++i) {
      Show(phase, staged);  // with the record of the operation
      for (int piece = 0; piece < pieces; ++piece, ++phase) {
        actions_.push_back({Action::kReduce, phase, staged});
        const int next = piece + 1 < pieces ? staged + 1 : -1;
        if (mutant_ == Mutant::kTakeAtOnce) {
          actions_.push_back({Action::kTake, phase, staged});
        }
        Show(phase + 1, next);
        if (mutant_ != Mutant::kTakeAtOnce) {
          actions_.push_back({Action::kTake, phase, staged});
        }
        ++staged;
      }
      ++phase;
    }
  }

  std::string Explore() {
    std::vector<ReducingState> stack = {ReducingState()};
    absl::flat_hash_set<absl::uint128> seen = {stack[0].Key()};
    while (!stack.empty() && error_.empty()) {
      const ReducingState state = stack.back();
      stack.pop_back();
      for (int r = 0; r < ranks_; ++r) {
        ReducingState next = state;
        if (Move(next, r) && seen.insert(next.Key()).second) {
          stack.push_back(next);
        }
      }
    }
    states_ = seen.size();
    return error_;
  }
  size_t states() const { return states_; }

 private:
  void Show(int phase, int piece) {
    if (piece >= 0) actions_.push_back({Action::kStage, phase, piece});
    actions_.push_back({Action::kArrive, phase, piece});
    if (mutant_ == Mutant::kReduceAtOnce && piece >= 0) return;
    actions_.push_back({Action::kAwait, phase, piece});
  }

  bool Move(ReducingState& s, int r) {
    ReducingState::OneRank& me = s.ranks[r];
    if (me.at == static_cast<int>(actions_.size())) return false;
    const Action& action = actions_[me.at];
    const int parity = mutant_ == Mutant::kOneSlot ? 0 : action.phase % 2;
    const int others = ((1 << ranks_) - 1) & ~(1 << r);
    ReducingState::OneSlot& own = s.slots[r][parity];
    switch (action.kind) {
      case Action::kStage:
        if (own.piece > 0 && own.taken != others) {
          error_ = "a slot was staged again that was not taken";
        }
        own = {static_cast<int8_t>(action.piece), 0, 0};
        break;
      case Action::kArrive:
        me.arrived = static_cast<int8_t>(action.phase);
        break;
      case Action::kAwait:
        for (int i = 0; i < ranks_; ++i) {
          if (s.ranks[i].arrived < action.phase) return false;
        }
        break;
      case Action::kReduce:
        if (me.peer != r) {
          ReducingState::OneSlot& slot = s.slots[me.peer][parity];
          if (slot.piece != action.piece) {
            error_ = "a slice was reduced of another piece";
          }
          slot.reduced = static_cast<int8_t>(slot.reduced | 1 << r);
        }
        if (++me.peer < ranks_) return true;
        break;
      case Action::kTake:
        if (me.peer != r) {
          if (own.piece != action.piece || !(own.reduced >> me.peer & 1)) {
            error_ = "a slice was taken that was not reduced";
          }
          own.taken = static_cast<int8_t>(own.taken | 1 << me.peer);
        }
        if (++me.peer < ranks_) return true;
        break;
    }
    me.peer = 0;
    ++me.at;
    return true;
  }

  const int ranks_;
  const Mutant mutant_;
  std::vector<Action> actions_;
  std::string error_;
  size_t states_ = 0;
};

TEST(AllReduceThroughSlotsModel, TakesEachSliceOnceReducedInAnyInterleaving) {
  for (const auto& [ranks, operations, pieces] :
       {std::tuple(2, 2, 3), std::tuple(3, 2, 1), std::tuple(3, 2, 3)}) {
    ReducingModel model(ranks, operations, pieces,
                        ReducingModel::Mutant::kNone);
    EXPECT_EQ(model.Explore(), "");
    EXPECT_GT(model.states(), 300u);
  }
}

TEST(AllReduceThroughSlotsModel, FindsEachPlantedMistake) {
  using Mutant = ReducingModel::Mutant;
  EXPECT_EQ(ReducingModel(2, 1, 3, Mutant::kOneSlot).Explore(),
            "a slot was staged again that was not taken");
  EXPECT_EQ(ReducingModel(2, 1, 2, Mutant::kReduceAtOnce).Explore(),
            "a slice was reduced of another piece");
  EXPECT_EQ(ReducingModel(2, 1, 2, Mutant::kTakeAtOnce).Explore(),
            "a slice was taken that was not reduced");
}

}  // namespace
}  // namespace weft::collectives
