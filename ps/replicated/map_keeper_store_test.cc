// What keepers learn from a store that is away, slow or wrong.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/replicated/map_keeper_fixture.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/sim/random.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

using MapKeeperStoreTest = MapKeeperTest;

TEST_F(MapKeeperStoreTest, NewestMapIsReadAlsoWhereNobodyTellsOfIt) {
  store_.SetDeaf();
  PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kPromote, 0)), IsOk());
  Put(map);
  const auto newest = node->AwaitNewest(kPatience);
  ASSERT_THAT(newest.status(), IsOk());
  EXPECT_GE(newest->epoch(), map.epoch());
  store_.SetMode(FaultyStore::Mode::kRefuses);
  EXPECT_THAT(node->AwaitNewest(kShort),
              StatusIs(absl::StatusCode::kUnavailable, "was not read within"));
}

TEST_F(MapKeeperStoreTest, OfferedMapIsTakenIfItIsNewer) {
  PartitionMap map = MapOf(3);
  const std::string first = map.Encode();
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kPromote, 0)), IsOk());
  const std::string second = map.Encode();
  ASSERT_TRUE(map.AddBackups());
  const std::string third = map.Encode();

  store_.SetMode(FaultyStore::Mode::kHangs);
  MapKeeper::Options options = Quiet();
  options.store_timeout = absl::Seconds(1);
  Node node(store_, {1, 1}, options);
  EXPECT_THAT(node->Offer(second), IsOk());
  EXPECT_EQ(node->map().epoch(), 2u);
  EXPECT_EQ(node->encoded(), second);
  EXPECT_THAT(node->AwaitMap(kPatience), IsOk());
  // Also while the store hangs.
  EXPECT_TRUE(Becomes([&] { return node.HasTold(2); }));
  EXPECT_THAT(node->Offer(first), IsOk());
  EXPECT_EQ(node->encoded(), second);
  for (const std::string& broken :
       {std::string(), std::string("no map"), third.substr(0, 20),
        absl::StrCat(third, "x")}) {
    EXPECT_THAT(node->Offer(broken),
                StatusIs(absl::StatusCode::kInvalidArgument, "partition map"));
  }
  const auto others = PartitionMap::Assign(2 * map.entries(), map.servers(),
                                           map.replicas(), /*epoch=*/9);
  ASSERT_THAT(others.status(), IsOk());
  EXPECT_THAT(
      node->Offer(others->Encode()),
      StatusIs(absl::StatusCode::kInvalidArgument, "entries; this job's has"));
  EXPECT_THAT(node->Offer(second), IsOk());
  EXPECT_EQ(node->encoded(), second);
  EXPECT_THAT(node->Offer(third), IsOk());
  EXPECT_EQ(node->encoded(), third);
  EXPECT_TRUE(Becomes([&] { return node.HasTold(3); }));
  EXPECT_THAT(node.epochs(), ElementsAre(2, 3));
}

TEST_F(MapKeeperStoreTest, NothingIsLostWhileTheStoreIsAway) {
  const PartitionMap map = MapOf(4);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  store_.SetMode(FaultyStore::Mode::kRefuses);
  const Instant began = SteadyClock().Now();
  const int64_t before = store_.calls();
  node->OnServers({Live({2, 1}), Live({3, 1})}, {{4, 1}}, 4);
  int kept = 0;  // an entry that has nothing to do with the fourth server
  while (map.entry(kept).primary.id == 4 || map.entry(kept).backup.id == 4) {
    ++kept;
  }
  node->Propose(ChangeOf(map, Kind::kPromote, kept), Always());
  // Two threads ask, which pause 100 ms, 200 ms, ...
  ASSERT_TRUE(Becomes([&] {
    node->Learn();  // is no reason to ask earlier
    return store_.calls() >= before + 10;
  }));
  EXPECT_GE(SteadyClock().Now() - began, absl::Milliseconds(900));
  EXPECT_EQ(Stored().epoch(), 1u);
  store_.SetMode(FaultyStore::Mode::kGood);
  EXPECT_TRUE(StoreBecomes([&](const PartitionMap& now) {
    return now.StateOf({4, 1}) == State::kExited &&
           now.entry(kept).primary == map.entry(kept).backup;
  }));
}

