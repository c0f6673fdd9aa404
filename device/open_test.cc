#include "weft/device/open.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/cuda/runtime.h"

namespace weft::device {
namespace {

using ::testing::HasSubstr;

TEST(OpenDevice, TheCpuNeedsNoContext) {
  const auto opened = OpenDevice("cpu", 3);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->context, nullptr);
}

TEST(OpenDevice, ASimulatedOneHasItsNumber) {
  const auto first = OpenDevice("simulated", 3);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->context->device(first->index), Device::Simulated(0));
  const auto third = OpenDevice("simulated:2");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->context->device(third->index), Device::Simulated(2));
}

TEST(OpenDevice, OtherTextIsRefusedWithWhatIsWanted) {
  for (const char* text : {"", "tpu", "cuda:", "cuda:-1", "simulated:x", "CPU",
                           "cpu:1", "auto:1", "cuda:99999999999999999999"}) {
    const absl::Status status = OpenDevice(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("simulated:N or auto"))
        << text;
    EXPECT_EQ(CheckDeviceText(text), status);
  }
  EXPECT_EQ(OpenDevice("cpu", -1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenDevice("simulated:64").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(OpenDevice, CudaOrAutoIsWhatTheMachineHas) {
  const auto runtime = CreateCudaRuntime();
  const auto automatic = OpenDevice("auto", 1);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  if (!runtime.ok()) {
    EXPECT_EQ(automatic->context, nullptr);
    EXPECT_EQ(OpenDevice("cuda").status(), runtime.status());
    return;
  }
  const int count = (*runtime)->device_count();
  EXPECT_EQ(automatic->index, 1 % count);
  EXPECT_EQ(OpenDevice("cuda:99").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weft::device
