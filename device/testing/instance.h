// Instance: a Runtime that a suite runs on: simulated with one of 20 seeds, or
// CUDA. For TEST_P; without a GPU the suite's CUDA instance is skipped.

#ifndef WEFT_DEVICE_TESTING_INSTANCE_H_
#define WEFT_DEVICE_TESTING_INSTANCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/device/cuda/runtime.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device::testing {

constexpr int kSeeds = 20;
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Instance {
  bool is_cuda = false;
  uint64_t seed = 0;
};

inline std::vector<Instance> AllInstances() {
  std::vector<Instance> instances;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    instances.push_back({false, seed});
  }
  instances.push_back({true, 0});
  return instances;
}

inline std::string InstanceName(
    const ::testing::TestParamInfo<Instance>& info) {
  return info.param.is_cuda ? "Cuda"
                            : absl::StrCat("Simulated", info.param.seed);
}

inline std::unique_ptr<SimulatedRuntime> MakeSimulated(uint64_t seed,
                                                       int devices = 1) {
  SimulatedRuntime::Options options;
  options.seed = seed;
  options.devices = devices;
  auto runtime = SimulatedRuntime::Create(options);
  WEFT_CHECK(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

class OnInstance : public ::testing::TestWithParam<Instance> {
 protected:
  void SetUp() override {
    if (!GetParam().is_cuda) {
      runtime_ = MakeSimulated(GetParam().seed);
      device_ = Device::Simulated(0);
      return;
    }
    absl::StatusOr<std::unique_ptr<Runtime>> cuda = CreateCudaRuntime();
    if (!cuda.ok()) GTEST_SKIP() << "no GPU: " << cuda.status();
    runtime_ = *std::move(cuda);
    device_ = Device::Cuda(0);
  }

  Stream NewStream() {
    const auto stream = runtime_->CreateStream(device_);
    WEFT_CHECK(stream.ok()) << stream.status();
    return *stream;
  }
  Event NewEvent() {
    auto event = runtime_->CreateEvent(device_);
    WEFT_CHECK(event.ok()) << event.status();
    return *std::move(event);
  }
  float* NewFloats(int64_t elements) {
    const auto memory = runtime_->Allocate(device_, elements * sizeof(float));
    WEFT_CHECK(memory.ok()) << memory.status();
    device_blocks_.push_back(*memory);
    return static_cast<float*>(*memory);
  }
  float* NewPinnedFloats(int64_t elements) {
    const auto memory = runtime_->AllocatePinned(elements * sizeof(float));
    WEFT_CHECK(memory.ok()) << memory.status();
    pinned_blocks_.push_back(*memory);
    return static_cast<float*>(*memory);
  }
  // What the device has at `from` after all that is on `stream`.
  std::vector<float> Read(const float* from, int64_t elements, Stream stream) {
    std::vector<float> found(elements, -7.0f);
    const absl::Status status = runtime_->CopyAsync(
        found.data(), from, elements * sizeof(float), stream);
    EXPECT_TRUE(status.ok()) << status;
    return found;
  }

  void TearDown() override {
    if (runtime_ == nullptr) return;
    (void)runtime_->Synchronize(device_, kPatience);
    for (void* block : device_blocks_) (void)runtime_->Free(device_, block);
    for (void* block : pinned_blocks_) (void)runtime_->FreePinned(block);
  }

  std::unique_ptr<Runtime> runtime_;
  Device device_;
  std::vector<void*> device_blocks_;
  std::vector<void*> pinned_blocks_;
};

}  // namespace weft::device::testing

#endif  // WEFT_DEVICE_TESTING_INSTANCE_H_
