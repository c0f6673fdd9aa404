// How ranks of the host backend meet, and ranks that cannot map a segment.

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/host/host_test_worlds.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// --- Ranks that cannot map the segment of their host. ------------------------

// The sum of all ranks by an all-reduce of heap and of arena memory, and what
// rank 1 broadcasts.
absl::Status ReduceAndBroadcast(ProcessGroup& group) {
  const int n = group.size();
  WEFT_ASSIGN_OR_RETURN(const Tensor shared,
                        group.Allocate({10'000}, DType::kF32));
  for (const Tensor& tensor : {Tensor::Zeros({7}), shared}) {
    tensor.Fill(group.rank() + 1);
    WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
    if (tensor.data<float>()[6] != n * (n + 1) / 2) {
      return absl::InternalError("wrong sum");
    }
    tensor.Fill(group.rank());
    WEFT_RETURN_IF_ERROR(group.Broadcast(tensor, 1));
    if (tensor.data<float>()[6] != 1) return absl::InternalError("wrong value");
  }
  return group.Barrier();
}

TEST(HostBackend, RankThatCannotMapTheSegmentCountsAsAnotherHost) {
  std::mutex mu;
  std::vector<std::string> reports;
  DiagnosisOptions diagnosis;
  diagnosis.report = [&](absl::string_view text) {
    const std::lock_guard<std::mutex> lock(mu);
    reports.emplace_back(text);
  };
  HostsTestWorld world(4, diagnosis, [](int) { return 0; });
  // As in another container, where no descriptor arrives.
  const ScopedFailpoint unmapped("collectives/map_segment",
                                 "1*error(NOT_FOUND,no descriptor came)");
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(ReduceAndBroadcast(*group));
    WEFT_ASSIGN_OR_RETURN(const auto half, group->Split(rank / 2));
    return ReduceAndBroadcast(*half);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0], HasSubstr("hosts of their own"));
  EXPECT_THAT(reports[0], HasSubstr("no descriptor came"));
}

TEST(HostBackend, AllButTheLeaderCannotMapTheSegmentAndReduceOverStreams) {
  HostsTestWorld world(3, {}, [](int) { return 0; });
  const ScopedFailpoint unmapped("collectives/map_segment",
                                 "error(NOT_FOUND,no descriptor came)");
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    return ReduceAndBroadcast(*ProcessGroup::Create(std::move(backend)));
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostBackend, RankThatDoesNotAnswerInTimeCountsAsAnotherHost) {
  HostsTestWorld world(
      3, {}, [](int) { return 0; }, absl::Seconds(16));
  // Half of the time is for the segment: the slow rank finds that it is late.
  const ScopedFailpoint slow("collectives/map_segment", "1*delay(9s)");
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    return ReduceAndBroadcast(*ProcessGroup::Create(std::move(backend)));
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostBackend, RankThatCannotMapTheSegmentIsNamedWhereThereAreNoStreams) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  const ScopedFailpoint unmapped("collectives/map_segment",
                                 "error(NOT_FOUND,no descriptor came)");
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    return ConnectHost(OptionsOf(rank, 2, &store, directory.path())).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kUnimplemented,
                                      "share its memory: rank 1: NOT_FOUND")));
}

TEST(HostBackend, TwoJobsWithTheSameNamesAndDirectoryDoNotMixTheirRanks) {
  testing::TempDir directory;
  rendezvous::MemoryStore stores[2];
  const auto await_last_rank_of = [&](int job) {
    return stores[job]
        .Wait("collectives/world/place/1", 0, absl::Seconds(20))
        .status();
  };
  auto* const both_seen = new absl::Barrier(2);
  const auto statuses = testing::RunRanks(4, [&](int i) -> absl::Status {
    const int job = i / 2, rank = i % 2;
    // Job 1 arrives while job 0 is still meeting. Ranks that have met remove
    // the keys, so neither rank 0 comes before the other has seen them.
    absl::Status seen;
    if (job == 1) seen = await_last_rank_of(0);
    if (rank == 0) {
      seen.Update(await_last_rank_of(1));
      if (both_seen->Block()) delete both_seen;
    }
    WEFT_RETURN_IF_ERROR(seen);
    HostOptions options = OptionsOf(rank, 2, &stores[job], directory.path());
    options.connect_timeout = absl::Seconds(20);
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectHost(options));
    const auto group = ProcessGroup::Create(std::move(backend));
    const Tensor sum = Tensor::Full({4}, job + 1);
    WEFT_RETURN_IF_ERROR(group->AllReduce(sum));
    EXPECT_EQ(sum.data<float>()[3], 2 * (job + 1));
    return group->Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// --- Ranks as threads.

TEST(HostBackend, RankThatDoesNotComeIsNamed) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  HostOptions options = OptionsOf(0, 2, &store, directory.path());
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectHost(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
}

TEST(HostBackend, RankThatComesTwiceToAMeetingIsRefused) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  const HostOptions options = OptionsOf(0, 2, &store, directory.path());
  const auto statuses = testing::RunRanks(3, [&](int n) -> absl::Status {
    if (n < 2) {
      absl::Status status = ConnectHost(options).status();
      if (!status.ok()) {
        WEFT_RETURN_IF_ERROR(
            store.Set("seen", "", testing::kPatience).status());
      }
      return status;
    }
    // Waits until one of the two was refused.
    WEFT_RETURN_IF_ERROR(store.Wait("seen", 0, absl::Minutes(1)).status());
    return ConnectHost(OptionsOf(1, 2, &store, directory.path())).status();
  });
  EXPECT_THAT(statuses, ::testing::UnorderedElementsAre(
                            IsOk(), IsOk(),
                            StatusIs(absl::StatusCode::kInvalidArgument,
                                     "there already")));
}

TEST(HostBackend, RanksThatHaveMetLeaveNoKeysAndMayMeetAgain) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  for (int time = 0; time < 3; ++time) {
    const auto statuses = testing::RunRanks(3, [&](int rank) {
      return ConnectHost(OptionsOf(rank, 3, &store, directory.path())).status();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
  }
}

TEST(HostBackend, RankThatGivesUpLeavesNoKey) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  HostOptions options = OptionsOf(0, 2, &store, directory.path());
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectHost(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
}

TEST(HostBackend, RanksThatShareNoDirectoryAreRefusedOnEachRank) {
  testing::TempDir directories[2];
  rendezvous::MemoryStore store;
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    return ConnectHost(OptionsOf(rank, 2, &store, directories[rank].path()))
        .status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kUnimplemented,
                                      "lacks ranks on several hosts")));
}

