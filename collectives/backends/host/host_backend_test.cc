#include "weft/collectives/backends/host/host_backend.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_test_worlds.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/children.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TestBackend Host() {
  TestBackend backend;
  backend.name = "host";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<HostTestWorld>(size, diagnosis);
  };
  return backend;
}

// The backend where the kernel lets no process read another's memory.
TestBackend HostThroughSlots() {
  TestBackend backend;
  backend.name = "through_slots";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<HostTestWorld>(size, diagnosis,
                                           std::numeric_limits<int64_t>::max());
  };
  return backend;
}

TestBackend Hosts(std::string name, std::function<int(int rank)> host_of,
                  std::vector<int> sizes) {
  TestBackend backend;
  backend.name = std::move(name);
  backend.sizes = std::move(sizes);
  backend.ranks_run_ahead =
      host_of(0) != host_of(2) && host_of(1) != host_of(2);
  backend.make_world = [host_of](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<HostsTestWorld>(size, diagnosis, host_of);
  };
  return backend;
}

// Two ranks a host, next to each other and not; with 3 ranks, one has one.

INSTANTIATE_TEST_SUITE_P(
    Host, ProcessGroupConformance,
    ::testing::Values(
        Host(), HostThroughSlots(),
        Hosts("two_a_host", [](int rank) { return rank / 2; }, {3, 4}),
        Hosts("interleaved", [](int rank) { return rank % 2; }, {3, 4})),
    [](const auto& info) { return info.param.name; });

// --- Where what is reduced lies. ---------------------------------------------

// Sums of these depend on the order of the additions.
float ElementOf(int rank, int64_t i) {
  return static_cast<float>(i % 1013) * 0.1f +
         static_cast<float>(rank) * 1234.567f;
}

// On each rank the sum of all ranks' tensors, of `count` elements, of which
// those of ranks with `in_arena` are in shared memory.
std::vector<absl::StatusOr<Tensor>> SumsOf(
    int size, int64_t count, int64_t least_read_bytes,
    const std::function<bool(int rank)>& in_arena) {
  HostTestWorld world(size, {}, least_read_bytes);
  std::vector<std::unique_ptr<ProcessGroup>> groups(size);
  std::vector<absl::StatusOr<Tensor>> sums(size, Tensor());
  testing::RunRanks(size, [&](int rank) -> absl::Status {
    sums[rank] = [&]() -> absl::StatusOr<Tensor> {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            world.Connect(rank));
      groups[rank] = ProcessGroup::Create(std::move(backend));
      Tensor tensor = Tensor::Zeros({count});
      if (in_arena(rank)) {
        WEFT_ASSIGN_OR_RETURN(tensor,
                              groups[rank]->Allocate({count}, DType::kF32));
      }
      for (int64_t i = 0; i < count; ++i) {
        tensor.data<float>()[i] = ElementOf(rank, i);
      }
      WEFT_RETURN_IF_ERROR(groups[rank]->AllReduce(tensor));
      const Tensor copy = Tensor::Empty({count}, DType::kF32);
      copy.CopyFrom(tensor);
      return copy;
    }();
    return sums[rank].status();
  });
  return sums;
}

void ExpectSums(const std::vector<absl::StatusOr<Tensor>>& sums, int64_t count,
                const std::string& where) {
  const int size = static_cast<int>(sums.size());
  for (const absl::StatusOr<Tensor>& sum : sums) {
    ASSERT_THAT(sum.status(), IsOk()) << where;
    for (int64_t i = 0; i < count; ++i) {
      float wanted = ElementOf(0, i);
      for (int r = 1; r < size; ++r) wanted += ElementOf(r, i);
      ASSERT_EQ(sum->data<float>()[i], wanted) << where << " at " << i;
    }
  }
}

// Pieces of slots are 128 KiB for each rank but one: the sizes are of a part of
// a piece, of a few pieces, and of some that are not whole.
TEST(HostBackend, AllReduceHasTheSameBitsWhereverItsTensorsLie) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const auto all = [](int) { return true; };
  const auto none = [](int) { return false; };
  const auto first = [](int rank) { return rank == 0; };
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t count : {2'100, 65'536, 200'003}) {
      const std::string where = absl::StrCat(size, " ranks, ", count);
      ExpectSums(SumsOf(size, count, kNever, none), count, where + " slots");
      ExpectSums(SumsOf(size, count, kReadAll, none), count, where + " read");
      ExpectSums(SumsOf(size, count, kNever, all), count, where + " arena");
      ExpectSums(SumsOf(size, count, kNever, first), count, where + " mixed");
    }
  }
}

