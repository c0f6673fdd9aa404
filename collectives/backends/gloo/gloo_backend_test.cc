#include "weft/collectives/backends/gloo/gloo_backend.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/gloo/gloo_meeting.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/directory_store.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

GlooOptions OptionsOf(int rank, int size, rendezvous::Store* store) {
  GlooOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.connect_timeout = absl::Seconds(30);
  options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
  return options;
}

class GlooTestWorld final : public TestWorld {
 public:
  GlooTestWorld(int size, DiagnosisOptions diagnosis)
      : size_(size), diagnosis_(std::move(diagnosis)) {}

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    GlooOptions options = OptionsOf(rank, size_, &store_);
    options.diagnosis = diagnosis_;
    return ConnectGloo(std::move(options));
  }

 private:
  const int size_;
  const DiagnosisOptions diagnosis_;
  rendezvous::MemoryStore store_;
};

TestBackend Gloo() {
  TestBackend backend;
  backend.name = "gloo";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<GlooTestWorld>(size, diagnosis);
  };
  return backend;
}

// --- Ranks as processes: before others, which leave threads behind. ----------

// Forks a child for each rank, which reduces again and again until that fails;
// its exit status is the code.
class Children {
 public:
  Children(int size, absl::Duration timeout) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) _exit(static_cast<int>(Reduce(rank, size, timeout)));
      pids_.push_back(pid);
    }
  }
  ~Children() {
    for (const pid_t pid : pids_) {
      if (pid < 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  pid_t pid(int rank) const { return pids_[rank]; }
  // Returns once all ranks have reduced once.
  void AwaitFirst() {
    DirectoryStore store(keys_.path());
    for (size_t r = 0; r < pids_.size(); ++r) {
      WEFT_EXPECT_OK(
          store.Wait(absl::StrCat("reduced/", r), 0, absl::Minutes(1))
              .status());
    }
  }
  // What the rank's last operation said.
  std::string Message(int rank) {
    DirectoryStore store(keys_.path());
    const auto entry =
        store.Wait(absl::StrCat("message/", rank), 0, absl::Minutes(1));
    return entry.ok() ? entry->value : entry.status().ToString();
  }
  absl::StatusCode Wait(int rank) {
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    return WIFEXITED(status)
               ? static_cast<absl::StatusCode>(WEXITSTATUS(status))
               : absl::StatusCode::kUnknown;
  }

 private:
  absl::StatusCode Reduce(int rank, int size, absl::Duration timeout) {
    DirectoryStore store(keys_.path());
    auto backend = ConnectGloo(OptionsOf(rank, size, &store));
    if (!backend.ok()) return backend.status().code();
    GroupOptions options;
    options.timeout = timeout;
    auto group = ProcessGroup::Create(*std::move(backend), options);
    const Tensor tensor = Tensor::Zeros({300'001});
    absl::Status found;
    for (int round = 0; found.ok(); ++round) {
      if (round == 1) {
        store.Set(absl::StrCat("reduced/", rank), "1", absl::Minutes(1))
            .IgnoreError();
      }
      found = group->AllReduce(tensor);
    }
    store
        .Set(absl::StrCat("message/", rank), found.ToString(), absl::Minutes(1))
        .IgnoreError();
    return found.code();
  }

  testing::TempDir keys_;
  std::vector<pid_t> pids_;
};

TEST(GlooBackend, ProcessKilledAtAnyMomentIsNamedByTheOthers) {
  for (int round = 0; round < 3; ++round) {
    Children children(3, absl::Minutes(2));
    children.AwaitFirst();
    absl::SleepFor(absl::Milliseconds(3 * round));
    kill(children.pid(1), SIGKILL);
    for (const int r : {0, 2}) {
      EXPECT_EQ(children.Wait(r), absl::StatusCode::kUnavailable);
      EXPECT_THAT(children.Message(r),
                  ::testing::HasSubstr("rank 1 has ended"));
    }
  }
}

TEST(GlooBackend, StoppedProcessEndsTheOthersAtTheDeadline) {
  Children children(3, absl::Seconds(5));  // enough to reduce once
  children.AwaitFirst();
  kill(children.pid(1), SIGSTOP);
  for (const int r : {0, 2}) {
    EXPECT_EQ(children.Wait(r), absl::StatusCode::kDeadlineExceeded)
        << children.Message(r);
  }
}

// --- Ranks as threads. -------------------------------------------------------

INSTANTIATE_TEST_SUITE_P(Gloo, ProcessGroupConformance,
                         ::testing::Values(Gloo()),
                         [](const auto& info) { return info.param.name; });

TEST(GlooBackend, RevokeEndsOperationsOfGloo) {
  for (int round = 0; round < 5; ++round) {
    rendezvous::MemoryStore store;
    std::atomic<int> reduced{0};
    const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            ConnectGloo(OptionsOf(rank, 3, &store)));
      const auto group = ProcessGroup::Create(std::move(backend));
      const Tensor tensor = Tensor::Zeros({1 << 20});
      std::thread revoker;
      if (rank == 2) {
        revoker = std::thread([&] {
          EXPECT_TRUE(testing::Becomes([&] { return reduced >= 3; }));
          group->Revoke(absl::CancelledError("enough"));
        });
      }
      absl::Status found;
      while (found.ok()) {
        found = group->AllReduce(tensor);
        ++reduced;
      }
      if (revoker.joinable()) revoker.join();
      return found;
    });
    EXPECT_THAT(statuses,
                Each(StatusIs(absl::StatusCode::kCancelled, "enough")));
  }
}

TEST(GlooBackend, RankThatDoesNotComeIsNamed) {
  rendezvous::MemoryStore store;
  GlooOptions options = OptionsOf(0, 3, &store);
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(ConnectGloo(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "ranks 1 and 2 of 3 did not come"));
}

TEST(GlooBackend, RankThatComesTwiceToAMeetingIsRefused) {
  rendezvous::MemoryStore store;
  GlooOptions options = OptionsOf(0, 2, &store);
  options.connect_timeout = absl::Seconds(6);  // enough for both to come
  const auto statuses =
      testing::RunRanks(2, [&](int) { return ConnectGloo(options).status(); });
  EXPECT_THAT(
      statuses,
      ::testing::UnorderedElementsAre(
          StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"),
          StatusIs(absl::StatusCode::kInvalidArgument, "given already")));
}

TEST(GlooBackend, RanksThatHaveMetLeaveNoKeysAndMayMeetAgain) {
  rendezvous::MemoryStore store;
  for (int time = 0; time < 2; ++time) {
    const auto statuses = testing::RunRanks(3, [&](int rank) {
      return ConnectGloo(OptionsOf(rank, 3, &store)).status();
    });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_THAT(store.CountKeys("", testing::kPatience), IsOkAndHolds(0));
  }
}

TEST(GlooBackend, AddressThatOtherHostsReachWantsInsecure) {
  rendezvous::MemoryStore store;
  GlooOptions options = OptionsOf(0, 1, &store);
  options.address = "localhost";
  EXPECT_THAT(ConnectGloo(options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "insecure"));
  options.insecure = true;
  WEFT_EXPECT_OK(ConnectGloo(options).status());
}

TEST(GlooBackend, LoopbackAddressOfAnotherHostIsRefused) {
  rendezvous::MemoryStore store;
  // The value that a rank of another host writes.
  WEFT_ASSERT_OK(
      store.Set("gloo/world/place/1", "another\n127.0.0.1", absl::Seconds(1))
          .status());
  EXPECT_THAT(ConnectGloo(OptionsOf(0, 2, &store)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "cannot reach rank 0 at 127.0.0.1"));
}

TEST(GlooBackend, AddressThatIsNotOfThisHostIsUnavailable) {
  rendezvous::MemoryStore store;
  GlooOptions options = OptionsOf(0, 1, &store);
  options.address = "192.0.2.1";  // of documentation: RFC 5737
  options.insecure = true;
  EXPECT_THAT(ConnectGloo(options).status(),
              StatusIs(absl::StatusCode::kUnavailable, "192.0.2.1"));
}

TEST(GlooBackend, OptionsThatMakeNoSenseAreRefused) {
  rendezvous::MemoryStore store;
  EXPECT_THAT(ConnectGloo(OptionsOf(2, 2, &store)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 2 of 2"));
  EXPECT_THAT(ConnectGloo(OptionsOf(0, 1, nullptr)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "store"));
}

TEST(GlooBackend, BinaryThatLinksItHasIt) {
  WEFT_EXPECT_OK(IsAvailable("gloo"));
  EXPECT_THAT(
      IsAvailable("mpi"),
      StatusIs(absl::StatusCode::kUnimplemented,
               "has local, host, stream, gloo: link //:collectives_mpi"));
}

TEST(GlooMeeting, LoopbackAddressesAreKnown) {
  for (const char* address : {"127.0.0.1", "127.9.8.7", "::1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"10.0.0.1", "128.0.0.1", "::", "localhost", "127.0.0.1.example", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace weft::collectives
