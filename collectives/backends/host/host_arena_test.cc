// The memory that ranks of the host backend share.

#include <sys/stat.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/collectives/backends/host/host_test_worlds.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --- Ranks as threads.

TEST(HostBackend, SegmentBeyondTheBudgetIsRefusedOnEachRank) {
  testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  const auto budget =
      transport::MemoryBudget::Open(directory.path(), 512 << 10).value();
  rendezvous::MemoryStore store;
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    HostOptions options = OptionsOf(rank, 3, &store, directory.path());
    // Each process opens its own.
    options.memory_budget =
        transport::MemoryBudget::Open(directory.path(), 512 << 10).value();
    return ConnectHost(std::move(options)).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kResourceExhausted,
                                      "--shared-memory-budget")));
  EXPECT_EQ(budget->used_bytes(), 0);
}

TEST(HostBackend, ArenaIsCountedAsItIsUsed) {
  testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int64_t kBudget = 16 * kMiB;
  const auto budget =
      transport::MemoryBudget::Open(directory.path(), kBudget).value();
  rendezvous::MemoryStore store;
  std::vector<std::unique_ptr<ProcessGroup>> groups(3);
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    HostOptions options = OptionsOf(rank, 3, &store, directory.path());
    options.arena_bytes = 64 * kMiB;
    options.memory_budget =
        transport::MemoryBudget::Open(directory.path(), kBudget).value();
    auto backend = ConnectHost(std::move(options));
    if (backend.ok()) groups[rank] = ProcessGroup::Create(*std::move(backend));
    return backend.status();
  });
  ASSERT_THAT(statuses, Each(IsOk()));
  const int64_t empty = budget->used_bytes();
  EXPECT_LE(empty, kMiB);

  const auto tensor_of = [&](int rank, int64_t bytes) {
    return groups[rank]->Allocate({bytes / 4}, DType::kF32);
  };
  auto first = tensor_of(0, 4 * kMiB);
  WEFT_ASSERT_OK(first.status());
  EXPECT_EQ(budget->used_bytes(), empty + 4 * kMiB);
  auto second = tensor_of(1, 8 * kMiB);
  WEFT_ASSERT_OK(second.status());
  EXPECT_THAT(
      tensor_of(2, 8 * kMiB).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "--shared-memory-budget"));
  WEFT_EXPECT_OK(tensor_of(2, kMiB).status());  // the refused one took nothing

  // What was in use once is used again before more is taken.
  const int64_t used = budget->used_bytes();
  first = absl::UnknownError("freed");
  WEFT_EXPECT_OK(tensor_of(0, 3 * kMiB).status());
  EXPECT_EQ(budget->used_bytes(), used);

  groups.clear();
  EXPECT_GE(budget->used_bytes(), 8 * kMiB);  // `second` lives in its arena
  second = absl::UnknownError("freed");
  EXPECT_EQ(budget->used_bytes(), 0);
}

TEST(HostBackend, ArenasOfManyRanksTakeNoMemoryBeforeTheyAreUsed) {
  testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  constexpr int kRanks = 64;  // 4 GiB of arenas, 256 MiB of rings
  constexpr int64_t kBudget = int64_t{32} << 20;
  rendezvous::MemoryStore store;
  const auto statuses =
      testing::RunRanks(kRanks, [&](int rank) -> absl::Status {
        HostOptions options = OptionsOf(rank, kRanks, &store, directory.path());
        options.arena_bytes = int64_t{64} << 20;
        options.memory_budget =
            transport::MemoryBudget::Open(directory.path(), kBudget).value();
        WEFT_ASSIGN_OR_RETURN(auto backend, ConnectHost(std::move(options)));
        const auto group = ProcessGroup::Create(std::move(backend));
        // Through a ring of its own.
        Tensor sent = Tensor::Full({1000}, rank);
        Tensor received = Tensor::Zeros({1000});
        Future<void> sending = group->SendAsync(sent, (rank + 1) % kRanks);
        WEFT_RETURN_IF_ERROR(
            group->Receive(received, (rank + kRanks - 1) % kRanks));
        WEFT_RETURN_IF_ERROR(sending.Wait(absl::Seconds(30)));
        EXPECT_EQ(received.data<float>()[999], (rank + kRanks - 1) % kRanks);
        return group->Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostBackend, MoreThanTheHostHasIsRefusedWhenItIsAskedFor) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  HostOptions options = OptionsOf(0, 1, &store, directory.path());
#ifdef __SANITIZE_THREAD__  // It has no larger range of free addresses.
  options.arena_bytes = int64_t{1} << 39;
#else
  options.arena_bytes = int64_t{1} << 43;
#endif
  const int64_t elements = options.arena_bytes / 16;  // of 4 bytes: a quarter
  auto backend = ConnectHost(options);
  WEFT_ASSERT_OK(backend.status());
  auto group = ProcessGroup::Create(*std::move(backend));
  EXPECT_THAT(group->Allocate({elements}, DType::kF32).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "available"));
  WEFT_EXPECT_OK(group->Allocate({1000}, DType::kF32).status());
}