TEST(HostBackend, MemoryThatCannotBeReadPassesThroughSlots) {
  const ScopedFailpoint refused("collectives/read_peer",
                                "error(UNAVAILABLE,not permitted)");
  ExpectSums(SumsOf(3, 100'000, kReadAll, [](int) { return false; }), 100'000,
             "refused");
  // Each rank has tried once, when the group was made.
  EXPECT_EQ(refused.hits(), 3);
}

TEST(HostBackend, MemoryThatCanBeReadNoMoreEndsTheOperationOnAllRanks) {
  // Three tries of three ranks.
  const ScopedFailpoint refused("collectives/read_peer",
                                "9*off->1*error(UNAVAILABLE,it has gone)");
  for (const absl::StatusOr<Tensor>& sum :
       SumsOf(3, 100'000, kReadAll, [](int) { return false; })) {
    EXPECT_THAT(sum.status(),
                StatusIs(absl::StatusCode::kUnavailable, "it has gone"));
  }
}

TEST(HostBackend, RankOfAnotherHostThatEndsIsNamedOnAllRanks) {
  HostsTestWorld world(4, {}, [](int rank) { return rank / 2; });
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (rank == 1) {
      world.Kill(1);
      return absl::OkStatus();
    }
    return group->AllReduce(Tensor::Ones({100'000}));
  });
  // Rank 0, on the same host, may instead find that rank 1 has left the shared
  // memory.
  for (const int r : {0, 2, 3}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 has"));
  }
}

// A process that is stopped has not ended, and its host's shared memory stays.
TEST(HostBackend, StoppedRankIsNamedOnAllHostsOnceTheJobCountsItAsGone) {
  HostsTestWorld world(4, {}, [](int rank) { return rank / 2; });
  std::atomic<int> gone{-1};
  world.check_member = [&](int rank) {
    return rank == gone ? absl::UnavailableError("silent for 3s")
                        : absl::OkStatus();
  };
  // A barrier that a rank is still in would find the one that is gone.
  std::atomic<int> passed{0}, ended{0};
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    ++passed;
    if (rank == 3) {
      EXPECT_TRUE(Becomes([&] { return passed == 4; }));
      gone = 3;
      EXPECT_TRUE(Becomes([&] { return ended == 3; }));
      return absl::OkStatus();
    }
    const absl::Status status = group->AllReduce(Tensor::Ones({1000}));
    ++ended;
    return status;
  });
  for (const int r : {0, 1, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kUnavailable,
                         "rank 3 is gone (silent for 3s); it last called"));
  }
}

// A rank asks so where what it waits for runs elsewhere, on a device.
TEST(HostBackend, RankThatIsGoneIsFoundWithoutAnOperation) {
  HostsTestWorld world(3, {}, [](int) { return 0; });
  std::atomic<int> gone{-1}, connected{0}, ended{0};
  world.check_member = [&](int rank) {
    return rank == gone ? absl::UnavailableError("silent for 3s")
                        : absl::OkStatus();
  };
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    ++connected;
    if (rank == 2) {
      EXPECT_TRUE(Becomes([&] { return connected == 3; }));
      const absl::Status before = backend->CheckRanks();
      gone = 2;
      EXPECT_TRUE(Becomes([&] { return ended == 2; }));
      return before;
    }
    absl::Status status;
    EXPECT_TRUE(Becomes([&] {
      status = backend->CheckRanks();
      return !status.ok();
    }));
    ++ended;
    return status;
  });
  WEFT_EXPECT_OK(statuses[2]);
  for (const int r : {0, 1}) {
    EXPECT_THAT(statuses[r], StatusIs(absl::StatusCode::kUnavailable,
                                      "rank 2 is gone (silent for 3s)"));
  }
}

TEST(HostBackend, RankOfASubgroupIsAskedForByItsNumberInTheWorld) {
  HostsTestWorld world(3, {}, [](int) { return 0; });
  std::atomic<int> gone{-1};
  world.check_member = [&](int rank) {
    return rank == gone ? absl::UnavailableError("silent for 3s")
                        : absl::OkStatus();
  };
  std::atomic<bool> has_half{false}, has_ended{false};
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_ASSIGN_OR_RETURN(const auto half, group->Split(rank > 0 ? 1 : 0));
    if (rank == 0) return absl::OkStatus();
    if (rank == 2) {  // rank 1 of `half`
      EXPECT_TRUE(Becomes([&] { return has_half.load(); }));
      gone = 2;
      EXPECT_TRUE(Becomes([&] { return has_ended.load(); }));
      return absl::OkStatus();
    }
    has_half = true;
    const absl::Status status = half->AllReduce(Tensor::Ones({10}));
    has_ended = true;
    return status;
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable,
                                    "rank 1 is gone (silent for 3s)"));
}

