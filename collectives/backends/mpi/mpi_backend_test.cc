// Runs itself under mpirun, as kRanks processes which all run the same tests:
// of each world, those of the first ranks.

#include "weft/collectives/backends/mpi/mpi_backend.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/mpi/mpi_ranks.h"
#include "weft/collectives/backends/mpi/mpi_state.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int kRanks = 4;

MpiSession* session = nullptr;  // while tests run

// Every process's text, in rank order, on each.
std::vector<std::string> Share(const std::string& own) {
  std::vector<std::string> all(session->size());
  for (int r = 0; r < session->size(); ++r) {
    int bytes = static_cast<int>(own.size());
    MPI_Bcast(&bytes, 1, MPI_INT, r, MPI_COMM_WORLD);
    all[r] = own;
    all[r].resize(bytes);
    MPI_Bcast(all[r].data(), bytes, MPI_BYTE, r, MPI_COMM_WORLD);
  }
  return all;
}

// Runs `body` on the processes with ranks below `size`; all statuses.
std::vector<absl::Status> RunRanks(
    int size, const std::function<absl::Status(int rank)>& body) {
  absl::Status own;
  if (session->rank() < size) {
    own = CatchToStatus([&] { return body(session->rank()); });
  }
  std::string text(1, static_cast<char>(own.code()));
  absl::StrAppend(&text, own.message());
  std::vector<absl::Status> statuses;
  for (const std::string& one : Share(text)) {
    statuses.emplace_back(static_cast<absl::StatusCode>(one[0]), one.substr(1));
  }
  statuses.resize(size);
  return statuses;
}

// Options of a group of the first `size` ranks that nobody has made yet; called
// by all processes.
MpiOptions OptionsOf(int size) {
  static int worlds = 0;
  MpiOptions options;
  options.name = absl::StrCat("world ", worlds++);
  for (int r = 0; r < size; ++r) options.ranks.push_back(r);
  options.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
  return options;
}

class MpiTestWorld final : public TestWorld {
 public:
  MpiTestWorld(int size, DiagnosisOptions diagnosis)
      : options_(OptionsOf(size)) {
    options_.diagnosis = std::move(diagnosis);
  }
  absl::StatusOr<std::unique_ptr<Backend>> Connect(int) override {
    return ConnectMpi(*session, options_);
  }

 private:
  MpiOptions options_;
};

TestBackend Mpi() {
  TestBackend backend;
  backend.name = "mpi";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<MpiTestWorld>(size, diagnosis);
  };
  backend.run_ranks = RunRanks;
  backend.ranks_share_memory = false;
  return backend;
}

// Waits until some rank has broken the group, a minute at most.
void AwaitBroken(const ProcessGroup& group) {
  testing::Becomes([&] { return !group.health().ok(); });
}

INSTANTIATE_TEST_SUITE_P(Mpi, ProcessGroupConformance, ::testing::Values(Mpi()),
                         [](const auto& info) { return info.param.name; });

TEST(MpiBackend, RevokeEndsOperationsOfMpi) {
  for (int round = 0; round < 3; ++round) {
    const MpiOptions options = OptionsOf(3);
    const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            ConnectMpi(*session, options));
      const auto group = ProcessGroup::Create(std::move(backend));
      const Tensor tensor = Tensor::Zeros({1 << 20});
      std::thread revoker;
      absl::Status found;
      for (int i = 0; found.ok(); ++i) {
        if (rank == 2 && i == 2) {
          revoker = std::thread(
              [&] { group->Revoke(absl::CancelledError("enough")); });
        }
        found = group->AllReduce(tensor);
      }
      if (revoker.joinable()) revoker.join();
      return found;
    });
    EXPECT_THAT(statuses,
                Each(StatusIs(absl::StatusCode::kCancelled, "enough")));
  }
}

TEST(MpiBackend, RankThatDoesNotCallIsNamedAtTheDeadline) {
  const MpiOptions options = OptionsOf(3);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectMpi(*session, options));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    absl::Status found;
    if (rank != 1) {
      CallOptions call;
      call.timeout = absl::Milliseconds(200);
      found = group->AllReduce(Tensor::Zeros({10}), {}, call);
    } else {
      // The group ends here no sooner than the others' operations.
      AwaitBroken(*group);
    }
    return found;
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  }
}

