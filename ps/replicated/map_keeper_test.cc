#include "weft/ps/replicated/map_keeper.h"

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

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/replication/partition_map.h"
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
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

using rendezvous::MemoryStore;
using rendezvous::Store;
using rendezvous::StoreEntry;
using Kind = MapChange::Kind;
using Server = PartitionMap::Server;
using State = PartitionMap::State;

constexpr absl::Duration kShort = absl::Milliseconds(30);
constexpr char kKey[] = "ps/map";

// A store that fails on demand.
class FaultyStore final : public Store {
 public:
  enum class Mode {
    kGood,
    kRefuses,  // kUnavailable, at once
    kHangs,    // answers once it is good again, or not in time
    // Reads at once, and answers once it is good again, or not in time.
    kAnswersLate,
  };

  explicit FaultyStore(Store& real) : real_(real) {}

  void SetMode(Mode mode) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    mode_ = mode;
    changed_.NotifyAll();
  }
  // Somebody else writes just before the next so many changes.
  void AddConflicts(int count) { conflicts_ += count; }
  int conflicts_left() const { return std::max(0, conflicts_.load()); }
  // The next so many changes are made, and not answered.
  void LoseAnswers(int count) { lost_answers_ += count; }
  // Each call of this number, counted over all, is refused; 0: none.
  void RefuseEach(int64_t number) { refuse_each_ = number; }
  // Waits do not see what changes.
  void SetDeaf() { is_deaf_ = true; }
  int64_t calls() const { return calls_; }
  int64_t gets() const { return gets_; }
  int64_t reads() const { return reads_; }  // by Get, answered or not
  int64_t writes() const { return writes_; }

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    return real_.Set(key, value, timeout);
  }
  absl::StatusOr<StoreEntry> Get(absl::string_view key,
                                 absl::Duration timeout) override {
    ++gets_;
    WEFT_RETURN_IF_ERROR(Enter(timeout));
    auto entry = real_.Get(key, timeout);
    ++reads_;
    WEFT_RETURN_IF_ERROR(AwaitNot(Mode::kAnswersLate, timeout));
    return entry;
  }
  absl::StatusOr<StoreEntry> Wait(absl::string_view key, uint64_t after,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(Enter(timeout));
    return real_.Wait(key, is_deaf_ ? ~uint64_t{0} : after, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    return real_.Add(key, delta, timeout);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    WEFT_RETURN_IF_ERROR(Enter(timeout));
    ++writes_;
    if (conflicts_.fetch_sub(1) > 0) {
      const auto now = real_.Get(key, timeout);
      if (now.ok()) {
        EXPECT_THAT(real_.Set(key, now->value, timeout), IsOk());
      }
    }
    auto swap = real_.CompareSet(key, expected_version, value, timeout);
    if (lost_answers_.fetch_sub(1) > 0) {
      return absl::DeadlineExceededError("the answer is lost");
    }
    return swap;
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    return real_.Delete(key, timeout);
  }

 private:
  absl::Status Enter(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    const int64_t number = ++calls_;
    const int64_t each = refuse_each_;
    {
      MutexLock lock(mu_);
      if (mode_ == Mode::kRefuses || (each != 0 && number % each == 0)) {
        return absl::UnavailableError("the store is away");
      }
    }
    return AwaitNot(Mode::kHangs, timeout);
  }
  absl::Status AwaitNot(Mode mode, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const auto deadline = SteadyDeadline(timeout);
    MutexLock lock(mu_);
    while (mode_ == mode) {
      if (!changed_.WaitUntil(mu_, deadline)) {
        return absl::DeadlineExceededError("the store hangs");
      }
    }
    return absl::OkStatus();
  }

  Store& real_;
  std::atomic<int> conflicts_{0};
  std::atomic<int> lost_answers_{0};
  std::atomic<int64_t> refuse_each_{0};
  std::atomic<bool> is_deaf_{false};
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> gets_{0};
  std::atomic<int64_t> reads_{0};
  std::atomic<int64_t> writes_{0};
  Mutex mu_;
  CondVar changed_;
  Mode mode_ ABSL_GUARDED_BY(mu_) = Mode::kGood;
};

// A keeper, and what it has told.
class Node {
 public:
  using Options = MapKeeper::Options;

