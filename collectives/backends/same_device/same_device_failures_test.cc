// What goes wrong between ranks that share a device: each is named, on every
// rank, and none hangs.

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/same_device/same_device_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/current.h"
#include "weft/device/runtime.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status Reduce(const SameDeviceRank& rank,
                    const CallOptions& options = {}) {
  return rank.group.AllReduce(rank.Place(Numbers(rank.group.rank(), 100)), {},
                              options);
}

// Those of `members` go on, as a new group on the same device.
absl::Status ShrinkAndReduce(const SameDeviceRank& rank,
                             const std::vector<int>& members) {
  ProcessGroup& group = rank.group;
  WEFT_RETURN_IF_ERROR(group.Shrink(members));
  WANT_EQ(group.backend_name(), "same_device");
  const Tensor sum = rank.Place(Tensor::Ones({4}));
  WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
  WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
          std::vector<float>(4, static_cast<float>(group.size())));
  return group.Barrier();
}

// ----- before anything is on the device

TEST(SameDeviceFailures, DifferentOperationsAreNamedAndNoneIsLaunched) {
  const std::vector<std::function<absl::Status(const SameDeviceRank&)>> others =
      {[](const SameDeviceRank& r) {
         return r.group.Broadcast(r.Place(Tensor::Zeros({4})), 0);
       },
       [](const SameDeviceRank& r) {
         return r.group.AllReduce(r.Place(Tensor::Zeros({5})));
       },
       [](const SameDeviceRank& r) {
         return r.group.AllReduce(r.Place(Tensor::Zeros({4})), ReduceOp::kMax);
       },
       [](const SameDeviceRank& r) { return r.group.Barrier(); }};
  for (size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    SameDeviceWorld world(3, i);
    const auto statuses = world.Run([&](const SameDeviceRank& rank) {
      return rank.group.rank() == 2
                 ? others[i](rank)
                 : rank.group.AllReduce(rank.Place(Tensor::Zeros({4})));
    });
    EXPECT_THAT(statuses,
                Each(AllOf(StatusIs(kDifferent, "different operations"),
                           StatusIs(kDifferent, "rank 2 called"))));
    EXPECT_EQ(world.Count("Reduce"), 0);
  }
}

TEST(SameDeviceFailures, CountsThatOnlyPairsKnowAreComparedToo) {
  SameDeviceWorld world(3, 1);
  const auto statuses = world.Run([](const SameDeviceRank& rank) {
    ProcessGroup& group = rank.group;
    std::vector<Tensor> parts;
    for (int r = 0; group.rank() == 0 && r < 3; ++r) {
      parts.push_back(rank.Place(Tensor::Zeros({4})));
    }
    const int64_t own = group.rank() == 2 ? 5 : 4;
    return group.Gather(rank.Place(Tensor::Zeros({own})), parts, 0);
  });
  EXPECT_THAT(statuses[0], StatusIs(kDifferent, "rank 2 sends 5 elements"));
  EXPECT_THAT(statuses[2], StatusIs(kDifferent, "which wants 4"));
  EXPECT_FALSE(statuses[1].ok());
}

TEST(SameDeviceFailures, RankThatDoesNotCallIsNamedAndNothingIsLaunched) {
  SameDeviceWorld world(3, 1);
  std::atomic<int> failed{0};
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (group.rank() == 1) {
          WANT_EQ(bool(Becomes([&] { return failed == 2; })), true);
          return absl::OkStatus();
        }
        const absl::Status found =
            Reduce(rank, Within(absl::Milliseconds(200)));
        ++failed;
        return found;
      });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r], StatusIs(kLate, "rank 1"));
  }
  EXPECT_EQ(world.Count("Reduce"), 0);
}

