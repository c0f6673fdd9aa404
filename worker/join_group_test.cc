#include "weft/worker/join_group.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/net/tls/certificates.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_workers.h"

namespace weft::worker {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(JoinGroup, WorkersOfARoleReduceTogether) {
  TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 3;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    Worker& worker = (*workers)->Get(absl::StrCat("trainer", rank));
    for (const char* name : {"world", "second"}) {
      JoinGroupOptions join;
      join.name = name;
      join.arena_bytes = 1 << 20;
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                            JoinGroup(worker, join));
      const Tensor tensor = Tensor::Full({1000}, rank);
      WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
      if (group->rank() != rank || tensor.data<float>()[999] != 3) {
        return absl::InternalError("wrong rank or sum");
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

// Four trainers as if on two hosts, over TCP with mutual TLS.
TEST(JoinGroup, WorkersOfTwoHostsReduceOverTls) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  net::CertificatesOptions certificates;
  certificates.directory = directory.Path("certs");
  certificates.job = "tls";
  for (int r = 0; r < 4; ++r) {
    certificates.members.push_back({"", "trainer", r});
  }
  certificates.extra_hosts = {"127.0.0.1"};
  WEFT_ASSERT_OK(net::MakeCertificates(certificates));
  TestWorkers::Options options;
  options.trainers = 4;
  options.configure = [&](Options& one) {
    one.job = "tls";
    one.certs = certificates.directory;
    one.coordinator = "";
    one.init = "file://" + directory.Path("job");
    one.listen = "127.0.0.1:0";
    WEFT_EXPECT_OK(one.Resolve());
  };
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    Worker& worker = (*workers)->Get(absl::StrCat("trainer", rank));
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    join.host_id = absl::StrCat("host", rank / 2);
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                          JoinGroup(worker, join));
    for (const int64_t count : {1, 1000, 1'000'000}) {
      const Tensor tensor = Tensor::Full({count}, rank);
      WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
      if (tensor.data<float>()[count - 1] != 6) {
        return absl::InternalError("wrong sum");
      }
    }
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> odd,
                          group->Split(rank % 2));
    const Tensor ranks = Tensor::Zeros({2}, DType::kI64);
    WEFT_RETURN_IF_ERROR(odd->AllGather(Tensor::Scalar<int64_t>(rank), ranks));
    return ranks.data<int64_t>()[1] == 2 + rank % 2
               ? group->Barrier()
               : absl::InternalError("wrong ranks");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

// Joins the group `name` of `members` on each of them, and sums their ranks.
std::vector<absl::Status> MeetAndSum(TestWorkers& workers,
                                     const std::string& name,
                                     const std::vector<std::string>& members) {
  const int size = static_cast<int>(members.size());
  return testing::RunRanks(size, [&](int rank) -> absl::Status {
    JoinGroupOptions join;
    join.name = name;
    join.members = members;
    join.arena_bytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                          JoinGroup(workers.Get(members[rank]), join));
    const Tensor tensor = Tensor::Full({10}, rank);
    WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
    const bool is_right = group->rank() == rank && group->size() == size &&
                          tensor.data<float>()[9] == size * (size - 1) / 2;
    return is_right ? absl::OkStatus() : absl::InternalError("wrong sum");
  });
}

TEST(JoinGroup, ANameIsUsedAgainByAnySubsetInAnyOrder) {
  TestWorkers::Options options;
  options.servers = 1;
  options.trainers = 3;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  for (const std::vector<std::string>& members :
       {std::vector<std::string>{"trainer0", "trainer1", "trainer2"},
        {"trainer2", "trainer0"},
        {"trainer2", "trainer0"},
        {"trainer1"},
        {"ps0", "trainer1", "trainer2"}}) {
    EXPECT_THAT(MeetAndSum(**workers, "world", members), Each(IsOk()));
  }
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

TEST(JoinGroup, SurvivorsFormAGroupOfThoseThatAreThereNow) {
  TestWorkers::Options options;
  options.trainers = 3;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  Worker& first = (*workers)->Get("trainer0");
  const auto all = MembersNow(first, "role=trainer");
  WEFT_ASSERT_OK(all.status());
  EXPECT_THAT(*all, ElementsAre("trainer0", "trainer1", "trainer2"));
  EXPECT_THAT(MeetAndSum(**workers, "world", *all), Each(IsOk()));
  // It leaves, as a program does that has done its work.
  WEFT_EXPECT_OK((*workers)->Get("trainer1").membership().Leave(kLong));
  WEFT_EXPECT_OK(first.membership().Refresh(kLong));
  const auto left = MembersNow(first, "role=trainer");
  WEFT_ASSERT_OK(left.status());
  EXPECT_THAT(*left, ElementsAre("trainer0", "trainer2"));
  EXPECT_THAT(MeetAndSum(**workers, "world", *left), Each(IsOk()));
  // One that is gone is no reason to wait.
  JoinGroupOptions join;
  join.members = *all;
  EXPECT_THAT(JoinGroup(first, join).status(),
              StatusIs(absl::StatusCode::kUnavailable, "trainer1 is gone"));
}

TEST(JoinGroup, MembersWhoNameOthersAreToldBothLists) {
  TestWorkers::Options options;
  options.trainers = 2;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    JoinGroupOptions join;
    join.name = "odd";
    join.join_timeout = absl::Seconds(5);
    join.members = {absl::StrCat("trainer", rank)};
    if (rank == 0) join.members.push_back("trainer1");
    if (rank == 1) join.members.push_back("trainer7");
    return JoinGroup((*workers)->Get(absl::StrCat("trainer", rank)), join)
        .status();
  });
  // Who comes first waits on, for those who name the same.
  EXPECT_THAT(statuses, Contains(StatusIs(absl::StatusCode::kFailedPrecondition,
                                          "name the same members everywhere")));
  for (const auto& members : {std::vector<std::string>{"trainer1"},
                              {"trainer0", "trainer1", "trainer0"}}) {
    JoinGroupOptions join;
    join.members = members;
    EXPECT_THAT(JoinGroup((*workers)->Get("trainer0"), join).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "trainer0"));
  }
}

