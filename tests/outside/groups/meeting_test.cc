// How ranks of the host backend meet (host_backend.h, meeting.h), and the
// memory that their groups take.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/rendezvous/store.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/outside/groups/worlds.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/memory_budget.h"

namespace weft::outside {
namespace {

using ::testing::Each;
using ::testing::Not;
using ::weft::collectives::ConnectHost;
using ::weft::collectives::HostOptions;
using ::weft::collectives::ProcessGroup;
using ::weft::rendezvous::MemoryStore;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;
using ::weft::transport::MemoryBudget;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
constexpr auto kResourceExhausted = absl::StatusCode::kResourceExhausted;

HostOptions OptionsOf(int rank, int size, rendezvous::Store* store,
                      const std::string& directory) {
  HostOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.directory = directory;
  options.arena_bytes = kMiB;
  options.connect_timeout = absl::Seconds(60);
  return options;
}

// --- Who is named. -----------------------------------------------------------

TEST(Meeting, FailsAndIsHeldAgainUnderTheSameName) {
  weft::testing::TempDir directory;
  MemoryStore store;
  for (const int missing : {0, 2, 1}) {
    std::atomic<int> begun{0};
    const auto failed = RunRanks(3, [&](int rank) -> absl::Status {
      if (rank == missing) return absl::OkStatus();
      ++begun;
      EXPECT_TRUE(weft::testing::Becomes([&] { return begun == 2; }));
      HostOptions options = OptionsOf(rank, 3, &store, directory.path());
      // Enough for the two that come.
      options.connect_timeout = absl::Seconds(5);
      return ConnectHost(options).status();
    });
    for (int r = 0; r < 3; ++r) {
      if (r == missing) continue;
      EXPECT_THAT(failed[r],
                  StatusIs(kDeadlineExceeded, absl::StrCat("rank ", missing)));
    }
    EXPECT_THAT(store.CountKeys("", weft::testing::kPatience), IsOkAndHolds(0));
    EXPECT_THAT(RunRanks(3,
                         [&](int rank) {
                           return ConnectHost(OptionsOf(rank, 3, &store,
                                                        directory.path()))
                               .status();
                         }),
                Each(IsOk()));
    EXPECT_THAT(store.CountKeys("", weft::testing::kPatience), IsOkAndHolds(0));
  }
}

// Nobody gets a group of ranks that think otherwise.
TEST(Meeting, RanksOfDifferentSizesHaveNoGroup) {
  for (const int odd : {0, 1, 2}) {
    for (const int its_size : {2, 4}) {
      if (odd >= its_size) continue;
      SCOPED_TRACE(absl::StrCat("rank ", odd, " wants ", its_size));
      weft::testing::TempDir directory;
      MemoryStore store;
      const auto statuses = RunRanks(3, [&](int rank) {
        HostOptions options = OptionsOf(rank, rank == odd ? its_size : 3,
                                        &store, directory.path());
        options.connect_timeout = absl::Seconds(2);
        return ConnectHost(options).status();
      });
      EXPECT_THAT(statuses, Each(Not(IsOk())));
    }
  }
}

TEST(Meeting, OptionsThatMakeNoSenseAreRefusedAtOnce) {
  weft::testing::TempDir directory;
  MemoryStore store;
  const auto refused = [&](const std::function<void(HostOptions&)>& change) {
    HostOptions options = OptionsOf(0, 1, &store, directory.path());
    change(options);
    return weft::CatchToStatus([&] { return ConnectHost(options).status(); });
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused([](HostOptions& o) { o.store = nullptr; }),
              StatusIs(kInvalid));
  EXPECT_THAT(refused([](HostOptions& o) { o.rank = -1; }), StatusIs(kInvalid));
  EXPECT_THAT(refused([](HostOptions& o) { o.rank = 1; }), StatusIs(kInvalid));
  EXPECT_THAT(refused([](HostOptions& o) { o.size = 0; }), StatusIs(kInvalid));
  EXPECT_THAT(refused([](HostOptions& o) { o.arena_bytes = -1; }),
              StatusIs(kInvalid));
  EXPECT_FALSE(refused([](HostOptions& o) { o.directory = "/nowhere"; }).ok());
  EXPECT_THAT(store.CountKeys("", weft::testing::kPatience), IsOkAndHolds(0));
}

// --- A store in which another member writes. ---------------------------------

// Hands out changed values of the keys that have `part` in their names.
class LyingStore final : public rendezvous::Store {
 public:
  LyingStore(std::string part, uint64_t seed)
      : part_(std::move(part)), random_(seed) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration t) override {
    return store_.Set(key, value, t);
  }
  absl::StatusOr<rendezvous::StoreEntry> Get(absl::string_view key,
                                             absl::Duration t) override {
    return Changed(key, store_.Get(key, t));
  }
  absl::StatusOr<rendezvous::StoreEntry> Wait(absl::string_view key,
                                              uint64_t after,
                                              absl::Duration t) override {
    return Changed(key, store_.Wait(key, after, t));
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration t) override {
    return store_.Add(key, delta, t);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key, uint64_t expected,
                                  absl::string_view value,
                                  absl::Duration t) override {
    return store_.CompareSet(key, expected, value, t);
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration t) override {
    return store_.Delete(key, t);
  }
  int lies() const {
    MutexLock lock(mu_);
    return lies_;
  }

