// Tensors on simulated devices, under 20 orders of what is not ordered.

#include "weft/tensor/device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/device/context.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::device::testing::SimulatedDevices;

// What `call` throws.
template <typename Call>
absl::Status StatusOf(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return absl::OkStatus();
}

class DeviceTensor : public ::testing::TestWithParam<int> {
 protected:
  DeviceTensor() : devices_(GetParam(), 2) {}

  SimulatedDevices devices_;
  const Device first_{devices_.context(), 0};
  const Device second_{devices_.context(), 1};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceTensor, ::testing::Range(0, 20));

TEST_P(DeviceTensor, GoesThereAndBack) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor there = x.To(first_);
  EXPECT_EQ(there.device(), first_);
  EXPECT_EQ(there.Describe(), "f32[2, 3] on simulated:0");
  EXPECT_TRUE(there.To(first_).IsSameAs(there));
  EXPECT_THAT(there.To(Device::Cpu()).ToVector<float>(),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(there.To(second_).ToVector<float>(),
              ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_P(DeviceTensor, ViewsStayOnTheDevice) {
  const Tensor x = Tensor::Arange(24).To(DType::kF32).View({2, 3, 4});
  const Tensor there = x.To(first_);
  for (const auto& view : std::vector<std::pair<Tensor, Tensor>>{
           {x.Transpose(0, 2), there.Transpose(0, 2)},
           {x.Slice(2, 1, 3), there.Slice(2, 1, 3)},
           {x.Select(1, 2), there.Select(1, 2)},
           {x.Reshape({4, 6}), there.Reshape({4, 6})},
           {x.Transpose(0, 1).Reshape({24}),
            there.Transpose(0, 1).Reshape({24})},
           {x.Select(0, 0).Expand({5, 3, 4}),
            there.Select(0, 0).Expand({5, 3, 4})}}) {
    EXPECT_EQ(view.second.device(), first_);
    EXPECT_EQ(view.second.shape(), view.first.shape());
    EXPECT_EQ(view.second.ToVector<float>(), view.first.ToVector<float>());
  }
}

TEST_P(DeviceTensor, FillsCastsAndCopiesAsTheCpu) {
  const Tensor ones = Tensor::Ones({2, 3}, DType::kF32, first_);
  ones.Slice(1, 0, 1).Fill(2.5);
  EXPECT_THAT(ones.ToVector<float>(), ElementsAre(2.5, 1, 1, 2.5, 1, 1));
  EXPECT_THAT(ones.To(DType::kI64).ToVector<int64_t>(),
              ElementsAre(2, 1, 1, 2, 1, 1));
  const Tensor zeros = Tensor::Zeros({3, 2}, DType::kF64, first_);
  EXPECT_THAT(zeros.ToVector<double>(), ElementsAre(0, 0, 0, 0, 0, 0));
  zeros.CopyFrom(ones.Transpose(0, 1));
  EXPECT_THAT(zeros.ToVector<double>(), ElementsAre(2.5, 2.5, 1, 1, 1, 1));
  const Tensor host = Tensor::Zeros({2, 2});
  host.CopyFrom(zeros.Slice(0, 0, 2).Transpose(0, 1));
  EXPECT_THAT(host.ToVector<float>(), ElementsAre(2.5, 1, 2.5, 1));
  zeros.Slice(0, 2, 3).CopyFrom(Tensor::FromVector<float>({-1, -2}));
  EXPECT_THAT(zeros.Select(0, 2).ToVector<double>(), ElementsAre(-1, -2));
}

TEST_P(DeviceTensor, TheHostIsToldThatItCannotTouchThem) {
  const Tensor x = Tensor::Ones({2}, DType::kF32, first_);
  for (const absl::Status& status :
       {StatusOf([&] { x.data<float>(); }), StatusOf([&] { x.raw(); }),
        StatusOf([&] { x.span<float>(); })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("f32[2] on simulated:0"),
                      HasSubstr("To(Device::Cpu())")));
  }
  EXPECT_EQ(Tensor::Full({}, 3, DType::kI64, first_).item<int64_t>(), 3);
  EXPECT_EQ(ToString(x), "f32[2] on simulated:0 [1, 1]");
}

TEST_P(DeviceTensor, AnUpdateInPlaceLeavesAHeldVersion) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3}).To(first_);
  x.storage()->KeepVersions();
  uint64_t version = 0;
  const IntrusivePtr<HeldVersion> held = x.storage()->Hold(&version);
  x.BeginUpdate();
  x.Fill(9);
  ASSERT_TRUE(held->copy());
  EXPECT_THAT(Tensor::FromStorage(held->copy(), 0, {3}, {1}, DType::kF32)
                  .ToVector<float>(),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(9, 9, 9));
}

