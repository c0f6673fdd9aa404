// What docs/replication.md guarantees, in random runs of driver.h; and that
// nothing that is sent ends a replica.

#include "weft/ps/core/replication/replica.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"
#include "weft/tests/outside/replication/driver.h"

namespace weft::outside {
namespace {

using ::weft::ps::Durability;
using ::weft::ps::Leases;
using ::weft::ps::MapChange;
using ::weft::ps::Now;
using ::weft::ps::PartitionMap;
using ::weft::ps::PushRequest;
using ::weft::ps::ReadRequest;
using ::weft::ps::Replica;
using ::weft::ps::ReplicaMessage;
using ::weft::ps::ReplicaOptions;
using ::weft::ps::WorkerKey;

class Guarantees : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, Guarantees,
                         ::testing::Values(Durability::kD0, Durability::kD1,
                                           Durability::kD2, Durability::kD3),
                         [](const auto& info) {
                           return absl::StrCat("D",
                                               static_cast<int>(info.param));
                         });

// G1 to G6, G9 in each step, G3 at the end.
TEST_P(Guarantees, HoldInRandomRunsWithStrangersRepeatsAndFailures) {
  std::map<std::string, int> hits;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    sim::Random random(seed);
    Wishes wishes;
    wishes.level = GetParam();
    wishes.stalls_alone = random.Chance(0.5);
    wishes.servers = 2 + static_cast<int>(random.Below(4));
    wishes.entries = 1 << random.Below(3);
    wishes.partitions = wishes.entries << random.Below(2);
    wishes.clients = 1 + static_cast<int>(random.Below(3));
    wishes.loss = random.Chance(0.5) ? 0.02 : 0.15;
    wishes.repeats = random.Chance(0.5) ? 0.05 : 0.5;
    Job job(seed, wishes);
    job.RunFor(absl::Seconds(6));
    job.Heal();
    for (int i = 0; i < 60 && !job.IsDone() && job.broken().empty(); ++i) {
      job.RunFor(absl::Seconds(1));
    }
    ASSERT_EQ(job.broken(), "");
    if (wishes.level != Durability::kD0) {
      ASSERT_TRUE(job.IsDone()) << job.Describe();
      job.RunFor(absl::Seconds(5));  // until what failed last is repaired
      job.CheckEnd();
      ASSERT_EQ(job.broken(), "");
    }
    for (const auto& [what, count] : job.hits()) hits[what] += count;
  }
  for (const auto& [what, count] : hits) {
    std::cout << what << ": " << count << "\n";
  }
  for (const char* what :
       {"died", "suspected", "load", "read", "change 0", "change too late",
        "code 0", "code 1", "code 2", "repeated", "nonsense"}) {
    EXPECT_GT(hits[what], 0) << what;
  }
}

// --- Nonsense from those who are part of it. ---------------------------------

PartitionMap MapOf(int entries, int servers, uint64_t epoch = 1) {
  std::vector<PartitionMap::Server> list;
  for (int i = 0; i < servers; ++i) {
    list.push_back({{static_cast<uint32_t>(i + 1), 1},
                    static_cast<uint32_t>(i),
                    PartitionMap::State::kLive});
  }
  return *PartitionMap::Assign(entries, list, 2, epoch);
}

// One replica, and peers, clients and maps that say anything at all.
class Nonsense {
 public:
  explicit Nonsense(uint64_t seed)
      : random_(seed),
        map_(MapOf(4, 3, 1 + random_.Below(5))),
        self_{static_cast<uint32_t>(1 + random_.Below(3)), 1},
        options_(AnyOptions()),
        number_(static_cast<int>(random_.Below(4))),
        replica_(self_, number_, options_),
        leases_(ps::LeaseOptions()) {}

  void Step() {
    switch (random_.Below(10)) {
      case 0:
        return ChangeMap();
      case 1:
      case 2:
      case 3:
        return SendMessage();
      case 4:
      case 5:
        return Push();
      case 6:
        return Read();
      case 7:
        replica_.OnDurable(std::min(Absurd(), replica_.end()), now());
        return replica_.Forget(Absurd());
      case 8:
        if (!replica_.is_primary() || !replica_.HasRoom()) return;
        replica_.AppendRound(Bytes::Copy("sum"), random_.Chance(0.5), now());
        return;
      default:
        return Tick();
    }
  }

  void Check() {
    const auto actions = replica_.TakeActions();
    // One message makes no flood.
    EXPECT_LT(actions.size(), 400u);
    for (const auto& action : actions) {
      if (action.kind == Replica::Action::Kind::kSend) {
        EXPECT_LE(action.message.entries.size(), options_.most_of_a_message);
      }
    }
    EXPECT_TRUE(!replica_.is_primary() || replica_.stable() <= replica_.end());
    replica_.Snapshot(time_);
  }

 private:
  ReplicaOptions AnyOptions() {
    ReplicaOptions options;
    options.level = static_cast<Durability>(random_.Below(4));
    options.stalls_alone = random_.Chance(0.5);
    options.most_bytes = 1 + random_.Below(500);
    options.most_of_a_message = 1 + random_.Below(3);
    options.most_lag = random_.Below(3);
    return options;
  }

