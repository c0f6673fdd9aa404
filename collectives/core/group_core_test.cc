// Groups of cores: ranks that call operations, with every order in which their
// steps, frames, questions and one death can come (2 and 3 ranks), and with
// random ones (2 to 6 ranks, thousands of seeds).

#include "weft/collectives/core/group_core.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kFirst = 16;  // the number of a program's first operation

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
const Call kBarrier = {Kind::kBarrier, 0};
const Call kCentralBarrier = {Kind::kCentralBarrier, 0};
const Call kAllReduce = {Kind::kAllReduce, 0};
Call Broadcast(int root) { return {Kind::kBroadcast, root}; }
Call Reduce(int root) { return {Kind::kReduce, root}; }
Call Refused(Call call) {
  call.is_refused = true;
  return call;
}
using Program = std::vector<Call>;

// A rank that runs its program as a backend does (mesh_backend.cc), and then
// leaves.
struct Rank {
  enum Stage { kBegins, kCompares, kMoves, kEnds, kHasLeft, kDead };

  Rank(GroupCore group_core, Program program_to_run)
      : core(std::move(group_core)), program(std::move(program_to_run)) {}

  GroupCore core;
  Program program;
  Stage stage = kBegins;
  size_t at = 0;      // in the program
  size_t called = 0;  // operations of it that have begun, or were refused
  std::vector<bool> sent, taken;
  bool has_asked = false;  // in this operation
  std::vector<absl::StatusCode> results;
  std::string report;

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
  explicit World(std::vector<Program> programs) {
    const int size = static_cast<int>(programs.size());
    for (int r = 0; r < size; ++r) {
      GroupCoreOptions options;
      options.group = "g";
      options.rank = r;
      options.size = size;
      ranks_.emplace_back(GroupCore(options), std::move(programs[r]));
    }
    channels_.resize(size, std::vector<Channel>(size));
    for (int r = 0; r < size; ++r) {
      for (int peer = r + 1; peer < size; ++peer) {
        ranks_[r].core.Open(peer);
        EXPECT_TRUE(ranks_[peer].core.Accept(r, "", Instant()).ok());
      }
    }
    for (int r = 0; r < size; ++r) Act(r);
    // All have met before anybody calls anything.
    for (int r = 0; r < size; ++r) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != r) Deliver(r, peer);
      }
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  const Rank& rank(int r) const { return ranks_[r]; }

  // --- What may come next. Each returns whether it could come. ---

  // The next frame from one rank to another, or the end of its stream.
  bool Deliver(int from, int to) {
    Channel& channel = channels_[from][to];
    if (channel.frames.empty() && !channel.is_ending) return false;
    if (channel.frames.empty()) {
      channel.is_ending = false;
      ranks_[to].core.Close(from, absl::UnavailableError("its stream ended"));
    } else {
      Frame frame = std::move(channel.frames.front());
      channel.frames.pop_front();
      ranks_[to].core.Receive(from, std::move(frame), Instant());
    }
    Act(to);
    return true;
  }

  // A rank goes on, as far as it can without the others.
  bool Step(int r) {
    Rank& rank = ranks_[r];
    const bool has_moved = [&] {
      switch (rank.stage) {
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
    if (has_moved) Act(r);
    return has_moved;
  }

  // A rank that waits asks the others what they do: its timer.
  bool Ask(int r) {
    Rank& rank = ranks_[r];
    if (rank.has_asked ||
        (rank.stage != Rank::kCompares && rank.stage != Rank::kMoves)) {
      return false;
    }
    rank.has_asked = true;
    rank.core.Ask(rank.sequence());
    Act(r);
    return true;
  }

  // A rank dies; of what it has sent, either all arrives or nothing.
  bool Kill(int r, bool drops_frames) {
    Rank& rank = ranks_[r];
    if (rank.stage == Rank::kDead || rank.stage == Rank::kHasLeft) return false;
    rank.stage = Rank::kDead;
    for (int peer = 0; peer < size(); ++peer) {
      if (drops_frames) channels_[r][peer].frames.clear();
      channels_[r][peer].is_ending = peer != r;
      channels_[peer][r].frames.clear();
    }
    return true;
  }

  // --- What must hold. ---

  // At any time.
  std::string Broken() const { return broken_; }

  // Once nothing more can come.
  std::string BrokenAtTheEnd() const {
    bool has_death = false;
    for (const Rank& rank : ranks_) has_death |= rank.stage == Rank::kDead;
    for (int r = 0; r < size(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.stage == Rank::kDead) continue;
      if (rank.stage != Rank::kHasLeft) {
        return absl::StrCat("rank ", r, " waits for ever in ",
                            rank.call().Text());
      }
      // One that leaves after it has heard of a refusal may be seen to leave
      // before that refusal has come.
      if (!has_death && !AnyRefuses() && Hears(r) && !AnyDiffers()) {
        return absl::StrCat("rank ", r, " hears of no difference");
      }
      for (int other = 0; other < size(); ++other) {
        if (has_death || size() > 2 || !Differ(r, other) || Hears(r)) continue;
        return absl::StrCat("rank ", r, " called something else than rank ",
                            other, " and does not hear of it");
      }
      if (!rank.core.IsOver() && !has_death) {
        return absl::StrCat("rank ", r, " still has streams");
      }
    }
    bool anybody_hears = has_death;
    for (int r = 0; r < size(); ++r) anybody_hears |= Hears(r);
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

  void Act(int r) {
    Rank& rank = ranks_[r];
    GroupCore::Actions actions;
    rank.core.TakeActions(actions);
    for (GroupCore::Action& action : actions.todo) {
      if (action.kind != GroupCore::Action::kPost) continue;
      if (ranks_[action.peer].stage == Rank::kDead) continue;
      channels_[r][action.peer].frames.push_back(std::move(action.frame));
    }
    if (!actions.report.empty()) rank.report = actions.report;
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
    for (int other = 0; other < size(); ++other) {
      for (size_t k = 0; k <= rank.at; ++k) {
        if (other == rank.core.rank()) continue;
        if (ranks_[other].called > k &&
            ranks_[other].program[k] == rank.program[k]) {
          continue;
        }
        broken_ = absl::StrCat("a barrier of rank ", rank.core.rank(),
                               " is OK, and rank ", other,
                               " has not called the same");
      }
    }
  }

  bool Begin(Rank& rank) {
    rank.sent.assign(size(), false);
    rank.taken.assign(size(), false);
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
    for (int peer = 0; peer < size(); ++peer) {
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
    for (int peer = 0; peer < size(); ++peer) {
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
      if (!(ranks_[peer].program[rank.at] == rank.call())) {
        broken_ = absl::StrCat("rank ", rank.core.rank(),
                               " took a message of another operation");
      }
    }
    if (is_done) {
      End(rank, absl::OkStatus());
      return true;
    }
    if (has_moved) return true;
    for (int peer = 0; peer < size(); ++peer) {
      const bool awaits = (rank.Takes(peer) && !rank.taken[peer]) ||
                          (rank.Sends(peer) && !rank.sent[peer]);
      if (!awaits) continue;
      const absl::Status status = rank.core.CheckPeer(rank.sequence(), peer);
      if (status.ok()) continue;
      End(rank, status);
      return true;
    }
    return false;
  }

  std::vector<Rank> ranks_;
  std::vector<std::vector<Channel>> channels_;  // [from][to]
  std::string broken_;
};

struct Exploration {
  bool with_death = false;
  // A rank may ask at any time, not only once nothing else can come.
  bool asks_early = false;
  // A rank goes on as far as it can, and no frame comes meanwhile.
  bool has_long_steps = false;
};

// All that may come next in `world`, each in a world of its own.
std::vector<World> NextOf(const World& world, const Exploration& exploration) {
  std::vector<World> next;
  const auto offer = [&](const std::function<bool(World&)>& event) {
    World copy = world;
    if (event(copy)) next.push_back(std::move(copy));
  };
  bool has_died = false;
  for (int r = 0; r < world.size(); ++r) {
    has_died |= world.rank(r).stage == Rank::kDead;
  }
  for (int r = 0; r < world.size(); ++r) {
    offer([&](World& w) {
      const bool has_moved = w.Step(r);
      while (exploration.has_long_steps && w.Step(r)) {
      }
      return has_moved;
    });
    for (int to = 0; to < world.size(); ++to) {
      if (to != r) offer([&](World& w) { return w.Deliver(r, to); });
    }
  }
  if (next.empty() || exploration.asks_early) {
    for (int r = 0; r < world.size(); ++r) {
      offer([&](World& w) { return w.Ask(r); });
    }
  }
  if (exploration.with_death && !has_died && !next.empty()) {
    for (int r = 0; r < world.size(); ++r) {
      for (const bool drops : {false, true}) {
        offer([&](World& w) { return w.Kill(r, drops); });
      }
    }
  }
  return next;
}

// Explores all orders; how many states there are, or 0 if one is wrong.
int64_t Explore(const std::vector<Program>& programs,
                const Exploration& exploration = {}) {
  // Of 64-bit hashes: of a million states two are taken for one with a chance
  // of one in 30 million.
  absl::flat_hash_set<uint64_t> seen;
  const auto is_new = [&](const World& world) {
    return seen.insert(absl::Hash<std::string>()(world.Key())).second;
  };
  std::vector<World> open = {World(programs)};
  is_new(open.back());
  while (!open.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    std::string broken = world.Broken();
    std::vector<World> next = NextOf(world, exploration);
    if (broken.empty() && next.empty()) broken = world.BrokenAtTheEnd();
    if (!broken.empty()) {
      ADD_FAILURE() << broken << ":\n" << world.Describe();
      return 0;
    }
    for (World& one : next) {
      if (is_new(one)) open.push_back(std::move(one));
    }
  }
  return static_cast<int64_t>(seen.size());
}

// `program`, and those in which one operation is another of `kinds`.
std::vector<Program> Variants(const Program& program,
                              const std::vector<Call>& kinds) {
  std::vector<Program> variants = {program};
  for (size_t at = 0; at < program.size(); ++at) {
    for (const Call& kind : kinds) {
      if (kind == program[at]) continue;
      variants.push_back(program);
      variants.back()[at] = kind;
    }
  }
  return variants;
}

std::vector<Program> AllPrograms(size_t length,
                                 const std::vector<Call>& kinds) {
  std::vector<Program> programs = {{}};
  for (size_t at = 0; at < length; ++at) {
    std::vector<Program> longer;
    for (const Program& program : programs) {
      for (const Call& kind : kinds) {
        longer.push_back(program);
        longer.back().push_back(kind);
      }
    }
    programs = std::move(longer);
  }
  return programs;
}

TEST(GroupCoreExploration, TwoRanksAndThreeOperationsInEveryOrder) {
  const std::vector<Call> kinds = {kBarrier, Broadcast(0), Reduce(0)};
  int64_t states = 0;
  for (const Program& program : AllPrograms(3, kinds)) {
    for (const Program& other : Variants(program, kinds)) {
      states += Explore({program, other});
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 90'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, TwoRanksThatAskAtAnyTime) {
  int64_t states = 0;
  for (const Program& program : {Program{kBarrier, kBarrier},
                                 {Broadcast(0), kAllReduce},
                                 {Reduce(0), kBarrier}}) {
    for (const Program& other : Variants(program, {kBarrier, Broadcast(0)})) {
      Exploration exploration;
      exploration.asks_early = true;
      states += Explore({program, other}, exploration);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 50'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, TwoRanksOfWhichOneDiesInEveryOrder) {
  int64_t states = 0;
  for (const Program& program :
       AllPrograms(2, {kBarrier, Broadcast(0), kAllReduce})) {
    for (const Program& other : Variants(program, {kBarrier, Broadcast(0)})) {
      states += Explore({program, other}, {/*with_death=*/true});
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 25'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, RanksThatRefuseInEveryOrder) {
  int64_t states = 0;
  for (const Call& call : {kBarrier, kAllReduce, Broadcast(0), Broadcast(1)}) {
    states += Explore({{call, kBarrier}, {Refused(call), kBarrier}});
    states += Explore({{Refused(call), kBarrier}, {Refused(call), kBarrier}});
  }
  EXPECT_GT(states, 1'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, ThreeRanksInEveryOrder) {
  Exploration exploration;
  exploration.has_long_steps = true;
  int64_t states = 0;
  for (const std::vector<Program>& programs : std::vector<std::vector<Program>>{
           {{kBarrier}, {kBarrier}, {kBarrier}},
           {{Broadcast(0)}, {Broadcast(0)}, {Broadcast(1)}},
           {{Reduce(0)}, {Reduce(0)}, {Reduce(1)}},
           {{Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)}},
           {{Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)},
            {Broadcast(1), Reduce(0)}},
       }) {
    states += Explore(programs, exploration);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(states, 150'000);
  RecordProperty("states", absl::StrCat(states));
}

// Rank 2 calls Reduce to rank 1, which calls Reduce to rank 0, as rank 0 does.
// Both have left with OK when rank 0 fails because rank 2 has left; rank 1
// hears of that before the message of rank 2 comes.
TEST(GroupCore, RankThatHasLeftHearsOfADifferenceAfterAnothersFailure) {
  World world({{Reduce(0)}, {Reduce(0)}, {Reduce(1)}});
  const auto run = [&](int r) {
    while (world.Step(r)) {
    }
  };
  const auto deliver_all = [&](int from, int to) {
    while (world.Deliver(from, to)) {
    }
  };
  run(1);
  run(2);
  run(0);
  deliver_all(1, 0);
  deliver_all(2, 0);
  run(0);
  EXPECT_THAT(world.rank(0).results,
              ElementsAre(absl::StatusCode::kUnavailable));
  deliver_all(0, 1);
  EXPECT_EQ(world.rank(1).report, "");
  deliver_all(2, 1);
  EXPECT_THAT(world.rank(1).results, ElementsAre(absl::StatusCode::kOk));
  EXPECT_THAT(world.rank(1).report, AllOf(HasSubstr("rank 1 called Reduce0"),
                                          HasSubstr("rank 2 called Reduce1")));
}

// Ranks of a group that broke before all had come, and the frames that they
// post to each other.
class Strangers {
 public:
  explicit Strangers(int size) {
    for (int r = 0; r < size; ++r) {
      GroupCoreOptions options;
      options.group = "g";
      options.rank = r;
      options.size = size;
      cores_.emplace_back(options);
    }
  }

  GroupCore& operator[](int rank) { return cores_[rank]; }

  void Meet(int a, int b) {
    cores_[a].Join(b, Instant());
    cores_[b].Join(a, Instant());
  }

  // Until nothing is under way; how many frames have come.
  int DeliverAll() {
    int frames = 0;
    for (int quiet = 0, from = 0; quiet <= static_cast<int>(cores_.size());
         from = (from + 1) % static_cast<int>(cores_.size())) {
      GroupCore::Actions actions;
      cores_[from].TakeActions(actions);
      quiet = actions.todo.empty() ? quiet + 1 : 0;
      for (const GroupCore::Action& action : actions.todo) {
        ++frames;
        cores_[action.peer].Receive(from, Decode(Encode(action.frame)),
                                    Instant());
      }
      if (frames > 100000) break;
    }
    return frames;
  }

 private:
  std::vector<GroupCore> cores_;
};

// Rank 1 has met the others, which have not met each other.
TEST(GroupCore, EndOfAShrinkReachesARankToWhichThereIsNoStream) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks.Meet(1, 2);
  ranks[2].EndShrink(5, absl::CancelledError("enough"));
  EXPECT_EQ(ranks.DeliverAll(), 2);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[r].CheckShrink(5), absl::CancelledError("enough"));
  }
}

TEST(GroupCore, EndOfAShrinkIsToldToARankThatComesLater) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks[0].EndShrink(5, absl::CancelledError("enough"));
  ranks.DeliverAll();
  ASSERT_TRUE(ranks[0].Open(2));
  ASSERT_EQ(ranks[2].Accept(0, "", Instant()), absl::OkStatus());
  ASSERT_TRUE(ranks[1].Open(2));
  ASSERT_EQ(ranks[2].Accept(1, "", Instant()), absl::OkStatus());
  ranks.DeliverAll();
  EXPECT_EQ(ranks[2].CheckShrink(5), absl::CancelledError("enough"));
}

TEST(GroupCore, ManyEndsOfShrinksDoNotGoRoundForEver) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks.Meet(1, 2);
  ranks.Meet(0, 2);
  for (uint64_t key = 1; key <= 100; ++key) {
    ranks[1].EndShrink(key, absl::CancelledError("enough"));
  }
  EXPECT_LE(ranks.DeliverAll(), 400);
}

// Also of a broken group; the last are known, and the first reason of each.
TEST(GroupCore, EndOfAShrinkIsToldAndBoundedAndBreaksNothing) {
  std::vector<GroupCore> cores;
  for (int r = 0; r < 2; ++r) {
    GroupCoreOptions options;
    options.group = "g";
    options.rank = r;
    options.size = 2;
    cores.emplace_back(options);
    cores[r].Join(1 - r, Instant());
  }
  const auto deliver = [&](int from) {
    GroupCore::Actions actions;
    cores[from].TakeActions(actions);
    for (const GroupCore::Action& action : actions.todo) {
      cores[1 - from].Receive(from, Decode(Encode(action.frame)), Instant());
    }
    return actions.todo.size();
  };
  cores[0].EndShrink(5, absl::CancelledError("enough"));
  EXPECT_EQ(deliver(0), 1u);
  EXPECT_EQ(cores[1].CheckShrink(5), absl::CancelledError("enough"));
  EXPECT_EQ(cores[1].CheckShrink(6), absl::OkStatus());
  EXPECT_EQ(cores[1].broken(), absl::OkStatus());
  cores[1].EndShrink(5, absl::CancelledError("later"));
  EXPECT_EQ(deliver(1), 0u);
  EXPECT_EQ(cores[1].CheckShrink(5), absl::CancelledError("enough"));
  cores[1].Abort(absl::CancelledError("broken"));
  deliver(1);
  for (uint64_t key = 100; key < 1100; ++key) {
    cores[1].EndShrink(key, absl::UnavailableError("gone"));
  }
  deliver(1);
  EXPECT_EQ(cores[0].CheckShrink(1099), absl::UnavailableError("gone"));
  EXPECT_EQ(cores[0].CheckShrink(100), absl::OkStatus());
  EXPECT_EQ(cores[0].broken(), absl::CancelledError("broken"));
}

// Ranks 1 and 2 call different operations, in which rank 0 has no part of rank
// 2's; all could go through the barrier before the two hear of each other.
TEST(GroupCore, BarrierWaitsUntilWhatWasSentBeforeIsCompared) {
  World world({{Broadcast(1), kCentralBarrier},
               {Broadcast(1), kCentralBarrier},
               {Reduce(1), kCentralBarrier}});
  const auto run_all = [&] {
    for (int r = 0; r < 3; ++r) {
      while (world.Step(r)) {
      }
    }
  };
  const auto deliver_all = [&](int from, int to) {
    while (world.Deliver(from, to)) {
    }
  };
  for (int round = 0; round < 10; ++round) {
    run_all();
    for (const int peer : {1, 2}) {
      deliver_all(0, peer);
      deliver_all(peer, 0);
    }
  }
  EXPECT_EQ(world.Broken(), "");
  EXPECT_EQ(world.rank(1).stage, Rank::kCompares);
  EXPECT_EQ(world.rank(2).stage, Rank::kCompares);
  deliver_all(1, 2);
  deliver_all(2, 1);
  run_all();
  EXPECT_TRUE(world.rank(1).has_failed());
  EXPECT_TRUE(world.rank(2).has_failed());
}

// Runs random programs with random orders to their end; what is wrong, if
// anything is.
std::string Simulate(uint64_t seed) {
  sim::Random random(seed);
  const int size = 2 + static_cast<int>(random.Below(5));
  const auto draw = [&] {
    const int root = static_cast<int>(random.Below(size));
    const Kind kind = static_cast<Kind>(random.Below(5));
    const bool has_root = kind == Kind::kBroadcast || kind == Kind::kReduce;
    return Call{kind, has_root ? root : 0};
  };
  Program program;
  for (int64_t n = 1 + random.Below(12); n > 0; --n) program.push_back(draw());
  std::vector<Program> programs(size, program);
  const int64_t what = random.Below(4);
  for (int64_t n = what == 1 ? 1 + random.Below(2) : 0; n > 0; --n) {
    programs[random.Below(size)][random.Below(program.size())] = draw();
  }
  if (what == 2) {
    for (Call& call : programs[random.Below(size)]) {
      call.is_refused = random.Chance(0.3);
    }
  }
  World world(std::move(programs));
  int64_t dies_at = what == 3 ? random.Below(200) : -1;
  // A rank, or a stream, may be slow.
  const int slow = static_cast<int>(random.Below(size));
  for (int idle = 0; idle < 2;) {
    std::vector<std::function<bool()>> events;
    for (int r = 0; r < size; ++r) {
      if (r != slow || random.Chance(0.05) || idle > 0) {
        events.push_back([&, r] { return world.Step(r); });
      }
      for (int to = 0; to < size; ++to) {
        if (to == r) continue;
        events.push_back([&, r, to] { return world.Deliver(r, to); });
      }
      if (idle > 0) events.push_back([&, r] { return world.Ask(r); });
    }
    for (size_t i = events.size() - 1; i > 0; --i) {
      std::swap(events[i], events[random.Below(static_cast<int64_t>(i) + 1)]);
    }
    const bool has_moved =
        std::any_of(events.begin(), events.end(),
                    [](const auto& event) { return event(); });
    idle = has_moved ? 0 : idle + 1;
    if (dies_at-- == 0) {
      world.Kill(static_cast<int>(random.Below(size)), random.Chance(0.5));
    }
    if (!world.Broken().empty()) {
      return absl::StrCat(world.Broken(), ":\n", world.Describe());
    }
  }
  const std::string broken = world.BrokenAtTheEnd();
  return broken.empty() ? "" : absl::StrCat(broken, ":\n", world.Describe());
}

TEST(GroupCoreSimulation, RandomProgramsAndOrders) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    ASSERT_EQ(Simulate(seed), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::collectives