// Counts what is asked of a store.
class CountingStore final : public rendezvous::Store {
 public:
  int64_t calls() const { return calls_.load(); }

  absl::StatusOr<uint64_t> Set(absl::string_view key, absl::string_view value,
                               absl::Duration timeout) override {
    return Counted().Set(key, value, timeout);
  }
  absl::StatusOr<rendezvous::StoreEntry> Get(absl::string_view key,
                                             absl::Duration timeout) override {
    return Counted().Get(key, timeout);
  }
  absl::StatusOr<rendezvous::StoreEntry> Wait(absl::string_view key,
                                              uint64_t after,
                                              absl::Duration timeout) override {
    return Counted().Wait(key, after, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                              absl::Duration timeout) override {
    return Counted().Add(key, delta, timeout);
  }
  absl::StatusOr<Swap> CompareSet(absl::string_view key,
                                  uint64_t expected_version,
                                  absl::string_view value,
                                  absl::Duration timeout) override {
    return Counted().CompareSet(key, expected_version, value, timeout);
  }
  absl::StatusOr<bool> Delete(absl::string_view key,
                              absl::Duration timeout) override {
    return Counted().Delete(key, timeout);
  }

 private:
  rendezvous::Store& Counted() {
    ++calls_;
    return store_;
  }

  std::atomic<int64_t> calls_{0};
  rendezvous::MemoryStore store_;
};

TEST(HostBackend, MeetingAsksTheStoreAFewTimesForEachRank) {
  testing::TempDir directory;
  for (const int ranks_of_a_host : {1, 2, 16, 64}) {
    for (const int ranks : {16, 64}) {
      CountingStore store;
      const Instant begin = SteadyClock().Now();
      testing::RunRanks(ranks, [&](int rank) {
        HostOptions options = OptionsOf(rank, ranks, &store, directory.path());
        options.host = absl::StrCat(rank / ranks_of_a_host);
        // Without streams several hosts are refused, but only once they met.
        return ConnectHost(options).status();
      });
      // A rank that waits looks again, at most each 100 ms.
      const int64_t looks =
          (SteadyClock().Now() - begin) / absl::Milliseconds(100);
      EXPECT_LE(store.calls(), (13 + looks) * ranks) << ranks_of_a_host;
      EXPECT_GE(store.calls(), 4 * ranks) << ranks_of_a_host;
    }
  }
}

TEST(HostBackend, RankThatGivesUpNamesOnlyThoseThatDidNotCome) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  std::atomic<int> begun{0};
  const auto statuses = testing::RunRanks(6, [&](int rank) -> absl::Status {
    if (rank == 2) return absl::OkStatus();
    ++begun;
    EXPECT_TRUE(testing::Becomes([&] { return begun == 5; }));
    HostOptions options = OptionsOf(rank, 6, &store, directory.path());
    options.connect_timeout = absl::Seconds(6);  // enough for those that come
    return ConnectHost(options).status();
  });
  for (const int rank : {0, 1, 3, 4, 5}) {
    EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                         "rank 2 of 6 did not come"));
  }
  EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
}

TEST(HostBackend, RanksThatWereGivenDifferentSizesAreTold) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    HostOptions options = OptionsOf(rank, rank + 2, &store, directory.path());
    return ConnectHost(options).status();
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    "rank 0 was given 2 ranks, rank 1 3"));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInvalidArgument,
                                    "rank 1 was given 3 ranks, rank 0 2"));
  EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
}

// Rank 0 waits for a rank that nobody else knows.
TEST(HostBackend, RankThatWasGivenMoreRanksThanTheOthersIsTold) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    HostOptions options =
        OptionsOf(rank, rank == 0 ? 4 : 3, &store, directory.path());
    options.connect_timeout = absl::Seconds(8);
    return ConnectHost(options).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "give the same number on each")));
  EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
}

}  // namespace
}  // namespace weft::collectives
