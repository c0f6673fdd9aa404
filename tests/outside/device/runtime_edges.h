// Devices: those of each runtime that a build has.

#ifndef WEFT_TESTS_OUTSIDE_DEVICE_RUNTIME_EDGES_H_
#define WEFT_TESTS_OUTSIDE_DEVICE_RUNTIME_EDGES_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/device.h"
#include "weft/device/launch.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {

inline constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr absl::StatusCode kExhausted =
    absl::StatusCode::kResourceExhausted;
inline constexpr absl::StatusCode kDeadline =
    absl::StatusCode::kDeadlineExceeded;
inline constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;
inline constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;
inline constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
inline constexpr absl::Duration kLong = absl::Seconds(30);
inline constexpr int kSeeds = 4;

inline const ::weft::device::Device kZero =
    ::weft::device::Device::Simulated(0);
inline const ::weft::device::Device kOne = ::weft::device::Device::Simulated(1);

// Two devices, and what tests want of them.
class Devices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    runtime_ = ::weft::device::testing::MakeSimulated(GetParam(), 2);
  }

  ::weft::device::Stream NewStream(::weft::device::Device device = kZero) {
    auto made = runtime_->CreateStream(device);
    EXPECT_THAT(made, ::weft::testing::IsOk());
    return *made;
  }
  ::weft::device::Event NewEvent(::weft::device::Device device = kZero) {
    auto made = runtime_->CreateEvent(device);
    EXPECT_THAT(made, ::weft::testing::IsOk());
    return *std::move(made);
  }
  float* Floats(int64_t n, ::weft::device::Device device = kZero) {
    auto made = runtime_->Allocate(device, n * 4);
    EXPECT_THAT(made, ::weft::testing::IsOk());
    return static_cast<float*>(*made);
  }
  float* Pinned(int64_t n) {
    auto made = runtime_->AllocatePinned(n * 4);
    EXPECT_THAT(made, ::weft::testing::IsOk());
    return static_cast<float*>(*made);
  }
  std::vector<float> Read(const float* from, int64_t n,
                          ::weft::device::Stream stream) {
    std::vector<float> found(n, -7);
    EXPECT_THAT(runtime_->CopyAsync(found.data(), from, n * 4, stream),
                ::weft::testing::IsOk());
    return found;
  }

  std::unique_ptr<::weft::device::SimulatedRuntime> runtime_;
};

inline std::vector<float> All(int64_t n, float value) {
  return std::vector<float>(n, value);
}

inline ::weft::device::SimulatedRuntime::Options With(
    const std::function<void(::weft::device::SimulatedRuntime::Options&)>&
        set) {
  ::weft::device::SimulatedRuntime::Options options;
  set(options);
  return options;
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_DEVICE_RUNTIME_EDGES_H_