TEST(HostBackend, OptionsThatMakeNoSenseAreRefused) {
  rendezvous::MemoryStore store;
  EXPECT_THAT(ConnectHost(OptionsOf(0, 1, nullptr, "/tmp")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "store"));
  EXPECT_THAT(ConnectHost(OptionsOf(2, 2, &store, "/tmp")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 2 of 2"));
}

TEST(HostBackend, ArenaThatIsUsedUpSaysWhichOptionHelps) {
  testing::TempDir directory;
  rendezvous::MemoryStore store;
  auto backend = ConnectHost(OptionsOf(0, 1, &store, directory.path()));
  WEFT_ASSERT_OK(backend.status());
  auto group = ProcessGroup::Create(*std::move(backend));
  {
    const auto all = group->Allocate({1 << 18}, DType::kF32);
    WEFT_ASSERT_OK(all.status());
    EXPECT_THAT(group->Allocate({1}, DType::kF32).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, "arena_bytes"));
  }
  auto tensor = group->Allocate({1 << 18}, DType::kF32);
  WEFT_EXPECT_OK(tensor.status());
  group.reset();
  tensor->Fill(1);  // outlives the group
}

// The world has arenas of 8 MiB.
TEST(HostBackend, ArenaOfASubgroupHasTheSizeThatWasAskedFor) {
  constexpr int64_t kMiB = 1 << 20;
  const auto most = [](ProcessGroup& group, int64_t bytes) {
    WEFT_EXPECT_OK(group.Allocate({bytes}, DType::kU8).status());
    EXPECT_THAT(group.Allocate({bytes + 1}, DType::kU8).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, "arena_bytes"));
  };
  for (const bool several_hosts : {false, true}) {
    std::unique_ptr<TestWorld> world;
    if (several_hosts) {
      world = std::make_unique<HostsTestWorld>(
          4, DiagnosisOptions(), [](int rank) { return rank % 2; });
    } else {
      world = std::make_unique<HostTestWorld>(4, DiagnosisOptions());
    }
    const auto body = [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(auto backend, world->Connect(rank));
      const auto group = ProcessGroup::Create(std::move(backend));
      SubgroupOptions options;
      options.arena_bytes = kMiB;
      WEFT_ASSIGN_OR_RETURN(const auto small, group->Split(0, 0, options));
      most(*small, kMiB);
      WEFT_ASSIGN_OR_RETURN(const auto same, small->Split(0));
      most(*same, kMiB);
      options.arena_bytes = 16 * kMiB;
      WEFT_ASSIGN_OR_RETURN(const auto large, small->Split(0, 0, options));
      most(*large, 16 * kMiB);
      options.arena_bytes = 0;
      WEFT_ASSIGN_OR_RETURN(const auto none, group->Split(0, 0, options));
      EXPECT_EQ(none->Allocate({1}, DType::kU8).status().code(),
                absl::StatusCode::kResourceExhausted);
      const Tensor sum = Tensor::Ones({1000});
      WEFT_RETURN_IF_ERROR(none->AllReduce(sum));
      EXPECT_EQ(sum.data<float>()[999], 4);
      WEFT_ASSIGN_OR_RETURN(const auto unsaid, group->Split(0));
      most(*unsaid, 8 * kMiB);
      return group->Barrier();
    };
    EXPECT_THAT(testing::RunRanks(4, body), Each(IsOk()));
  }
}

}  // namespace
}  // namespace weft::collectives
