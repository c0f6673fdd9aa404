#include "weft/tensor/cuda_devices.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(CudaDevices, NamesEachDeviceAndItsMemory) {
  const auto devices = CudaDevices();
  if (!devices.ok()) GTEST_SKIP() << "no GPU: " << devices.status();
  ASSERT_FALSE(devices->empty());
  for (const CudaDevice& device : *devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.memory_bytes, 0);
  }
}

TEST(CudaDevices, SaysWhyThereIsNone) {
  const auto devices = CudaDevices();
  if (devices.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(absl::IsUnavailable(devices.status()) ||
              absl::IsUnimplemented(devices.status()))
      << devices.status();
  EXPECT_NE(devices.status().message().find("CUDA"), std::string::npos);
}

}  // namespace
}  // namespace weft