TEST(JoinGroup, GroupsAndTheirPartsLeaveNoKeyInTheStore) {
  TestWorkers::Options options;
  options.trainers = 3;
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  rendezvous::Store& store = (*workers)->Get("trainer0").membership().store();
  const auto before = store.NumKeys(kLong);
  WEFT_ASSERT_OK(before.status());
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    Worker& worker = (*workers)->Get(absl::StrCat("trainer", rank));
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                          JoinGroup(worker, join));
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> part,
                          group->Split(rank % 2));
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> pair,
                          group->Subgroup({2, 0}));
    return group->Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_THAT(store.NumKeys(kLong), IsOkAndHolds(*before));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

// Its own coordinator is silent; the others that wait for it, and those for
// whom it waits, are told the same.
TEST(JoinGroup, OperationsOfAWorkerThatIsOutOfItsJobEndWithTheReason) {
  TestWorkers::Options options;
  options.servers = 1;  // the coordinator's host
  options.trainers = 3;
  options.configure = [](Options& one) {
    one.log_level = telemetry::Level::kOff;
  };
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  std::unique_ptr<collectives::ProcessGroup> groups[3], parts[3];
  const auto met = testing::RunRanks(3, [&](int rank) -> absl::Status {
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(
        groups[rank],
        JoinGroup((*workers)->Get(absl::StrCat("trainer", rank)), join));
    WEFT_ASSIGN_OR_RETURN(parts[rank], groups[rank]->Split(0));
    return absl::OkStatus();
  });
  EXPECT_THAT(met, Each(IsOk()));
  (*workers)->Kill("ps0");
  // Each waits for rank 2, which calls nothing: for 5 minutes, by default.
  const auto statuses = testing::RunRanks(4, [&](int n) {
    auto& group = n < 2 ? *groups[n] : *parts[n - 2];
    return n == 0 ? group.Receive(Tensor::Zeros({1}), /*from=*/2)
                  : group.AllReduce(Tensor::Zeros({1}));
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kUnavailable, "out of job")));
  for (auto& group : groups) {
    EXPECT_THAT(group->health(), StatusIs(absl::StatusCode::kUnavailable,
                                          "the coordinator has been silent"));
    group.reset();
  }
  for (auto& part : parts) part.reset();
}

Options ElasticOf(int rank, const std::string& socket) {
  Options options;
  options.job = "job";
  options.rank = rank;
  options.min_workers = 1;
  options.max_workers = 4;
  options.coordinator = absl::StrCat("unix:", socket);
  options.log_level = telemetry::Level::kError;
  return options;
}

// For `weft dump`, which compares what each has called.
TEST(JoinGroup, GroupThatPassesItsDeadlineLeavesARecordingOfEachWorker) {
  weft::testing::TempDir dumps;
  TestWorkers::Options options;
  options.trainers = 2;
  options.configure = [&](Options& one) { one.dump_dir = dumps.path(); };
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<collectives::ProcessGroup> group,
        JoinGroup((*workers)->Get(absl::StrCat("trainer", rank)), join));
    collectives::CallOptions call;
    if (rank == 0) {
      call.timeout = absl::Milliseconds(100);
    } else {
      EXPECT_TRUE(testing::Becomes([&] { return !group->health().ok(); }));
    }
    return group->Barrier(call);
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  std::vector<std::string> recorded;
  for (const auto& entry : std::filesystem::directory_iterator(dumps.path())) {
    recorded.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(recorded, UnorderedElementsAre(StartsWith("test-trainer0-"),
                                             StartsWith("test-trainer1-")));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

TEST(JoinGroup, WorkersOfAnElasticJobNameTheirMembers) {
  weft::testing::TempDir directory;
  chmod(directory.path().c_str(), 0700);
  setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int rank = 0; rank < 3; ++rank) {
    auto worker = Worker::Start(ElasticOf(rank, directory.Path("c.sock")));
    WEFT_ASSERT_OK(worker.status());
    workers.push_back(*std::move(worker));
  }
  EXPECT_THAT(JoinGroup(*workers[0]).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "name the members in JoinGroupOptions::members"));
  for (const size_t size : {3, 2}) {
    WEFT_EXPECT_OK(workers[0]->membership().Refresh(kLong));
    const auto members = MembersNow(*workers[0], "role=trainer");
    WEFT_ASSERT_OK(members.status());
    ASSERT_EQ(members->size(), size);
    const auto statuses = testing::RunRanks(
        static_cast<int>(size), [&](int rank) -> absl::Status {
          JoinGroupOptions join;
          join.members = *members;
          join.arena_bytes = 1 << 20;
          WEFT_ASSIGN_OR_RETURN(
              std::unique_ptr<collectives::ProcessGroup> group,
              JoinGroup(*workers[rank], join));
          return group->Barrier();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
    EXPECT_TRUE(workers.back()->Shutdown(kLong).status().ok());
    workers.pop_back();
  }
}

}  // namespace
}  // namespace weft::worker
