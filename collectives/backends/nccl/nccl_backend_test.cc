#include "weft/collectives/backends/nccl/nccl_backend.h"

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
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

// ----- the conformance suite: tensors of the CPU pass through the devices

TestBackend Nccl(uint64_t seed) {
  TestBackend backend;
  backend.name = absl::StrCat("seed", seed);
  backend.averages_exactly = false;
  backend.make_world = [seed](int size, const DiagnosisOptions& diagnosis) {
    auto world = std::make_unique<NcclWorld>(size, seed, diagnosis);
    world->moves_host_tensors = true;
    return world;
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Nccl, ProcessGroupConformance,
                         ::testing::Values(Nccl(1), Nccl(2), Nccl(3)),
                         [](const auto& info) { return info.param.name; });

// Where all tensors are on the CPU, the group of the host does it all.
TestBackend OverTheHost() {
  TestBackend backend = Nccl(4);
  backend.name = "over_the_host";
  backend.averages_exactly = true;
  backend.make_world = [](int size, const DiagnosisOptions& diagnosis) {
    return std::make_unique<NcclWorld>(size, 4, diagnosis);
  };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(OverTheHost, ProcessGroupConformance,
                         ::testing::Values(OverTheHost()),
                         [](const auto& info) { return info.param.name; });

// ----- each operation on tensors of devices, as on the CPU

// By seed, and ranks.
class NcclTensors : public ::testing::TestWithParam<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclTensors,
                         ::testing::Combine(::testing::Range(0, 20),
                                            ::testing::Values(2, 3)));

TEST_P(NcclTensors, GiveWhatThoseOfTheCpuGive) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  const auto wanted = WantedOf(size);
  NcclWorld world(size, seed);
  const bool is_async = seed % 2 == 0;
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    // Some call with another current stream than the default one.
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        seed % 3 == 0 ? rank.devices.runtime().CreateStream(rank.device().id())
                      : rank.devices.context().CurrentStream(0));
    const device::StreamScope scope(stream);
    WEFT_ASSIGN_OR_RETURN(
        const auto found,
        CallAll(
            group, [&](const Tensor& x) { return rank.Place(x); }, is_async));
    WANT_EQ(found == wanted[group.rank()], true);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_GT(world.nccl().launches(), 0);
  EXPECT_EQ(world.nccl().mismatches(), 0);
  EXPECT_EQ(world.nccl().misuses(), 0);
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().aborts(), 0);
}

// Ranks of one group on the CPU, on NCCL's device, and on another one.
class NcclPlaces : public NcclTensors {};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclPlaces,
                         ::testing::Combine(::testing::Range(0, 6),
                                            ::testing::Values(2, 3)));

TEST_P(NcclPlaces, OfOneCallAreTheCpuNcclsDeviceAndAnother) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  const auto wanted = WantedOf(size);
  NcclWorld world(size, seed);
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const int place = (group.rank() + seed) % 3;
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
  EXPECT_EQ(world.nccl().mismatches(), 0);
  EXPECT_EQ(world.nccl().misuses(), 0);
}

// What the caller's stream has still to compute is in the input, and what it
// computes from the result sees all of it; nobody waits for the device but the
// Future.
TEST_P(NcclTensors, AreOrderedByEvents) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  NcclWorld world(size, seed);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
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
TEST_P(NcclTensors, AreKeptUntilTheirEvent) {
  const int seed = std::get<0>(GetParam()), size = std::get<1>(GetParam());
  NcclWorld world(size, seed);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor kept = rank.Place(Tensor::Zeros({100}));
    std::vector<Future<void>> all;
    for (int i = 0; i < 8; ++i) {
      const Tensor x = rank.Place(Numbers(group.rank(), 100));
      all.push_back(i == 4 ? group.AllReduceIntoAsync(x, kept)
                           : group.AllReduceAsync(x));
    }
    WEFT_RETURN_IF_ERROR(WaitAll(std::move(all), kPatience));
    WANT_EQ(BytesOf(kept.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(group.size(), 100))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// ----- who moves what

TEST(NcclBackend, TensorsOfDevicesAreMovedByNcclAlone) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor tensor = rank.Place(Numbers(group.rank(), 1001));
    WEFT_RETURN_IF_ERROR(group.AllReduce(tensor));
    WANT_EQ(BytesOf(tensor.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kSum, NumbersOfAll(2, 1001))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 2);
}

TEST(NcclBackend, WhatNcclLacksPassesThroughTheHost) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor f32 = rank.Place(Numbers(group.rank(), 10));
    WEFT_RETURN_IF_ERROR(group.AllReduce(f32, ReduceOp::kMax));
    WANT_EQ(BytesOf(f32.To(Device::Cpu())),
            BytesOf(Expected(ReduceOp::kMax, NumbersOfAll(2, 10))));
    const Tensor i64 = rank.Place(Numbers(group.rank(), 10, DType::kI64));
    WEFT_RETURN_IF_ERROR(group.AllReduce(i64, ReduceOp::kXor));
    WANT_EQ(
        BytesOf(i64.To(Device::Cpu())),
        BytesOf(Expected(ReduceOp::kXor, NumbersOfAll(2, 10, DType::kI64))));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().launches(), 0);
}

TEST(NcclBackend, FactorOfOneRankIsAppliedToItsElementsAlone) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor sum = rank.Place(Tensor::Ones({4}));
    const double factor = group.rank() == 1 ? 0.5 : 1;
    WEFT_RETURN_IF_ERROR(
        group.AllReduce(sum, Reduction(ReduceOp::kSum, factor)));
    WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
            std::vector<float>(4, 1.5f));
    WEFT_RETURN_IF_ERROR(
        group.AllReduce(sum, Reduction(ReduceOp::kAverage, factor)));
    WANT_EQ(sum.To(Device::Cpu()).ToVector<float>(),
            std::vector<float>(4, 1.125f));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(world.nccl().mismatches(), 0);
}

TEST(NcclBackend, SplitAndShrinkGoOnWithTensorsOfDevices) {
  NcclWorld world(3, 1);
  std::atomic<int> ready{0};
  const auto sum = [](const NcclRank& rank, ProcessGroup& group) {
    const Tensor x = rank.Place(Tensor::Ones({4}));
    const absl::Status status = group.AllReduce(x);
    return status.ok() ? x.To(Device::Cpu()).ToVector<float>()[3] : -1;
  };
  const auto statuses = world.Run([&](const NcclRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    WEFT_ASSIGN_OR_RETURN(const auto part, group.Split(group.rank() % 2));
    WANT_EQ(sum(rank, *part), group.rank() == 1 ? 1.0f : 2.0f);
    WANT_EQ(sum(rank, group), 3.0f);
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
  EXPECT_EQ(world.nccl().communicators(), 0);
  EXPECT_EQ(world.nccl().mismatches(), 0);
}

TEST(NcclBackend, IsInBinariesThatLinkIt) {
  WEFT_EXPECT_OK(IsAvailable("nccl"));
}

TEST(IsAvailable, UnknownBackendIsUnimplemented) {
  EXPECT_THAT(IsAvailable("ucc"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "backend ucc is not in this binary"));
  WEFT_EXPECT_OK(IsAvailable("host"));
}

}  // namespace
}  // namespace weft::collectives