  Node(Store& store, WorkerKey key, Options options = Options()) : key_(key) {
    options.store = &store;
    options.self = key;
    options.host = key.id;
    options.on_map = [this, then = options.on_map](const PartitionMap& map) {
      {
        MutexLock lock(mu_);
        epochs_.push_back(map.epoch());
      }
      if (then) then(map);
    };
    keeper_ = std::make_unique<MapKeeper>(std::move(options));
  }

  WorkerKey key() const { return key_; }
  MapKeeper& operator*() { return *keeper_; }
  MapKeeper* operator->() { return keeper_.get(); }
  std::vector<uint64_t> epochs() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return epochs_;
  }
  bool HasTold(uint64_t epoch) {
    const auto epochs = this->epochs();
    return !epochs.empty() && epochs.back() == epoch;
  }
  void End() { keeper_.reset(); }

 private:
  const WorkerKey key_;
  Mutex mu_;
  std::vector<uint64_t> epochs_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MapKeeper> keeper_;  // last: it uses the rest
};

// Ends soon, and asks only when there is a reason.
MapKeeper::Options Quiet() {
  MapKeeper::Options options;
  options.store_timeout = absl::Milliseconds(50);
  options.contact_every = absl::Hours(1);
  options.entries = 8;
  return options;
}

Server Live(WorkerKey key) { return {key, key.id, State::kLive}; }

std::vector<Server> LiveServers(uint32_t count) {
  std::vector<Server> servers;
  for (uint32_t id = 1; id <= count; ++id) servers.push_back(Live({id, 1}));
  return servers;
}

PartitionMap MapOf(uint32_t servers, int entries = 8) {
  return *PartitionMap::Assign(entries, LiveServers(servers), 2);
}

MapChange ChangeOf(const PartitionMap& map, Kind kind, int entry) {
  return {kind, entry, map.entry(entry).changed};
}

std::function<bool()> Always() {
  return [] { return true; };
}

class MapKeeperTest : public ::testing::Test {
 protected:
  PartitionMap Stored() {
    const auto entry = real_.Get(kKey, kPatience);
    EXPECT_THAT(entry, IsOk());
    return *PartitionMap::Decode(entry->value);
  }
  void Put(const PartitionMap& map) {
    ASSERT_THAT(real_.Set(kKey, map.Encode(), kPatience), IsOk());
  }

  // Waits until the store's map is so.
  ::testing::AssertionResult StoreBecomes(
      const std::function<bool(const PartitionMap&)>& is_so) {
    const Instant deadline = SteadyClock().Now() + kPatience;
    for (uint64_t version = 0;;) {
      const auto entry =
          real_.Wait(kKey, version, deadline - SteadyClock().Now());
      if (!entry.ok()) {
        return ::testing::AssertionFailure() << entry.status().message();
      }
      version = entry->version;
      const auto map = PartitionMap::Decode(entry->value);
      if (map.ok() && is_so(*map)) return ::testing::AssertionSuccess();
    }
  }

  // Once this has returned, what was proposed before has been made or dropped:
  // an attempt looks at all, and has ended once the next one begins. Three, for
  // one may meet another's change.
  void AwaitProposals(Node& node) {
    for (int i = 0; i < 3; ++i) {
      std::atomic<bool> is_seen{false};
      node->Propose({Kind::kMarkInSync, 7, ~uint64_t{0}}, [&] {
        is_seen = true;
        return false;
      });
      ASSERT_TRUE(Becomes([&] { return is_seen.load(); }));
    }
  }

  MemoryStore real_;
  FaultyStore store_{real_};
};

