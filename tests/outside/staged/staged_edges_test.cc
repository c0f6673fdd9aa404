// StagedState in clumsy hands: many under way, tensors that are overwritten at
// once, devices that hang or are lost. What is expected is what
// train/saving/staged_state.h says; a sentence of it stands above each test.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/device_staging.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/train/saving/staged_state.h"

namespace weft::outside {
namespace {

using checkpoint::NamedTensors;
using device::testing::SimulatedDevices;
using ::testing::HasSubstr;
using train::StagedState;
using weft::testing::IsOk;
using weft::testing::StatusIs;

constexpr absl::Duration kTime = absl::Seconds(30);

std::vector<float> All(int64_t n, double value) {
  return std::vector<float>(n, static_cast<float>(value));
}

class Staged : public ::testing::TestWithParam<int> {
 protected:
  Device On(int index = 0) { return Device(devices_.context(), index); }

  SimulatedDevices devices_{static_cast<uint64_t>(GetParam()), 2};
  std::shared_ptr<DeviceStaging> staging_ = std::make_shared<DeviceStaging>();
};
INSTANTIATE_TEST_SUITE_P(Seeds, Staged, ::testing::Range(0, 10));

// "What is put on that stream from now on comes behind the copies, so that it
// may write to the tensors. Tensors of the CPU are copied at once."
TEST_P(Staged, HaveTheBitsOfTheCallWhateverIsWrittenAfterIt) {
  const Tensor there = Tensor::Full({500}, 0, DType::kF32, On());
  const Tensor other = Tensor::Full({30}, 0, DType::kF32, On(1));
  const Tensor here = Tensor::Full({40}, 0);
  std::vector<std::shared_ptr<StagedState>> states;
  for (int step = 0; step < 6; ++step) {
    for (const Tensor& x : {there, other, here}) x.Fill(step);
    auto state =
        StagedState::Begin(staging_, {{"a", there}, {"b", other}, {"c", here}});
    ASSERT_THAT(state, IsOk());
    states.push_back(*std::move(state));
    for (const Tensor& x : {there, other, here}) x.Fill(-1);
  }
  // In any order, on any thread, with some that nobody awaits.
  for (const int step : {5, 1, 4, 0}) {
    std::thread([&, state = std::move(states[step])] {
      const auto found = state->Await(kTime);
      ASSERT_THAT(found, IsOk());
      ASSERT_EQ(found->size(), 3u);
      for (const auto& [name, x] : *found) {
        EXPECT_TRUE(x.device().is_cpu()) << name;
        EXPECT_EQ(x.ToVector<float>(), All(x.numel(), step)) << name;
      }
    }).join();
  }
}

// "the same tensors on the CPU, which keep this": and no tensor of the device,
// no staging and no state is needed any more.
TEST_P(Staged, OutliveWhatTheyWereMadeOf) {
  NamedTensors found;
  {
    Tensor there = Tensor::Full({500}, 3, DType::kF32, On());
    auto state = StagedState::Begin(staging_, {{"a", there}, {"b", there}});
    ASSERT_THAT(state, IsOk());
    there = Tensor();
    staging_.reset();
    WEFT_ASSERT_OK_AND_ASSIGN(found, (*state)->Await(kTime));
  }
  ASSERT_EQ(found.size(), 2u);
  for (const auto& [name, x] : found) {
    EXPECT_EQ(x.ToVector<float>(), All(500, 3)) << name;
  }
}

TEST_P(Staged, KeepShapesDTypesAndElementsOfAllTensors) {
  NamedTensors tensors;
  int n = 0;
  for (const DType dtype : kAllDTypes) {
    tensors.emplace("t" + std::to_string(n),
                    Tensor::Full({5, 3}, 1, dtype).To(On(n % 2)));
    ++n;
  }
  tensors.emplace("empty", Tensor::Zeros({0, 7}).To(On()));
  tensors.emplace("scalar", Tensor::Full({}, 9).To(On()));
  tensors.emplace(
      "turned",
      Tensor::Arange(24, DType::kF32).To(On()).View({4, 6}).Transpose(0, 1));
  auto state = StagedState::Begin(staging_, tensors);
  ASSERT_THAT(state, IsOk());
  WEFT_ASSERT_OK_AND_ASSIGN(const NamedTensors found, (*state)->Await(kTime));
  ASSERT_EQ(found.size(), tensors.size());
  std::vector<std::string> names, wanted;
  for (const auto& [name, x] : found) {
    names.push_back(name);
    for (const auto& [other, y] : tensors) {
      if (other != name) continue;
      EXPECT_EQ(x.shape(), y.shape()) << name;
      EXPECT_EQ(x.dtype(), y.dtype()) << name;
      if (x.numel() == 0) continue;
      EXPECT_EQ(x.To(DType::kF64).ToVector<double>(),
                y.To(Device::Cpu()).To(DType::kF64).ToVector<double>())
          << name;
    }
  }
  for (const auto& [name, x] : tensors) wanted.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(wanted));
}

TEST_P(Staged, OfNothingAreNothing) {
  auto none = StagedState::Begin(staging_, {});
  ASSERT_THAT(none, IsOk());
  WEFT_ASSERT_OK_AND_ASSIGN(const NamedTensors found, (*none)->Await(kTime));
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(staging_->pinned_bytes(), 0);
}

// "kDeadlineExceeded", and does not wait in Begin; a later Await has the bits.
TEST_P(Staged, OfADeviceThatHangsAreLateAndComeOnceItGoesOn) {
  const Tensor there = Tensor::Full({500}, 4, DType::kF32, On());
  WEFT_ASSERT_OK_AND_ASSIGN(
      const device::Stream stream,
      devices_.runtime().DefaultStream(devices_.context().device(0)));
  devices_.runtime().SetHangs(stream, true);
  auto state = StagedState::Begin(staging_, {{"a", there}});
  ASSERT_THAT(state, IsOk());
  for (int i = 0; i < 2; ++i) {
    const auto late = (*state)->Await(absl::Milliseconds(20));
    if (late.ok()) break;  // the seed had run it all before
    EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(late.status().ToString(), HasSubstr("simulated:0"));
  }
  devices_.runtime().SetHangs(stream, false);
  WEFT_ASSERT_OK_AND_ASSIGN(const NamedTensors found, (*state)->Await(kTime));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->second.ToVector<float>(), All(500, 4));
}

