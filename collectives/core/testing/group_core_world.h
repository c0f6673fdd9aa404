// World: processes that call operations as the ranks of one group, each with
// its core, and what is on its way between them.
//
// A process may stand still and go on, and end and be followed by another one
// of the same rank; each process has a number of its own, which for the first
// ones is their rank.

#ifndef WEFT_COLLECTIVES_CORE_TESTING_GROUP_CORE_WORLD_H_
#define WEFT_COLLECTIVES_CORE_TESTING_GROUP_CORE_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/collectives/core/group_core.h"

namespace weft::collectives::group_core {

inline constexpr uint64_t kFirst =
    16;  // the number of a program's first operation

// What a rank does as one operation. A broadcast's root sends to all others,
// which take; a reduction's root takes from all others; in an all-reduce and a
// barrier each sends to all and takes from all. In a central barrier rank 0
// takes from all and then sends to all, so that the others exchange nothing, as
// in one of few rounds.
enum class Kind { kBroadcast, kReduce, kAllReduce, kBarrier, kCentralBarrier };
struct Call {
  Kind kind = Kind::kBarrier;
  int root = 0;
  bool is_refused = false;

  bool is_barrier() const {
    return kind == Kind::kBarrier || kind == Kind::kCentralBarrier;
  }
  bool operator==(const Call& other) const {
    return kind == other.kind && root == other.root;
  }
  std::string Text() const {
    static constexpr const char* kNames[] = {"Broadcast", "Reduce", "AllReduce",
                                             "Barrier", "CentralBarrier"};
    return absl::StrCat(kNames[static_cast<int>(kind)], root,
                        is_refused ? " refused" : "");
  }
  Announcement Said(uint64_t sequence) const {
    return {sequence, static_cast<uint64_t>(kind) * 8 + root + 1, is_refused,
            Text()};
  }
};
inline const Call kBarrier = {Kind::kBarrier, 0};
inline const Call kCentralBarrier = {Kind::kCentralBarrier, 0};
inline const Call kAllReduce = {Kind::kAllReduce, 0};
inline Call Broadcast(int root) { return {Kind::kBroadcast, root}; }
inline Call Reduce(int root) { return {Kind::kReduce, root}; }
inline Call Refused(Call call) {
  call.is_refused = true;
  return call;
}
using Program = std::vector<Call>;

// A rank that runs its program as a backend does (mesh_backend.cc), and then
// leaves.
struct Rank {
  enum Stage { kBegins, kCompares, kMoves, kEnds, kHasLeft, kDead, kMeets };

  Rank(int number, GroupCore group_core, Program program_to_run)
      : process(number),
        core(std::move(group_core)),
        program(std::move(program_to_run)) {}

  int process;
  GroupCore core;
  Program program;
  Stage stage = kBegins;
  size_t at = 0;      // in the program
  size_t called = 0;  // operations of it that have begun, or were refused
  std::vector<bool> sent, taken;
  bool has_asked = false;  // in this operation
  std::vector<absl::StatusCode> results;
  std::string report;
  // For simulations, in which time passes.
  bool is_stopped = false;
  bool was_stopped = false;
  bool is_waiting = false;  // the last step led nowhere
  Instant waits_since;
  Instant ask_at;         // not again before
  Instant open_again_at;  // while it meets the others
  Instant meet_until;

