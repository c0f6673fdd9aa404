// What goes wrong between ranks that share a device: each is named, on every
// rank, and none hangs.

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status Reduce(const DeviceRank& rank, const CallOptions& options = {}) {
  return rank.group.AllReduce(rank.Place(Numbers(rank.group.rank(), 100)), {},
                              options);
}

// Those of `members` go on, as a new group on the same device.
absl::Status ShrinkAndReduce(const DeviceRank& rank,
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

class SameDeviceFailures : public ::testing::TestWithParam<Sharers> {};

INSTANTIATE_TEST_SUITE_P(Sharers, SameDeviceFailures,
                         ::testing::Values(Sharers::kThreads,
                                           Sharers::kProcesses),
                         ::testing::PrintToStringParamName());

// ----- on the device

// Each rank reduces; what rank 1 brings, its stream, which hangs, has still to
// compute. `end` is called on each rank once the reduction waits on the device,
// and `after`, which may be null, once the operation has failed.
constexpr absl::Duration kLongestEnd = absl::Milliseconds(200);
std::vector<absl::Status> ReduceBehindAStreamThatHangs(
    SameDeviceWorld& world, const CallOptions& options,
    const std::function<void(const DeviceRank&)>& end,
    const std::function<absl::Status(const DeviceRank&)>& after) {
  world.longest_end = kLongestEnd;
  std::atomic<int> ended{0};
  return world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    WANT_EQ(BytesOf(x.To(Device::Cpu())), BytesOf(Numbers(group.rank(), 100)));
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        rank.devices.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    WEFT_RETURN_IF_ERROR(group.Barrier());
    Tensor own = x;
    if (group.rank() == 1) {
      rank.devices.runtime().SetHangs(stream, true);
      own = x.Clone();
    }
    Future<void> reduced = group.AllReduceAsync(own, {}, options);
    WANT_EQ(bool(Becomes([&] {
              return world.WaitsForAStreamThatHangs() || !group.health().ok();
            })),
            true);
    end(rank);
    const absl::Status status = reduced.Wait(kPatience);
    ++ended;
    WANT_EQ(bool(Becomes([&] { return ended == group.size(); })), true);
    rank.devices.runtime().SetHangs(stream, false);
    if (after == nullptr) return status;
    WANT_EQ(status.ok(), false);
    return after(rank);
  });
}

TEST_P(SameDeviceFailures, StreamThatHangsEndsAtTheDeadlineAndTheRanksGoOn) {
  SameDeviceWorld world(3, 2, GetParam());
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, Within(absl::Milliseconds(300)), [](const DeviceRank&) {},
      [](const DeviceRank& rank) -> absl::Status {
        const absl::Status health = rank.group.health();
        ProcessGroup& group = rank.group;
        WANT_EQ(health.code(), kLate);
        return ShrinkAndReduce(rank, {0, 1, 2});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(SameDeviceFailures, DeadlineSaysWhatHasNotEnded) {
  SameDeviceWorld world(2, 2, GetParam());
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, Within(absl::Seconds(4)),  // enough for both to call it
      [](const DeviceRank&) {}, nullptr);
  EXPECT_THAT(statuses,
              Each(StatusIs(kLate, "the shared device has not ended it")));
  EXPECT_THAT(statuses, Each(StatusIs(kLate, "AllReduce")));
}

TEST_P(SameDeviceFailures, RevokeEndsWhatIsInFlight) {
  SameDeviceWorld world(3, 5, GetParam());
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [](const DeviceRank& rank) {
        if (rank.group.rank() != 1) return;
        rank.group.Revoke(absl::CancelledError("a rank is slow"));
      },
      nullptr);
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST_P(SameDeviceFailures, DeathOfARankIsNamedAndTheOthersGoOn) {
  SameDeviceWorld world(3, 7, GetParam());
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [&](const DeviceRank& rank) {
        if (rank.group.rank() == 1) world.host().Kill(1);
      },
      [](const DeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        if (group.rank() == 1) return absl::OkStatus();
        const absl::Status health = group.health();
        WANT_EQ(health.code(), kLost);
        WANT_EQ(absl::StrContains(health.message(), "rank 1 has ended"), true);
        return ShrinkAndReduce(rank, {0, 2});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(SameDeviceFailures, EndOfTheGroupEndsWhatIsInFlight) {
  SameDeviceWorld world(2, 6, GetParam());
  world.longest_end = kLongestEnd;
  std::atomic<int> begun{0};
  const auto statuses = testing::RunRanks(2, [&](int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(auto backend, world.Connect(rank));
    auto group = ProcessGroup::Create(std::move(backend));
    const Device place(world.devices(rank).context(), 0);
    const Tensor x = Tensor::Ones({100}).To(place);
    WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                          world.runtime(rank).CreateStream(place.id()));
    const device::StreamScope scope(stream);
    world.runtime(rank).SetHangs(stream, true);
    const Tensor own = x.Clone();
    Future<void> reduced = group->AllReduceAsync(own);
    ++begun;
    Becomes([&] { return begun == 2; });
    if (rank == 0) group = nullptr;
    const absl::Status status = reduced.Wait(kPatience);
    world.runtime(rank).SetHangs(stream, false);
    return status;
  });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "ended on rank 0")));
}

TEST_P(SameDeviceFailures, KernelThatFailsIsNamedOnEveryRank) {
  SameDeviceWorld world(2, 8, GetParam());
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_RETURN_IF_ERROR(Reduce(rank));
    if (group.rank() == 1) {
      world.runtime(0).FailKernel(rank.device().id(), "Reduce");
    }
    WEFT_RETURN_IF_ERROR(group.Barrier());
    return Reduce(rank);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kFailed, "simulated:0")));
}

TEST_P(SameDeviceFailures, LostDeviceIsNamedOnEveryRank) {
  SameDeviceWorld world(2, 9, GetParam());
  const auto statuses = ReduceBehindAStreamThatHangs(
      world, {},
      [&](const DeviceRank& rank) {
        if (rank.group.rank() != 1) return;
        rank.devices.runtime().LoseDevice(rank.device().id());
      },
      nullptr);
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "the device is lost")));
}

// One rank alone wants memory, for the copy of what it sends in place.
TEST_P(SameDeviceFailures, TooLittleMemoryOfOneRankIsToldOnEveryRank) {
  SameDeviceWorld world(3, 10, GetParam());
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor in = rank.Place(Tensor::Ones({300'000}));
    const Tensor out = rank.Place(Tensor::Zeros({300'000}));
    WEFT_RETURN_IF_ERROR(group.Barrier());
    if (group.rank() == 1) {
      rank.devices.runtime().FailAllocations(rank.device().id(), 100);
    }
    return group.AllToAll(in, group.rank() == 1 ? in : out);
  });
  EXPECT_THAT(statuses, Each(StatusIs(kExhausted, "out of memory")));
  EXPECT_THAT(statuses, Each(StatusIs(kExhausted, "rank 1")));
}

}  // namespace
}  // namespace weft::collectives