TEST(MpiBackend, ShrunkGroupGoesOnAfterRevoke) {
  const MpiOptions options = OptionsOf(3);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectMpi(*session, options));
    const auto group = ProcessGroup::Create(std::move(backend));
    if (rank == 1) group->Revoke(absl::CancelledError("a rank is slow"));
    AwaitBroken(*group);
    if (rank == 1) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(group->Shrink({0, 2}));
    const Tensor tensor = Tensor::Ones({4});
    WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
    return tensor.data<float>()[3] == 2 ? absl::OkStatus()
                                        : absl::InternalError("wrong sum");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(MpiBackend, GroupGoesOnWithOtherMembersAfterReconfigure) {
  const MpiOptions options = OptionsOf(3);
  MpiOptions next = OptionsOf(0);
  next.ranks = {3, 1, 0};
  const auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    std::unique_ptr<ProcessGroup> group;
    if (rank < 3) {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            ConnectMpi(*session, options));
      group = ProcessGroup::Create(std::move(backend));
      WEFT_RETURN_IF_ERROR(group->Barrier());
      if (rank == 2) return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectMpi(*session, next));
    if (group == nullptr) {
      group = ProcessGroup::Create(std::move(backend));
    } else {
      WEFT_RETURN_IF_ERROR(group->Reconfigure(std::move(backend)));
    }
    const Tensor tensor = Tensor::Scalar<float>(rank);
    WEFT_RETURN_IF_ERROR(group->Broadcast(tensor, 0));
    return tensor.item<float>() == 3 ? absl::OkStatus()
                                     : absl::InternalError("wrong root");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(MpiBackend, StuckRankIsReportedAndTheOperationGoesOn) {
  MpiOptions options = OptionsOf(2);
  options.diagnosis.report_after = absl::Milliseconds(20);
  std::string first;
  options.diagnosis.report = [&](absl::string_view report) {
    if (!first.empty() || !absl::StrContains(report, "AllReduce")) return;
    first = std::string(report);
    MPI_Send(nullptr, 0, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
  };
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                          ConnectMpi(*session, options));
    const auto group = ProcessGroup::Create(std::move(backend));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    if (rank == 1) {
      MPI_Recv(nullptr, 0, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return group->AllReduce(Tensor::Ones({10}));
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  if (session->rank() == 0) {
    EXPECT_THAT(first,
                ::testing::ContainsRegex("rank 1( [^;]*)? has not called it"));
  }
}

TEST(MpiBackend, RankThatDoesNotComeIsNamed) {
  MpiOptions options = OptionsOf(3);
  // Enough for the two that come, on fewer cores than there are ranks.
  options.connect_timeout = absl::Seconds(6);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    if (rank == 1) return absl::OkStatus();
    return ConnectMpi(*session, options).status();
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 of 3"));
  }
}

TEST(MpiBackend, NameThatWasUsedIsRefused) {
  MpiOptions options = OptionsOf(0);
  options.ranks = {session->rank()};
  WEFT_EXPECT_OK(ConnectMpi(*session, options).status());
  EXPECT_THAT(ConnectMpi(*session, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "used once"));
}

TEST(MpiBackend, BinaryThatLinksItHasIt) {
  WEFT_EXPECT_OK(IsAvailable("mpi"));
  EXPECT_THAT(
      IsAvailable("gloo"),
      StatusIs(absl::StatusCode::kUnimplemented,
               "has local, host, stream, mpi: link //:collectives_gloo"));
}

TEST(Mpirun, IsInstalled) {
  if (session == nullptr) {
    GTEST_SKIP() << "mpirun is not installed (Debian's openmpi-bin)";
  }
}

TEST(MpiRanks, RanksOfSeveralHostsWantInsecure) {
  MpiOptions options;
  options.ranks = {0, 1, 2};
  const std::vector<int> hosts = {0, 0, 2};
  EXPECT_THAT(CheckMpiRanks(options, 1, hosts),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "ranks 0 and 2 are on different hosts"));
  options.insecure = true;
  WEFT_EXPECT_OK(CheckMpiRanks(options, 1, hosts));
  options.insecure = false;
  options.ranks = {1, 0};
  WEFT_EXPECT_OK(CheckMpiRanks(options, 1, hosts));
}

TEST(MpiRanks, RanksThatMakeNoSenseAreRefused) {
  MpiOptions options;
  const std::vector<int> hosts = {0, 0};
  const auto refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, why);
  };
  options.ranks = {0, 2};
  EXPECT_THAT(CheckMpiRanks(options, 0, hosts), refused("ranks that MPI has"));
  options.ranks = {0, 0};
  EXPECT_THAT(CheckMpiRanks(options, 0, hosts), refused("each rank once"));
  options.ranks = {1};
  EXPECT_THAT(CheckMpiRanks(options, 0, hosts), refused("this rank"));
}

int RunTests() {
  auto started = MpiSession::Start();
  if (!started.ok()) {
    fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  session = started->get();
  if (session->size() != kRanks) {
    fprintf(stderr, "wanted %d ranks, found %d\n", kRanks, session->size());
    return 1;
  }
  const int status = RUN_ALL_TESTS();
  session = nullptr;
  return status;
}

}  // namespace
}  // namespace weft::collectives

namespace {

// Runs this program under mpirun, with a directory of its own: in sandboxes
// with process numbers of their own, two at once would take the same files.
// None where there is no mpirun.
std::optional<int> RunUnderMpirun(int argc, char** argv) {
  const weft::testing::TempDir directory;
  const std::vector<std::string> words = {
      "mpirun",
      "--allow-run-as-root",
      "--oversubscribe",  // as in a container
      "-np",
      std::to_string(weft::collectives::kRanks),
      "--mca",
      "btl",
      "self,vader",
      "--mca",
      "orte_tmpdir_base",
      directory.path(),
      "--mca",
      "btl_vader_backing_directory",
      directory.path()};
  std::vector<char*> args;
  for (const std::string& word : words) {
    args.push_back(const_cast<char*>(word.c_str()));
  }
  args.insert(args.end(), argv, argv + argc);
  args.push_back(nullptr);
  constexpr int kNotFound = 127;
  const pid_t pid = fork();
  if (pid == 0) {
    execvp(args[0], args.data());
    _exit(kNotFound);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) == kNotFound) return std::nullopt;
  return WEXITSTATUS(status);
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) {
    if (const auto status = RunUnderMpirun(argc, argv)) return *status;
    ::testing::InitGoogleTest(&argc, argv);
    ::testing::GTEST_FLAG(filter) = "Mpirun.IsInstalled";
    return RUN_ALL_TESTS();
  }
  // One report, of rank 0. The flag has had the environment's value since
  // before main(), and InitGoogleTest() reads it.
  if (std::string(rank) != "0") ::testing::GTEST_FLAG(output) = "";
  ::testing::InitGoogleTest(&argc, argv);
  return weft::collectives::RunTests();
}