TEST_F(MapKeeperStoreTest, ChangeWhoseAnswerIsLostIsMadeOnce) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  store_.LoseAnswers(1);
  node->Propose(ChangeOf(map, Kind::kPromote, 0), Always());
  ASSERT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
  AwaitProposals(node);
  EXPECT_EQ(Stored().entry(0).epoch, 2u);
  EXPECT_EQ(Stored().entry(0).primary, map.entry(0).backup);
}

TEST_F(MapKeeperStoreTest, EndsWhileTheStoreHangs) {
  Put(MapOf(3));
  std::atomic<int> contacts{0};
  MapKeeper::Options options = Quiet();
  options.store_timeout = absl::Hours(1);
  options.contact_every = absl::Milliseconds(1);
  options.on_contact = [&](Instant, uint64_t) { ++contacts; };
  Node node(store_, {1, 1}, options);
  ASSERT_TRUE(Becomes([&] { return contacts > 2; }));
  store_.SetMode(FaultyStore::Mode::kHangs);
  node->OnServers({}, {{2, 1}}, 3);
  node->Propose({Kind::kPromote, 0, 1}, Always());
  const Instant began = SteadyClock().Now();
  node.End();
  EXPECT_LT(SteadyClock().Now() - began, absl::Seconds(20));
  store_.SetMode(FaultyStore::Mode::kGood);
  const int told = contacts;
  std::this_thread::yield();
  EXPECT_EQ(contacts, told);
  EXPECT_EQ(Stored().epoch(), 1u);
}

TEST_F(MapKeeperStoreTest, ContactsShowThatTheStoreIsThere) {
  Mutex mu;
  std::vector<std::pair<Instant, uint64_t>> contacts;
  std::atomic<uint64_t> told{0};
  std::atomic<bool> is_late{false};
  MapKeeper::Options options = Quiet();
  options.contact_every = absl::Milliseconds(1);
  options.on_map = [&](const PartitionMap& map) { told = map.epoch(); };
  options.on_contact = [&](Instant asked, uint64_t epoch) {
    if (epoch > told) is_late = true;
    MutexLock lock(mu);
    contacts.emplace_back(asked, epoch);
  };
  const auto last = [&]() -> std::pair<Instant, uint64_t> {
    MutexLock lock(mu);
    return contacts.empty() ? std::make_pair(Instant(), ~uint64_t{0})
                            : contacts.back();
  };
  const Instant began = SteadyClock().Now();
  Node node(store_, {1, 1}, options);
  ASSERT_TRUE(Becomes([&] { return last().second == 0; }));  // no map yet
  node->OnServers({}, {}, 1);
  ASSERT_TRUE(Becomes([&] { return last().second == 1; }));

  // A question that is answered late was sent before.
  store_.SetMode(FaultyStore::Mode::kHangs);
  const Instant hangs = SteadyClock().Now();
  const int64_t calls = store_.calls();
  ASSERT_TRUE(Becomes([&] { return store_.calls() > calls + 3; }));
  EXPECT_LE(last().first, hangs);
  store_.SetMode(FaultyStore::Mode::kGood);
  ASSERT_TRUE(Becomes([&] { return last().first > hangs; }));

  // A map that cannot be read says nothing.
  ASSERT_THAT(real_.Set(kKey, "broken", kPatience), IsOk());
  const Instant broken = SteadyClock().Now();
  const int64_t before = store_.gets();
  ASSERT_TRUE(Becomes([&] { return store_.gets() > before + 2; }));
  EXPECT_LE(last().first, broken);
  node.End();
  EXPECT_FALSE(is_late);
  MutexLock lock(mu);
  EXPECT_GE(contacts.front().first, began);
  EXPECT_TRUE(std::is_sorted(contacts.begin(), contacts.end()));
}

