#include "weft/worker/join_group.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/cancel.h"
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
using ::testing::Not;
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
  // The first to come waits on, for those that name the same members.
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
    // Each worker finds by itself that it is out of the job.
    EXPECT_TRUE(testing::Becomes([&] { return !group->health().ok(); }));
    EXPECT_THAT(group->health(), StatusIs(absl::StatusCode::kUnavailable,
                                          "the coordinator has been silent"));
    group.reset();
  }
  for (auto& part : parts) part.reset();
}

// The recordings are for `weft dump`, which compares what each has called.
TEST(JoinGroup, GroupThatPassesItsDeadlineLeavesARecordingOfEachWorker) {
  weft::testing::TempDir dumps;
  TestWorkers::Options options;
  options.trainers = 2;
  options.configure = [&](Options& one) { one.dump_dir = dumps.path(); };
  auto workers = TestWorkers::Start(options);
  WEFT_ASSERT_OK(workers.status());
  // A group that breaks before a rank is in it is none to that rank.
  std::atomic<int> joined{0};
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    JoinGroupOptions join;
    join.arena_bytes = 1 << 20;
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<collectives::ProcessGroup> group,
        JoinGroup((*workers)->Get(absl::StrCat("trainer", rank)), join));
    ++joined;
    collectives::CallOptions call;
    if (rank == 0) {
      EXPECT_TRUE(testing::Becomes([&] { return joined == 2; }));
      call.timeout = absl::Milliseconds(100);
    } else {
      EXPECT_TRUE(testing::Becomes([&] { return !group->health().ok(); }));
    }
    return group->Barrier(call);
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  std::vector<std::string> recorded;
  EXPECT_TRUE(testing::Becomes([&] {
    recorded.clear();
    for (const auto& entry :
         std::filesystem::directory_iterator(dumps.path())) {
      recorded.push_back(entry.path().filename().string());
    }
    return recorded.size() >= 2;
  }));
  EXPECT_THAT(recorded, UnorderedElementsAre(StartsWith("test-trainer0-"),
                                             StartsWith("test-trainer1-")));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

// Workers of an elastic job, by rank; each may come, end or die at any time.
class ElasticJob : public ::testing::Test {
 protected:
  ElasticJob() {
    chmod(directory_.path().c_str(), 0700);
    setenv("XDG_RUNTIME_DIR", directory_.path().c_str(), 1);
  }

  // For tests of death: a silent worker counts as dead soon, yet later than a
  // worker is silent to which a busy machine gives no time.
  void DeclareSilentOnesDeadSoon() { dead_after_ = absl::Seconds(5); }
  // Rank 0 is the first to come and the last to go: the coordinator is there.
  void Come(int rank, const std::string& role = "trainer") {
    Options options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.min_workers = 1;
    options.max_workers = 16;
    options.coordinator = absl::StrCat("unix:", directory_.Path("c.sock"));
    options.log_level = telemetry::Level::kError;
    options.limits.dead_after = dead_after_;
    auto worker = Worker::Start(options);
    WEFT_ASSERT_OK(worker.status());
    workers_[rank] = *std::move(worker);
  }
  void ComeAll(int count) {
    for (int rank = 0; rank < count; ++rank) Come(rank);
  }
  void Leave(int rank) {
    EXPECT_TRUE(workers_[rank]->Shutdown(kLong).status().ok());
    workers_.erase(rank);
  }
  ~ElasticJob() override {
    while (!workers_.empty()) workers_.erase(std::prev(workers_.end()));
  }

  static JoinGroupOptions Within(absl::Duration timeout) {
    JoinGroupOptions join;
    join.join_timeout = timeout;
    join.arena_bytes = 1 << 20;
    return join;
  }

