// CoordinatorCore: barriers and phases.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/coordinator_core.h"
#include "weft/rendezvous/core/coordinator_fixture.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/rendezvous/world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using Fixture = CoordinatorFixture;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(CoordinatorCore, ABarrierOfEveryoneNamesNobody) {
  Fixture f;
  const std::vector<std::string> names = {"ps0", "trainer0", "trainer1"};
  const std::vector<WorkerKey> keys = {
      f.Join("ps", 0, 10), f.Join("trainer", 0, 11), f.Join("trainer", 1, 12)};
  const auto arrive = [&](int who, uint64_t arrival) {
    v1::BarrierRequest at = f.AtBarrier(keys[who], arrival, {});
    at.set_everyone(true);
    return f.Call(at);
  };
  const uint64_t first = arrive(0, 1);
  const uint64_t second = f.Arrive(keys[1], 1, names);  // who means the same
  EXPECT_TRUE(f.IsHeld(first));
  EXPECT_THAT(f.StatusOf(f.Arrive(keys[2], 1, {"ps0", "trainer1"})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "same members"));
  const uint64_t third = arrive(2, 2);
  for (const uint64_t ticket : {first, second, third}) {
    EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(ticket).released());
  }
  f.Leave(keys[2], 12);
  EXPECT_THAT(f.StatusOf(arrive(0, 2)),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone (left)"));

  Fixture elastic;
  v1::JoinRequest join = elastic.JoinOf("trainer", 0, 1);
  *join.mutable_world() = ToWire(World::Elastic(1, 2));
  const auto joined = elastic.ReplyTo<v1::JoinReply>(elastic.Call(join));
  v1::BarrierRequest at = elastic.AtBarrier(FromWire(joined.key()), 1, {});
  at.set_everyone(true);
  EXPECT_THAT(
      elastic.StatusOf(elastic.Call(at)),
      StatusIs(absl::StatusCode::kInvalidArgument, "wants the members named"));
}

TEST(CoordinatorCore, ABarrierNamesTheFirstOfManyThatAreMissing) {
  Fixture f;
  v1::JoinRequest join = f.JoinOf("trainer", 0, 1);
  *join.mutable_world() = ToWire(World::Fixed(0, 100));
  const auto joined = f.ReplyTo<v1::JoinReply>(f.Call(join));
  v1::BarrierRequest at = f.AtBarrier(FromWire(joined.key()), 1, {});
  at.set_everyone(true);
  at.set_wait_ms(1000);
  const auto missing = [&] {
    const uint64_t ticket = f.Call(at);
    f.Tick(absl::Seconds(1));
    return f.ReplyTo<v1::BarrierReply>(ticket);
  };
  EXPECT_FALSE(missing().released());
  EXPECT_EQ(missing().missing_size(), 32);
  EXPECT_EQ(missing().missing(0), "trainer1");
  EXPECT_EQ(missing().missing_count(), 99u);
  // One more is there, and does not wait for long.
  join.mutable_member()->set_name("trainer1");
  join.mutable_member()->set_rank(1);
  join.mutable_member()->set_incarnation(2);
  const auto other = f.ReplyTo<v1::JoinReply>(f.Call(join));
  v1::BarrierRequest briefly = f.AtBarrier(FromWire(other.key()), 1, {});
  briefly.set_everyone(true);
  briefly.set_remaining_ms(1500);
  f.Call(briefly);
  EXPECT_EQ(missing().missing(0), "trainer10");  // names are in their order
  EXPECT_EQ(missing().missing_count(), 99u);
}

TEST(CoordinatorCore, ABarrierOpensOnceAllAreThere) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  EXPECT_TRUE(f.IsHeld(first));
  const uint64_t second = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // A repetition of an answered arrival is no arrival at the next one.
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(f.Arrive(b, 1, both)).released());
  const uint64_t again = f.Arrive(a, 2, both);
  EXPECT_TRUE(f.IsHeld(again));
}

TEST(CoordinatorCore, ALateCopyOfAnArrivalIsNoArrivalAtALaterBarrier) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  f.Arrive(a, 1, both);
  f.Arrive(b, 1, both);
  const uint64_t second = f.Arrive(a, 2, both);
  const auto is_late = StatusIs(absl::StatusCode::kCancelled, "late copy");
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 1, both)), is_late);
  EXPECT_TRUE(f.IsHeld(second)) << "the copy took its place";
  f.Arrive(b, 2, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // Nor where its member is at another barrier, or at none.
  v1::BarrierRequest third = f.AtBarrier(a, 3, {"trainer0"});
  third.set_tag("another");
  EXPECT_THAT(f.StatusOf(f.Call(third)), IsOk());
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 2, both)), is_late);
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 3, both)));
}