TEST_F(MapKeeperStoreTest, ContactCountsFromTheQuestionOn) {
  std::atomic<int64_t> last{0};
  MapKeeper::Options options = Quiet();
  options.store_timeout = absl::Seconds(1);
  options.on_contact = [&](Instant asked, uint64_t) {
    last = asked.nanoseconds();
  };
  Node node(store_, {1, 1}, options);
  ASSERT_TRUE(Becomes([&] { return last != 0; }));
  int64_t asked_more = 2;
  Instant answered;
  // Again where the answer has come so late that it was asked anew.
  while (asked_more > 1) {
    const int64_t before = last;
    store_.SetMode(FaultyStore::Mode::kAnswersLate);
    const int64_t gets = store_.gets();
    const int64_t reads = store_.reads();
    node->Learn();
    ASSERT_TRUE(Becomes([&] { return store_.reads() > reads; }));
    answered = SteadyClock().Now();
    store_.SetMode(FaultyStore::Mode::kGood);
    ASSERT_TRUE(Becomes([&] { return last != before; }));
    asked_more = store_.gets() - gets;
  }
  EXPECT_LE(last.load(), answered.nanoseconds());
}

TEST_F(MapKeeperStoreTest, ValueThatIsNoMapIsLoggedAndTheLastMapKept) {
  std::ostringstream log;
  telemetry::Telemetry::Options telemetry_options;
  telemetry_options.log_output = &log;
  telemetry::Telemetry telemetry(telemetry_options);
  PartitionMap map = MapOf(3);
  Put(map);
  MapKeeper::Options options = Quiet();
  options.telemetry = &telemetry;
  Node node(store_, {1, 1}, options);
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  ASSERT_THAT(real_.Set(kKey, "broken", kPatience), IsOk());
  node->Propose(ChangeOf(map, Kind::kPromote, 0), Always());
  const int64_t gets = store_.gets();
  ASSERT_TRUE(Becomes([&] { return store_.gets() > gets + 2; }));
  EXPECT_EQ(node->encoded(), map.Encode());
  EXPECT_EQ(real_.Get(kKey, kPatience)->value, "broken");
  // Once there is one again, all goes on.
  Put(map);
  EXPECT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
  node.End();
  EXPECT_THAT(log.str(), AllOf(HasSubstr("\"ps/map\", version 2"),
                               HasSubstr("found another beginning")));
  // Once, whoever asks how often.
  const size_t at = log.str().find("another beginning");
  EXPECT_EQ(log.str().find("another beginning", at + 1), std::string::npos);
}

TEST_F(MapKeeperStoreTest, StoreThatHasLostTheMapGetsItBack) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  ASSERT_THAT(real_.Delete(kKey, kPatience), IsOk());
  node->Learn();
  EXPECT_TRUE(StoreBecomes(
      [&](const PartitionMap& now) { return now.Encode() == map.Encode(); }));
}

TEST_F(MapKeeperStoreTest, MapIsLearntWithoutTheWatch) {
  PartitionMap map = MapOf(2);
  Put(map);
  store_.SetDeaf();
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kPromote, 0)), IsOk());
  Put(map);
  node->Learn();
  EXPECT_TRUE(Becomes([&] { return node->map().epoch() >= 2; }));
}

TEST_F(MapKeeperStoreTest, MapIsLearntAlsoIfAnOlderOneIsOnItsWay) {
  PartitionMap map = MapOf(2);
  Put(map);
  store_.SetDeaf();
  MapKeeper::Options options = Quiet();
  options.store_timeout = absl::Seconds(1);
  Node node(store_, {1, 1}, options);
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  store_.SetMode(FaultyStore::Mode::kAnswersLate);
  const int64_t reads = store_.reads();
  ASSERT_TRUE(Becomes([&] {
    node->Learn();
    return store_.reads() > reads + 1;
  }));
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kPromote, 0)), IsOk());
  Put(map);
  node->Learn();
  store_.SetMode(FaultyStore::Mode::kGood);
  EXPECT_TRUE(Becomes([&] { return node->map().epoch() >= 2; }));
}