TEST(SameDeviceFailures, RefusalLeavesTheGroupAsItIs) {
  SameDeviceWorld world(3, 1);
  const auto statuses =
      world.Run([](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        for (int round = 0; round < 3; ++round) {
          const Tensor wrong = rank.Place(Tensor::Zeros({4}));
          const absl::Status found =
              group.rank() == 1 ? group.AllReduce(wrong, ReduceOp::kXor)
                                : group.AllReduce(wrong);
          WANT_EQ(found.code(),
                  group.rank() == 1 ? kInvalid : absl::StatusCode::kAborted);
          WEFT_RETURN_IF_ERROR(Reduce(rank));
        }
        return group.health();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.Count("Reduce"), 3);
}

// ----- on the device

// Each rank reduces; what rank 1 brings, its stream, which hangs, has still to
// compute. `end` is called on each rank once the reduction waits on the device,
// and `after`, which may be null, once the operation has failed.
constexpr absl::Duration kLongestEnd = absl::Milliseconds(200);
std::vector<absl::Status> ReduceBehindAStreamThatHangs(
    SameDeviceWorld& world, const CallOptions& options,
    const std::function<void(const SameDeviceRank&)>& end,
    const std::function<absl::Status(const SameDeviceRank&)>& after) {
  world.options.longest_end = kLongestEnd;
  std::atomic<int> ended{0};
  return world.Run([&](const SameDeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    WANT_EQ(BytesOf(x.To(Device::Cpu())), BytesOf(Numbers(group.rank(), 100)));
    WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                          world.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    WEFT_RETURN_IF_ERROR(group.Barrier());
    Tensor own = x;
    if (group.rank() == 1) {
      world.runtime().SetHangs(stream, true);
      own = x.Clone();
    }
    Future<void> reduced = group.AllReduceAsync(own, {}, options);
    // That of Clone, and the reduction.
    WANT_EQ(bool(Becomes([&] {
              return world.runtime().pending_tasks() == 2 ||
                     !group.health().ok();
            })),
            true);
    end(rank);
    const absl::Status status = reduced.Wait(kPatience);
    ++ended;
    WANT_EQ(bool(Becomes([&] { return ended == group.size(); })), true);
    world.runtime().SetHangs(stream, false);
    if (after == nullptr) return status;
    WANT_EQ(status.ok(), false);
    return after(rank);
  });
}

TEST(SameDeviceFailures, StreamThatHangsEndsAtTheDeadlineAndTheRanksGoOn) {
  SameDeviceWorld world(3, 2);
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, Within(absl::Milliseconds(300)), [](const SameDeviceRank&) {},
      [](const SameDeviceRank& rank) -> absl::Status {
        const absl::Status health = rank.group.health();
        ProcessGroup& group = rank.group;
        WANT_EQ(health.code(), kLate);
        return ShrinkAndReduce(rank, {0, 1, 2});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(SameDeviceFailures, DeadlineSaysWhatHasNotEnded) {
  SameDeviceWorld world(2, 2);
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, Within(absl::Milliseconds(300)), [](const SameDeviceRank&) {},
      nullptr);
  EXPECT_THAT(statuses,
              Each(StatusIs(kLate, "the shared device has not ended it")));
  EXPECT_THAT(statuses, Each(StatusIs(kLate, "AllReduce")));
}

TEST(SameDeviceFailures, RevokeEndsWhatIsInFlight) {
  SameDeviceWorld world(3, 5);
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [](const SameDeviceRank& rank) {
        if (rank.group.rank() != 1) return;
        rank.group.Revoke(absl::CancelledError("a rank is slow"));
      },
      nullptr);
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST(SameDeviceFailures, DeathOfARankIsNamedAndTheOthersGoOn) {
  SameDeviceWorld world(3, 7);
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [&](const SameDeviceRank& rank) {
        if (rank.group.rank() == 1) world.host().Kill(1);
      },
      [](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        if (group.rank() == 1) return absl::OkStatus();
        const absl::Status health = group.health();
        WANT_EQ(health.code(), kLost);
        WANT_EQ(absl::StrContains(health.message(), "rank 1 has ended"), true);
        return ShrinkAndReduce(rank, {0, 2});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(SameDeviceFailures, EndOfTheGroupEndsWhatIsInFlight) {
  SameDeviceWorld world(2, 6);
  world.options.longest_end = kLongestEnd;
  auto stream = world.runtime().CreateStream(device::Device::Simulated(0));
  WEFT_ASSERT_OK(stream);
  std::atomic<int> begun{0};
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto backend, world.Connect(rank));
    auto group = ProcessGroup::Create(std::move(backend));
    const Tensor x =
        Tensor::Ones({100}).To(Device(world.devices().context(), 0));
    const device::StreamScope scope(*stream);
    world.runtime().SetHangs(*stream, true);
    const Tensor own = x.Clone();
    Future<void> reduced = group->AllReduceAsync(own);
    ++begun;
    Becomes([&] { return begun == 2; });
    if (rank == 0) group = nullptr;
    return reduced.Wait(kPatience);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "ended on rank 0")));
}

TEST(SameDeviceFailures, KernelThatFailsIsNamedOnEveryRank) {
  SameDeviceWorld world(2, 8);
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        WEFT_RETURN_IF_ERROR(Reduce(rank));
        if (group.rank() == 1) {
          world.runtime().FailKernel(rank.device().id(), "Reduce");
        }
        WEFT_RETURN_IF_ERROR(group.Barrier());
        return Reduce(rank);
      });
  EXPECT_THAT(statuses, Each(StatusIs(kFailed, "simulated:0")));
}

TEST(SameDeviceFailures, LostDeviceIsNamedOnEveryRank) {
  SameDeviceWorld world(2, 9);
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [&](const SameDeviceRank& rank) {
        if (rank.group.rank() != 1) return;
        world.runtime().LoseDevice(rank.device().id());
      },
      nullptr);
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "the device is lost")));
}

// One rank alone wants memory, for the copy of what it sends in place.
TEST(SameDeviceFailures, TooLittleMemoryOfOneRankIsToldOnEveryRank) {
  SameDeviceWorld world(3, 10);
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        const Tensor in = rank.Place(Tensor::Ones({300'000}));
        const Tensor out = rank.Place(Tensor::Zeros({300'000}));
        WEFT_RETURN_IF_ERROR(group.Barrier());
        if (group.rank() == 1) {
          world.runtime().FailAllocations(rank.device().id(), 100);
        }
        return group.AllToAll(in, group.rank() == 1 ? in : out);
      });
  EXPECT_THAT(statuses, Each(StatusIs(kExhausted, "out of memory")));
  EXPECT_THAT(statuses, Each(StatusIs(kExhausted, "rank 1")));
}

}  // namespace
}  // namespace weft::collectives