// The memory of each goes to the next, whose work is behind it on the stream.
TEST_P(DeviceTensor, MemoryIsUsedAgainBeforeItsWorkHasRun) {
  Tensor last = Tensor::Zeros({64}, DType::kF32, first_);
  for (int i = 1; i <= 50; ++i) {
    const Tensor next = Tensor::Full({64}, i, DType::kF32, first_);
    const Tensor copy = Tensor::Empty({64}, DType::kF32, first_);
    copy.CopyFrom(next);
    last = copy;
  }
  EXPECT_EQ(last.ToVector<float>(), std::vector<float>(64, 50));
  EXPECT_LE(devices_.context().allocator(0).statistics().segments_taken, 1);
}

// A tensor that ends while another stream still reads it keeps its memory until
// that has run.
TEST_P(DeviceTensor, MemoryThatAnotherStreamReadsIsNotHandedOut) {
  device::Runtime& runtime = devices_.context().runtime();
  const device::Stream side = *runtime.CreateStream(first_.id());
  Tensor kept;
  {
    const Tensor x = Tensor::Full({64}, 7, DType::kF32, first_);
    device::Event written = *runtime.CreateEvent(first_.id());
    const device::Stream main = *devices_.context().CurrentStream(0);
    ASSERT_TRUE(runtime.RecordEvent(written, main).ok());
    const device::StreamScope scope(side);
    ASSERT_TRUE(runtime.StreamWaitEvent(side, written).ok());
    kept = Tensor::Empty({64}, DType::kF32, first_);
    kept.CopyFrom(x);
  }
  const Tensor other = Tensor::Full({64}, -1, DType::kF32, first_);
  const device::StreamScope scope(side);
  EXPECT_EQ(kept.ToVector<float>(), std::vector<float>(64, 7));
}

TEST(DeviceTensors, OfTwoContextsAreOfTwoDevices) {
  SimulatedDevices a(1);
  SimulatedDevices b(2);
  const Device of_a(a.context(), 0);
  const Device of_b(b.context(), 0);
  EXPECT_NE(of_a, of_b);
  const Tensor x = Tensor::Ones({2}, DType::kF32, of_a);
  const Tensor y = Tensor::Zeros({2}, DType::kF32, of_b);
  const absl::Status status = StatusOf([&] {
    internal::OnDevice(
        "Add", [](auto&&...) {}, x, y);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("Add"), HasSubstr("two contexts")));
  y.CopyFrom(x);
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(1, 1));
}

TEST(DeviceTensors, OutOfMemorySaysSoAndTheRestGoesOn) {
  SimulatedDevices devices(3);
  const Device device(devices.context(), 0);
  const absl::Status status =
      StatusOf([&] { Tensor::Empty({int64_t{1} << 40}, DType::kF32, device); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("simulated:0"));
  EXPECT_THAT(Tensor::Ones({2}, DType::kF32, device).ToVector<float>(),
              ElementsAre(1, 1));
}

TEST(DeviceTensors, ADeviceThatIsNotThereIsNamed) {
  SimulatedDevices devices(3);
  const absl::Status status = StatusOf([&] { Device(devices.context(), 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wanted device 1"));
}

TEST(DeviceTensors, KeepTheirContext) {
  Tensor x;
  {
    SimulatedDevices devices(4);
    x = Tensor::Full({3}, 5, DType::kF32, Device(devices.context(), 0));
  }
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(5, 5, 5));
}

TEST(DeviceTensors, OfALostDeviceSayWhy) {
  SimulatedDevices devices(5);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Ones({3}, DType::kF32, device);
  devices.runtime().LoseDevice(device.id());
  EXPECT_EQ(StatusOf([&] { x.ToVector<float>(); }).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft
