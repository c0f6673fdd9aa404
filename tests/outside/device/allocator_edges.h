// Allocators: one on each runtime that a build has.

#ifndef WEFT_TESTS_OUTSIDE_DEVICE_ALLOCATOR_EDGES_H_
#define WEFT_TESTS_OUTSIDE_DEVICE_ALLOCATOR_EDGES_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/caching_allocator.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"
#include "weft/device/simulated/runtime.h"
#include "weft/device/testing/instance.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {

using Options = ::weft::device::CachingAllocator::Options;
using Statistics = ::weft::device::CachingAllocator::Statistics;

inline constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr absl::StatusCode kExhausted =
    absl::StatusCode::kResourceExhausted;
inline constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kKi = 1024;
inline constexpr int64_t kMi = 1024 * kKi;
inline constexpr absl::Duration kLong = absl::Seconds(30);
inline const ::weft::device::Device kZero =
    ::weft::device::Device::Simulated(0);
inline const ::weft::device::Device kOne = ::weft::device::Device::Simulated(1);

class Allocators : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    runtime_ = ::weft::device::testing::MakeSimulated(GetParam(), 2);
  }

  std::unique_ptr<::weft::device::CachingAllocator> Make(
      const Options& options = {}) {
    return std::make_unique<::weft::device::CachingAllocator>(*runtime_, kZero,
                                                              options);
  }
  static Options Budget(int64_t bytes) {
    Options options;
    options.budget_bytes = bytes;
    options.release_timeout = absl::Seconds(2);
    return options;
  }
  ::weft::device::Stream NewStream(::weft::device::Device device = kZero) {
    auto made = runtime_->CreateStream(device);
    EXPECT_THAT(made, ::weft::testing::IsOk());
    return *made;
  }
  static char* Take(::weft::device::CachingAllocator& allocator, int64_t bytes,
                    ::weft::device::Stream stream) {
    auto made = allocator.Allocate(bytes, stream);
    EXPECT_THAT(made, ::weft::testing::IsOk()) << bytes;
    return made.ok() ? static_cast<char*>(*made) : nullptr;
  }
  static float* AsFloats(char* memory) {
    return reinterpret_cast<float*>(memory);
  }
  std::vector<float> Read(const void* from, int64_t n,
                          ::weft::device::Stream stream) {
    std::vector<float> found(n, -7);
    EXPECT_THAT(runtime_->CopyAsync(found.data(), from, n * 4, stream),
                ::weft::testing::IsOk());
    return found;
  }
  int64_t TakenFromDevice() {
    const auto use = runtime_->GetMemoryUse(kZero);
    EXPECT_THAT(use, ::weft::testing::IsOk());
    return use->total_bytes - use->free_bytes;
  }

  std::unique_ptr<::weft::device::SimulatedRuntime> runtime_;
};

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_DEVICE_ALLOCATOR_EDGES_H_
