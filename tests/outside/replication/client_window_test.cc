// What client_window.h and leases.h say, to whom says nonsense, repeats itself
// or comes late.

#include "weft/ps/core/replication/client_window.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/sim/random.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::weft::ps::Answer;
using ::weft::ps::ClientWindow;
using ::weft::ps::ClientWindowOptions;
using ::weft::ps::Code;
using ::weft::ps::Durability;
using ::weft::ps::IsNone;
using ::weft::ps::LeaseOptions;
using ::weft::ps::Leases;
using ::weft::ps::MapChange;
using ::weft::ps::PartitionMap;
using ::weft::ps::Ping;
using ::weft::ps::PushRequest;
using ::weft::ps::SequenceWindow;
using ::weft::ps::WorkerKey;
using Kind = ClientWindow::Action::Kind;

constexpr uint64_t kEnd = ~uint64_t{0};

Instant At(int64_t ms) { return Instant() + absl::Milliseconds(ms); }

PartitionMap MapOf(int entries, int servers, uint64_t epoch = 1) {
  std::vector<PartitionMap::Server> list;
  for (int i = 0; i < servers; ++i) {
    list.push_back({{static_cast<uint32_t>(i + 1), 1},
                    static_cast<uint32_t>(i),
                    PartitionMap::State::kLive});
  }
  return *PartitionMap::Assign(entries, list, 2, epoch);
}
Answer AnswerTo(const PushRequest& request, Code code, uint64_t stable,
                uint64_t map_epoch) {
  Answer answer;
  answer.token = request.token;
  answer.code = code;
  answer.entry = request.entry;
  answer.epoch = request.epoch;
  answer.sequence = request.mark.sequence;
  answer.stable_through = stable;
  answer.map_epoch = map_epoch;
  return answer;
}
ClientWindowOptions OptionsOf(Durability level) {
  ClientWindowOptions options;
  options.client = 7;
  options.level = level;
  return options;
}

// --- Windows. ----------------------------------------------------------------

// "It never has more outstanding than servers remember ..., nor more bytes than
// `most_bytes`"; "A push bigger than most_bytes may if there is no other."
TEST(OutsideWindow, RoomIsWhatTheOptionsSay) {
  ClientWindowOptions options = OptionsOf(Durability::kD1);
  options.most_bytes = 100;
  options.most_outstanding = 3;
  ClientWindow window(options, 4, MapOf(4, 2));
  EXPECT_TRUE(window.HasRoom(0, std::numeric_limits<int64_t>::max()));
  EXPECT_TRUE(window.IsStable());
  EXPECT_EQ(window.Push(0, Bytes(), At(0)), 1u);  // counts for nothing
  EXPECT_TRUE(window.HasRoom(1, 100));
  EXPECT_EQ(window.Push(1, Bytes::Own(std::string(60, 'x')), At(0)), 1u);
  EXPECT_FALSE(window.HasRoom(2, 41));
  EXPECT_FALSE(window.HasRoom(2, std::numeric_limits<int64_t>::max()));
  EXPECT_TRUE(window.HasRoom(2, 40));
  EXPECT_EQ(window.Push(0, Bytes(), At(0)), 2u);
  EXPECT_EQ(window.Push(0, Bytes(), At(0)), 3u);
  EXPECT_FALSE(window.HasRoom(0, 0));
  EXPECT_TRUE(window.HasRoom(3, 0));
  EXPECT_EQ(window.outstanding_bytes(), 60);
  EXPECT_EQ(window.outstanding(0), 3u);
  EXPECT_FALSE(window.IsStable());
}

