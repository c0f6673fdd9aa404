// What join_group.h says of groups of workers, at the edges.

#include "weft/worker/join_group.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/tests/outside/groups/gate.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/test_workers.h"

namespace weft::outside {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::collectives::CallOptions;
using ::weft::collectives::ProcessGroup;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::RunRanks;
using ::weft::testing::StatusIs;
using ::weft::worker::JoinGroup;
using ::weft::worker::JoinGroupOptions;
using ::weft::worker::TestWorkers;
using ::weft::worker::Worker;

JoinGroupOptions Small() {
  JoinGroupOptions options;
  options.arena_bytes = 1 << 20;
  options.join_timeout = absl::Seconds(60);
  options.timeout = absl::Seconds(60);
  return options;
}

std::unique_ptr<TestWorkers> StartTrainers(
    int trainers,
    const std::function<void(worker::Options& options)>& configure = nullptr) {
  TestWorkers::Options options;
  options.trainers = trainers;
  options.configure = configure;
  auto workers = TestWorkers::Start(options);
  EXPECT_THAT(workers.status(), IsOk());
  return workers.ok() ? *std::move(workers) : nullptr;
}

int RecordingsIn(const std::string& directory) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    count += entry.path().extension() == ".flight";
  }
  return count;
}

// "Written once an operation passes its deadline or finds that ranks have
// called different ones" (docs/collectives.md).
TEST(JoinGroup, GroupThatBreaksLeavesARecordingOfEachWorker) {
  for (const bool is_late : {true, false}) {
    weft::testing::TempDir directory;
    auto workers = StartTrainers(2, [&](worker::Options& options) {
      options.dump_dir = directory.path();
    });
    ASSERT_NE(workers, nullptr);
    Gate is_over;
    const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
      Worker& worker = workers->Get(absl::StrCat("trainer", rank));
      WEFT_ASSIGN_OR_RETURN(auto group, JoinGroup(worker, Small()));
      WEFT_RETURN_IF_ERROR(group->Barrier());
      if (is_late && rank == 1) {
        is_over.Wait();
        return group->Barrier();
      }
      CallOptions soon;
      soon.timeout = absl::Milliseconds(is_late ? 100 : 60'000);
      const absl::Status found = is_late || rank == 0
                                     ? group->Barrier(soon)
                                     : group->AllReduce(Tensor::Ones({1}));
      if (is_late) is_over.Open();
      return found;
    });
    EXPECT_THAT(statuses[0],
                StatusIs(is_late ? absl::StatusCode::kDeadlineExceeded
                                 : absl::StatusCode::kFailedPrecondition));
    EXPECT_FALSE(statuses[1].ok());
    EXPECT_GE(RecordingsIn(directory.path()), is_late ? 1 : 2);
    EXPECT_THAT(workers->Shutdown(), IsOk());
  }
}

// No recordings for a group that ends well, or by Revoke.
TEST(JoinGroup, GroupThatEndsInOrderLeavesNoRecording) {
  weft::testing::TempDir directory;
  auto workers = StartTrainers(2, [&](worker::Options& options) {
    options.dump_dir = directory.path();
  });
  ASSERT_NE(workers, nullptr);
  EXPECT_THAT(workers->Run([](Worker& worker) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto group, JoinGroup(worker, Small()));
    WEFT_RETURN_IF_ERROR(group->Barrier());
    WEFT_RETURN_IF_ERROR(group->AllReduce(Tensor::Ones({3})));
    return group->Barrier();
  }),
              IsOk());
  EXPECT_THAT(workers->Shutdown(), IsOk());
  EXPECT_EQ(RecordingsIn(directory.path()), 0);
}

TEST(JoinGroup, MemberThatDoesNotComeIsNamedAndOthersAreNot) {
  auto workers = StartTrainers(4);
  ASSERT_NE(workers, nullptr);
  const auto statuses = RunRanks(4, [&](int rank) -> absl::Status {
    if (rank == 2) return absl::OkStatus();
    JoinGroupOptions join = Small();
    join.join_timeout = absl::Seconds(3);
    return JoinGroup(workers->Get(absl::StrCat("trainer", rank)), join)
        .status();
  });
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "trainer2"));
    for (const int other : {0, 1, 3}) {
      if (other == rank) continue;
      EXPECT_THAT(std::string(statuses[rank].message()),
                  ::testing::Not(HasSubstr(absl::StrCat("trainer", other))));
    }
  }
  // The name is free again.
  EXPECT_THAT(workers->Run([](Worker& worker) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto group, JoinGroup(worker, Small()));
    return group->Barrier();
  }),
              IsOk());
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

TEST(JoinGroup, AnotherThreadAtTheSameNameIsRefused) {
  auto workers = StartTrainers(2);
  ASSERT_NE(workers, nullptr);
  Worker& first = workers->Get("trainer0");
  Worker& second = workers->Get("trainer1");
  // Two threads of one worker at one name, before the other worker comes: one
  // is refused, the other goes on.
  std::vector<absl::Status> found(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      auto group = JoinGroup(first, Small());
      found[i] = group.ok() ? (*group)->Barrier() : group.status();
    });
  }
  // The one that goes on needs this.
  std::thread other([&] {
    auto group = JoinGroup(second, Small());
    EXPECT_THAT(group.status(), IsOk());
    if (group.ok()) {
      EXPECT_THAT((*group)->Barrier(), IsOk());
    }
  });
  for (std::thread& thread : threads) thread.join();
  other.join();
  EXPECT_THAT(found, Contains(IsOk()));
  EXPECT_THAT(found, Contains(StatusIs(absl::StatusCode::kFailedPrecondition)));
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