TEST_F(MapKeeperTest, FirstMapOfManyKeepersAtOnceIsOne) {
  constexpr uint32_t kServers = 8;
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint32_t id = 1; id <= kServers; ++id) {
    nodes.push_back(std::make_unique<Node>(store_, WorkerKey{id, 1}, Quiet()));
  }
  std::vector<std::thread> threads;
  for (auto& node : nodes) {
    threads.emplace_back([&node] {
      // As each has heard of them.
      std::vector<Server> servers = LiveServers(kServers);
      std::rotate(servers.begin(), servers.begin() + node->key().id % kServers,
                  servers.end());
      (*node)->OnServers(std::move(servers), {}, kServers);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& node : nodes) {
    const auto map = (*node)->AwaitMap(kPatience);
    ASSERT_THAT(map, IsOk());
    EXPECT_EQ(map->Encode(), Stored().Encode());
    EXPECT_EQ((*node)->encoded(), Stored().Encode());
    EXPECT_TRUE(Becomes([&] { return node->HasTold(1); }));
  }
  EXPECT_EQ(Stored().Encode(), MapOf(kServers).Encode());
}

TEST_F(MapKeeperTest, FirstMapIsMadeOnceAllServersAreThere) {
  Node node(store_, {1, 1}, Quiet());
  EXPECT_EQ(node->map().epoch(), 0u);
  EXPECT_EQ(node->encoded(), "");
  EXPECT_THAT(
      node->AwaitMap(kShort),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "no servers are known"));
  node->OnServers({Live({2, 1})}, {}, 3);  // and itself
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "\"ps/map\" after 30ms: 2 of 3 servers are there"));
  // An incarnation that has ended is none, and one that came before is not two.
  node->OnServers({Live({2, 2}), Live({2, 1}), Live({3, 1})}, {{3, 1}}, 3);
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "2 of 3 servers"));
  node->OnServers({Live({2, 2}), Live({3, 2})}, {{3, 1}}, 3);
  const auto map = node->AwaitMap(kPatience);
  ASSERT_THAT(map, IsOk());
  EXPECT_EQ(map->epoch(), 1u);
  EXPECT_EQ(map->entries(), 8);
  EXPECT_TRUE(map->IsReplicated());
  EXPECT_EQ(map->servers().size(), 3u);
  EXPECT_EQ(map->StateOf({2, 2}), State::kLive);
}

TEST_F(MapKeeperTest, SaysThatThereCanBeNoMap) {
  MapKeeper::Options options = Quiet();
  options.entries = 12;
  Node node(store_, {1, 1}, options);
  node->OnServers({}, {}, 1);
  EXPECT_THAT(node->AwaitMap(kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument, "12 partitions"));
}

TEST_F(MapKeeperTest, SaysThatTheStoreDoesNotAnswer) {
  store_.SetMode(FaultyStore::Mode::kRefuses);
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({}, {}, 1);
  ASSERT_TRUE(Becomes([&] { return store_.calls() > 4; }));
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1 of 1 servers are there; the store: the store is "
                       "away"));
}

TEST_F(MapKeeperTest, PartitionsOfAServerThatExitsGoToTheirBackups) {
  const PartitionMap first = MapOf(3);
  Put(first);
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint32_t id : {1u, 3u}) {
    nodes.push_back(std::make_unique<Node>(store_, WorkerKey{id, 1}, Quiet()));
  }
  for (auto& node : nodes) {
    (*node)->OnServers({Live({1, 1}), Live({3, 1})}, {{2, 1}}, 3);
  }
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kExited;
  }));
  const PartitionMap map = Stored();
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& was = first.entry(i);
    const PartitionMap::Entry& is = map.entry(i);
    const bool had_primary = was.primary == WorkerKey{2, 1};
    EXPECT_EQ(is.primary, had_primary ? was.backup : was.primary) << i;
    // The third server stands by for what lacked a backup.
    const bool was_hit = had_primary || was.backup == WorkerKey{2, 1};
    EXPECT_FALSE(IsNone(is.backup)) << i;
    EXPECT_EQ(is.in_sync, !was_hit) << i;
  }
  // Neither makes it twice.
  for (auto& node : nodes) {
    EXPECT_TRUE(Becomes([&] { return node->HasTold(map.epoch()); }));
    AwaitProposals(*node);
  }
  EXPECT_EQ(Stored().epoch(), map.epoch());
}

TEST_F(MapKeeperTest, ServerThatReturnsStandsBy) {
  Put(MapOf(2));
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({}, {{2, 1}}, 2);
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kExited;
  }));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(Stored().entry(i).primary, (WorkerKey{1, 1}));
    EXPECT_TRUE(IsNone(Stored().entry(i).backup));
  }
  node->OnServers({Live({1, 1}), Live({2, 7})}, {{2, 1}}, 2);
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 7}) == State::kLive;
  }));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(Stored().entry(i).backup, (WorkerKey{2, 7}));
    EXPECT_FALSE(Stored().entry(i).in_sync);
  }
}

TEST_F(MapKeeperTest, SilentServerThatIsAMemberIsLive) {
  PartitionMap map = MapOf(2);
  ASSERT_TRUE(map.FailServer({2, 1}, State::kSilent));
  Put(map);
  Node node(store_, {2, 1}, Quiet());
  node->OnServers({Live({1, 1})}, {}, 2);
  EXPECT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kLive;
  }));
}