 private:
  absl::StatusOr<rendezvous::StoreEntry> Changed(
      absl::string_view key, absl::StatusOr<rendezvous::StoreEntry> entry) {
    if (!entry.ok() || !absl::StrContains(key, part_)) return entry;
    MutexLock lock(mu_);
    ++lies_;
    std::string& value = entry->value;
    switch (random_() % 7) {
      case 0:
        value.clear();
        break;
      case 1:
        value.resize(value.size() / 2);
        break;
      case 2:
        for (int i = 0; i < 3 && !value.empty(); ++i) {
          value[random_() % value.size()] = static_cast<char>(random_());
        }
        break;
      case 3:
        value = std::string(100'000, '\xff');
        break;
      case 4:
        value.append(value);
        break;
      case 5:
        value = "18446744073709551615";
        break;
      default:
        value = std::string(1 + random_() % 40, '\x08');
    }
    return entry;
  }

  MemoryStore store_;
  const std::string part_;
  mutable Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  int lies_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(Meeting, NoValueInTheStoreEndsAProcess) {
  std::vector<std::thread> threads;
  std::atomic<int> lies{0};
  for (const std::string part :
       {"place/", "places/", "segment/", "mapped/", "agreed", "left"}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      threads.emplace_back([&, part, seed] {
        weft::testing::TempDir directory;
        LyingStore store(part, seed);
        RunRanks(3, [&](int rank) -> absl::Status {
          HostOptions options = OptionsOf(rank, 3, &store, directory.path());
          options.connect_timeout = absl::Seconds(2);
          auto backend = ConnectHost(options);
          if (!backend.ok()) return backend.status();
          collectives::GroupOptions group_options;
          group_options.timeout = absl::Milliseconds(500);
          return ProcessGroup::Create(*std::move(backend), group_options)
              ->AllReduce(Tensor::Ones({10}));
        });
        lies += store.lies();
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(lies, 50);
}

// --- Memory. -----------------------------------------------------------------

// A store that rank 0 hosts and takes along when it ends; the others are slow.
class StoreOfRankZero final : public rendezvous::Store {
 public:
  explicit StoreOfRankZero(MemoryStore& store, std::atomic<bool>& has_ended)
      : store_(store), has_ended_(has_ended) {}

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration t) override {
    WEFT_RETURN_IF_ERROR(Check());
    return store_.Set(key, value, t);
  }
  absl::StatusOr<rendezvous::StoreEntry> Get(absl::string_view key,
                                             absl::Duration t) override {
    WEFT_RETURN_IF_ERROR(Check());
    return store_.Get(key, t);
  }
  absl::StatusOr<rendezvous::StoreEntry> Wait(absl::string_view key,
                                              uint64_t after,
                                              absl::Duration t) override {
    for (const absl::Time end = absl::Now() + t;;) {
      WEFT_RETURN_IF_ERROR(Check());
      auto entry = store_.Wait(
          key, after, std::min(end - absl::Now(), absl::Milliseconds(50)));
      if (!absl::IsDeadlineExceeded(entry.status()) || absl::Now() > end) {
        return entry;
      }
    }
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration t) override {
    WEFT_RETURN_IF_ERROR(Check());
    return store_.Add(key, delta, t);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key, uint64_t expected,
                                  absl::string_view value,
                                  absl::Duration t) override {
    WEFT_RETURN_IF_ERROR(Check());
    return store_.CompareSet(key, expected, value, t);
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration t) override {
    WEFT_RETURN_IF_ERROR(Check());
    return store_.Delete(key, t);
  }

 private:
  absl::Status Check() const {
    absl::SleepFor(absl::Milliseconds(20));
    return has_ended_ ? absl::AbortedError("the store's host has ended")
                      : absl::OkStatus();
  }

  MemoryStore& store_;
  std::atomic<bool>& has_ended_;
};

// "kResourceExhausted: no memory for the segment, or more than memory_budget
// has": on each rank, also where the first ends by that and hosts the store, as
// trainer 0 of a job does.
TEST(Meeting, EachRankHearsThatThereIsNoMemoryBeforeTheFirstEnds) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  constexpr int kRanks = 6;
  MemoryStore store;
  std::atomic<bool> has_ended{false};
  StoreOfRankZero of_others(store, has_ended);
  const auto statuses = RunRanks(kRanks, [&](int rank) {
    HostOptions options = OptionsOf(
        rank, kRanks,
        rank == 0 ? static_cast<rendezvous::Store*>(&store) : &of_others,
        directory.path());
    options.memory_budget = MemoryBudget::Open(directory.path(), kMiB).value();
    const absl::Status status = ConnectHost(std::move(options)).status();
    if (rank == 0) has_ended = true;
    return status;
  });
  EXPECT_THAT(statuses, Each(StatusIs(kResourceExhausted,
                                      "raise --shared-memory-budget")));
}

// A rank that waits for others and loses the store has not found out who is
// missing.
TEST(Meeting, LossOfTheStoreNamesNoRankThatHasCome) {
  weft::testing::TempDir directory;
  MemoryStore store;
  std::atomic<bool> has_ended{false};
  StoreOfRankZero of_others(store, has_ended);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    if (rank == 0) {
      // It never comes, and takes the store along once the others have.
      EXPECT_TRUE(weft::testing::Becomes([&] {
        return store.CountKeys("", weft::testing::kPatience).value() == 2;
      }));
      has_ended = true;
      return absl::OkStatus();
    }
    return ConnectHost(OptionsOf(rank, 3, &of_others, directory.path()))
        .status();
  });
  for (const int rank : {1, 2}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_FALSE(absl::StrContains(statuses[rank].message(), "did not come"))
        << statuses[rank];
  }
}

// Many ranks want more than the budget has, all at once: as much is given out
// as there is, those that get none are told, and all go on.
TEST(Meeting, ManyRanksShareASmallBudget) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  constexpr int kRanks = 64;
  constexpr int64_t kBudget = 48 * kMiB;
  const auto budget = MemoryBudget::Open(directory.path(), kBudget).value();
  MemoryStore store;
  Gate all_have_asked;
  std::atomic<int> asked{0};
  std::atomic<int> given{0}, refused{0};
  std::atomic<int64_t> most{0};
  const auto statuses = RunRanks(kRanks, [&](int rank) -> absl::Status {
    HostOptions options = OptionsOf(rank, kRanks, &store, directory.path());
    options.arena_bytes = 64 * kMiB;
    options.memory_budget =
        MemoryBudget::Open(directory.path(), kBudget).value();
    auto backend = ConnectHost(std::move(options));
    const bool has_come = backend.ok();
    absl::Status status = backend.status();
    if (has_come) {
      const auto group = ProcessGroup::Create(*std::move(backend));
      status = group->Barrier();
      absl::StatusOr<Tensor> tensor = group->Allocate({kMiB / 4}, DType::kF32);
      if (tensor.ok()) {
        ++given;
        tensor->Fill(1);
      } else {
        EXPECT_THAT(tensor.status(),
                    StatusIs(kResourceExhausted, "--shared-memory-budget"));
        ++refused;
      }
      most = std::max(most.load(), budget->used_bytes());
      const Tensor sum = tensor.ok() ? *tensor : Tensor::Ones({kMiB / 4});
      status.Update(group->AllReduce(sum));
      EXPECT_EQ(sum.data<float>()[kMiB / 4 - 1], kRanks);
      if (++asked == kRanks) all_have_asked.Open();
      all_have_asked.Wait();
    } else if (++asked == kRanks) {
      all_have_asked.Open();
    }
    return status;
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(given + refused, kRanks);
  EXPECT_GE(given, 8);
  EXPECT_GE(refused, 1);
  EXPECT_LE(most, kBudget);
  EXPECT_EQ(budget->used_bytes(), 0);
}

// "The memory lives as long as the tensor, also after the group."
TEST(Meeting, TensorOutlivesItsGroupAndStaysCounted) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  const auto budget = MemoryBudget::Open(directory.path(), 64 * kMiB).value();
  MemoryStore store;
  std::vector<Tensor> kept(3);
  EXPECT_THAT(
      RunRanks(3,
               [&](int rank) -> absl::Status {
                 HostOptions options =
                     OptionsOf(rank, 3, &store, directory.path());
                 options.arena_bytes = 4 * kMiB;
                 options.memory_budget = budget;
                 WEFT_ASSIGN_OR_RETURN(auto backend, ConnectHost(options));
                 const auto group = ProcessGroup::Create(std::move(backend));
                 WEFT_ASSIGN_OR_RETURN(
                     kept[rank], group->Allocate({kMiB / 2}, DType::kF32));
                 kept[rank].Fill(rank + 1);
                 WEFT_RETURN_IF_ERROR(group->AllReduce(kept[rank]));
                 // More than is left of its arena.
                 EXPECT_THAT(group->Allocate({kMiB}, DType::kF32).status(),
                             StatusIs(kResourceExhausted));
                 return group->Barrier();
               }),
      Each(IsOk()));
  for (const Tensor& tensor : kept) {
    EXPECT_EQ(tensor.data<float>()[kMiB / 2 - 1], 6);
    tensor.Fill(3);
  }
  EXPECT_GE(budget->used_bytes(), 3 * 2 * kMiB);
  const Tensor view = kept[0].Slice(0, 5, 10);
  kept.clear();
  EXPECT_GE(budget->used_bytes(), 2 * kMiB);
  EXPECT_EQ(view.data<float>()[0], 3);
}

class Groups : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(All, Groups, ::testing::ValuesIn(AllKinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Groups, AllocateTakesEmptyShapesAndRefusesWhatCannotBe) {
  const auto statuses =
      RunGroups(GetParam(), 2, [&](ProcessGroup& group) -> absl::Status {
        for (const Shape& shape : {Shape{0}, Shape{3, 0, 2}, Shape{}}) {
          WEFT_ASSIGN_OR_RETURN(const Tensor tensor,
                                group.Allocate(shape, DType::kF32));
          EXPECT_EQ(tensor.shape(), shape);
          WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
        }
        const int64_t big = int64_t{1} << 62;
        for (const Shape& shape :
             {Shape{-1}, Shape{big}, Shape{big, 4}, Shape{big, 8, 8},
              Shape{int64_t{1} << 32, int64_t{1} << 32}}) {
          const absl::Status status = weft::CatchToStatus(
              [&] { return group.Allocate(shape, DType::kF32).status(); });
          EXPECT_FALSE(status.ok());
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(Groups, SubgroupsMadeOverAndOverTakeNoMoreAndMore) {
  const auto statuses =
      RunGroups(GetParam(), 3, [&](ProcessGroup& group) -> absl::Status {
        for (int i = 0; i < 30; ++i) {
          WEFT_ASSIGN_OR_RETURN(auto part, group.Split(0, -group.rank()));
          EXPECT_EQ(part->rank(), 2 - group.rank());
          const Tensor sum = Tensor::Ones({1});
          WEFT_RETURN_IF_ERROR(part->AllReduce(sum));
          EXPECT_EQ(sum.item<float>(), 3);
          WEFT_ASSIGN_OR_RETURN(auto few, group.Subgroup({2, i % 2}));
          EXPECT_EQ(few == nullptr, group.rank() == 1 - i % 2);
        }
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace weft::outside