TEST(CoordinatorCore, CopyOfAnAbandonedArrivalIsIgnored) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  v1::BarrierRequest at = f.AtBarrier(a, 1, both);
  at.set_arrivals(1);
  at.add_unsettled(1);
  at.set_remaining_ms(1000);
  f.Call(at);
  f.Tick(absl::Seconds(1));
  EXPECT_THAT(f.StatusOf(f.Call(at)), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 1, both)));
}

TEST(CoordinatorCore, FailedBarrierFailsAgainWhenAskedAgain) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  f.Arrive(a, 1, both);
  f.ReportExit("trainer1");
  const WorkerKey b = f.Join("trainer", 1, 3);
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 1, both)),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone"));
  EXPECT_TRUE(f.IsHeld(f.Arrive(b, 1, both)));
}

TEST(CoordinatorCore, BarrierGathersAllPayloadsAcrossARestartToo) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const auto brought = [&](uint64_t ticket) {
    std::map<std::string, std::string> all;
    const auto reply = f.ReplyTo<v1::BarrierReply>(ticket);
    for (const v1::Brought& one : reply.brought()) {
      all[one.name()] = one.payload();
    }
    return all;
  };
  const std::map<std::string, std::string> all = {{"trainer0", "x"},
                                                  {"trainer1", "y"}};
  const uint64_t first = f.Arrive(a, 1, both, absl::Seconds(60), "x");
  const uint64_t second = f.Arrive(b, 1, both, absl::Seconds(60), "y");
  EXPECT_EQ(brought(first), all);
  EXPECT_EQ(brought(second), all);
  f.Restart();
  EXPECT_EQ(brought(f.Arrive(b, 1, both, absl::Seconds(60), "y")), all);
  const CoordinatorCore shortened({}, 3, f.core().Snapshot(), Instant());
  EXPECT_EQ(shortened.Snapshot().size(), f.core().Snapshot().size());
}

TEST(CoordinatorCore, RefusesMoreThanABarrierMayGather) {
  CoordinatorCore::Options options;
  options.max_payload_bytes = 8;
  options.max_gathered_bytes = 10;
  Fixture f({}, 1, options);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const auto arrive = [&](std::vector<std::string> members, size_t bytes) {
    return f.StatusOf(f.Arrive(a, 1, std::move(members), absl::Seconds(60),
                               std::string(bytes, 'x')));
  };
  EXPECT_THAT(
      arrive({"trainer0"}, 9),
      StatusIs(absl::StatusCode::kResourceExhausted, "trainer0 brings 9"));
  EXPECT_THAT(arrive({"trainer0", "trainer1"}, 6),
              StatusIs(absl::StatusCode::kResourceExhausted, "may bring 5"));
  EXPECT_THAT(arrive({"trainer0"}, 8), IsOk());
}

// This comes from a second `weft run` of the job, whose ps0 was refused.
TEST(CoordinatorCore, ExitOfAnotherProcessDoesNotEndTheHolderOfTheName) {
  Fixture f;
  v1::JoinRequest join = f.JoinOf("ps", 0, 10);
  v1::Process* process = join.mutable_member()->mutable_process();
  process->set_pid(101);
  process->set_group(100);
  process->set_space("boot 1");
  EXPECT_THAT(f.StatusOf(f.Call(join)), IsOk());
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("ps0");
  const auto report_end = [&](uint32_t pid, const std::string& space) {
    report.mutable_process()->set_pid(pid);
    report.mutable_process()->set_space(space);
    EXPECT_THAT(f.StatusOf(f.Call(report)), IsOk());
    return f.view().Find("ps0") == nullptr;
  };
  EXPECT_FALSE(report_end(0, ""));
  EXPECT_FALSE(report_end(0, "boot 1"));
  EXPECT_FALSE(report_end(200, "boot 1"));
  EXPECT_FALSE(report_end(100, "boot 2"));
  EXPECT_TRUE(report_end(100, "boot 1"));
}