  // Joins the group of `join` on these ranks; OK if all are in one of `size`
  // and it adds up.
  std::vector<absl::Status> MeetAndSum(const std::vector<int>& ranks, int size,
                                       const JoinGroupOptions& join) {
    return testing::RunRanks(
        static_cast<int>(ranks.size()), [&](int i) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(
              std::unique_ptr<collectives::ProcessGroup> group,
              JoinGroup(*workers_.at(ranks[i]), join));
          const Tensor tensor = Tensor::Ones({10});
          WEFT_RETURN_IF_ERROR(group->AllReduce(tensor));
          const float sum = tensor.data<float>()[9];
          if (group->size() == size && sum == static_cast<float>(size)) {
            return absl::OkStatus();
          }
          return absl::InternalError(
              absl::StrCat("size ", group->size(), ", sum ", sum));
        });
  }

  void AwaitWaiting(const JoinGroupOptions& join,
                    const std::vector<std::string>& names) {
    EXPECT_TRUE(testing::Becomes([&] {
      const auto found = MembersWaiting(*workers_.at(0), join, kLong);
      return found.ok() && *found == names;
    })) << absl::StrJoin(names, ", ");
  }

  weft::testing::TempDir directory_;
  absl::Duration dead_after_ = Options().limits.dead_after;
  std::map<int, std::unique_ptr<Worker>> workers_;
};

TEST_F(ElasticJob, WorkersMayNameTheirMembers) {
  ComeAll(3);
  for (const size_t size : {3, 2}) {
    WEFT_EXPECT_OK(workers_[0]->membership().Refresh(kLong));
    JoinGroupOptions join = Within(kLong);
    const auto members = MembersNow(*workers_[0], "role=trainer");
    WEFT_ASSERT_OK(members.status());
    ASSERT_EQ(members->size(), size);
    join.members = *members;
    std::vector<int> ranks;
    for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
    EXPECT_THAT(MeetAndSum(ranks, static_cast<int>(size), join), Each(IsOk()));
    Leave(ranks.back());
  }
}