TEST_F(MapKeeperTest, ServersHoldAlsoForLaterMaps) {
  PartitionMap map = MapOf(2);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({Live({2, 1})}, {{3, 1}}, 2);
  ASSERT_TRUE(Becomes([&] { return node->map().epoch() == 1; }));
  // Whoever adds it has not heard of its end.
  ASSERT_TRUE(map.AddServer({3, 1}, 3));
  Put(map);
  EXPECT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({3, 1}) == State::kExited;
  }));
}

TEST_F(MapKeeperTest, NothingIsWrittenWhereNothingChanges) {
  Put(MapOf(3));
  Node node(store_, {1, 1}, Quiet());
  for (int i = 0; i < 20; ++i) {
    const int64_t calls = store_.calls();
    node->OnServers(LiveServers(3), {{9, 1}, {1, 0}}, 3);
    node->Learn();
    ASSERT_TRUE(Becomes([&] { return store_.calls() > calls; }));
  }
  EXPECT_EQ(store_.writes(), 0);
  // Nor is the store asked without a reason.
  AwaitProposals(node);
  const int64_t gets = store_.gets();
  const int64_t others = store_.calls() - gets;
  ASSERT_TRUE(
      Becomes([&] { return store_.calls() - store_.gets() > others + 4; }));
  EXPECT_LE(store_.gets(), gets + 2);
}

TEST_F(MapKeeperTest, ChangesAreMadeDespiteConflicts) {
  PartitionMap map = MapOf(2);
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 0)), IsOk());
  ASSERT_TRUE(map.AddBackups());
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  store_.AddConflicts(12);  // more than without a pause
  node->Propose(ChangeOf(map, Kind::kMarkInSync, 0), Always());
  node->Propose(ChangeOf(map, Kind::kPromote, 1), nullptr);
  node->Propose(ChangeOf(map, Kind::kDropBackup, 2), Always());
  ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
    return now.entry(0).changed > map.entry(0).changed &&
           now.entry(1).changed > map.entry(1).changed &&
           now.entry(2).changed > map.entry(2).changed;
  }));
  EXPECT_EQ(store_.conflicts_left(), 0);
  const PartitionMap made = Stored();
  EXPECT_TRUE(made.entry(0).in_sync);
  EXPECT_EQ(made.entry(1).primary, map.entry(1).backup);
  EXPECT_GT(made.entry(1).epoch, map.entry(1).epoch);
  EXPECT_EQ(made.entry(2).primary, map.entry(2).primary);
  EXPECT_FALSE(made.entry(2).in_sync);
}

TEST_F(MapKeeperTest, EntryWithoutABackupGetsOne) {
  PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  for (int i = 0; i < 5; ++i) {
    const uint64_t changed = Stored().entry(0).changed;
    ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
      if (now.entry(0).changed > changed) return true;
      node->Propose(ChangeOf(now, Kind::kDropBackup, 0), Always());
      return false;
    }));
    ASSERT_TRUE(StoreBecomes(
        [&](const PartitionMap& now) { return !IsNone(now.entry(0).backup); }));
  }
  // One that another has taken away, and nobody of the keepers.
  ASSERT_TRUE(Becomes([&] { return node->encoded() == Stored().Encode(); }));
  map = Stored();
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 1)), IsOk());
  Put(map);
  ASSERT_TRUE(StoreBecomes(
      [&](const PartitionMap& now) { return !IsNone(now.entry(1).backup); }));
}

TEST_F(MapKeeperTest, ChangeThatComesTooLateIsDropped) {
  PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  store_.SetMode(FaultyStore::Mode::kHangs);
  node->Propose(ChangeOf(map, Kind::kPromote, 0), Always());
  // Meanwhile another has changed the entry, and it is in sync again.
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 0)), IsOk());
  ASSERT_TRUE(map.AddBackups());
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kMarkInSync, 0)), IsOk());
  Put(map);
  store_.SetMode(FaultyStore::Mode::kGood);
  ASSERT_TRUE(Becomes([&] { return node->map().epoch() >= map.epoch(); }));
  AwaitProposals(node);
  EXPECT_EQ(Stored().entry(0).changed, map.entry(0).changed);
  EXPECT_EQ(Stored().entry(0).primary, map.entry(0).primary);

  // What does not fit the map at all is dropped too.
  node->Propose({Kind::kPromote, -1, 1}, Always());
  node->Propose({Kind::kPromote, 8, 1}, Always());
  node->Propose({Kind::kPromote, 1 << 30, 1}, Always());
  node->Propose({Kind::kPromote, 0, ~uint64_t{0}}, Always());
  node->Propose({Kind::kMarkInSync, 0, map.entry(0).changed}, Always());
  AwaitProposals(node);
  EXPECT_EQ(Stored().entry(0).changed, map.entry(0).changed);
}

