#include "weft/tensor/device_staging.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::Each;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

class Staging : public ::testing::TestWithParam<int> {
 protected:
  Staging() : devices_(GetParam()) {}

  // Doubles the elements of `x` on the host.
  absl::Status Double(const Tensor& x) {
    WEFT_ASSIGN_OR_RETURN(const auto call,
                          StagedCall::Begin(staging_, {{x, true, true}}));
    WEFT_RETURN_IF_ERROR(call->AwaitInputs(kPatience));
    float* const host = reinterpret_cast<float*>(call->host(0));
    for (int64_t i = 0; i < x.numel(); ++i) host[i] *= 2;
    return call->End([] {});
  }

  SimulatedDevices devices_;
  const Device device_{devices_.context(), 0};
  std::shared_ptr<DeviceStaging> staging_ = std::make_shared<DeviceStaging>();
};

INSTANTIATE_TEST_SUITE_P(Seeds, Staging, ::testing::Range(0, 20));

TEST_P(Staging, ElementsGoThereAndBackInTheOrderOfTheCallersStream) {
  const Tensor x = Tensor::Full({300}, 3, DType::kF32, device_);
  ASSERT_THAT(Double(x), IsOk());
  const Tensor copy = x.Clone();
  x.Fill(-1);
  EXPECT_THAT(copy.ToVector<float>(), Each(6));
}

TEST_P(Staging, WorkOfAHeldCallerComesBehindTheCopiesOfItsInputs) {
  const Tensor x = Tensor::Full({300}, 3, DType::kF32, device_);
  const auto call = StagedCall::Begin(staging_, {{x, true, false}});
  ASSERT_THAT(call, IsOk());
  ASSERT_THAT((*call)->HoldCaller(), IsOk());
  x.Fill(-1);
  ASSERT_THAT((*call)->AwaitInputs(kPatience), IsOk());
  const float* const host = reinterpret_cast<const float*>((*call)->host(0));
  EXPECT_THAT(std::vector<float>(host, host + 300), Each(3));
}

// Memory whose copies to the device have not run is not used again; when they
// have, it is.
TEST_P(Staging, PinnedMemoryIsUsedAgainOnlyOnceItsCopiesHaveRun) {
  device::SimulatedRuntime& runtime = devices_.runtime();
  const Tensor x = Tensor::Full({2000}, 3, DType::kF32, device_);
  const Tensor y = Tensor::Full({2000}, 5, DType::kF32, device_);
  ASSERT_THAT(runtime.Synchronize(device_.id(), kPatience), IsOk());
  // Only what is written: so nothing waits for the device, which hangs.
  const device::Stream caller = *devices_.context().CurrentStream(0);
  runtime.SetHangs(caller, true);
  x.Fill(-1);
  const auto write = [&](const Tensor& to, float value) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto call,
                          StagedCall::Begin(staging_, {{to, false, true}}));
    float* const host = reinterpret_cast<float*>(call->host(0));
    for (int64_t i = 0; i < to.numel(); ++i) host[i] = value;
    return call->End([] {});
  };
  ASSERT_THAT(write(x, 7), IsOk());
  const int64_t of_one = staging_->pinned_bytes();
  EXPECT_GE(of_one, x.bytes());
  ASSERT_THAT(write(y, 8), IsOk());
  EXPECT_EQ(staging_->pinned_bytes(), 2 * of_one);
  runtime.SetHangs(caller, false);
  EXPECT_THAT(x.ToVector<float>(), Each(7));
  EXPECT_THAT(y.ToVector<float>(), Each(8));
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(Double(x), IsOk());
    ASSERT_THAT(runtime.Synchronize(device_.id(), kPatience), IsOk());
  }
  EXPECT_EQ(staging_->pinned_bytes(), 2 * of_one);
  EXPECT_THAT(x.ToVector<float>(), Each(7 * 32));
}