TEST(CoordinatorCore, RefusesABarrierThatNoJobCouldHave) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const auto arrive = [&](const std::string& tag,
                          std::vector<std::string> members) {
    members.push_back("trainer0");
    v1::BarrierRequest at = f.AtBarrier(a, 1, std::move(members));
    at.set_tag(tag);
    return f.StatusOf(f.Call(at));
  };
  EXPECT_THAT(arrive(std::string(1025, 't'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the tag has 1025 bytes, at most 1024"));
  EXPECT_THAT(arrive("start", std::vector<std::string>(16384, "x")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "names 16385 members; a job has at most 16384"));
  for (const std::string& name : {std::string(), std::string(128, 'x')}) {
    EXPECT_THAT(arrive("start", {name}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "Barrier start: worker name"));
  }
  EXPECT_THAT(arrive(std::string(1024, 't'), {}), IsOk());
  v1::BarrierRequest at = f.AtBarrier(a, 1, {"trainer0"});
  for (uint64_t number = 1; number <= 1025; ++number) at.add_unsettled(number);
  EXPECT_THAT(f.StatusOf(f.Call(at)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "is at 1025 barriers, at most 1024"));
}

TEST(CoordinatorCore, OneMembersManyArrivalsLeaveRoomForOthers) {
  CoordinatorCore::Options options;
  options.max_held_calls = 4096;
  Fixture f({}, 1, options);
  const WorkerKey ps = f.Join("ps", 0, 10);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  // Answered at once, and stands for weeks.
  const auto arrive = [&](int i) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0", "trainer0"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(1);
    at.set_wait_ms(0);
    at.set_remaining_ms(0xffffffff);
    return f.StatusOf(f.Call(at));
  };
  for (int i = 1; i <= 4096; ++i) {
    const absl::Status status = arrive(i);
    if (i <= 1024) continue;
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "ps0 is at 1024 barriers already"));
  }
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  const uint64_t second = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(second).released());
  // A repetition takes no more room; what has ended leaves it to others.
  const auto is_waiting = StatusIs(absl::StatusCode::kUnknown, "no answer");
  EXPECT_THAT(arrive(1), is_waiting);
  f.ReportExit("trainer0");
  EXPECT_THAT(f.StatusOf(f.Arrive(ps, 5000, {"ps0", "trainer1"})), is_waiting);
}

TEST(CoordinatorCore, OneMembersArrivalsAreBoundedInBytesToo) {
  CoordinatorCore::Options options;
  options.barriers.bytes = 1 << 20;
  Fixture f({}, 1, options);
  const WorkerKey ps = f.Join("ps", 0, 10);
  const auto arrive = [&](int i, size_t payload, size_t others) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(1);
    at.set_payload(std::string(payload, 'x'));
    for (size_t j = 0; j < others; ++j) {
      at.add_members(absl::StrCat("trainer", j));
    }
    return f.StatusOf(f.Call(at));
  };
  for (const auto& [payload, others] :
       {std::pair<size_t, size_t>{60000, 1}, {0, 5000}}) {
    int taken = 0;
    absl::Status status = absl::UnknownError("");
    for (int i = 1; i <= 100 && absl::IsUnknown(status); ++i) {
      status = arrive(i, payload, others);
      taken += absl::IsUnknown(status);
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "1048576 bytes"));
    EXPECT_GE(taken, 1);
    EXPECT_LE(taken, 17);
    f.Tick(absl::Seconds(9));  // the calls are answered, the arrivals stand
    EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
    EXPECT_THAT(arrive(99, payload, others),
                StatusIs(absl::StatusCode::kResourceExhausted));
    for (int i = 0; i < 60; ++i) {
      f.Tick(absl::Seconds(1));
      EXPECT_THAT(f.StatusOf(f.Beat(ps, 10)), IsOk());
    }
  }
}

TEST(CoordinatorCore, OpeningsThatAMemberDoesNotSettleAreBounded) {
  Fixture f;
  const WorkerKey ps = f.Join("ps", 0, 10);
  const auto arrive = [&](uint64_t i, uint64_t settled_below) {
    v1::BarrierRequest at = f.AtBarrier(ps, i, {"ps0"});
    at.set_settled_below(settled_below);
    at.set_payload(std::string(100, 'x'));
    return f.StatusOf(f.Call(at));
  };
  constexpr uint64_t kLast = 10000;
  for (uint64_t i = 1; i <= kLast; ++i) {
    const absl::Status status = arrive(i, 0);
    if (i <= 1024) {
      ASSERT_THAT(status, IsOk());
    } else {
      ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   "whose opening it has not confirmed"));
    }
  }
  EXPECT_LT(f.SnapshotBytes(), 1024u * 256);
  EXPECT_LT(f.log().size(), 1100u);
  EXPECT_THAT(arrive(1, 0), IsOk());  // it is still answered
  EXPECT_THAT(arrive(kLast + 1, kLast), IsOk());
  EXPECT_LT(f.SnapshotBytes(), 1024u);
}