TEST_F(MapKeeperTest, ChangeThatMayNotBeMadeIsDropped) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  std::atomic<int> asked{0};
  node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] {
    ++asked;
    return false;
  });
  ASSERT_TRUE(Becomes([&] { return asked > 0; }));
  AwaitProposals(node);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Stored().entry(0).changed, 1u);

  // It is asked before each attempt.
  store_.AddConflicts(3);
  std::atomic<int> again{0};
  node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] { return ++again < 3; });
  ASSERT_TRUE(Becomes([&] { return again == 3; }));
  AwaitProposals(node);
  EXPECT_EQ(again, 3);
  EXPECT_EQ(Stored().entry(0).changed, 1u);
}

TEST_F(MapKeeperTest, SameChangeProposedAgainIsOne) {
  const PartitionMap map = MapOf(3);
  Put(map);
  store_.SetMode(FaultyStore::Mode::kRefuses);
  Node node(store_, {1, 1}, Quiet());
  std::atomic<int> asked{0};
  for (int i = 0; i < 1000; ++i) {
    node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] {
      ++asked;
      return true;
    });
  }
  ASSERT_TRUE(Becomes([&] { return store_.gets() >= 2; }));
  store_.SetMode(FaultyStore::Mode::kGood);
  ASSERT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
  AwaitProposals(node);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Stored().entry(0).epoch, 2u);
}

TEST_F(MapKeeperTest, ChangeProposedWhileItIsRefusedIsAnother) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  const MapChange change = ChangeOf(map, Kind::kPromote, 0);
  node->Propose(change, [&] {
    node->Propose(change, Always());
    return false;
  });
  EXPECT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
}

TEST_F(MapKeeperTest, OfferedMapIsTakenIfItIsNewer) {
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
  EXPECT_THAT(node->Offer(second), IsOk());
  EXPECT_EQ(node->encoded(), second);
  EXPECT_THAT(node->Offer(third), IsOk());
  EXPECT_EQ(node->encoded(), third);
  EXPECT_TRUE(Becomes([&] { return node.HasTold(3); }));
  EXPECT_THAT(node.epochs(), ElementsAre(2, 3));
}

TEST_F(MapKeeperTest, NothingIsLostWhileTheStoreIsAway) {
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

TEST_F(MapKeeperTest, ChangeWhoseAnswerIsLostIsMadeOnce) {
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

TEST_F(MapKeeperTest, EndsWhileTheStoreHangs) {
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

TEST_F(MapKeeperTest, ContactsShowThatTheStoreIsThere) {
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

TEST_F(MapKeeperTest, ContactCountsFromTheQuestionOn) {
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

TEST_F(MapKeeperTest, ValueThatIsNoMapIsLoggedAndTheLastMapKept) {
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

TEST_F(MapKeeperTest, StoreThatHasLostTheMapGetsItBack) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  ASSERT_THAT(real_.Delete(kKey, kPatience), IsOk());
  node->Learn();
  EXPECT_TRUE(StoreBecomes(
      [&](const PartitionMap& now) { return now.Encode() == map.Encode(); }));
}

TEST_F(MapKeeperTest, MapIsLearntWithoutTheWatch) {
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

TEST_F(MapKeeperTest, MapIsLearntAlsoIfAnOlderOneIsOnItsWay) {
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

// Each keeper marks what it is the primary of, as replicas do.
TEST_F(MapKeeperTest, KeepersAgreeAfterManyExitsAndJoins) {
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
    const WorkerKey self = {id, ++incarnations[id]};
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
    nodes.push_back(std::make_unique<Node>(store_, self, std::move(options)));
    *slot = &**nodes.back();
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
  const auto check_told = [](Node& node) {
    const auto epochs = node.epochs();
    EXPECT_EQ(std::adjacent_find(epochs.begin(), epochs.end(),
                                 std::greater_equal<>()),
              epochs.end())
        << ::testing::PrintToString(epochs);
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
      check_told(*nodes[gone]);
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
    check_told(*node);
  }
  const PartitionMap map = Stored();
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_FALSE(IsNone(map.entry(i).primary)) << "lost: " << i;
  }
}

}  // namespace
}  // namespace weft::ps
