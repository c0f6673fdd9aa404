#include "weft/collectives/backends/same_device/same_device_backend.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
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
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/current.h"
#include "weft/tensor/ops/elementwise.h"
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

TestBackend SameDevice(uint64_t seed) {
  TestBackend backend;
  backend.name = absl::StrCat("seed", seed);
  backend.make_world = [seed](int size, const DiagnosisOptions& diagnosis) {
    auto world = std::make_unique<SameDeviceWorld>(size, seed, diagnosis);
    world->options.moves_host_tensors = true;
    return world;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(SameDevice, ProcessGroupConformance,
                         ::testing::Values(SameDevice(1), SameDevice(2),
                                           SameDevice(3)),
                         [](const auto& info) { return info.param.name; });

// Where all tensors are on the CPU, the group of the host does it all.
TestBackend OverTheHost() {
  TestBackend backend = SameDevice(4);
  backend.name = "over_the_host";
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<SameDeviceWorld>(size, 4, diagnosis);
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(OverTheHost, ProcessGroupConformance,
                         ::testing::Values(OverTheHost()),
                         [](const auto& info) { return info.param.name; });

// ----- each operation on tensors of the device, as on the CPU

// By seed, and ranks.
class SameDeviceTensors
    : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int seed() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, SameDeviceTensors,
                         ::testing::Combine(::testing::Range(0, 20),
                                            ::testing::Values(2, 3)));

TEST_P(SameDeviceTensors, GiveWhatThoseOfTheCpuGive) {
  const auto wanted = WantedOf(size());
  SameDeviceWorld world(size(), seed());
  const bool is_async = seed() % 2 == 0;
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        // Each rank has a stream of its own, or all have the default one.
        WEFT_ASSIGN_OR_RETURN(
            const device::Stream stream,
            seed() % 3 == 0
                ? rank.devices.context().CurrentStream(0)
                : rank.devices.runtime().CreateStream(rank.device().id()));
        const device::StreamScope scope(stream);
        WEFT_ASSIGN_OR_RETURN(
            const auto found,
            CallAll(
                group, [&](const Tensor& x) { return rank.Place(x); },
                is_async));
        WANT_EQ(found == wanted[group.rank()], true);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_GT(world.Count("Reduce"), 0);
}

// Ranks of one group on the CPU, on the shared device, and on another one.
TEST_P(SameDeviceTensors, OfOneCallAreTheCpuTheDeviceAndAnother) {
  const auto wanted = WantedOf(size());
  SameDeviceWorld world(size(), seed());
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        const int place = (group.rank() + seed()) % 3;
        WEFT_ASSIGN_OR_RETURN(const auto found,
                              CallAll(
                                  group,
                                  [&](const Tensor& x) {
                                    return place == 2 ? x.Clone()
                                                      : rank.Place(x, place);
                                  },
                                  /*is_async=*/true));
        WANT_EQ(found == wanted[group.rank()], true);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// What the caller's stream has still to compute is in the input, and what it
// computes from the result sees all of it.
TEST_P(SameDeviceTensors, AreOrderedByEvents) {
  SameDeviceWorld world(size(), seed());
  const auto statuses =
      world.Run([](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        WEFT_ASSIGN_OR_RETURN(
            const device::Stream stream,
            rank.devices.runtime().CreateStream(rank.device().id()));
        const device::StreamScope scope(stream);
        for (int round = 0; round < 5; ++round) {
          const Tensor x = rank.Place(Numbers(group.rank(), 100));
          Mul_(x, 2);
          Future<void> reduced = group.AllReduceAsync(x);
          WEFT_RETURN_IF_ERROR(reduced.Wait(kPatience));
          Mul_(x, 3);
          const Tensor wanted =
              Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 100));
          Mul_(wanted, 6);
          WANT_EQ(BytesOf(x.To(Device::Cpu())), BytesOf(wanted));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The caller drops its tensors at once, and allocates others.
TEST_P(SameDeviceTensors, AreKeptUntilTheirEvent) {
  SameDeviceWorld world(size(), seed());
  const auto statuses =
      world.Run([](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        const Tensor kept = rank.Place(Tensor::Zeros({100}));
        std::vector<Future<void>> all;
        for (int i = 0; i < 8; ++i) {
          const Tensor x = rank.Place(Numbers(group.rank(), 100));
          all.push_back(i == 4 ? group.AllReduceIntoAsync(x, kept)
                               : group.AllReduceAsync(x));
        }
        WEFT_RETURN_IF_ERROR(WaitAll(std::move(all), kPatience));
        WANT_EQ(
            BytesOf(kept.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 100))));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Of each dtype, with a factor of each rank's own where that may be.
TEST(SameDevice, EachReductionIsOfTheDevice) {
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,
        DType::kI32, DType::kI8, DType::kU8, DType::kBool}) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kXor); ++op) {
      const Reduction reduction(static_cast<ReduceOp>(op));
      if (!CheckReduction(reduction, dtype).ok()) continue;
      SCOPED_TRACE(absl::StrCat(Name(dtype), " ", Name(reduction.op)));
      SameDeviceWorld world(3, op);
      const auto statuses =
          world.Run([&](const SameDeviceRank& rank) -> absl::Status {
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

// What a rank writes, others still read: in place on some ranks, or on all.
TEST_P(SameDeviceTensors, AllToAllInPlaceGivesWhatItGivesElsewhere) {
  SameDeviceWorld world(size(), seed());
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        const int n = group.size();
        const Tensor in = rank.Place(Numbers(group.rank(), 5 * n));
        const bool is_in_place = seed() % 2 == 0 || group.rank() == 0;
        const Tensor out =
            is_in_place ? in : rank.Place(Tensor::Zeros({5 * n}));
        WEFT_RETURN_IF_ERROR(group.AllToAll(in, out));
        const Tensor found = out.To(Device::Cpu());
        for (int r = 0; r < n; ++r) {
          const Tensor wanted = Numbers(r, 5 * n).Slice(0, 5 * group.rank(),
                                                        5 * (group.rank() + 1));
          WANT_EQ(BytesOf(found.Slice(0, 5 * r, 5 * (r + 1))), BytesOf(wanted));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// ----- what crosses the bus

// No copy to the host or from it between the first operation and the last: all
// tasks are reductions, and copies of the bytes of one block.
TEST(SameDevice, NoTensorIsCopiedToTheHost) {
  SameDeviceWorld world(3, 1);
  std::atomic<int> placed{0}, done{0};
  int64_t pinned_before = 0, pinned_after = -1;
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        const Tensor x = rank.Place(Numbers(group.rank(), 50000));
        const Tensor all = rank.Place(Tensor::Zeros({150000}));
        const Tensor received = rank.Place(Tensor::Zeros({50000}));
        ++placed;
        WANT_EQ(bool(Becomes([&] { return placed == 3; })), true);
        if (group.rank() == 0) pinned_before = world.runtime().pinned_blocks();
        WEFT_RETURN_IF_ERROR(group.AllReduce(x));
        WEFT_RETURN_IF_ERROR(group.AllGather(x, all));
        const int next = (group.rank() + 1) % 3, last = (group.rank() + 2) % 3;
        Future<void> sent = group.SendAsync(x, next, 0);
        WEFT_RETURN_IF_ERROR(group.Receive(received, last, 0));
        WEFT_RETURN_IF_ERROR(sent.Wait(kPatience));
        ++done;
        WANT_EQ(bool(Becomes([&] { return done == 3; })), true);
        if (group.rank() == 0) pinned_after = world.runtime().pinned_blocks();
        WANT_EQ(BytesOf(received.To(Device::Cpu())),
                BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(3, 50000))));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(pinned_before, pinned_after);
  EXPECT_EQ(world.Count("Reduce"), 1);
}

// ----- groups

TEST(SameDevice, SplitSubgroupAndShrinkGoOnWithTensorsOfTheDevice) {
  SameDeviceWorld world(3, 1);
  std::atomic<int> ready{0};
  const auto sum = [](const SameDeviceRank& rank, ProcessGroup& group) {
    const Tensor x = rank.Place(Tensor::Ones({4}));
    const absl::Status status = group.AllReduce(x);
    return status.ok() ? x.To(Device::Cpu()).ToVector<float>()[3] : -1;
  };
  const auto statuses =
      world.Run([&](const SameDeviceRank& rank) -> absl::Status {
        ProcessGroup& group = rank.group;
        WEFT_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() % 2));
        WANT_EQ(part->backend_name(), "same_device");
        WANT_EQ(sum(rank, *part), group.rank() == 1 ? 1.0f : 2.0f);
        WANT_EQ(sum(rank, group), 3.0f);
        WEFT_ASSIGN_OR_RETURN(const auto pair, group.Subgroup({2, 0}));
        if (pair != nullptr) WANT_EQ(sum(rank, *pair), 2.0f);
        ++ready;
        WANT_EQ(bool(Becomes([&] { return ready == 3; })), true);
        if (group.rank() == 1) {
          group.Revoke(absl::CancelledError("enough"));
          return absl::OkStatus();
        }
        WEFT_RETURN_IF_ERROR(group.Shrink({0, 2}));
        WANT_EQ(sum(rank, group), 2.0f);
        return group.Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A group of one rank, and one of many.
TEST(SameDevice, OneRankAndManyRanks) {
  for (const int size : {1, 8}) {
    SameDeviceWorld world(size, 5);
    const auto statuses =
        world.Run([&](const SameDeviceRank& rank) -> absl::Status {
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

TEST(SameDevice, RankWithAnotherSharedDeviceIsNamedOnAll) {
  SameDeviceWorld world(3, 1);
  auto other =
      SharedDevice::Create(world.devices().context().shared_from_this(), 0);
  WEFT_ASSERT_OK(other);
  const auto statuses = testing::RunRanks(3, [&](int rank) {
    SameDeviceOptions options = world.options;
    if (rank == 2) options.device = *other;
    return ConnectSameDevice(options, world.host().Connect(rank)).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kUnimplemented,
                                      "rank 2 has another SharedDevice")));
}

TEST(SameDevice, RankThatDoesNotComeIsNamedAtTheDeadline) {
  SameDeviceWorld world(3, 1);
  world.options.connect_timeout = absl::Milliseconds(200);
  std::atomic<int> failed{0};
  const auto statuses = testing::RunRanks(3, [&](int rank) -> absl::Status {
    auto host = world.host().Connect(rank);
    if (rank == 1) {
      Becomes([&] { return failed == 2; });
      return absl::OkStatus();
    }
    const absl::Status status =
        ConnectSameDevice(world.options, std::move(host)).status();
    ++failed;
    return status;
  });
  for (const int r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  }
}

TEST(SameDevice, OptionsThatMakeNoSenseEndItOnAllRanks) {
  SameDeviceWorld world(2, 1);
  const auto statuses = testing::RunRanks(2, [&](int rank) {
    SameDeviceOptions options = world.options;
    if (rank == 1) options.device = nullptr;
    return ConnectSameDevice(options, world.host().Connect(rank)).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "no shared device is given")));
  EXPECT_THAT(ConnectSameDevice(world.options, nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found none"));
  EXPECT_THAT(SharedDevice::Create(nullptr, 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "found 0"));
}

TEST(SameDevice, IsInBinariesThatLinkIt) {
  WEFT_EXPECT_OK(IsAvailable("same_device"));
}

}  // namespace
}  // namespace weft::collectives
