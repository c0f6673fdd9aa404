// MapKeeperTest: keepers over a store that fails when it is told to.

#ifndef WEFT_PS_REPLICATED_MAP_KEEPER_FIXTURE_H_
#define WEFT_PS_REPLICATED_MAP_KEEPER_FIXTURE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/replicated/map_keeper.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {

using rendezvous::MemoryStore;
using rendezvous::Store;
using rendezvous::StoreEntry;
using Kind = MapChange::Kind;
using Server = PartitionMap::Server;
using State = PartitionMap::State;

inline constexpr absl::Duration kShort = absl::Milliseconds(30);
inline constexpr char kKey[] = "ps/map";

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

  inline explicit FaultyStore(Store& real) : real_(real) {}

  inline void SetMode(Mode mode) ABSL_LOCKS_EXCLUDED(mu_) {
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

  inline absl::StatusOr<uint64_t> Set(absl::string_view key,
                                      absl::string_view value,
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
        EXPECT_THAT(real_.Set(key, now->value, timeout),
                    ::weft::testing::IsOk());
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

  inline Node(Store& store, WorkerKey key, Options options = Options())
      : key_(key) {
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

  inline WorkerKey key() const { return key_; }
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
inline MapKeeper::Options Quiet() {
  MapKeeper::Options options;
  options.store_timeout = absl::Milliseconds(50);
  options.contact_every = absl::Hours(1);
  options.entries = 8;
  return options;
}

inline Server Live(WorkerKey key) { return {key, key.id, State::kLive}; }

inline std::vector<Server> LiveServers(uint32_t count) {
  std::vector<Server> servers;
  for (uint32_t id = 1; id <= count; ++id) servers.push_back(Live({id, 1}));
  return servers;
}

inline PartitionMap MapOf(uint32_t servers, int entries = 8) {
  return *PartitionMap::Assign(entries, LiveServers(servers), 2);
}

inline MapChange ChangeOf(const PartitionMap& map, Kind kind, int entry) {
  return {kind, entry, map.entry(entry).changed};
}

inline std::function<bool()> Always() {
  return [] { return true; };
}

class MapKeeperTest : public ::testing::Test {
 protected:
  PartitionMap Stored() {
    const auto entry = real_.Get(kKey, ::weft::testing::kPatience);
    EXPECT_THAT(entry, ::weft::testing::IsOk());
    return *PartitionMap::Decode(entry->value);
  }
  void Put(const PartitionMap& map) {
    ASSERT_THAT(real_.Set(kKey, map.Encode(), ::weft::testing::kPatience),
                ::weft::testing::IsOk());
  }

  // Waits until the store's map is so.
  ::testing::AssertionResult StoreBecomes(
      const std::function<bool(const PartitionMap&)>& is_so) {
    const Instant deadline = SteadyClock().Now() + ::weft::testing::kPatience;
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
      ASSERT_TRUE(::weft::testing::Becomes([&] { return is_seen.load(); }));
    }
  }

  MemoryStore real_;
  FaultyStore store_{real_};
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_MAP_KEEPER_FIXTURE_H_
