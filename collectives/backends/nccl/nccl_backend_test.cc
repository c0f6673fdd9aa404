#include "weft/collectives/backends/nccl/nccl_backend.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_suite.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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

// ----- the suite of devices

DeviceWorldKind NcclKind() {
  return {"nccl", [](int size, uint64_t seed) {
            return std::make_unique<NcclWorld>(size, seed);
          }};
}

INSTANTIATE_TEST_SUITE_P(Nccl, DeviceTensors, DeviceCases({NcclKind()}, {2, 3}),
                         DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Nccl, DeviceRefusals, ::testing::Values(NcclKind()),
                         DeviceKindName);

// ----- who moves what

TEST(NcclBackend, TensorsOfDevicesAreMovedByNcclAlone) {
  NcclWorld world(2, 1);
  const auto statuses = world.Run([](const DeviceRank& rank) -> absl::Status {
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
  const auto statuses = world.Run([](const DeviceRank& rank) -> absl::Status {
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
  const auto statuses = world.Run([](const DeviceRank& rank) -> absl::Status {
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
