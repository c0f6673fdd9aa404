#include "weft/collectives/backends/same_device/same_device_backend.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_suite.h"
#include "weft/collectives/backends/same_device/same_device_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// ----- the conformance suite: tensors of the CPU pass through the device

TestBackend Conforming(uint64_t seed, Sharers sharers) {
  TestBackend backend;
  backend.name = absl::StrCat(
      sharers == Sharers::kThreads ? "threads" : "processes", "_seed", seed);
  backend.make_world = [=](int size, const DiagnosisOptions& diagnosis) {
    auto world =
        std::make_unique<SameDeviceWorld>(size, seed, sharers, diagnosis);
    world->moves_host_tensors = true;
    return world;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(SameDevice, ProcessGroupConformance,
                         ::testing::Values(Conforming(1, Sharers::kThreads),
                                           Conforming(2, Sharers::kThreads),
                                           Conforming(1, Sharers::kProcesses),
                                           Conforming(2, Sharers::kProcesses),
                                           Conforming(3, Sharers::kProcesses)),
                         [](const auto& info) { return info.param.name; });

// Where all tensors are on the CPU, the group of the host does it all.
TestBackend OverTheHost() {
  TestBackend backend;
  backend.name = "over_the_host";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<SameDeviceWorld>(size, 4, Sharers::kThreads,
                                             diagnosis);
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(OverTheHost, ProcessGroupConformance,
                         ::testing::Values(OverTheHost()),
                         [](const auto& info) { return info.param.name; });

// ----- the suite of devices

std::vector<DeviceWorldKind> Kinds() {
  std::vector<DeviceWorldKind> kinds;
  for (const Sharers sharers : {Sharers::kThreads, Sharers::kProcesses}) {
    kinds.push_back(
        {::testing::PrintToString(sharers), [sharers](int size, uint64_t seed) {
           return std::make_unique<SameDeviceWorld>(size, seed, sharers);
         }});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(SameDevice, DeviceTensors,
                         DeviceCases(Kinds(), {2, 3}), DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(SameDevice, DeviceTransfersTest,
                         DeviceCases(Kinds(), {2, 4}), DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(SameDevice, DeviceRefusals,
                         ::testing::ValuesIn(Kinds()), DeviceKindName);

class SameDevice : public ::testing::TestWithParam<Sharers> {};

INSTANTIATE_TEST_SUITE_P(Sharers, SameDevice,
                         ::testing::Values(Sharers::kThreads,
                                           Sharers::kProcesses),
                         ::testing::PrintToStringParamName());

// Of each dtype, with a factor of each rank's own where that may be.
TEST_P(SameDevice, EachReductionIsOfTheDevice) {
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,
        DType::kI32, DType::kI8, DType::kU8, DType::kBool}) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kXor); ++op) {
      const Reduction reduction(static_cast<ReduceOp>(op));
      if (!CheckReduction(reduction, dtype).ok()) continue;
      SCOPED_TRACE(absl::StrCat(Name(dtype), " ", Name(reduction.op)));
      SameDeviceWorld world(3, op, GetParam());
      const auto statuses =
          world.Run([&](const DeviceRank& rank) -> absl::Status {
            ProcessGroup& group = rank.group;
            const Tensor x = rank.Place(Numbers(group.rank(), 10, dtype));
            WEFT_RETURN_IF_ERROR(group.AllReduce(x, reduction));
            WANT_EQ(
                BytesOf(x.To(Device::Cpu())),
                BytesOf(Expected(reduction.op, NumbersOfAll(3, 10, dtype))));
            return absl::OkStatus();
          });
      EXPECT_THAT(statuses, Each(IsOk()));
      EXPECT_EQ(world.Count("Reduce"), 1);
    }
  }
}

// ----- what crosses the bus

// No copy to the host or from it between the first operation and the last: all
// tasks are reductions, and copies of the bytes of one block.
TEST_P(SameDevice, NoTensorIsCopiedToTheHost) {
  SameDeviceWorld world(3, 1, GetParam());
  std::atomic<int> placed{0}, done{0};
  std::atomic<int64_t> pinned_before{0}, pinned_after{0};
  const auto statuses = world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 50000));
    const Tensor all = rank.Place(Tensor::Zeros({150000}));
    const Tensor received = rank.Place(Tensor::Zeros({50000}));
    ++placed;
    WANT_EQ(bool(Becomes([&] { return placed == 3; })), true);
    pinned_before += world.runtime(group.rank()).pinned_blocks();
    WEFT_RETURN_IF_ERROR(group.AllReduce(x));
    WEFT_RETURN_IF_ERROR(group.AllGather(x, all));
    const int next = (group.rank() + 1) % 3, last = (group.rank() + 2) % 3;
    Future<void> sent = group.SendAsync(x, next, 0);
    WEFT_RETURN_IF_ERROR(group.Receive(received, last, 0));
    WEFT_RETURN_IF_ERROR(sent.Wait(kPatience));
    ++done;
    WANT_EQ(bool(Becomes([&] { return done == 3; })), true);
    pinned_after += world.runtime(group.rank()).pinned_blocks();
    WANT_EQ(BytesOf(received.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(3, 50000))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(pinned_before.load(), pinned_after.load());
  EXPECT_EQ(world.Count("Reduce"), 1);
}

// A group of one rank, and one of many.
TEST_P(SameDevice, OneRankAndManyRanks) {
  for (const int size : {1, 8}) {
    SameDeviceWorld world(size, 5, GetParam());
    const auto statuses =
        world.Run([&](const DeviceRank& rank) -> absl::Status {
          ProcessGroup& group = rank.group;
          const Tensor x = rank.Place(Numbers(group.rank(), 100));
          WEFT_RETURN_IF_ERROR(group.AllReduce(x));
          WANT_EQ(BytesOf(x.To(Device::Cpu())),
                  BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(size, 100))));
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

// ----- on the way into the group

TEST(SameDeviceConnect, SomeThreadsAndOneApartAreNamedOnAll) {
  SameDeviceWorld world(3, 1);
  SameDeviceWorld other(1, 2);
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    const SameDeviceOptions options =
        rank == 2 ? other.OptionsOf(0) : world.OptionsOf(rank);
    return ConnectSameDevice(options, world.host().Connect(rank)).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kUnimplemented,
                            "ranks 0 and 1 have one SharedDevice, and rank 2 "
                            "has another")));
}

