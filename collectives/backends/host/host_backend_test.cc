#include "weft/collectives/backends/host/host_backend.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/collectives/testing/memory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Whatever does not travel with its announcement, for tests of few bytes.
constexpr int64_t kReadAll = 0;

class HostTestWorld final : public TestWorld {
 public:
  HostTestWorld(int size, DiagnosisOptions diagnosis,
                int64_t least_read_bytes = kReadAll)
      : size_(size),
        diagnosis_(std::move(diagnosis)),
        least_read_bytes_(least_read_bytes) {}

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    HostOptions host;
    host.store = &store_;
    host.rank = rank;
    host.size = size_;
    host.directory = directory_.path();
    host.arena_bytes = 8 << 20;
    host.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    host.diagnosis = diagnosis_;
    host.least_read_bytes = least_read_bytes_;
    return ConnectHost(host);
  }

 private:
  const int size_;
  const DiagnosisOptions diagnosis_;
  const int64_t least_read_bytes_;
  testing::TempDir directory_;
  MemoryStore store_;
};

TestBackend Host() {
  TestBackend backend;
  backend.name = "host";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<HostTestWorld>(size, diagnosis);
  };
  return backend;
}

// As where the kernel lets no process read another's memory.
TestBackend HostThroughSlots() {
  TestBackend backend;
  backend.name = "through_slots";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<HostTestWorld>(size, diagnosis,
                                           std::numeric_limits<int64_t>::max());
  };
  return backend;
}

// Ranks of one machine as if of several: `host_of` says which.
class HostsTestWorld final : public TestWorld {
 public:
  HostsTestWorld(int size, DiagnosisOptions diagnosis,
                 std::function<int(int rank)> host_of,
                 absl::Duration connect_timeout = absl::Seconds(20))
      : size_(size),
        diagnosis_(std::move(diagnosis)),
        host_of_(std::move(host_of)),
        connect_timeout_(connect_timeout) {
    for (int r = 0; r < size; ++r) {
      transports_.push_back(*network_.MakeTransport(absl::StrCat("r", r)));
      streams_.push_back(std::make_unique<Streams>(*transports_.back()));
    }
  }
  ~HostsTestWorld() override { streams_.clear(); }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    HostOptions host;
    host.store = &store_;
    host.rank = rank;
    host.size = size_;
    host.directory = directory_.path();
    host.arena_bytes = 8 << 20;
    host.connect_timeout = connect_timeout_;
    host.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    host.diagnosis = diagnosis_;
    host.streams = streams_[rank].get();
    host.own_stream = {absl::StrCat("r", rank), absl::StrCat("r", rank)};
    host.host = absl::StrCat("host", host_of_(rank));
    host.least_read_bytes = kReadAll;
    host.check_member = check_member;
    return ConnectHost(host);
  }
  void Kill(int rank) { network_.Break(absl::StrCat("r", rank)); }

  std::function<absl::Status(int rank)> check_member;  // of each rank

 private:
  const int size_;
  const DiagnosisOptions diagnosis_;
  const std::function<int(int rank)> host_of_;
  const absl::Duration connect_timeout_;
  testing::TempDir directory_;
  MemoryStore store_;
  transport::LocalNetwork network_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Streams>> streams_;
};

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

HostOptions OptionsOf(int rank, int size, rendezvous::Store* store,
                      const std::string& directory) {
  HostOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.directory = directory;
  options.arena_bytes = 1 << 20;
  return options;
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
  // Of its own host, rank 0 may find that it has left the shared memory.
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
  std::atomic<int> ended{0};
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (rank == 3) {
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

// As is asked where what a rank waits for runs elsewhere, on a device.
TEST(HostBackend, RankThatIsGoneIsFoundWithoutAnOperation) {
  HostsTestWorld world(3, {}, [](int) { return 0; });
  std::atomic<int> gone{-1}, ended{0};
  world.check_member = [&](int rank) {
    return rank == gone ? absl::UnavailableError("silent for 3s")
                        : absl::OkStatus();
  };
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    if (rank == 2) {
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
  std::atomic<bool> has_ended{false};
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_ASSIGN_OR_RETURN(const auto half, group->Split(rank > 0 ? 1 : 0));
    if (rank == 0) return absl::OkStatus();
    if (rank == 2) {  // rank 1 of `half`
      gone = 2;
      EXPECT_TRUE(Becomes([&] { return has_ended.load(); }));
      return absl::OkStatus();
    }
    const absl::Status status = half->AllReduce(Tensor::Ones({10}));
    has_ended = true;
    return status;
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable,
                                    "rank 1 is gone (silent for 3s)"));
}

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
      3, {}, [](int) { return 0; }, absl::Seconds(12));
  // Half of the time is for the segment: the slow rank finds that it is late.
  const ScopedFailpoint slow("collectives/map_segment", "1*delay(7s)");
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          world.Connect(rank));
    return ReduceAndBroadcast(*ProcessGroup::Create(std::move(backend)));
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostBackend, RankThatCannotMapTheSegmentIsNamedWhereThereAreNoStreams) {
  testing::TempDir directory;
  MemoryStore store;
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
  MemoryStore stores[2];
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

// --- Ranks as processes. -----------------------------------------------------

// Runs `body` in a child for each rank. REQUIRES: no threads yet.
class Children {
 public:
  template <typename Body>
  Children(int size, Body body) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) _exit(body(rank));
      pids_.push_back(pid);
    }
  }
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid == kNobody) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  pid_t pid(int rank) const { return pids_[rank]; }
  int Wait(int rank) {
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = kNobody;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static constexpr pid_t kNobody = -1;
  std::vector<pid_t> pids_;
};

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