// Each arrival is small, and what it is owed once the others have come is not.
TEST(CoordinatorCore, UnconfirmedBarrierAnswersOfAMemberAreBounded) {
  CoordinatorCore::Options options;
  options.barriers.bytes = 1 << 20;
  Fixture f({}, 1, options);
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const auto arrive = [&](WorkerKey key, int i, int settled_below, int bytes) {
    v1::BarrierRequest at = f.AtBarrier(key, i, {"trainer0", "trainer1"});
    at.set_tag(absl::StrCat("tag", i));
    at.set_settled_below(settled_below);
    at.set_payload(std::string(bytes, 'x'));
    return f.Call(at);
  };
  std::vector<uint64_t> waiting;
  for (int i = 1; i <= 100; ++i) waiting.push_back(arrive(a, i, 0, 0));
  const auto is_too_much = StatusIs(absl::StatusCode::kResourceExhausted,
                                    "trainer0 is at barriers, of ");
  for (int i = 1; i <= 100; ++i) {
    const absl::Status end = f.StatusOf(arrive(b, i, i, 60000));
    EXPECT_EQ(end, f.StatusOf(waiting[i - 1]));
    if (i <= 10) {
      EXPECT_THAT(end, IsOk());
    } else if (i > 17) {
      EXPECT_THAT(end, is_too_much);
    }
  }
  EXPECT_LT(f.SnapshotBytes(), 1u << 20);
  EXPECT_TRUE(f.IsHeld(arrive(a, 101, 101, 0)));  // has confirmed them
  EXPECT_THAT(f.StatusOf(arrive(b, 101, 101, 60000)), IsOk());
}

TEST(CoordinatorCore, AnArrivalThatWaitsForLongLeavesLaterOnesSettled) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t end = f.Arrive(a, 1, both);
  for (uint64_t i = 2; i <= 3000; ++i) {
    v1::BarrierRequest at = f.AtBarrier(a, i, {"trainer0"});
    at.set_tag("step");
    at.set_settled_below(1);
    at.set_arrivals(i);
    at.add_unsettled(1);
    at.add_unsettled(i);
    ASSERT_THAT(f.StatusOf(f.Call(at)), IsOk());
    ASSERT_THAT(f.StatusOf(f.Call(at)), IsOk()) << "its answer was lost";
  }
  EXPECT_LT(f.SnapshotBytes(), 1024u);
  f.Arrive(b, 1, both);
  EXPECT_TRUE(f.ReplyTo<v1::BarrierReply>(end).released());
}

TEST(CoordinatorCore, APhaseIsSeenByAllAndNeverGoesBack) {
  Fixture f;
  const WorkerKey key = f.Join("ps", 0, 10);
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kActive);
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::DRAINED)), IsOk());
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  const Epoch version = f.view().version();
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::QUIESCING)), IsOk());
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  EXPECT_EQ(f.view().version(), version);
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, "phase 7"));
  f.Restart();
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kDrained);
  f.ReportExit("ps0");
  EXPECT_THAT(f.StatusOf(f.Announce(key, 10, v1::DRAINED)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is gone"));
  f.Join("ps", 0, 20);
  EXPECT_EQ(f.view().Find("ps0")->phase, Phase::kActive);
}

TEST(CoordinatorCore, BarrierNamesMissingMembersAndEndsAtItsDeadline) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both, absl::Seconds(1));
  f.Tick(absl::Seconds(1));
  EXPECT_FALSE(f.ReplyTo<v1::BarrierReply>(first).released());
  EXPECT_THAT(f.ReplyTo<v1::BarrierReply>(first).missing(),
              ElementsAre("trainer1"));
  const uint64_t late = f.Arrive(b, 1, both);
  EXPECT_TRUE(f.IsHeld(late)) << "trainer0 had given up";
}

TEST(CoordinatorCore, ABarrierFailsForAllWhenOneOfThemIsGone) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  f.Join("trainer", 1, 2);
  const std::vector<std::string> both = {"trainer0", "trainer1"};
  const uint64_t first = f.Arrive(a, 1, both);
  f.ReportExit("trainer1");
  EXPECT_THAT(f.StatusOf(first),
              StatusIs(absl::StatusCode::kAborted, "trainer1 is gone"));
  EXPECT_THAT(f.StatusOf(f.Arrive(a, 2, both)),
              StatusIs(absl::StatusCode::kAborted, "killed by SIGKILL"));
}

TEST(CoordinatorCore, ABarrierWantsTheSameMembersFromAll) {
  Fixture f;
  const WorkerKey a = f.Join("trainer", 0, 1);
  const WorkerKey b = f.Join("trainer", 1, 2);
  const uint64_t first = f.Arrive(a, 1, {"trainer0", "trainer1"});
  EXPECT_THAT(f.StatusOf(f.Arrive(b, 1, {"ps0", "trainer1"})),
              StatusIs(absl::StatusCode::kFailedPrecondition, "ps0"));
  EXPECT_TRUE(f.IsHeld(first));
  EXPECT_THAT(f.StatusOf(f.Arrive(b, 1, {"ps0", "trainer0"})),
              StatusIs(absl::StatusCode::kInvalidArgument, "not among"));
}

}  // namespace
}  // namespace weft::rendezvous