// "Errors are those of device/runtime.h, and name the device."
TEST_P(Staged, OfALostDeviceAreErrorsAndTheOtherDeviceGoesOn) {
  const Tensor lost = Tensor::Full({500}, 4, DType::kF32, On());
  const Tensor left = Tensor::Full({500}, 5, DType::kF32, On(1));
  auto before = StagedState::Begin(staging_, {{"a", lost}});
  ASSERT_THAT(before, IsOk());
  devices_.runtime().LoseDevice(devices_.context().device(0));
  EXPECT_THAT((*before)->Await(kTime),
              StatusIs(absl::StatusCode::kUnavailable));
  const auto after = StagedState::Begin(staging_, {{"a", lost}});
  EXPECT_THAT(after, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(after.status().ToString(), HasSubstr("simulated:0"));
  auto other = StagedState::Begin(staging_, {{"b", left}});
  ASSERT_THAT(other, IsOk());
  WEFT_ASSERT_OK_AND_ASSIGN(const NamedTensors found, (*other)->Await(kTime));
  EXPECT_EQ(found.begin()->second.ToVector<float>(), All(500, 5));
}

// "pinned memory, as much as was in use at one time".
TEST_P(Staged, OneAfterTheOtherTakePinnedMemoryOnce) {
  const Tensor there = Tensor::Full({5000}, 0, DType::kF32, On());
  for (int step = 0; step < 20; ++step) {
    there.Fill(step);
    auto state = StagedState::Begin(staging_, {{"a", there}});
    ASSERT_THAT(state, IsOk());
    WEFT_ASSERT_OK_AND_ASSIGN(const NamedTensors found, (*state)->Await(kTime));
    EXPECT_EQ(found.begin()->second.ToVector<float>(), All(5000, step));
  }
  EXPECT_LE(staging_->pinned_bytes(), 3 * 32768);
}

}  // namespace
}  // namespace weft::outside