TEST_F(ElasticJob, GroupIsOfAllWhoAreThereInTheOrderOfTheirRanks) {
  for (const int rank : {0, 7, 3}) Come(rank);
  const auto statuses = testing::RunRanks(3, [&](int i) -> absl::Status {
    const int rank = i == 0 ? 0 : i == 1 ? 7 : 3;
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                          JoinGroup(*workers_.at(rank), Within(kLong)));
    const int wanted = rank == 0 ? 0 : rank == 3 ? 1 : 2;
    return group->rank() == wanted && group->size() == 3
               ? group->Barrier()
               : absl::InternalError("wrong rank");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_F(ElasticJob, LateWorkerWaitsAndIsInTheNextGroup) {
  ComeAll(2);
  const JoinGroupOptions join = Within(kLong);
  EXPECT_THAT(MeetAndSum({0, 1}, 2, join), Each(IsOk()));
  EXPECT_THAT(
      AwaitMembersWaiting(*workers_[0], join, absl::Milliseconds(20)).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
  Come(2);
  std::vector<absl::Status> late;
  std::thread third([&] { late = MeetAndSum({2}, 3, join); });
  EXPECT_THAT(AwaitMembersWaiting(*workers_[0], join, kLong),
              IsOkAndHolds(ElementsAre("trainer2")));
  AwaitWaiting(join, {"trainer2"});
  EXPECT_THAT(MeetAndSum({0, 1}, 3, join), Each(IsOk()));
  third.join();
  EXPECT_THAT(late, Each(IsOk()));
  AwaitWaiting(join, {});
  Leave(1);
  EXPECT_THAT(MeetAndSum({0, 2}, 2, join), Each(IsOk()));
}

TEST_F(ElasticJob, WorkerThatDiesWhileOthersMeetIsNoLongerWaitedFor) {
  DeclareSilentOnesDeadSoon();
  ComeAll(4);
  const JoinGroupOptions join = Within(kLong);
  std::vector<absl::Status> statuses;
  std::thread others([&] { statuses = MeetAndSum({0, 1}, 2, join); });
  // One has come, and one has not.
  std::thread dies([&] {
    EXPECT_THAT(JoinGroup(*workers_.at(2), join).status(), Not(IsOk()));
  });
  AwaitWaiting(join, {"trainer0", "trainer1", "trainer2"});
  workers_.erase(3);
  workers_.at(2)->membership().Leave(kLong).IgnoreError();
  dies.join();
  others.join();
  EXPECT_THAT(statuses, Each(IsOk()));
}

// It is on the roll, and the others wait for it to connect.
TEST_F(ElasticJob, DeathBetweenTheRollAndTheGroupBeginsANewRound) {
  DeclareSilentOnesDeadSoon();
  ComeAll(3);
  const JoinGroupOptions join = Within(kLong);
  std::vector<absl::Status> statuses;
  std::thread others([&] { statuses = MeetAndSum({0, 1}, 2, join); });
  {
    rendezvous::RollTerms terms;
    terms.selector = "role=trainer";
    auto call = workers_.at(2)->roll_calls().Begin("world", terms);
    WEFT_ASSERT_OK(call.status());
    const auto roll = (*call)->Next(SteadyClock().Now() + kLong);
    WEFT_ASSERT_OK(roll.status());
    EXPECT_EQ(roll->entries.size(), 3u);
  }
  workers_.erase(2);
  others.join();
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_F(ElasticJob, SurvivorsOfAGroupMakeTheNextOne) {
  DeclareSilentOnesDeadSoon();
  ComeAll(3);
  const JoinGroupOptions join = Within(kLong);
  std::unique_ptr<collectives::ProcessGroup> groups[3];
  EXPECT_THAT(testing::RunRanks(3,
                                [&](int rank) -> absl::Status {
                                  WEFT_ASSIGN_OR_RETURN(
                                      groups[rank],
                                      JoinGroup(*workers_.at(rank), join));
                                  return groups[rank]->Barrier();
                                }),
              Each(IsOk()));
  groups[2].reset();
  workers_.erase(2);
  const auto statuses = testing::RunRanks(
      2, [&](int rank) { return groups[rank]->AllReduce(Tensor::Ones({3})); });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_THAT(MeetAndSum({0, 1}, 2, join), Each(IsOk()));
  for (auto& group : groups) group.reset();
}

TEST_F(ElasticJob, GroupHasMinToMaxMembersAndALastCall) {
  ComeAll(4);
  JoinGroupOptions join = Within(kLong);
  join.elastic.min = 2;
  join.elastic.max = 3;
  // Two of four come: until the last call they wait for the others.
  join.elastic.last_call = absl::Milliseconds(200);
  EXPECT_THAT(MeetAndSum({0, 3}, 2, join), Each(IsOk()));
  join.name = "second";
  join.elastic.last_call = absl::InfiniteDuration();
  std::vector<absl::Status> statuses;
  std::thread three([&] { statuses = MeetAndSum({0, 1, 2}, 3, join); });
  three.join();
  EXPECT_THAT(statuses, Each(IsOk()));
  // The fourth has none with whom to be two; it has the time to come.
  join.join_timeout = absl::Seconds(3);
  const absl::Status alone = JoinGroup(*workers_.at(3), join).status();
  EXPECT_THAT(alone, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              "round 2: 1 have come (trainer3), waiting for "
                              "trainer0 (of round 1), trainer1 (of round 1), "
                              "trainer2 (of round 1)"));
  AwaitWaiting(join, {});
}

TEST_F(ElasticJob, SelectorsChooseAmongRoles) {
  ComeAll(2);
  Come(5, "reader");
  JoinGroupOptions all = Within(kLong);
  all.elastic.selector = "role=trainer";
  std::vector<absl::Status> readers;
  std::thread reads([&] { readers = MeetAndSum({5}, 1, Within(kLong)); });
  EXPECT_THAT(MeetAndSum({0, 1}, 2, all), Each(IsOk()));
  reads.join();
  EXPECT_THAT(readers, Each(IsOk()));
  EXPECT_THAT(JoinGroup(*workers_.at(5), all).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "selector \"role=trainer\" is of others"));
}

TEST_F(ElasticJob, WhatCannotBeIsRefusedByName) {
  ComeAll(2);
  const auto refused = [&](absl::StatusCode code, const std::string& text,
                           const ElasticMembers& elastic) {
    JoinGroupOptions join = Within(kLong);
    join.elastic = elastic;
    EXPECT_THAT(JoinGroup(*workers_.at(0), join).status(),
                StatusIs(code, text));
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ElasticMembers elastic;
  elastic.min = 3;
  elastic.max = 2;
  refused(kInvalid, "found min 3 and max 2", elastic);
  elastic.min = 0;
  refused(kInvalid, "found min 0 and max 2", elastic);
  elastic.max = 0;
  refused(kInvalid, "found min 0 and max 0", elastic);
  elastic = {};
  elastic.selector = "trainer";
  refused(kInvalid, "selector \"trainer\"", elastic);
  elastic = {};
  elastic.last_call = -absl::Seconds(1);
  refused(kInvalid, "found -1s", elastic);
  JoinGroupOptions both = Within(kLong);
  both.members = {"trainer0"};
  both.elastic.min = 2;
  EXPECT_THAT(JoinGroup(*workers_.at(0), both).status(),
              StatusIs(kInvalid, "found both"));
  // Others have come with other numbers, or this worker has come already.
  std::vector<absl::Status> statuses;
  std::thread first([&] { statuses = MeetAndSum({0}, 2, Within(kLong)); });
  AwaitWaiting(Within(kLong), {"trainer0"});
  JoinGroupOptions other = Within(kLong);
  other.elastic.min = 2;
  EXPECT_THAT(JoinGroup(*workers_.at(1), other).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted (role=trainer, 2 to 4096), found (role=trainer, "
                       "1 to 4096), with which trainer0 has come"));
  EXPECT_THAT(JoinGroup(*workers_.at(0), Within(kLong)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "another thread of trainer0 is at it"));
  EXPECT_THAT(MeetAndSum({1}, 2, Within(kLong)), Each(IsOk()));
  first.join();
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_F(ElasticJob, DeadlineNamesForWhomWasWaited) {
  ComeAll(2);
  JoinGroupOptions join = Within(absl::Seconds(3));  // enough to come
  join.elastic.min = 3;
  EXPECT_THAT(JoinGroup(*workers_.at(0), join).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1 have come (trainer0), waiting for trainer1, 1 more, "
                       "which the job has not"));
  AwaitWaiting(join, {});
}

TEST_F(ElasticJob, CancelEndsTheWaitAndTheNextGroupIsMadeWithoutIt) {
  ComeAll(2);
  CancelSource source;
  JoinGroupOptions join = Within(kLong);
  join.elastic.min = 3;
  join.cancel = source.token();
  absl::Status ended;
  std::thread waits([&] { ended = JoinGroup(*workers_.at(1), join).status(); });
  AwaitWaiting(join, {"trainer1"});
  EXPECT_TRUE(source.Cancel(absl::CancelledError("the training has ended")));
  waits.join();
  EXPECT_THAT(ended,
              StatusIs(absl::StatusCode::kCancelled, "the training has ended"));
  AwaitWaiting(join, {});
  // One that is cancelled already.
  EXPECT_THAT(JoinGroup(*workers_.at(1), join).status(),
              StatusIs(absl::StatusCode::kCancelled, "has ended"));
  EXPECT_THAT(MeetAndSum({0, 1}, 2, Within(kLong)), Each(IsOk()));
}

TEST_F(ElasticJob, ManyMakeTenGroupsOfOneNameWithoutAWordBetween) {
  ComeAll(6);
  const auto statuses = testing::RunRanks(6, [&](int rank) -> absl::Status {
    for (int i = 0; i < 10; ++i) {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::ProcessGroup> group,
                            JoinGroup(*workers_.at(rank), Within(kLong)));
      if (group->size() != 6) return absl::InternalError("not all");
      WEFT_RETURN_IF_ERROR(group->Barrier());
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(JoinGroup, ElasticMembersAreOfAnElasticJob) {
  auto workers = TestWorkers::Start({});
  WEFT_ASSERT_OK(workers.status());
  JoinGroupOptions join;
  join.elastic.min = 2;
  Worker& first = (*workers)->Get("trainer0");
  EXPECT_THAT(JoinGroup(first, join).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "is of an elastic job (--workers=MIN:MAX), and that of "
                       "trainer0 is trainer=2"));
  EXPECT_THAT(MembersWaiting(first, join, kLong).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not elastic"));
  EXPECT_TRUE((*workers)->Shutdown().ok());
}

}  // namespace
}  // namespace weft::worker