TEST(SameDeviceConnect, RanksOnTwoDevicesAreNamedOnAll) {
  SameDeviceWorld world(2, 1, Sharers::kProcesses);
  auto second =
      SharedDevice::Create(world.devices(1).context().shared_from_this(), 1);
  WEFT_ASSERT_OK(second);
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    SameDeviceOptions options = world.OptionsOf(rank);
    if (rank == 1) options.device = *second;
    return ConnectSameDevice(options, world.host().Connect(rank)).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(kDifferent, "rank 0 is on simulated:0@")));
  EXPECT_THAT(statuses, Each(StatusIs(kDifferent, "rank 1 on simulated:1@")));
}

TEST_P(SameDevice, RankThatDoesNotComeIsNamedAtTheDeadline) {
  SameDeviceWorld world(3, 1, GetParam());
  world.connect_timeout = absl::Milliseconds(200);
  std::atomic<int> failed{0};
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    auto host = world.host().Connect(rank);
    if (rank == 1) {
      Becomes([&] { return failed == 2; });
      return absl::OkStatus();
    }
    const absl::Status status =
        ConnectSameDevice(world.OptionsOf(rank), std::move(host)).status();
    ++failed;
    return status;
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  }
}

TEST(SameDeviceConnect, OptionsThatMakeNoSenseEndItOnAllRanks) {
  SameDeviceWorld world(2, 1);
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    SameDeviceOptions options = world.OptionsOf(rank);
    if (rank == 1) options.device = nullptr;
    return ConnectSameDevice(options, world.host().Connect(rank)).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "no shared device is given")));
  EXPECT_THAT(ConnectSameDevice(world.OptionsOf(0), nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found none"));
  EXPECT_THAT(SharedDevice::Create(nullptr, 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 0"));
}

TEST(SameDeviceConnect, IsInBinariesThatLinkIt) {
  WEFT_EXPECT_OK(IsAvailable("same_device"));
}

}  // namespace
}  // namespace weft::collectives
