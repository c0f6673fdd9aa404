// What partition_map.h says of maps: how partitions are dealt, what each change
// does and does not, and bytes that are no map.

#include "weft/ps/core/replication/partition_map.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::ps::IsNone;
using ::weft::ps::MapChange;
using ::weft::ps::PartitionMap;
using ::weft::ps::WorkerKey;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Entry = PartitionMap::Entry;
using State = PartitionMap::State;

constexpr int kLeast = std::numeric_limits<int>::min();
constexpr int kMost = std::numeric_limits<int>::max();
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

WorkerKey KeyOf(int i, uint64_t epoch = 1) {
  return {static_cast<uint32_t>(i + 1), epoch};
}
std::vector<PartitionMap::Server> Servers(int count, int hosts) {
  std::vector<PartitionMap::Server> servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back(
        {KeyOf(i), static_cast<uint32_t>(i % hosts), State::kLive});
  }
  return servers;
}

// What holds of every map that partition_map.h describes.
void ExpectIsMap(const PartitionMap& map) {
  ASSERT_GT(map.entries(), 0);
  ASSERT_LE(map.entries(), PartitionMap::kMostEntries);
  EXPECT_EQ(map.entries() & (map.entries() - 1), 0);
  EXPECT_LE(map.servers().size(),
            static_cast<size_t>(PartitionMap::kMostServers));
  EXPECT_TRUE(map.replicas() == 1 || map.replicas() == 2);
  std::set<WorkerKey> keys;
  for (const auto& server : map.servers()) {
    EXPECT_TRUE(keys.insert(server.key).second) << server.key.ToString();
    EXPECT_FALSE(IsNone(server.key));
  }
  bool is_replicated = true;
  for (int i = 0; i < map.entries(); ++i) {
    const Entry& entry = map.entry(i);
    is_replicated &= entry.in_sync;
    EXPECT_LE(entry.changed, map.epoch());
    EXPECT_LE(entry.epoch, map.epoch());
    if (IsNone(entry.primary)) {
      EXPECT_TRUE(IsNone(entry.backup)) << i;
    } else {
      EXPECT_NE(entry.primary, entry.backup) << i;
      EXPECT_NE(map.StateOf(entry.primary), State::kExited) << i;
      EXPECT_EQ(keys.count(entry.primary), 1u) << i;
    }
    if (IsNone(entry.backup)) {
      EXPECT_FALSE(entry.in_sync) << i;
    } else {
      EXPECT_NE(map.StateOf(entry.backup), State::kExited) << i;
      EXPECT_EQ(keys.count(entry.backup), 1u) << i;
      EXPECT_EQ(map.replicas(), 2);
    }
  }
  // "Whether each partition has a backup that may be promoted."
  EXPECT_EQ(map.IsReplicated(), is_replicated);
  const auto again = PartitionMap::Decode(map.Encode());
  ASSERT_THAT(again.status(), IsOk());
  EXPECT_EQ(again->Encode(), map.Encode());
  EXPECT_EQ(again->epoch(), map.epoch());
  EXPECT_EQ(again->Summary(), map.Summary());
}

// --- Assign. -----------------------------------------------------------------

