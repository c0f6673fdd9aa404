#include "weft/train/saving/staged_state.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

class Staged : public ::testing::TestWithParam<int> {
 protected:
  Staged() : devices_(GetParam(), /*devices=*/2) {}
  Device device(int index = 0) { return {devices_.context(), index}; }
  Tensor Full(double value, int index = 0) {
    return Tensor::Full({300}, value, DType::kF32, device(index));
  }

  SimulatedDevices devices_;
  std::shared_ptr<DeviceStaging> staging_ = std::make_shared<DeviceStaging>();
};

INSTANTIATE_TEST_SUITE_P(Seeds, Staged, ::testing::Range(0, 20));

TEST_P(Staged, StateIsThatOfItsBeginThoughTheTrainingGoesOn) {
  const Tensor x = Full(3), y = Full(4, 1), z = Tensor::Full({2}, 5);
  const Tensor empty = Tensor::Zeros({0}, DType::kF32, device());
  const auto state = StagedState::Begin(
      staging_, {{"x", x}, {"y", y}, {"z", z}, {"empty", empty}});
  WEFT_ASSERT_OK(state);
  for (const Tensor& tensor : {x, y, z}) tensor.Fill(-1);
  const auto found = (*state)->Await(kPatience);
  WEFT_ASSERT_OK(found);
  ASSERT_EQ(found->size(), 4u);
  for (const auto& [name, tensor] : *found) {
    EXPECT_TRUE(tensor.device().is_cpu()) << name;
  }
  EXPECT_THAT(found->at("x").ToVector<float>(), Each(3));
  EXPECT_THAT(found->at("y").ToVector<float>(), Each(4));
  EXPECT_THAT(found->at("z").ToVector<float>(), Each(5));
  EXPECT_EQ(found->at("empty").numel(), 0);
  EXPECT_THAT(x.ToVector<float>(), Each(-1));
}

// Nor Begin, nor what the thread puts on its stream then, waits for the device.
TEST_P(Staged, BeginDoesNotWaitForTheDevice) {
  const device::Stream training =
      *devices_.runtime().CreateStream(device().id());
  const device::StreamScope scope(training);
  const Tensor x = Full(3);
  devices_.runtime().SetHangs(training, true);
  x.Fill(7);
  const auto state = StagedState::Begin(staging_, {{"x", x}});
  WEFT_ASSERT_OK(state);
  x.Fill(-1);
  EXPECT_THAT((*state)->Await(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "simulated:0"));
  devices_.runtime().SetHangs(training, false);
  const auto found = (*state)->Await(kPatience);
  WEFT_ASSERT_OK(found);
  EXPECT_THAT(found->at("x").ToVector<float>(), Each(7));
  EXPECT_THAT(x.ToVector<float>(), Each(-1));
}

// The pinned memory is not used again as long as one of them is there.
TEST_P(Staged, TensorsKeepTheMemory) {
  const Tensor x = Full(3);
  Tensor kept;
  {
    const auto state = StagedState::Begin(staging_, {{"x", x}});
    WEFT_ASSERT_OK(state);
    kept = (*state)->Await(kPatience)->at("x");
  }
  x.Fill(8);
  const auto other = StagedState::Begin(staging_, {{"x", x}});
  WEFT_ASSERT_OK(other);
  WEFT_ASSERT_OK((*other)->Await(kPatience));
  EXPECT_THAT(kept.ToVector<float>(), Each(3));
}

TEST_P(Staged, DeviceThatIsLostIsNamed) {
  const Tensor x = Full(3);
  const auto state = StagedState::Begin(staging_, {{"x", x}});
  WEFT_ASSERT_OK(state);
  devices_.runtime().LoseDevice(device().id());
  EXPECT_THAT((*state)->Await(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, "simulated:0"));
}

}  // namespace
}  // namespace weft::train