  uint64_t sequence() const { return kFirst + at; }
  const Call& call() const { return program[at]; }
  bool Sends(int to) const {
    if (to == core.rank()) return false;
    if (call().kind == Kind::kBroadcast) return core.rank() == call().root;
    if (call().kind == Kind::kReduce) return to == call().root;
    if (call().kind == Kind::kCentralBarrier) {
      return core.rank() == 0 || to == 0;
    }
    return true;
  }
  bool Takes(int from) const {
    if (from == core.rank()) return false;
    if (call().kind == Kind::kBroadcast) return from == call().root;
    if (call().kind == Kind::kReduce) return core.rank() == call().root;
    if (call().kind == Kind::kCentralBarrier) {
      return core.rank() == 0 || from == 0;
    }
    return true;
  }
  // Whether it may send already.
  bool MaySend() const {
    if (call().kind != Kind::kCentralBarrier || core.rank() != 0) return true;
    for (int from = 0; from < core.size(); ++from) {
      if (Takes(from) && !taken[from]) return false;
    }
    return true;
  }
  bool has_failed() const {
    return std::any_of(results.begin(), results.end(), [](auto code) {
      return code != absl::StatusCode::kOk &&
             code != absl::StatusCode::kAborted;
    });
  }
};

class World {
 public:
  enum class Meeting { kIsOver, kComes };

  // kIsOver: all have met before anybody calls anything.
  explicit World(std::vector<Program> programs,
                 Meeting meeting = Meeting::kIsOver)
      : size_(static_cast<int>(programs.size())) {
    for (int r = 0; r < size_; ++r) Add(r, std::move(programs[r]));
    for (int r = 0; r < size_; ++r) OpenToHigher(r);
    if (meeting == Meeting::kComes) return;
    for (int r = 0; r < size_; ++r) {
      for (int peer = r + 1; peer < size_; ++peer) Deliver(r, peer);
    }
    for (int r = 0; r < size_; ++r) {
      for (int peer = 0; peer < r; ++peer) Deliver(r, peer);
      ranks_[r].stage = Rank::kBegins;
    }
  }

  // How many ranks the group has, and how many processes there were.
  int size() const { return size_; }
  int processes() const { return static_cast<int>(ranks_.size()); }
  const Rank& rank(int process) const { return ranks_[process]; }

  // --- What may come next. Each returns whether it could come. ---

  // The next frame from one process to another, or the end of its stream.
  bool Deliver(int from, int to) {
    Channel& channel = channels_[from][to];
    if (ranks_[to].is_stopped) return false;
    if (channel.frames.empty() && !channel.is_ending) return false;
    const int peer = ranks_[from].core.rank();
    if (channel.frames.empty()) {
      channel.is_ending = false;
      if (KnownTo(to, peer) != from) return true;
      ranks_[to].core.Close(peer, absl::UnavailableError("its stream ended"));
    } else {
      Frame frame = std::move(channel.frames.front());
      channel.frames.pop_front();
      if (KnownTo(to, peer) != from && !Accept(from, to)) return true;
      ranks_[to].core.Receive(peer, std::move(frame), now_);
    }
    Act(to);
    return true;
  }

  // A process goes on, as far as it can without the others.
  bool Step(int r) {
    Rank& rank = ranks_[r];
    if (rank.is_stopped) return false;
    const bool has_moved = [&] {
      switch (rank.stage) {
        case Rank::kMeets:
          return Meet(r);
        case Rank::kBegins:
          return Begin(rank);
        case Rank::kCompares:
          return Compare(rank);
        case Rank::kMoves:
          return Move(rank);
        case Rank::kEnds:
          rank.core.Leave();
          rank.stage = Rank::kHasLeft;
          return true;
        default:
          return false;
      }
    }();
    if (!has_moved && !rank.is_waiting) rank.waits_since = now_;
    rank.is_waiting = !has_moved;
    if (has_moved) Act(r);
    return has_moved;
  }

  // A process that waits asks the others what they do: its timer.
  bool Ask(int r) {
    Rank& rank = ranks_[r];
    const bool is_due = !rank.has_asked || now_ >= rank.ask_at;
    if (rank.is_stopped || !is_due || !IsInAnOperation(rank)) return false;
    rank.has_asked = true;
    rank.ask_at = now_ + absl::Seconds(1);
    rank.core.Ask(rank.sequence());
    Act(r);
    return true;
  }

  // A process that waits for one that is silent takes it for dead.
  bool FindSilence(int r) {
    Rank& rank = ranks_[r];
    if (rank.is_stopped || !rank.is_waiting || !IsInAnOperation(rank)) {
      return false;
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (!Awaits(rank, peer) ||
          !rank.core.CheckPeer(rank.sequence(), peer).ok() ||
          !rank.core.IsSilent(peer, rank.waits_since, now_)) {
        continue;
      }
      ++taken_for_dead_;
      const Rank& silent = ranks_[KnownTo(r, peer)];
      if (silent.stage != Rank::kDead && !silent.was_stopped) {
        broken_ = absl::StrCat("rank ", rank.core.rank(), " takes rank ", peer,
                               " for dead, which answers");
      }
      Act(r);
      return true;
    }
    return false;
  }

  // A process dies; of what it has sent, either all arrives or nothing.
  bool Kill(int r, bool drops_frames) {
    Rank& rank = ranks_[r];
    if (rank.stage == Rank::kDead || rank.stage == Rank::kHasLeft) return false;
    rank.stage = Rank::kDead;
    rank.is_stopped = false;
    for (int peer = 0; peer < processes(); ++peer) {
      if (drops_frames) channels_[r][peer].frames.clear();
      channels_[r][peer].is_ending = peer != r;
      channels_[peer][r].frames.clear();
    }
    return true;
  }

  // Another process comes as the rank of one that has ended. Returns its
  // number.
  int Restart(int ended, Program program) {
    Add(ranks_[ended].core.rank(), std::move(program));
    OpenToHigher(processes() - 1);
    return processes() - 1;
  }

  // A process does nothing and hears nothing until it continues.
  bool Stop(int r) {
    Rank& rank = ranks_[r];
    if (rank.stage == Rank::kDead || rank.stage == Rank::kHasLeft) return false;
    rank.is_stopped = rank.was_stopped = true;
    return true;
  }
  void Continue(int r) { ranks_[r].is_stopped = false; }

  void Pass(absl::Duration time) { now_ += time; }
  // So long a process that meets the others waits for them from now on.
  void SetPatience(int process, absl::Duration patience) {
    ranks_[process].meet_until = now_ + patience;
  }

  // Whether all have left or ended, and nothing is under way.
  bool IsOver() const {
    for (const Rank& rank : ranks_) {
      if (rank.stage != Rank::kDead && rank.stage != Rank::kHasLeft) {
        return false;
      }
    }
    for (int from = 0; from < processes(); ++from) {
      for (int to = 0; to < processes(); ++to) {
        const Channel& channel = channels_[from][to];
        const bool is_empty = channel.frames.empty() && !channel.is_ending;
        if (ranks_[to].stage != Rank::kDead && !is_empty) return false;
      }
    }
    return true;
  }
  // How often a process took another one for dead, and refused the stream of
  // one because it had one of that rank.
  int taken_for_dead() const { return taken_for_dead_; }
  int refused() const { return refused_; }

  // --- What must hold. ---

  // What must hold at any time.
  std::string Broken() const { return broken_; }

  // To be called once nothing more can come.
  std::string BrokenAtTheEnd() const {
    bool has_death = taken_for_dead_ > 0 || has_missed_;
    for (const Rank& rank : ranks_) has_death |= rank.stage == Rank::kDead;
    for (int r = 0; r < processes(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.stage == Rank::kDead) continue;
      if (rank.stage != Rank::kHasLeft) {
        return absl::StrCat(
            "process ", r, " of rank ", rank.core.rank(), " waits for ever ",
            IsInAnOperation(rank) ? "in " + rank.call().Text() : "");
      }
      // One that leaves after it has heard of a refusal may be seen to leave
      // before that refusal has come.
      if (!has_death && !AnyRefuses() && Hears(r) && !AnyDiffers()) {
        return absl::StrCat("rank ", r, " hears of no difference");
      }
      for (int other = 0; other < size_; ++other) {
        if (has_death || size_ > 2 || !Differ(r, other) || Hears(r)) continue;
        return absl::StrCat("rank ", r, " called something else than rank ",
                            other, " and does not hear of it");
      }
      if (!rank.core.IsOver() && !has_death && !is_unanswered_) {
        return absl::StrCat("rank ", r, " still has streams");
      }
    }
    bool anybody_hears = has_death;
    for (int r = 0; r < processes(); ++r) anybody_hears |= Hears(r);
    return AnyDiffers() && !anybody_hears ? "nobody hears of a difference" : "";
  }

  std::string Key() const {
    std::string key;
    for (const Rank& rank : ranks_) {
      absl::StrAppend(&key, rank.core.Snapshot(), "|", rank.stage, " ", rank.at,
                      " ", rank.has_asked, " ", rank.report.size(), " ");
      for (const bool is : rank.sent) key.push_back(is ? '1' : '0');
      for (const bool is : rank.taken) key.push_back(is ? '1' : '0');
      for (const auto code : rank.results) {
        key.push_back(static_cast<char>('a' + static_cast<int>(code)));
      }
    }
    for (const auto& from : channels_) {
      for (const Channel& channel : from) {
        absl::StrAppend(&key, "\n", channel.is_ending);
        for (const Frame& frame : channel.frames) {
          absl::StrAppend(&key, " ", frame.kind, ",", frame.code, ",",
                          frame.sequence, ",", frame.fingerprint, ",",
                          frame.tag, ",", frame.total);
        }
      }
    }
    return key;
  }

  std::string Describe() const {
    std::string text;
    for (const Rank& rank : ranks_) {
      absl::StrAppend(&text, "rank ", rank.core.rank(), " calls");
      for (const Call& call : rank.program) {
        absl::StrAppend(&text, " ", call.Text());
      }
      absl::StrAppend(&text, ", got");
      for (const auto code : rank.results) {
        absl::StrAppend(&text, " ", absl::StatusCodeToString(code));
      }
      absl::StrAppend(&text, rank.report.empty() ? "" : " and a report",
                      rank.stage == Rank::kDead ? " and died\n" : "\n");
    }
    return text;
  }

 private:
  struct Channel {
    std::deque<Frame> frames;
    bool is_ending = false;
  };

  void Add(int r, Program program) {
    GroupCoreOptions options;
    options.group = "g";
    options.rank = r;
    options.size = size_;
    ranks_.emplace_back(processes(), GroupCore(options), std::move(program));
    ranks_.back().stage = Rank::kMeets;
    ranks_.back().meet_until = now_ + absl::Seconds(30);
    known_.resize(ranks_.size() * size_, kNobody);
    newest_.resize(size_);
    newest_[r] = processes() - 1;
    for (auto& from : channels_) from.emplace_back();
    channels_.emplace_back(ranks_.size());
  }

  void OpenToHigher(int process) {
    const int r = ranks_[process].core.rank();
    for (int peer = r + 1; peer < size_; ++peer) Open(process, peer);
    Act(process);
  }

  void Open(int process, int peer) {
    const int to = newest_[peer];
    KnownTo(process, peer) = to;
    ranks_[process].core.Open(peer);
    if (ranks_[to].stage == Rank::kDead)
      channels_[to][process].is_ending = true;
  }

  // The first frame of a stream has come. False: `to` refuses the stream; or
  // its group is over, of which its process knows nothing more: nobody answers.
  bool Accept(int from, int to) {
    const int peer = ranks_[from].core.rank();
    if (ranks_[to].core.IsOver()) {
      is_unanswered_ = true;
      return false;
    }
    if (ranks_[to].core.Accept(peer, "", now_).ok()) {
      KnownTo(to, peer) = from;
      return true;
    }
    ++refused_;
    channels_[from][to] = {};
    if (ranks_[from].stage != Rank::kDead) channels_[to][from].is_ending = true;
    return false;
  }