// --- Ranks as processes. -----------------------------------------------------

TEST(HostBackend, ProcessesReduceWithoutACopyAndLeaveNothingBehind) {
  testing::TempDir directory;
  testing::TempDir keys;
  Children children(3, [&](int rank) {
    DirectoryStore store(keys.path());
    auto backend = ConnectHost(OptionsOf(rank, 3, &store, directory.path()));
    if (!backend.ok()) return 1;
    auto group = ProcessGroup::Create(*std::move(backend));
    const auto tensor = group->Allocate({100'000}, DType::kF32);
    if (!tensor.ok()) return 2;
    for (int round = 0; round < 20; ++round) {
      tensor->Fill(rank + round);
      if (!group->AllReduce(*tensor).ok()) return 3;
      if (tensor->data<float>()[99'999] != 3.0f + 3 * round) return 4;
    }
    return group->Barrier().ok() ? 0 : 5;
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(children.Wait(rank), 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(HostBackend, KilledProcessIsNamedByTheOthers) {
  testing::TempDir directory;
  testing::TempDir keys;
  Children children(3, [&](int rank) {
    DirectoryStore store(keys.path());
    auto backend = ConnectHost(OptionsOf(rank, 3, &store, directory.path()));
    if (!backend.ok()) return 1;
    auto group = ProcessGroup::Create(*std::move(backend));
    if (!group->Barrier().ok()) return 2;
    if (rank == 1) kill(getpid(), SIGKILL);
    const Instant before = SteadyClock().Now();
    const absl::Status found = group->AllReduce(Tensor::Ones({100'000}));
    if (found.code() != absl::StatusCode::kUnavailable) return 3;
    const std::string text(found.message());
    if (text.find("process of rank 1 has ended") == text.npos) return 4;
    // Long before the deadline of the operation.
    return SteadyClock().Now() - before < absl::Seconds(30) ? 0 : 5;
  });
  EXPECT_EQ(children.Wait(0), 0);
  EXPECT_EQ(children.Wait(1), 128 + SIGKILL);
  EXPECT_EQ(children.Wait(2), 0);
}

// Wherever it is in an operation, of which the others do one after the other.
void ExpectKilledAmidAllReducesIsNamed(int64_t least_read_bytes) {
  testing::TempDir directory;
  testing::TempDir keys;
  Children children(3, [&](int rank) {
    DirectoryStore store(keys.path());
    HostOptions options = OptionsOf(rank, 3, &store, directory.path());
    options.least_read_bytes = least_read_bytes;
    auto backend = ConnectHost(options);
    if (!backend.ok()) return 1;
    auto group = ProcessGroup::Create(*std::move(backend));
    const Tensor tensor = Tensor::Zeros({300'000});  // several pieces
    for (int i = 0;; ++i) {
      if (rank == 0 && i == 20)
        store.Set("amid", "", absl::Seconds(20)).value();
      const absl::Status status = group->AllReduce(tensor);
      if (status.ok()) continue;
      if (status.code() != absl::StatusCode::kUnavailable) return 2;
      return absl::StrContains(status.message(), "rank 1") ? 0 : 3;
    }
  });
  DirectoryStore store(keys.path());
  WEFT_ASSERT_OK(store.Wait("amid", 0, absl::Seconds(20)).status());
  kill(children.pid(1), SIGKILL);
  EXPECT_EQ(children.Wait(0), 0);
  EXPECT_EQ(children.Wait(1), 128 + SIGKILL);
  EXPECT_EQ(children.Wait(2), 0);
}

TEST(HostBackend, ProcessKilledAmidAllReducesThroughSlotsIsNamed) {
  ExpectKilledAmidAllReducesIsNamed(std::numeric_limits<int64_t>::max());
}

TEST(HostBackend, ProcessKilledAmidAllReducesThatReadItIsNamed) {
  ExpectKilledAmidAllReducesIsNamed(kReadAll);
}

}  // namespace
}  // namespace weft::collectives