TEST(OutsideWindow, ThousandsOfPartitionsOfFewAndOfManyEntries) {
  for (const int entries : {1, 16'384}) {
    const PartitionMap map = MapOf(entries, 5);
    ClientWindow window(OptionsOf(Durability::kD1), 16'384, map);
    for (int p = 0; p < 16'384; ++p) {
      ASSERT_TRUE(window.HasRoom(p, 3));
      EXPECT_EQ(window.Push(p, Bytes::Copy("abc"), At(0)), 1u);
    }
    std::vector<bool> sent(16'384);
    for (const auto& action : window.TakeActions()) {
      ASSERT_EQ(action.kind, Kind::kSend);
      EXPECT_FALSE(sent[action.partition]);
      sent[action.partition] = true;
      EXPECT_EQ(action.request.entry, map.EntryOf(action.partition));
      EXPECT_EQ(action.request.to, map.entry(action.request.entry).primary);
      window.OnAnswer(action.partition,
                      AnswerTo(action.request, Code::kOk, 1, 1), At(1));
    }
    EXPECT_EQ(std::count(sent.begin(), sent.end(), true), 16'384);
    EXPECT_TRUE(window.IsStable());
    EXPECT_EQ(window.outstanding_bytes(), 0);
  }
}

// One window, and servers and maps that answer in any order and how often they
// like.
class Answering {
 public:
  static constexpr int kPartitions = 4;

  explicit Answering(uint64_t seed)
      : random_(seed),
        map_(MapOf(2, 3, 5)),
        level_(static_cast<Durability>(random_.Below(4))),
        window_(Bounded(OptionsOf(level_)), kPartitions, map_) {}

  void Step() {
    now_ += absl::Milliseconds(random_.Below(30));
    switch (random_.Below(8)) {
      case 0:
      case 1:
        Push(static_cast<int>(random_.Below(kPartitions)));
        break;
      case 2:
      case 3:
        Answer();
        break;
      case 4:
        AnswerAgain();
        break;
      case 5:
        Fail();
        break;
      case 6:
        ChangeMap();
        break;
      default:
        window_.OnTick(now_);
    }
    for (const auto& action : window_.TakeActions()) Take(action);
  }

  void Check() {
    EXPECT_LE(window_.outstanding_bytes(), kMostBytes);
    for (int i = 0; i < kPartitions; ++i) {
      EXPECT_LE(window_.outstanding(i), SequenceWindow::kWidth);
      if (level_ != Durability::kD0) {
        EXPECT_EQ(window_.outstanding(i), pushed_[i] - stable_[i]);
      }
      // "at D1 ... answered once applied": what is stable was answered too.
      for (uint64_t n = 1; n <= stable_[i]; ++n) {
        EXPECT_EQ(answered_[i].count(n), 1u) << n;
      }
      EXPECT_FALSE(window_.DescribeWait(i).empty());
    }
  }

 private:
  static constexpr int64_t kMostBytes = 1000;

  static ClientWindowOptions Bounded(ClientWindowOptions options) {
    options.most_bytes = kMostBytes;
    return options;
  }

  // REQUIRES: !all.empty().
  template <typename T>
  const T& OneOf(const std::vector<T>& all) {
    return all[random_.Below(static_cast<int64_t>(all.size()))];
  }

  void Push(int partition) {
    const int64_t size = random_.Below(120);
    if (!window_.HasRoom(partition, size)) return;
    const uint64_t n =
        window_.Push(partition, Bytes::Own(std::string(size, 'p')), now_);
    EXPECT_EQ(n, ++pushed_[partition]);
  }

  void Answer() {
    if (sent_.empty()) return;
    const auto& [partition, request] = OneOf(sent_);
    const auto code = static_cast<Code>(random_.Below(5));  // not kTooFar
    // A server says of what it has seen: no more than was pushed.
    const uint64_t through = static_cast<uint64_t>(
        random_.Below(static_cast<int64_t>(pushed_[partition]) + 1));
    given_.emplace_back(partition, AnswerTo(request, code, through,
                                            map_.epoch() - random_.Below(3)));
    window_.OnAnswer(partition, given_.back().second, now_);
  }

  void AnswerAgain() {
    if (given_.empty()) return;
    const auto& [partition, answer] = OneOf(given_);
    window_.OnAnswer(partition, answer, now_);
  }

  void Fail() {
    if (sent_.empty()) return;
    const auto& [partition, request] = OneOf(sent_);
    window_.OnFailure(partition, request, now_);
  }

  void ChangeMap() {
    const WorkerKey key = {static_cast<uint32_t>(1 + random_.Below(3)), 1};
    if (random_.Chance(0.3)) {
      map_.FailServer(key, PartitionMap::State::kSilent);
    } else {
      map_.AddServer(key, 0);
      map_.AddBackups();
    }
    if (random_.Chance(0.7)) window_.OnMap(map_, now_);
  }

  void Take(const ClientWindow::Action& action) {
    const uint64_t n = action.request.mark.sequence;
    uint64_t& stable = stable_[action.partition];
    switch (action.kind) {
      case Kind::kSend:
        EXPECT_FALSE(IsNone(action.request.to));
        EXPECT_LE(n, pushed_[action.partition]);
        // "names ... the client's number, and its lowest number that is
        // outstanding"
        if (n != 0) {
          EXPECT_LE(action.request.mark.first, n);
          EXPECT_LT(n - action.request.mark.first, SequenceWindow::kWidth);
          EXPECT_GT(n, stable);
        }
        EXPECT_EQ(action.request.mark.client, 7u);
        sent_.emplace_back(action.partition, action.request);
        break;
      case Kind::kAnswered:
        EXPECT_TRUE(answered_[action.partition].insert(n).second) << n;
        break;
      case Kind::kStable:
        EXPECT_GT(n, stable);
        EXPECT_LE(n, pushed_[action.partition]);
        stable = n;
        break;
      case Kind::kLearnMap:
        break;
      case Kind::kBroken:
        ADD_FAILURE() << "nobody has refused a push for good";
    }
  }

  sim::Random random_;
  PartitionMap map_;
  const Durability level_;
  ClientWindow window_;
  std::vector<std::pair<int, PushRequest>> sent_;
  std::vector<std::pair<int, ps::Answer>> given_;
  std::map<int, uint64_t> pushed_, stable_;
  std::map<int, std::set<uint64_t>> answered_;
  Instant now_ = At(0);
};

// Each push is told once as answered, kStable only rises, and what is kept is
// what is not stable, whatever answers say, in whatever order, how often.
TEST(OutsideWindow, AbsurdLateAndDoubledAnswersAreTakenOnce) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Answering answering(seed);
    for (int step = 0; step < 300; ++step) {
      answering.Step();
      answering.Check();
    }
    if (HasFailure()) return;
  }
}

// Numbers that no server has any reason to say end nothing.
TEST(OutsideWindow, NumbersBeyondWhatWasPushedEndNothing) {
  sim::Random random(5);
  for (int round = 0; round < 2000; ++round) {
    const auto level = static_cast<Durability>(round % 4);
    ClientWindow window(OptionsOf(level), 2, MapOf(2, 2));
    for (int64_t i = random.Below(5); i > 0; --i) {
      window.Push(static_cast<int>(random.Below(2)), Bytes::Copy("x"), At(0));
    }
    const uint64_t pushed[] = {window.outstanding(0), window.outstanding(1)};
    const auto number = [&] {
      const uint64_t some[] = {0,  1,    2,        3,        64,
                               65, kEnd, kEnd - 1, kEnd / 2, random.Next()};
      return some[random.Below(10)];
    };
    window.TakeActions();
    for (int i = 0; i < 30; ++i) {
      Answer answer;
      answer.token = number();
      answer.code = static_cast<Code>(random.Chance(0.9) ? random.Below(6)
                                                         : random.Below(1000));
      answer.entry = static_cast<int>(random.Next());
      answer.epoch = random.Chance(0.7) ? 1 : number();
      answer.sequence = number();
      answer.stable_through = number();
      answer.map_epoch = number();
      const Instant now =
          random.Chance(0.9) ? At(random.Below(5000))
          : random.Chance(0.5)
              ? Instant::Infinite()
              : Instant::FromNanoseconds(std::numeric_limits<int64_t>::min());
      const int p = static_cast<int>(random.Below(2));
      switch (random.Below(3)) {
        case 0:
          window.OnAnswer(p, answer, now);
          break;
        case 1: {
          PushRequest request;
          request.entry = answer.entry;
          request.epoch = answer.epoch;
          request.mark.sequence = number();
          request.mark.client = number();
          window.OnFailure(p, request, now);
          break;
        }
        default:
          window.OnTick(now);
      }
      for (const auto& action : window.TakeActions()) {
        // kStable repeats what the server says.
        if (action.kind == Kind::kAnswered) {
          EXPECT_LE(action.request.mark.sequence, pushed[action.partition]);
          EXPECT_GT(action.request.mark.sequence, 0u);
        }
      }
      EXPECT_GE(window.outstanding_bytes(), 0);
      EXPECT_LE(window.outstanding_bytes(), 5);
    }
    // The next push has the next number.
    if (window.HasRoom(0, 1)) {
      EXPECT_EQ(window.Push(0, Bytes::Copy("x"), At(10'000)), pushed[0] + 1);
    }
  }
}

// "kBroken: that push was refused for good".
TEST(OutsideWindow, PushThatIsTooFarIsBroken) {
  ClientWindow window(OptionsOf(Durability::kD1), 1, MapOf(1, 2));
  window.Push(0, Bytes::Copy("x"), At(0));
  const auto sent = window.TakeActions();
  ASSERT_EQ(sent.size(), 1u);
  window.OnAnswer(0, AnswerTo(sent[0].request, Code::kTooFar, 0, 1), At(1));
  const auto actions = window.TakeActions();
  ASSERT_EQ(std::count_if(actions.begin(), actions.end(),
                          [](const ClientWindow::Action& action) {
                            return action.kind == Kind::kBroken;
                          }),
            1);
}

// "Where another server takes the role it sends all that are left again, in
// order"; whoever was refused is asked again "in order".
TEST(OutsideWindow, RolesThatChangeOverAndOverGetAllThatIsLeftInOrder) {
  PartitionMap map = MapOf(1, 2);
  ClientWindow window(OptionsOf(Durability::kD2), 1, map);
  for (int i = 0; i < 64; ++i) window.Push(0, Bytes::Copy("x"), At(0));
  EXPECT_FALSE(window.HasRoom(0, 1));
  window.TakeActions();
  uint64_t stable = 0;
  for (int round = 1; round < 20; ++round) {
    const WorkerKey former = map.entry(0).primary;
    ASSERT_TRUE(map.FailServer(former, PartitionMap::State::kSilent));
    ASSERT_NE(map.entry(0).primary, former);
    window.OnMap(map, At(round));
    window.OnMap(MapOf(1, 2), At(round));  // older
    std::vector<uint64_t> sent;
    for (const auto& action : window.TakeActions()) {
      if (action.kind != Kind::kSend || action.request.mark.sequence == 0) {
        continue;
      }
      EXPECT_EQ(action.request.to, map.entry(0).primary);
      EXPECT_EQ(action.request.epoch, map.entry(0).epoch);
      sent.push_back(action.request.mark.sequence);
    }
    ASSERT_EQ(sent.size(), 64 - stable);
    for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i], stable + 1 + i);
    PushRequest last;
    last.epoch = map.entry(0).epoch;
    last.mark.sequence = sent[0];
    stable += 1;
    window.OnAnswer(0, AnswerTo(last, Code::kOk, stable, map.epoch()),
                    At(round));
    window.TakeActions();
    map.AddServer(former, 9);
    map.AddBackups();
    ASSERT_TRUE(
        map.Apply({MapChange::Kind::kMarkInSync, 0, map.entry(0).changed})
            .ok());
  }
}

TEST(OutsideWindow, LostPartitionSaysSo) {
  PartitionMap map = MapOf(2, 2);
  ClientWindow window(OptionsOf(Durability::kD1), 4, map);
  window.Push(3, Bytes::Copy("x"), At(0));
  map.FailServer({1, 1}, PartitionMap::State::kExited);
  map.FailServer({2, 1}, PartitionMap::State::kExited);
  window.OnMap(map, At(1));
  window.TakeActions();
  for (int i = 0; i < 100; ++i) {
    window.OnTick(At(100 * i));
    for (const auto& action : window.TakeActions()) {
      EXPECT_NE(action.kind, Kind::kSend) << "to nobody";
    }
  }
  for (int p = 0; p < 4; ++p) EXPECT_TRUE(window.IsLost(p));
  EXPECT_TRUE(IsNone(window.Read(3).to));
  EXPECT_THAT(window.DescribeWait(3), HasSubstr("partition 3"));
  EXPECT_FALSE(window.IsStable());
}

// --- Leases. -----------------------------------------------------------------

// "So the lease of the one ends before the promise of the other, whatever the
// network delays, if their clocks run alike but for `drift`."
TEST(OutsideLeases, LeaseEndsBeforeThePromiseWhateverIsDelayed) {
  const WorkerKey kA = {1, 1}, kB = {2, 1};
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    sim::Random random(seed);
    // One clock is at most 1 % faster than the other.
    const double speed_a = 1 + 0.0099 * static_cast<double>(random.Below(2));
    const double speed_b = speed_a > 1 ? 1.0 : 1.0099;
    const absl::Duration offset = absl::Seconds(random.Below(1'000'000));
    Leases a((LeaseOptions())), b((LeaseOptions()));
    Instant time;
    const auto clock_a = [&] {
      return Instant() + (time - Instant()) * speed_a;
    };
    const auto clock_b = [&] {
      return Instant() + offset + (time - Instant()) * speed_b;
    };
    a.Watch({kB, Leases::kCoordinator, kB}, clock_a());
    std::vector<Ping> pings, answers;
    uint64_t epoch_a = 1, epoch_b = 1;
    for (int step = 0; step < 400; ++step) {
      time += absl::Microseconds(random.Below(30'000));
      switch (random.Below(7)) {
        case 0:
        case 1:
          for (const Leases::Out& out : a.OnTick(epoch_a, clock_a())) {
            if (out.to == kB) pings.push_back(out.ping);
          }
          break;
        case 2:
          if (!pings.empty()) {  // late, again, in any order
            const Ping& ping =
                pings[pings.size() - 1 -
                      random.Below(std::min<int64_t>(
                          static_cast<int64_t>(pings.size()), 8))];
            answers.push_back(b.OnPing(kA, ping, epoch_b, clock_b()));
            EXPECT_EQ(answers.back().number, ping.number);
            EXPECT_EQ(answers.back().map_epoch, epoch_b);
          }
          break;
        case 3:
        case 4:
          if (!answers.empty()) {
            const Ping& answer =
                answers[answers.size() - 1 -
                        random.Below(std::min<int64_t>(
                            static_cast<int64_t>(answers.size()), 8))];
            const Instant held = a.HeldUntil(kB);
            const bool counts = a.OnAnswer(kB, answer, epoch_a, clock_a());
            if (answer.map_epoch > epoch_a) {
              EXPECT_FALSE(counts);
              EXPECT_EQ(a.HeldUntil(kB), held);
            }
          }
          break;
        case 5:
          // Answers from strangers, and with numbers that were never sent.
          a.OnAnswer({9, 9}, {kEnd, 0}, epoch_a, clock_a());
          a.OnAnswer({2, 2}, {1, 0}, epoch_a, clock_a());
          a.OnAnswer(kB, {kEnd, 0}, epoch_a, clock_a());
          a.OnAnswer(kB, {0, 0}, epoch_a, clock_a());
          EXPECT_EQ(a.HeldUntil({9, 9}), Leases::Never());
          EXPECT_EQ(a.HeldUntil({2, 2}), Leases::Never());
          b.OnPing({9, 9}, {kEnd, kEnd}, epoch_b, clock_b());
          break;
        default:
          if (random.Chance(0.1)) ++epoch_b;
          if (random.Chance(0.3)) epoch_a = epoch_b;
      }
      if (a.HeldUntil(kB) > clock_a()) {
        EXPECT_GT(b.GrantedUntil(kA), clock_b()) << "step " << step;
      }
      EXPECT_EQ(a.HeldUntil(Leases::kCoordinator), Leases::Never());
      EXPECT_EQ(b.GrantedUntil(kB), Leases::Never());
    }
    if (HasFailure()) return;
  }
}

// "Who is pinged from now on": whoever is watched no more holds and asks for
// nothing.
TEST(OutsideLeases, ServerThatIsNoLongerWatchedIsNotPinged) {
  Leases leases((LeaseOptions()));
  leases.Watch({{2, 1}, {3, 1}}, At(0));
  const auto pings = leases.OnTick(1, At(0));
  ASSERT_EQ(pings.size(), 2u);
  EXPECT_EQ(leases.HeardAt({2, 1}), At(0));
  leases.Watch({{3, 1}}, At(10));
  leases.OnAnswer({2, 1}, pings[0].ping, 1, At(11));
  for (int i = 1; i < 20; ++i) {
    for (const Leases::Out& out : leases.OnTick(1, At(50 * i))) {
      EXPECT_EQ(out.to, WorkerKey({3, 1}));
    }
  }
  leases.Watch({}, At(2000));
  EXPECT_TRUE(leases.OnTick(1, At(5000)).empty());
}

TEST(OutsideLeases, TimesAtTheEndsEndNothing) {
  Leases leases((LeaseOptions()));
  leases.Watch({{2, 1}}, Leases::Never());
  for (const Instant now : {Leases::Never(), Instant(), Instant::Infinite()}) {
    for (const auto& out : leases.OnTick(kEnd, now)) {
      leases.OnAnswer(out.to, out.ping, kEnd, now);
    }
    leases.OnPing({2, 1}, {kEnd, kEnd}, 0, now);
    EXPECT_FALSE(leases.Snapshot(now).empty());
  }
}

// "Memory of clients and primaries is bounded" (G10): nor does it grow by
// promises to incarnations that come and go.
TEST(OutsideLeases, PromisesThatAreOverAreForgotten) {
  Leases leases((LeaseOptions()));
  leases.Watch({{2, 1}}, At(0));
  const size_t before = leases.Snapshot(At(0)).size();
  for (int i = 0; i < 20'000; ++i) {
    leases.OnPing({2, static_cast<uint64_t>(i + 1)}, {1, 1}, 1, At(10 * i));
    leases.OnTick(1, At(10 * i));
  }
  EXPECT_LT(leases.Snapshot(At(300'000)).size(), before + 10'000);
}

}  // namespace
}  // namespace weft::outside