  void Act(int r) {
    Rank& rank = ranks_[r];
    GroupCore::Actions actions;
    rank.core.TakeActions(actions);
    for (GroupCore::Action& action : actions.todo) {
      const int to = KnownTo(r, action.peer);
      if (ranks_[to].stage == Rank::kDead) continue;
      if (action.kind == GroupCore::Action::kPost) {
        channels_[r][to].frames.push_back(std::move(action.frame));
      } else if (!rank.core.HasLeft(action.peer)) {
        channels_[r][to].is_ending = true;
      }
    }
    if (!actions.report.empty()) rank.report = actions.report;
  }

  static bool IsInAnOperation(const Rank& rank) {
    return rank.stage == Rank::kCompares || rank.stage == Rank::kMoves;
  }
  // Whether the operation of `rank` cannot go on without `peer`.
  static bool Awaits(const Rank& rank, int peer) {
    if (rank.stage == Rank::kCompares) {
      return rank.core.AwaitedAnswer() == peer;
    }
    return (rank.Takes(peer) && !rank.taken[peer]) ||
           (rank.Sends(peer) && !rank.sent[peer]);
  }

  bool Hears(int r) const {
    return ranks_[r].has_failed() || !ranks_[r].report.empty();
  }
  // Whether they have called different operations under one number, or one has
  // called more than the other will.
  bool Differ(int r, int other) const {
    const size_t called = std::min(ranks_[r].called, ranks_[other].called);
    for (size_t k = 0; k < called; ++k) {
      if (!(ranks_[r].program[k] == ranks_[other].program[k])) return true;
    }
    return false;
  }
  bool AnyRefuses() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return std::any_of(rank.program.begin(), rank.program.end(),
                         [](const Call& call) { return call.is_refused; });
    });
  }
  bool AnyDiffers() const {
    for (int r = 0; r < size(); ++r) {
      for (int other = 0; other < r; ++other) {
        if (Differ(r, other)) return true;
      }
    }
    return false;
  }

  void End(Rank& rank, const absl::Status& status) {
    if (!status.ok() && !absl::IsAborted(status)) rank.core.Abort(status);
    if (status.ok()) CheckOk(rank);
    rank.results.push_back(status.code());
    ++rank.at;
    const bool goes_on = status.ok() || absl::IsAborted(status);
    rank.stage =
        goes_on && rank.at < rank.program.size() ? Rank::kBegins : Rank::kEnds;
  }

  // A barrier is OK only if all have called the same up to it.
  void CheckOk(const Rank& rank) {
    if (!rank.call().is_barrier()) return;
    for (int other = 0; other < size_; ++other) {
      for (size_t k = 0; k <= rank.at; ++k) {
        if (other == rank.core.rank()) continue;
        const Rank& met = Known(rank, other);
        if (met.called > k && met.program[k] == rank.program[k]) continue;
        broken_ = absl::StrCat("a barrier of rank ", rank.core.rank(),
                               " is OK, and rank ", other,
                               " has not called the same");
      }
    }
  }

  int& KnownTo(int process, int rank) { return known_[process * size_ + rank]; }
  int KnownTo(int process, int rank) const {
    return known_[process * size_ + rank];
  }
  // The process that `rank` has met as rank `other`.
  const Rank& Known(const Rank& rank, int other) const {
    return ranks_[KnownTo(rank.process, other)];
  }

  // Opens refused streams again, as their processes may not have got so far.
  bool Meet(int process) {
    Rank& rank = ranks_[process];
    const absl::StatusOr<bool> have_come =
        rank.core.HaveAllCome(/*is_late=*/now_ >= rank.meet_until);
    if (!have_come.ok()) {
      has_missed_ = true;
      rank.results.push_back(have_come.status().code());
      rank.stage = Rank::kEnds;
      return true;
    }
    if (*have_come) {
      rank.stage = Rank::kBegins;
      return true;
    }
    if (now_ < rank.open_again_at) return false;
    const std::vector<int> refused = rank.core.TakeRefused();
    if (refused.empty()) return false;
    rank.open_again_at = now_ + absl::Milliseconds(50);
    for (const int peer : refused) Open(process, peer);
    return true;
  }

  bool Begin(Rank& rank) {
    rank.sent.assign(size_, false);
    rank.taken.assign(size_, false);
    rank.has_asked = false;
    if (rank.at == rank.program.size()) {
      rank.stage = Rank::kEnds;
      return true;
    }
    ++rank.called;
    if (rank.call().is_refused) {
      rank.core.Refuse(rank.call().Said(rank.sequence()));
      End(rank, absl::AbortedError("refused"));
      return true;
    }
    const absl::Status begun =
        rank.core.Begin(rank.call().Said(rank.sequence()));
    if (!begun.ok()) {
      End(rank, begun);
      return true;
    }
    rank.stage = Rank::kMoves;
    if (rank.call().is_barrier()) {
      rank.core.AskCompared();
      rank.stage = Rank::kCompares;
    }
    return true;
  }

  bool Compare(Rank& rank) {
    absl::Status status = rank.core.Health();
    const int awaited = rank.core.AwaitedAnswer();
    if (status.ok() && awaited < 0) {
      rank.stage = Rank::kMoves;
      return true;
    }
    if (status.ok()) status = rank.core.CheckPeer(rank.sequence(), awaited);
    if (status.ok()) return false;
    End(rank, status);
    return true;
  }

  bool Move(Rank& rank) {
    bool has_moved = false;
    bool is_done = true;
    for (int peer = 0; peer < size_; ++peer) {
      if (rank.Sends(peer) && !rank.sent[peer]) {
        if (rank.MaySend() &&
            rank.core.TakePartRoom(peer, 1, /*is_first=*/true)) {
          Frame part;
          part.sequence = rank.sequence();
          part.total = 1;
          part.content = {Bytes::Copy("x")};
          rank.core.SendPart(peer, 0, std::move(part),
                             rank.call().is_barrier());
          rank.sent[peer] = has_moved = true;
        } else {
          is_done = false;
        }
      }
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (!rank.Takes(peer) || rank.taken[peer]) continue;
      const auto next = rank.core.NextPart(rank.sequence(), peer, 1);
      if (!next.ok()) {
        End(rank, next.status());
        return true;
      }
      if (*next == nullptr) {
        is_done = false;
        continue;
      }
      (*next)->content.clear();
      EXPECT_TRUE(rank.core.TookOfPart(peer, 1));
      rank.taken[peer] = has_moved = true;
      if (!(Known(rank, peer).program[rank.at] == rank.call())) {
        broken_ = absl::StrCat("rank ", rank.core.rank(),
                               " took a message of another operation");
      }
    }
    if (is_done) {
      End(rank, absl::OkStatus());
      return true;
    }
    if (has_moved) return true;
    for (int peer = 0; peer < size_; ++peer) {
      if (!Awaits(rank, peer)) continue;
      const absl::Status status = rank.core.CheckPeer(rank.sequence(), peer);
      if (status.ok()) continue;
      End(rank, status);
      return true;
    }
    return false;
  }

  static constexpr int kNobody = -1;

  int size_;
  std::vector<Rank> ranks_;                     // by process
  std::vector<std::vector<Channel>> channels_;  // [from][to], by process
  // KnownTo(process, rank): the process to which it has opened a stream, or
  // whose stream it has accepted, as that rank; or kNobody.
  std::vector<int> known_;
  std::vector<int>
      newest_;  // by rank: its process, the last if there were more
  Instant now_;
  bool has_missed_ = false;     // one waited in vain for others to come
  bool is_unanswered_ = false;  // a stream, which stays open then
  int taken_for_dead_ = 0;
  int refused_ = 0;
  std::string broken_;
};

}  // namespace weft::collectives::group_core

#endif  // WEFT_COLLECTIVES_CORE_TESTING_GROUP_CORE_WORLD_H_