// --- Ranks as threads.
// --------------------------------------------------------

TEST(HostBackend, RankThatDoesNotComeIsNamed) {
  testing::TempDir directory;
  MemoryStore store;
  HostOptions options = OptionsOf(0, 2, &store, directory.path());
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectHost(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
}

TEST(HostBackend, RankThatComesTwiceToAMeetingIsRefused) {
  testing::TempDir directory;
  MemoryStore store;
  const HostOptions options = OptionsOf(0, 2, &store, directory.path());
  const auto statuses = testing::RunRanks(3, [&](int n) -> absl::Status {
    if (n < 2) {
      absl::Status status = ConnectHost(options).status();
      if (!status.ok())
        WEFT_RETURN_IF_ERROR(store.Set("seen", "", {}).status());
      return status;
    }
    // Once one of the two was refused.
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
  MemoryStore store;
  for (int time = 0; time < 3; ++time) {
    const auto statuses = testing::RunRanks(3, [&](int rank) {
      return ConnectHost(OptionsOf(rank, 3, &store, directory.path())).status();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_EQ(store.size(), 0u);
  }
}

TEST(HostBackend, RankThatGivesUpLeavesNoKey) {
  testing::TempDir directory;
  MemoryStore store;
  HostOptions options = OptionsOf(0, 2, &store, directory.path());
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectHost(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  EXPECT_EQ(store.size(), 0u);
}

TEST(HostBackend, RanksThatShareNoDirectoryAreRefusedOnEachRank) {
  testing::TempDir directories[2];
  MemoryStore store;
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
  MemoryStore store_;
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
      // Who waits looks again, at most each 100 ms.
      const int64_t looks =
          (SteadyClock().Now() - begin) / absl::Milliseconds(100);
      EXPECT_LE(store.calls(), (13 + looks) * ranks) << ranks_of_a_host;
      EXPECT_GE(store.calls(), 4 * ranks) << ranks_of_a_host;
    }
  }
}

TEST(HostBackend, RankThatGivesUpNamesOnlyThoseThatDidNotCome) {
  testing::TempDir directory;
  MemoryStore store;
  const auto statuses = testing::RunRanks(6, [&](int rank) -> absl::Status {
    if (rank == 2) return absl::OkStatus();
    HostOptions options = OptionsOf(rank, 6, &store, directory.path());
    options.connect_timeout = absl::Seconds(2);
    return ConnectHost(options).status();
  });
  for (const int rank : {0, 1, 3, 4, 5}) {
    EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                         "rank 2 of 6 did not come"));
  }
  EXPECT_EQ(store.size(), 0u);
}

TEST(HostBackend, RanksThatWereGivenDifferentSizesAreTold) {
  testing::TempDir directory;
  MemoryStore store;
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    HostOptions options = OptionsOf(rank, rank + 2, &store, directory.path());
    return ConnectHost(options).status();
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    "rank 0 was given 2 ranks, rank 1 3"));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInvalidArgument,
                                    "rank 1 was given 3 ranks, rank 0 2"));
  EXPECT_EQ(store.size(), 0u);
}

// Rank 0 waits for a rank that nobody else knows.
TEST(HostBackend, RankThatWasGivenMoreRanksThanTheOthersIsTold) {
  testing::TempDir directory;
  MemoryStore store;
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    HostOptions options =
        OptionsOf(rank, rank == 0 ? 4 : 3, &store, directory.path());
    options.connect_timeout = absl::Seconds(4);
    return ConnectHost(options).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "give the same number on each")));
  EXPECT_EQ(store.size(), 0u);
}

TEST(HostBackend, SegmentBeyondTheBudgetIsRefusedOnEachRank) {
  testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  const auto budget =
      transport::MemoryBudget::Open(directory.path(), 512 << 10).value();
  MemoryStore store;
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
  MemoryStore store;
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
  MemoryStore store;
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
  MemoryStore store;
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
  MemoryStore store;
  EXPECT_THAT(ConnectHost(OptionsOf(0, 1, nullptr, "/tmp")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "store"));
  EXPECT_THAT(ConnectHost(OptionsOf(2, 2, &store, "/tmp")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 2 of 2"));
}

TEST(HostBackend, ArenaThatIsUsedUpSaysWhichOptionHelps) {
  testing::TempDir directory;
  MemoryStore store;
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