  Now now() { return {time_, leases_}; }

  // Numbers at which something changes, and any.
  uint64_t Absurd() {
    const uint64_t some[] = {0,
                             1,
                             2,
                             3,
                             4,
                             63,
                             64,
                             65,
                             map_.epoch(),
                             map_.epoch() + 1,
                             replica_.end(),
                             replica_.end() + 1,
                             ~uint64_t{0},
                             ~uint64_t{0} - 1,
                             random_.Next()};
    return some[random_.Below(15)];
  }
  WorkerKey Key() {
    return {static_cast<uint32_t>(random_.Below(5)),
            random_.Chance(0.8) ? 1 : Absurd()};
  }
  int Entry(double usual) {
    return random_.Chance(usual) ? number_ : static_cast<int>(Absurd());
  }
  uint64_t Epoch(double usual) {
    return random_.Chance(usual) ? map_.entry(number_).epoch : Absurd();
  }
  WorkerKey Sender() {
    if (random_.Chance(0.3)) return Key();
    const auto& entry = map_.entry(number_);
    return random_.Chance(0.5) ? entry.primary : entry.backup;
  }

  void ChangeMap() {
    if (random_.Chance(0.5)) {
      map_.FailServer(Key(),
                      static_cast<PartitionMap::State>(1 + random_.Below(2)));
    } else {
      map_.AddServer(Key(), 1);
    }
    if (random_.Chance(0.7)) map_.AddBackups();
    map_.Apply({static_cast<MapChange::Kind>(random_.Below(3)), number_,
                map_.entry(number_).changed})
        .IgnoreError();
    replica_.OnMap(map_, now());
    if (random_.Chance(0.2)) replica_.OnMap(MapOf(4, 3), now());
    if (random_.Chance(0.2)) replica_.OnMap(PartitionMap(), now());
    leases_.Watch(map_.PartnersOf(self_), time_);
  }

  void SendMessage() {
    ReplicaMessage message;
    message.kind = static_cast<ReplicaMessage::Kind>(
        random_.Chance(0.95) ? random_.Below(4) : random_.Below(300));
    message.entry = Entry(0.8);
    message.map_epoch = Absurd();
    message.epoch = Epoch(0.6);
    message.fill = Absurd();
    message.n = Absurd();
    for (int64_t i = random_.Below(5); i > 0; --i) {
      message.entries.push_back(
          {{random_.Chance(0.7) ? message.epoch : Absurd(), Absurd()},
           {Absurd(), Absurd(), Absurd()},
           Bytes::Copy("x")});
    }
    for (int64_t i = random_.Below(3); i > 0; --i) {
      message.marks[Absurd()].SkipTo(Absurd());
    }
    replica_.OnMessage(Sender(), message, now());
  }

  void Push() {
    PushRequest push;
    push.token = Absurd();
    push.entry = Entry(0.9);
    push.to = random_.Chance(0.9) ? self_ : Key();
    push.epoch = Epoch(0.8);
    push.mark = {Absurd(), Absurd(), Absurd()};
    if (random_.Chance(0.7)) {
      replica_.OnPush(push, Bytes::Own(std::string(random_.Below(90), 'p')),
                      now());
    } else if (replica_.OnPart(push, now())) {
      replica_.AnswerPart(push, now());
    }
  }

  void Read() {
    ReadRequest read;
    read.token = Absurd();
    read.entry = Entry(0.9);
    read.to = random_.Chance(0.9) ? self_ : Key();
    read.epoch = Epoch(0.8);
    read.client = Absurd();
    read.through = Absurd();
    replica_.OnRead(read, now());
  }

  void Tick() {
    time_ += absl::Milliseconds(random_.Below(400));
    for (const auto& out : leases_.OnTick(map_.epoch(), time_)) {
      if (random_.Chance(0.7)) {
        leases_.OnAnswer(out.to, out.ping, map_.epoch(), time_);
      }
    }
    replica_.OnTick(now());
  }

  sim::Random random_;
  PartitionMap map_;
  const WorkerKey self_;
  const ReplicaOptions options_;
  const int number_;
  Replica replica_;
  Leases leases_;
  Instant time_;
};

// "What a peer sends is not trusted: what does not fit is dropped." (G13)
TEST(OutsideReplica, NothingThatPeersClientsOrMapsSayEndsIt) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Nonsense nonsense(seed);
    for (int step = 0; step < 120; ++step) {
      nonsense.Step();
      nonsense.Check();
      if (HasFailure()) return;
    }
  }
}

// A map of another number of entries is no map of this job: it must not be
// looked into at a place that it does not have.
TEST(OutsideReplica, MapOfFewerEntriesEndsNothing) {
  Leases leases((ps::LeaseOptions()));
  const Now now = {Instant(), leases};
  Replica replica({1, 1}, 3, ReplicaOptions());
  replica.OnMap(MapOf(4, 2, 1), now);
  const auto map = PartitionMap::Decode(MapOf(1, 2, 9).Encode());
  ASSERT_TRUE(map.ok());
  replica.OnMap(*map, now);
  replica.OnTick(now);
  replica.TakeActions();
}

}  // namespace
}  // namespace weft::outside