// "each has as many primaries as any other, or one more, and stands by for all
// others alike. A backup is on another host if there is one."
TEST(OutsideMap, DealsEvenlyHoweverManyThereAre) {
  for (const auto& [entries_of_map, servers] :
       std::vector<std::pair<int, int>>{{1, 1},
                                        {1, 2},
                                        {2, 5},
                                        {4, 64},
                                        {64, 1},
                                        {64, 2},
                                        {64, 3},
                                        {64, 63},
                                        {256, 100},
                                        {1024, 7},
                                        {4096, 33},
                                        {16'384, 5},
                                        {16'384, 1024}}) {
    const int entries = entries_of_map, count = servers;  // lambdas take them
    SCOPED_TRACE(absl::StrCat(entries, " to ", count));
    const auto map = PartitionMap::Assign(entries, Servers(count, 5000), 2, 77);
    ASSERT_THAT(map.status(), IsOk());
    EXPECT_EQ(map->epoch(), 77u);
    ExpectIsMap(*map);
    std::map<WorkerKey, int> primaries, backups;
    std::map<std::pair<WorkerKey, WorkerKey>, int> pairs;
    for (int i = 0; i < entries; ++i) {
      const Entry& entry = map->entry(i);
      ++primaries[entry.primary];
      EXPECT_EQ(IsNone(entry.backup), count == 1);
      EXPECT_EQ(entry.in_sync, count > 1) << "partitions, which are empty";
      if (count > 1) {
        ++backups[entry.backup];
        ++pairs[{entry.primary, entry.backup}];
      }
    }
    const auto spread = [&](std::map<WorkerKey, int>& counts) {
      int least = kMost, most = 0;
      for (int i = 0; i < count; ++i) {
        least = std::min(least, counts[KeyOf(i)]);
        most = std::max(most, counts[KeyOf(i)]);
      }
      return most - least;
    };
    EXPECT_LE(spread(primaries), 1);
    EXPECT_TRUE(count == 1 || spread(backups) <= 2) << spread(backups);
    if (entries >= count * (count - 1) && count > 1 && count < 7) {
      int least = kMost, most = 0;
      for (int a = 0; a < count; ++a) {
        for (int b = 0; b < count; ++b) {
          if (a == b) continue;
          least = std::min(least, pairs[{KeyOf(a), KeyOf(b)}]);
          most = std::max(most, pairs[{KeyOf(a), KeyOf(b)}]);
        }
      }
      EXPECT_LE(most - least, 3);
    }
  }
}

TEST(OutsideMap, BackupsAreOnOtherHostsHoweverUnequalHostsAre) {
  sim::Random random(3);
  for (int round = 0; round < 200; ++round) {
    const int count = 2 + static_cast<int>(random.Below(12));
    std::vector<PartitionMap::Server> servers = Servers(count, 1);
    const int64_t hosts = 1 + random.Below(4);
    for (auto& server : servers) {
      server.host =
          random.Chance(0.6) ? 0 : static_cast<uint32_t>(random.Below(hosts));
    }
    std::map<WorkerKey, uint32_t> host_of;
    std::set<uint32_t> used;
    for (const auto& server : servers) {
      host_of[server.key] = server.host;
      used.insert(server.host);
    }
    auto map = *PartitionMap::Assign(64, servers, 2);
    for (int pass = 0; pass < 2; ++pass) {
      ExpectIsMap(map);
      for (int i = 0; i < map.entries() && used.size() > 1; ++i) {
        EXPECT_NE(host_of[map.entry(i).primary], host_of[map.entry(i).backup])
            << i;
      }
      // The same of backups that are given later.
      for (int i = 0; i < map.entries(); i += 3) {
        EXPECT_THAT(
            map.Apply({MapChange::Kind::kDropBackup, i, map.entry(i).changed}),
            IsOk());
      }
      EXPECT_TRUE(map.AddBackups());
    }
  }
}

// "kInvalidArgument  `entries` is no power of two or beyond kMostEntries; no
// servers, too many, or one twice; `replicas` is not 1 or 2"
TEST(OutsideMap, WhatCannotBeDealtIsRefused) {
  for (const int entries : {0, -1, -4, kLeast, kMost, 3, 6, 32'768, 1 << 30}) {
    EXPECT_THAT(PartitionMap::Assign(entries, Servers(3, 3), 2).status(),
                StatusIs(kInvalidArgument))
        << entries;
  }
  for (const int replicas : {0, -1, 3, kMost, kLeast}) {
    EXPECT_THAT(PartitionMap::Assign(4, Servers(3, 3), replicas).status(),
                StatusIs(kInvalidArgument))
        << replicas;
  }
  for (const int count : {0, 1025, 5000}) {
    EXPECT_THAT(PartitionMap::Assign(4, Servers(count, 3), 2).status(),
                StatusIs(kInvalidArgument))
        << count;
  }
  auto twice = Servers(5, 3);
  twice[4].key = twice[0].key;
  EXPECT_THAT(PartitionMap::Assign(4, twice, 1).status(),
              StatusIs(kInvalidArgument));
}

// --- Changes. ----------------------------------------------------------------

// "Changes. True, or OK: it is another map now, with the next epoch."
class Changing {
 public:
  explicit Changing(PartitionMap map) : map_(std::move(map)) {}

  const PartitionMap& map() const { return map_; }

  // Runs `change`, and checks what it may and must have done to the map.
  template <typename Change>
  bool Run(const Change& change) {
    const PartitionMap before = map_;
    const bool changed = change(map_);
    if (!changed) {
      EXPECT_EQ(map_.Encode(), before.Encode())
          << "changed, and says it did not";
      return false;
    }
    // A server that comes again ends its earlier incarnation: two changes.
    EXPECT_GT(map_.epoch(), before.epoch());
    EXPECT_LE(map_.epoch(), before.epoch() + 2);
    ExpectIsMap(map_);
    for (int i = 0; i < map_.entries(); ++i) {
      const Entry& was = before.entry(i);
      const Entry& is = map_.entry(i);
      const bool differs = was.primary != is.primary ||
                           was.backup != is.backup ||
                           was.in_sync != is.in_sync || was.next != is.next ||
                           was.is_handing_over != is.is_handing_over;
      // "epoch of the last change of this entry"
      if (differs) {
        EXPECT_GT(is.changed, before.epoch()) << i;
      } else {
        EXPECT_EQ(is.changed, was.changed) << i;
      }
      // "since which the primary has the role"
      if (was.primary == is.primary) {
        EXPECT_EQ(is.epoch, was.epoch) << i;
      } else if (!IsNone(is.primary)) {
        EXPECT_GT(is.epoch, before.epoch()) << i;
        // "Only then may it be promoted."
        EXPECT_EQ(is.primary, was.backup) << i;
        EXPECT_TRUE(was.in_sync) << i;
      }
    }
    return true;
  }

 private:
  PartitionMap map_;
};

// What may be asked of a map, of anybody and of any entry.
class AnyChanges {
 public:
  explicit AnyChanges(uint64_t seed)
      : random_(seed),
        servers_(1 + static_cast<int>(random_.Below(6))),
        changing_(*PartitionMap::Assign(
            1 << random_.Below(5), Servers(servers_, 1 + random_.Below(4)),
            1 + static_cast<int>(random_.Below(2)), 1 + random_.Below(100))) {
    for (int i = 0; i < servers_; ++i) newest_[i + 1] = 1;
  }

  void Step() {
    const uint32_t id = static_cast<uint32_t>(1 + random_.Below(8));
    const uint64_t epoch = random_.Chance(0.8)
                               ? newest_[id]
                               : static_cast<uint64_t>(random_.Below(6));
    const WorkerKey key = {id, epoch};
    switch (random_.Below(6)) {
      case 0:
        return Add(random_.Chance(0.3) ? WorkerKey{id, newest_[id] + 1} : key);
      case 1:
      case 2:
        return Fail(key, random_.Chance(0.5) ? State::kSilent : State::kExited);
      case 3:
        return AddBackups();
      default:
        return Apply();
    }
  }

 private:
  const PartitionMap& map() const { return changing_.map(); }

  void Add(const WorkerKey& added) {
    const State was = map().StateOf(added);
    const uint64_t newest = newest_[added.id];
    const bool is = changing_.Run(
        [&](PartitionMap& map) { return map.AddServer(added, added.id % 3); });
    // "False if it was live, has exited, or there is no room."
    EXPECT_EQ(is, !IsNone(added) && was == State::kSilent) << added.ToString();
    if (!is) return;
    EXPECT_EQ(map().StateOf(added), State::kLive);
    if (newest != 0 && added.epoch > newest) {
      EXPECT_EQ(map().StateOf({added.id, newest}), State::kExited);
    }
    newest_[added.id] = added.epoch;
  }

  void Fail(const WorkerKey& key, State state) {
    const State was = map().StateOf(key);
    bool has_part = false;
    for (const WorkerKey partner : map().PartnersOf(key)) {
      EXPECT_NE(partner, key);
      EXPECT_THAT(map().PartnersOf(partner), ::testing::Contains(key));
      has_part = true;
    }
    const PartitionMap before = map();
    const bool is = changing_.Run(
        [&](PartitionMap& map) { return map.FailServer(key, state); });
    EXPECT_TRUE(is || !has_part || was != State::kLive);
    for (int i = 0; is && i < before.entries(); ++i) {
      const Entry& then = before.entry(i);
      const Entry& now = map().entry(i);
      if (state == State::kExited) {
        EXPECT_NE(now.primary, key);
        EXPECT_NE(now.backup, key);
      }
      // "What it has alone stays with it while it is silent, and is lost once
      // it has exited".
      if (then.primary == key && !then.in_sync) {
        EXPECT_EQ(now.primary, state == State::kSilent ? key : WorkerKey{});
      }
    }
  }

  void AddBackups() {
    bool lacks = false;
    for (int i = 0; i < map().entries(); ++i) {
      lacks |= IsNone(map().entry(i).backup) && !IsNone(map().entry(i).primary);
    }
    const auto add = [](PartitionMap& map) { return map.AddBackups(); };
    EXPECT_TRUE(!changing_.Run(add) || lacks);
    // All at once: there is nothing left to give.
    EXPECT_FALSE(changing_.Run(add));
  }

  void Apply() {
    MapChange change;
    change.kind = static_cast<MapChange::Kind>(random_.Below(3));
    change.entry = static_cast<int>(
        random_.Chance(0.9) ? random_.Below(map().entries()) : random_.Next());
    const bool is_entry = change.entry >= 0 && change.entry < map().entries();
    change.changed = is_entry && random_.Chance(0.8)
                         ? map().entry(change.entry).changed
                         : random_.Next() % 100;
    const PartitionMap before = map();
    absl::Status status;
    const bool is = changing_.Run([&](PartitionMap& map) {
      status = map.Apply(change);
      return status.ok();
    });
    if (!is) {
      EXPECT_THAT(status, StatusIs(kFailedPrecondition));
      return;
    }
    ASSERT_TRUE(is_entry);
    EXPECT_EQ(change.changed, before.entry(change.entry).changed);
    CheckApplied(change.kind, before.entry(change.entry),
                 map().entry(change.entry));
  }

  static void CheckApplied(MapChange::Kind kind, const Entry& then,
                           const Entry& now) {
    switch (kind) {
      case MapChange::Kind::kMarkInSync:
        EXPECT_FALSE(IsNone(then.backup));
        EXPECT_FALSE(then.in_sync);
        EXPECT_TRUE(now.in_sync);
        break;
      case MapChange::Kind::kDropBackup:
        EXPECT_FALSE(IsNone(then.backup));
        EXPECT_TRUE(IsNone(now.backup));
        break;
      case MapChange::Kind::kPromote:
        EXPECT_TRUE(then.in_sync);
        EXPECT_EQ(now.primary, then.backup);
        break;
      default:
        ADD_FAILURE() << "no such kind of change was applied";
    }
  }

  sim::Random random_;
  const int servers_;
  Changing changing_;
  std::map<uint32_t, uint64_t> newest_;
};

TEST(OutsideMap, RandomChangesKeepWhatTheHeaderSays) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    AnyChanges changes(seed);
    for (int step = 0; step < 80; ++step) changes.Step();
  }
}

// "kExited for an earlier incarnation of one that it knows; kSilent for one
// that it does not know."
TEST(OutsideMap, StatesOfStrangersAndEarlierIncarnations) {
  auto servers = Servers(3, 3);
  for (auto& server : servers) server.key.epoch = 10;
  PartitionMap map = *PartitionMap::Assign(4, servers, 2);
  EXPECT_EQ(map.StateOf(KeyOf(0, 9)), State::kExited);
  EXPECT_EQ(map.StateOf(KeyOf(0, 10)), State::kLive);
  EXPECT_EQ(map.StateOf(KeyOf(0, 11)), State::kSilent);
  EXPECT_EQ(map.StateOf(KeyOf(50, 1)), State::kSilent);
  EXPECT_THAT(map.PartnersOf(KeyOf(50, 1)), ::testing::IsEmpty());
  EXPECT_THAT(map.PartnersOf({}), ::testing::IsEmpty());
  for (const WorkerKey stranger : {KeyOf(50), KeyOf(0, 9), WorkerKey{}}) {
    for (const State state : {State::kSilent, State::kExited}) {
      const std::string before = map.Encode();
      if (!map.FailServer(stranger, state)) {
        EXPECT_EQ(map.Encode(), before);
      }
    }
  }
  EXPECT_FALSE(map.AddServer({}, 0));
  EXPECT_FALSE(map.AddServer({7, 0}, 0));
}

// "there is no room"; and servers that come and go without end.
TEST(OutsideMap, ServersWithoutEndAreBounded) {
  PartitionMap map =
      *PartitionMap::Assign(4, Servers(PartitionMap::kMostServers, 9), 2);
  const std::string full = map.Encode();
  EXPECT_FALSE(map.AddServer(KeyOf(5000), 0));
  EXPECT_EQ(map.Encode(), full);
  PartitionMap small = *PartitionMap::Assign(4, Servers(2, 2), 2);
  for (int i = 2; i < 3000; ++i) {
    small.AddServer(KeyOf(i), 0);
    small.AddBackups();
    small.FailServer(KeyOf(i), State::kExited);
    ASSERT_LE(small.servers().size(),
              static_cast<size_t>(PartitionMap::kMostServers));
  }
  ExpectIsMap(small);
  for (uint64_t epoch = 2; epoch < 3000; ++epoch) {
    EXPECT_TRUE(small.AddServer(KeyOf(1, epoch), 0)) << epoch;
  }
  ExpectIsMap(small);
}

// --- Bytes. ------------------------------------------------------------------

// "A map as Encode() wrote it, whoever sends it. kInvalidArgument: it is none."
TEST(OutsideMap, DamagedBytesAreRefusedOrAMapThatEncodeWrites) {
  sim::Random random(11);
  PartitionMap map = *PartitionMap::Assign(64, Servers(9, 4), 2, 1'000'000);
  map.FailServer(KeyOf(1), State::kExited);
  map.FailServer(KeyOf(2), State::kSilent);
  map.AddServer(KeyOf(20), 3);
  map.AddBackups();
  const std::string good = map.Encode();
  int maps = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string bent = good;
    for (int64_t n = 1 + random.Below(3); n > 0; --n) {
      const size_t at = random.Next() % bent.size();
      switch (random.Below(6)) {
        case 0:
          bent[at] = static_cast<char>(random.Next());
          break;
        case 1:
          bent[at] = static_cast<char>(bent[at] ^ (1 << random.Below(8)));
          break;
        case 2:
          bent.resize(at + 1);
          break;
        case 3:
          bent.insert(at, bent.substr(0, random.Next() % 30));
          break;
        case 4:
          bent.replace(at, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
          break;
        default:
          bent.replace(at, 4, std::string(4, '\0'));
      }
    }
    auto decoded = PartitionMap::Decode(bent);
    if (!decoded.ok()) {
      ASSERT_THAT(decoded.status(), StatusIs(kInvalidArgument));
      continue;
    }
    ++maps;
    ASSERT_EQ(decoded->Encode(), bent);
    if (maps % 20 != 0) continue;
    ExpectIsMap(*decoded);
    Changing changing(*decoded);
    if (decoded->epoch() == ~uint64_t{0}) continue;
    for (int k = 0; k < 4; ++k) {
      changing.Run([&](PartitionMap& m) {
        return m.FailServer(KeyOf(static_cast<int>(random.Below(21))),
                            State::kExited);
      });
      changing.Run([&](PartitionMap& m) { return m.AddBackups(); });
    }
    if (HasFailure()) {
      ADD_FAILURE() << "try " << i;
      return;
    }
  }
  EXPECT_GT(maps, 100);
  for (const std::string& other :
       {std::string(), std::string(1, '\0'), std::string(1 << 20, '\0'),
        std::string(1 << 20, '\xff'), std::string("PartitionMap")}) {
    EXPECT_THAT(PartitionMap::Decode(other).status(),
                StatusIs(kInvalidArgument));
  }
  // An empty map is none: nothing can be asked of it.
  EXPECT_THAT(PartitionMap::Decode(PartitionMap().Encode()).status(),
              StatusIs(kInvalidArgument));
}

}  // namespace
}  // namespace weft::outside