TEST_P(Staging, ManyCallsInARowComputeRight) {
  const Tensor x = Tensor::Ones({100}, DType::kF32, device_);
  const Tensor y = Tensor::Ones({90}, DType::kF32, device_);
  for (int i = 0; i < 12; ++i) {
    ASSERT_THAT(Double(x), IsOk());
    ASSERT_THAT(Double(y), IsOk());
  }
  EXPECT_THAT(x.ToVector<float>(), Each(4096));
  EXPECT_THAT(y.ToVector<float>(), Each(4096));
}

// The stream for which memory was allocated need not be the caller's.
TEST_P(Staging, MemoryOfAnotherStreamIsNotHandedOutBeforeItsCopiesHaveRun) {
  device::Runtime& runtime = devices_.runtime();
  const device::Stream other = *runtime.CreateStream(device_.id());
  Tensor x;
  {
    const device::StreamScope scope(other);
    x = Tensor::Full({64}, 1, DType::kF32, device_);
  }
  ASSERT_THAT(runtime.Synchronize(device_.id(), kPatience), IsOk());
  {
    const auto call = StagedCall::Begin(staging_, {{x, false, true}});
    ASSERT_THAT(call, IsOk());
    std::memset((*call)->host(0), 0xFF, x.bytes());
    ASSERT_THAT((*call)->End([] {}), IsOk());
  }
  x = Tensor();
  const device::StreamScope scope(other);
  const Tensor y = Tensor::Full({64}, 7, DType::kF32, device_);
  ASSERT_THAT(runtime.Synchronize(device_.id(), kPatience), IsOk());
  EXPECT_THAT(y.ToVector<float>(), Each(7));
}

// What the caller does after the copies is seen by its stream too.
TEST_P(Staging, WorkAfterTheCopiesComesBehindThem) {
  const Tensor matrix = Tensor::Zeros({50, 2}, DType::kF32, device_);
  const Tensor column = Tensor::Empty({50}, DType::kF32, device_);
  const auto call = StagedCall::Begin(staging_, {{column, false, true}});
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT((*call)->HasInputs(), testing::IsOkAndHolds(true));
  float* const host = reinterpret_cast<float*>((*call)->host(0));
  for (int i = 0; i < 50; ++i) host[i] = 9;
  const auto after = [&] { matrix.Select(1, 1).CopyFrom(column); };
  ASSERT_THAT((*call)->End(after), IsOk());
  EXPECT_THAT(matrix.Select(1, 1).ToVector<float>(), Each(9));
  EXPECT_THAT(matrix.Select(1, 0).ToVector<float>(), Each(0));
}

TEST_P(Staging, WaitEndsAtItsDeadlineAndWhereTheDeviceIsLost) {
  device::SimulatedRuntime& runtime = devices_.runtime();
  runtime.SetHangs(*devices_.context().CurrentStream(0), true);
  const Tensor x = Tensor::Ones({3}, DType::kF32, device_);
  const auto call = StagedCall::Begin(staging_, {{x, true, true}});
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT((*call)->HasInputs(), testing::IsOkAndHolds(false));
  EXPECT_THAT((*call)->AwaitInputs(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "between simulated:0 and the host"));
  runtime.LoseDevice(device_.id());
  EXPECT_THAT((*call)->AwaitInputs(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
  EXPECT_THAT(StagedCall::Begin(staging_, {{x, true, true}}),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
}

// Tensors without elements need no copy.
TEST_P(Staging, OfNoElementsWaitsForNothing) {
  devices_.runtime().SetHangs(*devices_.context().CurrentStream(0), true);
  const Tensor x = Tensor::Empty({0}, DType::kF32, device_);
  const auto call = StagedCall::Begin(staging_, {{x, true, true}});
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT((*call)->AwaitInputs(absl::ZeroDuration()), IsOk());
  EXPECT_THAT((*call)->End([] {}), IsOk());
}

}  // namespace
}  // namespace weft
