// What the exploration and the simulation of replication do not reach, or do
// not show as such.

#include "weft/ps/core/replication/replica.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/replication_model.h"
#include "weft/sim/random.h"

namespace weft::ps {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Out = ServerModel::Out;

const WorkerKey kA = {1, 1};
const WorkerKey kB = {2, 1};
const WorkerKey kC = {3, 1};
constexpr ClientId kClient = 7;

Instant At(int64_t ms) { return Instant() + absl::Milliseconds(ms); }

TEST(Leases, CountFromWhenThePingWasSent) {
  Leases a((LeaseOptions()));
  Leases b((LeaseOptions()));
  a.Watch({kB}, At(0));
  const std::vector<Leases::Out> pings = a.OnTick(1, At(0));
  ASSERT_EQ(pings.size(), 1u);
  const Ping answer = b.OnPing(kA, pings[0].ping, 1, At(100));
  EXPECT_TRUE(a.OnAnswer(kB, answer, 1, At(200)));
  EXPECT_EQ(a.HeldUntil(kB), At(250));
  // The lease is longer by the amount by which a clock may be slow.
  EXPECT_GE(b.GrantedUntil(kA), At(350) + absl::Milliseconds(2));
  EXPECT_EQ(a.HeldUntil(kC), Leases::Never());
}

TEST(Leases, AnswerOfAServerWithANewerMapDoesNotCount) {
  Leases a((LeaseOptions()));
  a.Watch({kB}, At(0));
  const Ping ping = a.OnTick(1, At(0))[0].ping;
  EXPECT_FALSE(a.OnAnswer(kB, {ping.number, 2}, 1, At(1)));
  EXPECT_EQ(a.HeldUntil(kB), Leases::Never());
  EXPECT_EQ(a.HeardAt(kB), At(1));
  EXPECT_TRUE(a.OnAnswer(kB, {ping.number, 2}, 2, At(2)));
  EXPECT_EQ(a.HeldUntil(kB), At(250));
}

TEST(Leases, KeepNothingOfPingsThatGetNoAnswer) {
  Leases a((LeaseOptions()));
  a.Watch({kB}, At(0));
  uint64_t first = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t number = a.OnTick(1, At(50 * i))[0].ping.number;
    if (i == 0) first = number;
  }
  EXPECT_TRUE(a.OnAnswer(kB, {first, 1}, 1, At(10'000)));
  EXPECT_EQ(a.HeldUntil(kB), Leases::Never());
}

// Three servers; messages between them are carried by hand.
class ReplicaTest : public ::testing::Test {
 protected:
  void Start(ServerModel::Options options, int servers = 3) {
    std::vector<PartitionMap::Server> list;
    for (int i = 0; i < servers; ++i) {
      list.push_back({{static_cast<uint32_t>(i + 1), 1},
                      static_cast<uint32_t>(i),
                      PartitionMap::State::kLive});
    }
    map_ = *PartitionMap::Assign(1, list, 2);
    for (const PartitionMap::Server& server : list) {
      servers_.push_back(
          std::make_unique<ServerModel>(server.key, map_, options, now_));
    }
    Hear({0, 1, 2});
    Carry();
  }
  ServerModel& server(int i) { return *servers_[i]; }
  Replica& replica(int i) { return servers_[i]->cells[0].replica; }
  bool MayAnswer(int i) { return replica(i).MayAnswer(server(i).NowAt(now_)); }

  // All hear from the coordinator, and those of `linked` from each other.
  void Hear(const std::vector<int>& linked) {
    const auto is_linked = [&](int i) {
      return std::count(linked.begin(), linked.end(), i) > 0;
    };
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      Leases& leases = server(i).leases;
      const uint64_t epoch = server(i).map.epoch();
      for (const Leases::Out& out : leases.OnTick(epoch, now_)) {
        if (IsNone(out.to)) {
          leases.OnAnswer(out.to, out.ping, epoch, now_);
        } else if (is_linked(i) && is_linked(out.to.id - 1)) {
          ServerModel& to = server(out.to.id - 1);
          leases.OnAnswer(
              out.to,
              to.leases.OnPing(server(i).key, out.ping, to.map.epoch(), now_),
              epoch, now_);
        }
      }
    }
  }
  void Pass(int64_t ms, const std::vector<int>& linked = {0, 1, 2}) {
    for (; ms > 0; ms -= 50) {
      now_ += absl::Milliseconds(50);
      Hear(linked);
      for (auto& one : servers_) one->OnTick(now_);
      Carry(linked);
    }
  }
  // Delivers what servers have for each other, until there is nothing.
  // Proposals are made at once; answers and writes are kept.
  void Carry(const std::vector<int>& linked = {0, 1, 2}) {
    const auto is_linked = [&](uint32_t i) {
      return std::count(linked.begin(), linked.end(), static_cast<int>(i)) > 0;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i < servers_.size(); ++i) {
        for (Out& out : std::exchange(server(i).out, {})) {
          moved = true;
          if (out.kind == Out::kMessage) {
            if (!is_linked(i) || !is_linked(out.to.id - 1)) continue;
            server(out.to.id - 1)
                .OnMessage(server(i).key, out.message, out.rows, now_);
          } else if (out.kind == Out::kPropose) {
            proposed_.push_back(out.change.kind);
            if (accepts_) map_.Apply(out.change).IgnoreError();
          } else if (out.kind == Out::kWrite) {
            writes_.push_back({static_cast<int>(i), out});
          } else if (out.kind == Out::kPush || out.kind == Out::kRead) {
            answers_.push_back(absl::StrCat(
                out.kind == Out::kRead ? "read " : "push ", out.answer.token,
                " code ", static_cast<int>(out.answer.code), " stable ",
                out.answer.stable_through));
          }
        }
      }
      if (accepts_) LearnAll();
    }
  }
  // The next step of moving what `server` has.
  void Drain(WorkerKey server, const std::vector<int>& linked = {0, 1, 2}) {
    MapChange drain;
    drain.kind = MapChange::Kind::kDrain;
    drain.server = server.id;
    ASSERT_TRUE(map_.Apply(drain).ok());
    ASSERT_TRUE(map_.AddMoves());
    LearnAll();
    Carry(linked);
  }
  void LearnAll() {
    for (auto& one : servers_) one->OnMap(map_, now_);
  }
  void Push(int i, uint64_t sequence, uint64_t token = 0,
            bool until_stable = false) {
    PushRequest request;
    request.until_stable = until_stable;
    request.token = token == 0 ? sequence : token;
    request.to = server(i).key;
    request.epoch = server(i).map.entry(0).epoch;
    request.mark = {kClient, sequence, 1};
    server(i).OnPush(request, 0, Bytes::Copy(absl::StrCat("p", sequence)),
                     now_);
  }
  void Read(int i, uint64_t token, uint64_t through = 0) {
    ReadRequest request;
    request.token = token;
    request.to = server(i).key;
    request.epoch = server(i).map.entry(0).epoch;
    request.client = kClient;
    request.through = through;
    server(i).OnRead(request, now_);
  }
  std::vector<std::string> Answers() { return std::exchange(answers_, {}); }

  Instant now_ = At(0);
  PartitionMap map_;
  bool accepts_ = true;  // proposals, and all learn of them
  std::vector<std::unique_ptr<ServerModel>> servers_;
  std::vector<std::string> answers_;
  std::vector<MapChange::Kind> proposed_;
  std::vector<std::pair<int, Out>> writes_;
};

ServerModel::Options Of(Durability level, bool stalls_alone = false) {
  ServerModel::Options options;
  options.replica.level = level;
  options.replica.stalls_alone = stalls_alone;
  return options;
}

TEST_F(ReplicaTest, AnswersAtD1AtOnceAndAtD2OnceTheBackupHasIt) {
  for (const Durability level : {Durability::kD1, Durability::kD2}) {
    servers_.clear();
    Start(Of(level));
    Push(0, 1);
    std::vector<Out> first = std::exchange(server(0).out, {});
    const bool is_answered =
        std::any_of(first.begin(), first.end(),
                    [](const Out& out) { return out.kind == Out::kPush; });
    EXPECT_EQ(is_answered, level == Durability::kD1);
    server(0).out = std::move(first);
    Carry();
    EXPECT_EQ(Answers().size(), 1u);
    EXPECT_EQ(replica(0).stable(), 1u);
    EXPECT_EQ(server(1).cells[0].rows, ModelRows({"p1"}));
  }
}

// Else a part of a round could reach a promoted backup before the rate of that
// round, which its client sends again too.
TEST_F(ReplicaTest,
       ChangeOnWhichOtherPushesRestIsAnsweredOnceStableAtEachLevel) {
  for (const Durability level : {Durability::kD0, Durability::kD1}) {
    servers_.clear();
    Start(Of(level));
    Push(0, 1, /*token=*/0, /*until_stable=*/true);
    Push(0, 2);
    Carry({0});
    EXPECT_THAT(Answers(), ElementsAre("push 2 code 0 stable 0"));
    server(0).OnTick(now_ += absl::Milliseconds(150));
    Carry();
    EXPECT_THAT(Answers(), ElementsAre("push 1 code 0 stable 2"));
    EXPECT_EQ(server(1).cells[0].rows, ModelRows({"p1", "p2"}));
  }
}

TEST_F(ReplicaTest, AnswersAtD3OnceBothDisksHaveIt) {
  Start(Of(Durability::kD3));
  Push(0, 1);
  Carry();
  ASSERT_EQ(writes_.size(), 2u);
  EXPECT_THAT(Answers(), IsEmpty());
  // The backup's.
  server(1).OnDurable(0, 1, writes_[1].second.generation, now_);
  Carry();
  EXPECT_THAT(Answers(), IsEmpty());
  server(0).OnDurable(0, 1, writes_[0].second.generation, now_);
  Carry();
  EXPECT_THAT(Answers(), ElementsAre("push 1 code 0 stable 1"));
}

TEST_F(ReplicaTest, PushSentAgainGetsTheSameAnswerAlsoAfterAPromotion) {
  Start(Of(Durability::kD1));
  Push(0, 1);
  Carry();
  Push(0, 1, /*token=*/9);
  Carry();
  EXPECT_THAT(Answers(),
              ElementsAre("push 1 code 0 stable 0", "push 9 code 0 stable 1"));
  ASSERT_TRUE(map_.FailServer(kA, PartitionMap::State::kExited));
  LearnAll();
  Push(1, 1);
  Carry();
  EXPECT_THAT(Answers(), ElementsAre("push 1 code 0 stable 1"));
  EXPECT_EQ(server(1).cells[0].rows, ModelRows({"p1"}));
}

TEST_F(ReplicaTest, OneCopyThatStallsAnswersOnceThereIsASecond) {
  for (const bool stalls : {false, true}) {
    servers_.clear();
    now_ = At(0);
    Start(Of(Durability::kD2, stalls));
    ASSERT_TRUE(map_.FailServer(kB, PartitionMap::State::kExited));
    LearnAll();
    Push(0, 1);
    Carry({0});
    EXPECT_EQ(Answers().size(), stalls ? 0u : 1u);
    EXPECT_TRUE(replica(0).is_alone());
    ASSERT_TRUE(map_.AddBackups());
    LearnAll();
    Pass(200);
    EXPECT_EQ(Answers().size(), stalls ? 1u : 0u);
    EXPECT_TRUE(map_.IsReplicated());
    EXPECT_EQ(server(2).cells[0].rows, ModelRows({"p1"}));
  }
}

TEST_F(ReplicaTest, ReadAtD2WaitsUntilWhatItShowsIsStable) {
  Start(Of(Durability::kD2));
  Push(0, 1);
  Carry({0});
  Read(0, 5);
  Carry({0});
  EXPECT_THAT(Answers(), IsEmpty());
  Pass(150);
  EXPECT_THAT(Answers(),
              ElementsAre("push 1 code 0 stable 1", "read 5 code 0 stable 0"));
}

TEST_F(ReplicaTest, RoundThatCouldComeOutOtherwiseIsReadOnceStable) {
  ServerModel::Options options = Of(Durability::kD1);
  Start(options);
  for (const bool is_repeatable : {true, false}) {
    replica(0).AppendRound(Bytes::Copy("sum"), is_repeatable,
                           server(0).NowAt(now_));
    Read(0, 5);
    std::vector<Out> out = std::exchange(server(0).out, {});
    EXPECT_EQ(
        std::count_if(out.begin(), out.end(),
                      [](const Out& one) { return one.kind == Out::kRead; }),
        is_repeatable ? 1 : 0);
    server(0).out = std::move(out);
    Carry();
    EXPECT_EQ(Answers().size(), 1u);
  }
  EXPECT_EQ(replica(1).NextRound(), 2);
}

TEST_F(ReplicaTest, LogIsBounded) {
  ServerModel::Options options = Of(Durability::kD1);
  options.replica.most_bytes = 3 * 66;
  Start(options);
  for (uint64_t n = 1; n <= 4; ++n) Push(0, n);
  Carry({0});
  EXPECT_THAT(Answers(),
              ElementsAre("push 1 code 0 stable 0", "push 2 code 0 stable 0",
                          "push 3 code 0 stable 0", "push 4 code 3 stable 0"));
  Pass(150);
  Push(0, 4);
  Carry();
  EXPECT_THAT(Answers(), ElementsAre("push 4 code 0 stable 3"));
}

TEST_F(ReplicaTest, FencedPrimaryRefusesReadsAndPushes) {
  Start(Of(Durability::kD1));
  accepts_ = false;
  Pass(300, {});
  EXPECT_FALSE(MayAnswer(0));
  Push(0, 1);
  Read(0, 2);
  Carry();
  EXPECT_THAT(Answers(),
              ElementsAre("push 1 code 2 stable 0", "read 2 code 2 stable 0"));
  EXPECT_THAT(server(0).cells[0].rows, IsEmpty());
  Pass(50);
  EXPECT_TRUE(MayAnswer(0));
}

// A has answered shortly before B was promoted, and does not know of that; C is
// to stand by for B. Were it taken in at once, it could be promoted and answer
// while A still does.
TEST_F(ReplicaTest, NoBackupIsTakenInWhileAFormerPrimaryMayAnswer) {
  Start(Of(Durability::kD1));
  ASSERT_TRUE(map_.FailServer(kA, PartitionMap::State::kSilent));
  ASSERT_TRUE(map_.AddBackups());
  ASSERT_EQ(map_.entry(0).backup, kC);
  accepts_ = false;
  server(1).OnMap(map_, now_);
  server(2).OnMap(map_, now_);
  EXPECT_TRUE(MayAnswer(0));
  EXPECT_FALSE(MayAnswer(1));
  for (int i = 0; i < 4; ++i) {
    Pass(50, {1, 2});
    EXPECT_TRUE(MayAnswer(0)) << i;
    EXPECT_THAT(proposed_, IsEmpty()) << i;
  }
  Pass(100, {1, 2});
  EXPECT_FALSE(MayAnswer(0));
  EXPECT_TRUE(MayAnswer(1));
  EXPECT_THAT(proposed_, ::testing::Contains(MapChange::Kind::kMarkInSync));
}

TEST_F(ReplicaTest, RequestOfAnotherEpochOrForAnotherIncarnationIsRefused) {
  Start(Of(Durability::kD1));
  PushRequest request;
  request.to = kA;
  request.mark = {kClient, 1, 1};
  for (const auto& [to, epoch] : std::vector<std::pair<WorkerKey, uint64_t>>{
           {kA, 0}, {kA, 2}, {kB, 1}, {{1, 9}, 1}, {kA, 1}}) {
    request.to = to;
    request.epoch = epoch;
    server(0).OnPush(request, 0, Bytes::Copy("p1"), now_);
    Carry();
    const bool fits = to == kA && epoch == 1;
    EXPECT_THAT(Answers(), ElementsAre(fits ? "push 0 code 0 stable 0"
                                            : "push 0 code 1 stable 0"));
  }
}

TEST_F(ReplicaTest, ProvenExitOfTheFormerPrimaryLetsItAnswerAtOnce) {
  Start(Of(Durability::kD1));
  ASSERT_TRUE(map_.FailServer(kA, PartitionMap::State::kSilent));
  LearnAll();
  EXPECT_FALSE(MayAnswer(1));
  ASSERT_TRUE(map_.FailServer(kA, PartitionMap::State::kExited));
  LearnAll();
  EXPECT_TRUE(MayAnswer(1));
}

TEST_F(ReplicaTest, TrainingGoesOnWhileABackupIsFilled) {
  Start(Of(Durability::kD1));
  for (uint64_t n = 1; n <= 5; ++n) Push(0, n);
  Carry();
  ASSERT_TRUE(map_.FailServer(kB, PartitionMap::State::kExited));
  ASSERT_TRUE(map_.AddBackups());
  LearnAll();
  // The copy is under way.
  for (uint64_t n = 6; n <= 9; ++n) Push(0, n);
  EXPECT_EQ(replica(0).stable(), 9u) << "by the one copy that there is";
  Pass(100);
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_EQ(server(2).cells[0].rows, server(0).cells[0].rows);
  EXPECT_EQ(server(2).cells[0].rows.size(), 9u);
}

// It was dropped, and stands by again. It gets the copy before it has heard of
// either: when it hears of the first it drops what it has.
TEST_F(ReplicaTest, CopyOfANewerMapIsNotTaken) {
  Start(Of(Durability::kD1), 2);
  Push(0, 1);
  Carry();
  PartitionMap dropped = map_;
  ASSERT_TRUE(
      dropped.Apply({MapChange::Kind::kDropBackup, 0, dropped.entry(0).changed})
          .ok());
  map_ = dropped;
  ASSERT_TRUE(map_.AddBackups());
  server(0).OnMap(map_, now_);
  Carry();
  server(1).OnMap(dropped, now_);
  server(1).OnMap(map_, now_);
  EXPECT_TRUE(replica(0).is_filling());
  Pass(2000);
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_EQ(server(1).cells[0].rows, server(0).cells[0].rows);
}

// The copy has ten pieces, four under way at a time; one is lost and sent
// again.
TEST_F(ReplicaTest, CopyInPiecesIsBoundedAndSurvivesLoss) {
  ServerModel::Options options = Of(Durability::kD1);
  options.pieces = 10;
  options.replica.most_pieces = 4;
  options.replica.resend_pieces_after = absl::Milliseconds(100);
  Start(options);
  for (uint64_t n = 1; n <= 30; ++n) Push(0, n);
  Carry();
  ASSERT_TRUE(map_.FailServer(kB, PartitionMap::State::kExited));
  ASSERT_TRUE(map_.AddBackups());
  for (int i = 0; i < 3; ++i) server(i).OnMap(map_, now_);
  std::vector<uint32_t> sent;
  std::vector<Out> kept;
  for (Out& out : std::exchange(server(0).out, {})) {
    if (out.kind == Out::kMessage &&
        out.message.kind == ReplicaMessage::Kind::kFill) {
      sent.push_back(out.message.piece);
      if (out.message.piece == 1) continue;  // lost
    }
    kept.push_back(std::move(out));
  }
  EXPECT_THAT(sent, ElementsAre(0, 1, 2, 3));
  server(0).out = std::move(kept);
  Carry();
  EXPECT_TRUE(replica(0).is_filling());
  EXPECT_EQ(server(2).cells[0].rows.size(), 3u) << "the first piece";
  for (uint64_t n = 31; n <= 33; ++n) Push(0, n);
  Pass(400);
  EXPECT_FALSE(replica(0).is_filling());
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_EQ(server(2).cells[0].rows, server(0).cells[0].rows);
  EXPECT_EQ(server(2).cells[0].rows.size(), 33u);
}

// Until it is told to fill its backup a primary keeps no log for it, and takes
// no acknowledgement for one; the copy has what was pushed meanwhile.
TEST_F(ReplicaTest, BackupIsFilledWhenTold) {
  ServerModel::Options options = Of(Durability::kD1);
  options.replica.fills_when_told = true;
  options.replica.most_bytes = 400;
  Start(options);
  ASSERT_TRUE(map_.FailServer(kB, PartitionMap::State::kExited));
  ASSERT_TRUE(map_.AddBackups());
  for (int i = 0; i < 3; ++i) server(i).OnMap(map_, now_);
  for (uint64_t n = 1; n <= 30; ++n) Push(0, n);
  EXPECT_EQ(replica(0).stable(), 30u) << "the log has room";
  ReplicaMessage ack;
  ack.kind = ReplicaMessage::Kind::kAck;
  ack.map_epoch = map_.epoch();
  ack.epoch = map_.entry(0).epoch;
  ack.n = 30;
  for (ack.fill = 0; ack.fill < 4; ++ack.fill) {
    server(0).OnMessage(kC, ack, {}, now_);
  }
  Pass(2000);
  EXPECT_TRUE(replica(0).waits_to_fill());
  EXPECT_FALSE(map_.IsReplicated());
  EXPECT_THAT(server(2).cells[0].rows, IsEmpty());
  server(0).BeginFill(now_);
  EXPECT_FALSE(replica(0).waits_to_fill());
  Pass(400);
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_EQ(server(2).cells[0].rows, server(0).cells[0].rows);
  EXPECT_EQ(server(2).cells[0].rows.size(), 30u);
}

// --- Moves -------------------------------------------------------------------

// The new primary has all, and answers without waiting for the end of leases.
TEST_F(ReplicaTest, RolesChangeWithoutACopyAndAtOnce) {
  Start(Of(Durability::kD1));
  Push(0, 1);
  Carry();
  Answers();
  Drain(kA);
  EXPECT_EQ(map_.entry(0).primary, kB);
  EXPECT_EQ(map_.entry(0).backup, kA);
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_FALSE(MayAnswer(0));
  EXPECT_TRUE(MayAnswer(1));
  Push(1, 2);
  Carry();
  EXPECT_THAT(Answers(), ElementsAre("push 2 code 0 stable 1"));
  EXPECT_EQ(replica(1).stable(), 2u);
  EXPECT_EQ(server(0).cells[0].rows, ModelRows({"p1", "p2"}));
  EXPECT_TRUE(server(0).cells[0].copy.empty());
}

// What it has taken before reaches its backup first; then it takes nothing.
TEST_F(ReplicaTest, PrimaryThatHandsOverTakesNothingNew) {
  Start(Of(Durability::kD1));
  accepts_ = false;
  Push(0, 1);
  Drain(kA, {0});
  Push(0, 2);
  Read(0, 3);
  Carry({0});
  EXPECT_THAT(Answers(),
              ElementsAre("push 1 code 0 stable 0", "push 2 code 3 stable 0",
                          "read 3 code 0 stable 0"));
  EXPECT_THAT(proposed_, IsEmpty());
  accepts_ = true;
  Pass(200);
  EXPECT_EQ(map_.entry(0).primary, kB);
  EXPECT_EQ(server(1).cells[0].rows, ModelRows({"p1"}));
  Push(1, 2);
  Carry();
  EXPECT_EQ(server(0).cells[0].rows, ModelRows({"p1", "p2"}));
}

TEST_F(ReplicaTest, PrimaryKeepsItsRoleIfItCannotHandItOver) {
  ServerModel::Options options = Of(Durability::kD1);
  options.replica.stall = absl::Hours(1);
  Start(options);
  Push(0, 1);
  Drain(kA, {0});
  for (int i = 0; i < 10; ++i) {  // they hear of each other, and no more
    now_ += absl::Milliseconds(50);
    Hear({0, 1, 2});
    for (auto& one : servers_) one->OnTick(now_);
    Carry({0});
  }
  EXPECT_THAT(proposed_, ElementsAre(MapChange::Kind::kKeepRole));
  EXPECT_FALSE(map_.entry(0).is_handing_over);
  Answers();
  Push(0, 2);
  Carry({0});
  EXPECT_THAT(Answers(), ElementsAre("push 2 code 0 stable 0"));
}

// A former primary that has not seen that it had handed its role over gets it
// back with what it has, as the other one dies.
TEST_F(ReplicaTest, RoleThatComesBackComesToWhatItHad) {
  Start(Of(Durability::kD1));
  Push(0, 1);
  Carry();
  accepts_ = false;
  Drain(kA);
  ASSERT_TRUE(
      map_.Apply({MapChange::Kind::kHandOver, 0, map_.entry(0).changed}).ok());
  ASSERT_TRUE(map_.FailServer(kB, PartitionMap::State::kExited));
  accepts_ = true;
  server(0).OnMap(map_, now_);
  EXPECT_TRUE(MayAnswer(0));
  EXPECT_EQ(server(0).cells[0].rows, ModelRows({"p1"}));
  Answers();
  Push(0, 1, /*token=*/9);
  Push(0, 2);
  Carry({0, 2});
  EXPECT_THAT(Answers(),
              ElementsAre("push 9 code 0 stable 1", "push 2 code 0 stable 2"));
}

TEST_F(ReplicaTest, ThirdCopyTakesTheBackupsPlaceOnceItHasAll) {
  ServerModel::Options options = Of(Durability::kD2);
  options.pieces = 2;
  Start(options);
  Push(0, 1);
  Carry();
  Drain(kB, {0, 1});
  EXPECT_EQ(map_.entry(0).next, kC);
  // Meanwhile the backup does.
  Push(0, 2);
  Carry({0, 1});
  EXPECT_EQ(replica(0).stable(), 2u);
  EXPECT_EQ(map_.entry(0).backup, kB);
  now_ += absl::Seconds(1);  // the pieces are sent again
  Pass(100);
  EXPECT_EQ(map_.entry(0).backup, kC);
  EXPECT_TRUE(map_.IsReplicated());
  EXPECT_EQ(server(2).cells[0].rows, ModelRows({"p1", "p2"}));
  EXPECT_THAT(server(1).cells[0].rows, IsEmpty());
  Push(0, 3);
  Carry({0, 2});
  EXPECT_EQ(replica(0).stable(), 3u);
}

TEST_F(ReplicaTest, ThirdCopyThatIsSilentIsDropped) {
  Start(Of(Durability::kD1));
  Drain(kB, {0, 1});
  Pass(500, {0, 1});
  EXPECT_THAT(proposed_, Contains(MapChange::Kind::kDropNext));
  EXPECT_TRUE(IsNone(map_.entry(0).next));
  EXPECT_EQ(map_.entry(0).backup, kB);
  Push(0, 1);
  Carry({0, 1});
  EXPECT_EQ(replica(0).stable(), 1u);
}

TEST_F(ReplicaTest, NothingThatIsSentEndsIt) {
  sim::Random random(1);
  for (int run = 0; run < 300; ++run) {
    servers_.clear();
    Start(Of(static_cast<Durability>(random.Below(4)), random.Chance(0.5)));
    for (int i = 0; i < 60; ++i) {
      ReplicaMessage message;
      message.kind = static_cast<ReplicaMessage::Kind>(random.Below(4));
      message.map_epoch = random.Below(3);
      message.epoch = random.Below(3);
      message.fill = random.Below(3);
      message.n = random.Chance(0.1) ? ~uint64_t{0} : random.Below(5);
      message.piece = static_cast<uint32_t>(random.Below(4));
      message.pieces = static_cast<uint32_t>(random.Below(4));
      for (int64_t n = random.Below(3); n > 0; --n) {
        message.entries.push_back(
            {{message.epoch, static_cast<uint64_t>(random.Below(5))},
             {static_cast<ClientId>(random.Below(2)), random.Next() % 70,
              random.Next() % 70},
             Bytes()});
      }
      const int to = static_cast<int>(random.Below(3));
      server(to).OnMessage(server(random.Below(3)).key, message, {}, now_);
      Push(static_cast<int>(random.Below(3)), random.Next() % 100);
      Read(static_cast<int>(random.Below(3)), 1, random.Next() % 3);
      if (random.Chance(0.1)) Pass(50);
      Carry();
      for (int i = 0; i < 3; ++i) {
        if (!replica(i).is_primary()) continue;
        EXPECT_LE(replica(i).stable(), replica(i).end());
      }
    }
  }
}

}  // namespace
}  // namespace weft::ps
