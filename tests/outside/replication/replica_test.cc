// What docs/replication.md guarantees, in random runs of driver.h; and that
// nothing that is sent ends a replica.

#include "weft/ps/core/replica.h"

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

// "What a peer sends is not trusted: what does not fit is dropped." (G13)
// Ends in SIGSEGV now.
TEST(OutsideReplica, NothingThatPeersClientsOrMapsSayEndsIt) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    sim::Random random(seed);
    PartitionMap map = MapOf(4, 3, 1 + random.Below(5));
    const WorkerKey self = {static_cast<uint32_t>(1 + random.Below(3)), 1};
    ReplicaOptions options;
    options.level = static_cast<Durability>(random.Below(4));
    options.stalls_alone = random.Chance(0.5);
    options.most_bytes = 1 + random.Below(500);
    options.most_of_a_message = 1 + random.Below(3);
    options.most_lag = random.Below(3);
    const int number = static_cast<int>(random.Below(4));
    Replica replica(self, number, options);
    Leases leases((ps::LeaseOptions()));
    Instant time;
    const auto absurd = [&]() -> uint64_t {
      const uint64_t some[] = {0,
                               1,
                               2,
                               3,
                               4,
                               63,
                               64,
                               65,
                               map.epoch(),
                               map.epoch() + 1,
                               replica.end(),
                               replica.end() + 1,
                               ~uint64_t{0},
                               ~uint64_t{0} - 1,
                               random.Next()};
      return some[random.Below(15)];
    };
    const auto key = [&]() -> WorkerKey {
      return {static_cast<uint32_t>(random.Below(5)),
              random.Chance(0.8) ? 1 : absurd()};
    };
    for (int step = 0; step < 120; ++step) {
      const Now now = {time, leases};
      switch (random.Below(10)) {
        case 0: {
          if (random.Chance(0.5)) {
            map.FailServer(
                key(), static_cast<PartitionMap::State>(1 + random.Below(2)));
          } else {
            map.AddServer(key(), 1);
          }
          if (random.Chance(0.7)) map.AddBackups();
          map.Apply({static_cast<MapChange::Kind>(random.Below(3)), number,
                     map.entry(number).changed})
              .IgnoreError();
          replica.OnMap(map, now);
          if (random.Chance(0.2)) replica.OnMap(MapOf(4, 3), now);
          if (random.Chance(0.2)) replica.OnMap(PartitionMap(), now);
          leases.Watch(map.PartnersOf(self), time);
          break;
        }
        case 1:
        case 2:
        case 3: {
          ReplicaMessage message;
          message.kind = static_cast<ReplicaMessage::Kind>(
              random.Chance(0.95) ? random.Below(4) : random.Below(300));
          message.entry =
              random.Chance(0.8) ? number : static_cast<int>(absurd());
          message.map_epoch = absurd();
          message.epoch =
              random.Chance(0.6) ? map.entry(number).epoch : absurd();
          message.fill = absurd();
          message.n = absurd();
          for (int64_t i = random.Below(5); i > 0; --i) {
            message.entries.push_back(
                {{random.Chance(0.7) ? message.epoch : absurd(), absurd()},
                 {absurd(), absurd(), absurd()},
                 Bytes::Copy("x")});
          }
          for (int64_t i = random.Below(3); i > 0; --i) {
            message.marks[absurd()].SkipTo(absurd());
          }
          replica.OnMessage(
              random.Chance(0.7)
                  ? (random.Chance(0.5) ? map.entry(number).primary
                                        : map.entry(number).backup)
                  : key(),
              message, now);
          break;
        }
        case 4:
        case 5: {
          PushRequest push;
          push.token = absurd();
          push.entry = random.Chance(0.9) ? number : static_cast<int>(absurd());
          push.to = random.Chance(0.9) ? self : key();
          push.epoch = random.Chance(0.8) ? map.entry(number).epoch : absurd();
          push.mark = {absurd(), absurd(), absurd()};
          if (random.Chance(0.7)) {
            replica.OnPush(push, Bytes::Own(std::string(random.Below(90), 'p')),
                           now);
          } else if (replica.OnPart(push, now)) {
            replica.AnswerPart(push, now);
          }
          break;
        }
        case 6: {
          ReadRequest read;
          read.token = absurd();
          read.entry = random.Chance(0.9) ? number : static_cast<int>(absurd());
          read.to = random.Chance(0.9) ? self : key();
          read.epoch = random.Chance(0.8) ? map.entry(number).epoch : absurd();
          read.client = absurd();
          read.through = absurd();
          replica.OnRead(read, now);
          break;
        }
        case 7:
          replica.OnDurable(std::min(absurd(), replica.end()), now);
          replica.Forget(absurd());
          break;
        case 8:
          if (replica.is_primary() && replica.HasRoom()) {
            replica.AppendRound(Bytes::Copy("sum"), random.Chance(0.5), now);
          }
          break;
        default:
          time += absl::Milliseconds(random.Below(400));
          for (const auto& out : leases.OnTick(map.epoch(), time)) {
            if (random.Chance(0.7)) {
              leases.OnAnswer(out.to, out.ping, map.epoch(), time);
            }
          }
          replica.OnTick({time, leases});
      }
      const auto actions = replica.TakeActions();
      // One message makes no flood.
      EXPECT_LT(actions.size(), 400u) << "seed " << seed;
      for (const auto& action : actions) {
        if (action.kind == Replica::Action::Kind::kSend) {
          EXPECT_LE(action.message.entries.size(), options.most_of_a_message);
        }
      }
      EXPECT_TRUE(!replica.is_primary() || replica.stable() <= replica.end())
          << "seed " << seed;
      replica.Snapshot(time);
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