TEST(JoinGroup, ArgumentsThatMakeNoSenseAreRefusedAtOnce) {
  auto workers = StartTrainers(2);
  ASSERT_NE(workers, nullptr);
  Worker& worker = workers->Get("trainer0");
  const auto refused = [&](const std::function<void(JoinGroupOptions&)>& f) {
    JoinGroupOptions join = Small();
    join.join_timeout = absl::Seconds(20);
    f(join);
    return JoinGroup(worker, join).status().code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](auto& j) { j.members = {"trainer1"}; }), kInvalid);
  EXPECT_EQ(refused([](auto& j) {
              j.members = {"trainer0", "trainer0"};
            }),
            kInvalid);
  EXPECT_EQ(refused([](auto& j) { j.members = {"trainer0", ""}; }), kInvalid);
  EXPECT_EQ(refused([](auto& j) { j.arena_bytes = -1; }), kInvalid);
  EXPECT_EQ(refused([](auto& j) {
              j.join_timeout = -absl::Seconds(1);
              j.members = {"trainer0", "trainer1"};
            }),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(worker::MembersNow(worker, "role=").status().code(), kInvalid);
  EXPECT_EQ(worker::MembersNow(worker, "==").status().code(), kInvalid);
  const auto nobody = worker::MembersNow(worker, "role=ps");
  ASSERT_TRUE(nobody.ok());
  EXPECT_TRUE(nobody->empty());
  // One alone is a group.
  JoinGroupOptions alone = Small();
  alone.name = "alone";
  alone.members = {"trainer0"};
  auto group = JoinGroup(worker, alone);
  ASSERT_THAT(group.status(), IsOk());
  EXPECT_EQ((*group)->size(), 1);
  EXPECT_THAT((*group)->Barrier(), IsOk());
  EXPECT_THAT((*group)->AllReduce(Tensor::Ones({3})), IsOk());
  group->reset();
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

// The place in the list is the rank, whatever the worker's own is.
TEST(JoinGroup, MembersAreRankedByTheirPlaceInTheList) {
  auto workers = StartTrainers(3);
  ASSERT_NE(workers, nullptr);
  const std::vector<std::string> members = {"trainer2", "trainer0", "trainer1"};
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(workers->Run([&](Worker& worker) -> absl::Status {
      JoinGroupOptions join = Small();
      join.members = members;
      WEFT_ASSIGN_OR_RETURN(auto group, JoinGroup(worker, join));
      EXPECT_EQ(members[group->rank()], worker.self().name);
      WEFT_ASSIGN_OR_RETURN(auto names,
                            group->AllGatherBytes(worker.self().name));
      EXPECT_EQ(names, members);
      return absl::OkStatus();
    }),
                IsOk());
  }
  EXPECT_THAT(workers->Shutdown(), IsOk());
}

// A member that ends while the others meet, and one that ends in the group.
TEST(JoinGroup, WorkerThatIsKilledIsNamedAndTheOthersGoOn) {
  auto workers = StartTrainers(3, [](worker::Options& options) {
    options.limits.dead_after = absl::Seconds(3);
  });
  ASSERT_NE(workers, nullptr);
  std::vector<std::unique_ptr<ProcessGroup>> groups(3);
  EXPECT_THAT(
      RunRanks(3,
               [&](int rank) -> absl::Status {
                 WEFT_ASSIGN_OR_RETURN(
                     groups[rank],
                     JoinGroup(workers->Get(absl::StrCat("trainer", rank)),
                               Small()));
                 return groups[rank]->Barrier();
               }),
      Each(IsOk()));
  // Its process would take the group with it.
  groups[2].reset();
  workers->Kill("trainer2");
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    Worker& worker = workers->Get(absl::StrCat("trainer", rank));
    EXPECT_THAT(groups[rank]->AllReduce(Tensor::Ones({2})),
                StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
    JoinGroupOptions join = Small();
    join.members = {"trainer0", "trainer1", "trainer2"};
    // The job learns that it is gone while they wait for it.
    EXPECT_THAT(JoinGroup(worker, join).status(),
                StatusIs(absl::StatusCode::kUnavailable, "trainer2"));
    join.members = {"trainer1", "trainer0"};
    WEFT_ASSIGN_OR_RETURN(auto pair, JoinGroup(worker, join));
    const Tensor sum = Tensor::Ones({2});
    WEFT_RETURN_IF_ERROR(pair->AllReduce(sum));
    EXPECT_EQ(sum.ToVector<float>(), std::vector<float>(2, 2.0f));
    WEFT_RETURN_IF_ERROR(groups[rank]->Shrink({0, 1}));
    WEFT_RETURN_IF_ERROR(groups[rank]->AllReduce(sum));
    EXPECT_EQ(sum.ToVector<float>(), std::vector<float>(2, 4.0f));
    return groups[rank]->Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  groups.clear();
}

TEST(JoinGroup, WorkerThatHasShutDownJoinsNothing) {
  auto workers = StartTrainers(1);
  ASSERT_NE(workers, nullptr);
  Worker& worker = workers->Get("trainer0");
  EXPECT_TRUE(worker.Shutdown(absl::Seconds(60)).status().ok());
  JoinGroupOptions join = Small();
  join.join_timeout = absl::Seconds(2);
  EXPECT_FALSE(JoinGroup(worker, join).ok());
  join.members = {"trainer0"};
  EXPECT_FALSE(JoinGroup(worker, join).ok());
}

}  // namespace
}  // namespace weft::outside