// It marks what it is the primary of, as replicas do.
std::unique_ptr<Node> MarkingNode(Store& store, WorkerKey self) {
  MapKeeper::Options options = Quiet();
  options.store_timeout = absl::Milliseconds(20);
  options.contact_every = absl::Milliseconds(50);
  options.entries = 16;
  auto slot = std::make_shared<std::atomic<MapKeeper*>>(nullptr);
  options.on_map = [self, slot](const PartitionMap& map) {
    MapKeeper* keeper = nullptr;
    while ((keeper = slot->load()) == nullptr) std::this_thread::yield();
    for (int i = 0; i < map.entries(); ++i) {
      const PartitionMap::Entry& entry = map.entry(i);
      if (entry.primary == self && !IsNone(entry.backup) && !entry.in_sync) {
        keeper->Propose(ChangeOf(map, Kind::kMarkInSync, i), Always());
      }
    }
  };
  auto node = std::make_unique<Node>(store, self, std::move(options));
  *slot = &**node;
  return node;
}

// The epochs of the maps that the node was told rise.
void ExpectEpochsGrow(Node& node) {
  const auto epochs = node.epochs();
  EXPECT_EQ(
      std::adjacent_find(epochs.begin(), epochs.end(), std::greater_equal<>()),
      epochs.end())
      << ::testing::PrintToString(epochs);
}

TEST_F(MapKeeperStoreTest, KeepersAgreeAfterManyExitsAndJoins) {
  constexpr int kRounds = 200;
  constexpr size_t kMost = 8;
  const uint64_t seed = absl::ToUnixNanos(absl::Now());
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  sim::Random random(seed);
  store_.RefuseEach(97);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<WorkerKey> exited;
  std::vector<uint64_t> incarnations(kMost + 1, 0);

  const auto join = [&] {
    std::set<uint32_t> taken;
    for (const auto& node : nodes) taken.insert(node->key().id);
    uint32_t id = 1 + static_cast<uint32_t>(random.Below(kMost));
    while (taken.count(id) != 0) id = id % kMost + 1;
    nodes.push_back(MarkingNode(store_, {id, ++incarnations[id]}));
  };
  // Some hear of it now, the others later or never.
  const auto tell = [&](double chance) {
    std::vector<Server> live;
    for (const auto& node : nodes) live.push_back(Live(node->key()));
    const int64_t first = random.Below(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (i == 0 || random.Chance(chance)) {
        (*nodes[(first + i) % nodes.size()])->OnServers(live, exited, 3);
      }
    }
  };
  // The servers are what the map says, and no partition would be lost.
  const auto is_settled = [&](const PartitionMap& map) {
    const auto has_exited = [&](WorkerKey key) {
      return map.StateOf(key) != State::kLive;
    };
    return map.IsReplicated() &&
           std::all_of(exited.begin(), exited.end(), has_exited) &&
           std::none_of(nodes.begin(), nodes.end(), [&](const auto& node) {
             return has_exited(node->key());
           });
  };

  while (nodes.size() < 3) join();
  tell(1);
  int exits = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (nodes.size() < 3 || (nodes.size() < kMost && random.Chance(0.5))) {
      join();
    } else {
      ASSERT_TRUE(StoreBecomes(is_settled))
          << "round " << round << ", " << Stored().Summary();
      const size_t gone = random.Below(nodes.size());
      nodes[gone]->End();
      ExpectEpochsGrow(*nodes[gone]);
      exited.push_back(nodes[gone]->key());
      nodes.erase(nodes.begin() + gone);
      ++exits;
    }
    tell(0.6);
  }
  tell(1);
  EXPECT_GT(exits, kRounds / 4);
  ASSERT_TRUE(StoreBecomes(is_settled)) << Stored().Summary();
  for (auto& node : nodes) {
    EXPECT_TRUE(
        Becomes([&] { return (*node)->encoded() == Stored().Encode(); }));
    EXPECT_TRUE(Becomes([&] { return node->HasTold(Stored().epoch()); }));
    ExpectEpochsGrow(*node);
  }
  const PartitionMap map = Stored();
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_FALSE(IsNone(map.entry(i).primary)) << "lost: " << i;
  }
}

}  // namespace
}  // namespace weft::ps
