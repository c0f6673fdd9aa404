// ExpectSameOnDevice: an operation gives on a simulated device, in any order of
// what is not ordered, the bits that it gives on the CPU.
// ExpectTwoDevicesRefused: it takes no tensors of two devices.

#ifndef WEFT_TENSOR_OPS_TESTING_SAME_ON_DEVICE_H_
#define WEFT_TENSOR_OPS_TESTING_SAME_ON_DEVICE_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"

namespace weft::testing {

// Gets its inputs, which it may write to, and returns all that it has made or
// written. An input that is undefined stays so.
using TensorFunction =
    std::function<std::vector<Tensor>(absl::Span<const Tensor> inputs)>;

inline std::string BytesOf(const Tensor& x) {
  const Tensor flat = x.To(Device::Cpu()).Contiguous();
  return std::string(static_cast<const char*>(flat.raw()),
                     static_cast<size_t>(flat.bytes()));
}

// `inputs` are on the CPU; `function` gets clones of them there, then copies of
// them on a device, under each of five seeds.
inline void ExpectSameOnDevice(const std::string& name,
                               const std::vector<Tensor>& inputs,
                               const TensorFunction& function) {
  const auto run = [&](Device device) {
    std::vector<Tensor> own;
    for (const Tensor& input : inputs) {
      if (!input.defined()) {
        own.emplace_back();
        continue;
      }
      own.push_back(device.is_cpu() ? input.Clone() : input.To(device));
    }
    return function(own);
  };
  const std::vector<Tensor> wanted = run(Device::Cpu());
  for (uint64_t seed = 0; seed < 5; ++seed) {
    device::testing::SimulatedDevices devices(seed);
    const Device device(devices.context(), 0);
    const std::vector<Tensor> found = run(device);
    ASSERT_EQ(found.size(), wanted.size()) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(name + ", result " + std::to_string(i) + ", seed " +
                   std::to_string(seed));
      ASSERT_EQ(found[i].defined(), wanted[i].defined());
      if (!found[i].defined()) continue;
      EXPECT_EQ(found[i].device(), device);
      ASSERT_EQ(found[i].shape(), wanted[i].shape());
      ASSERT_EQ(found[i].dtype(), wanted[i].dtype());
      EXPECT_TRUE(BytesOf(found[i]) == BytesOf(wanted[i]))
          << "found " << found[i] << ", wanted " << wanted[i];
    }
  }
}

// Views [3, 4] of `base` [24]: contiguous, transposed with gaps, a part
// of each row, expanded. To be taken where the base lies.
inline std::vector<Tensor> ViewsOf(const Tensor& base) {
  return {base.View({2, 3, 4}).Select(0, 1),
          base.View({4, 3, 2}).Select(2, 1).Transpose(0, 1),
          base.View({4, 6}).Slice(1, 2, 5).Transpose(0, 1),
          base.View({6, 4}).Select(0, 2).Expand({3, 4})};
}

// `call` throws INVALID_ARGUMENT that names both devices if it gets one of `a`
// and `b`, which are on the CPU, from a device.
inline void ExpectTwoDevicesRefused(
    const std::string& name, const Tensor& a, const Tensor& b,
    const std::function<void(const Tensor& a, const Tensor& b)>& call) {
  SCOPED_TRACE(name);
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  for (const bool is_first_there : {true, false}) {
    try {
      call(is_first_there ? a.To(device) : a,
           is_first_there ? b : b.To(device));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(
          std::string(error.status().message()),
          ::testing::AllOf(::testing::HasSubstr("tensors of two devices"),
                           ::testing::HasSubstr("on cpu"),
                           ::testing::HasSubstr("on simulated:0")));
    }
  }
}

}  // namespace weft::testing

#endif  // WEFT_TENSOR_OPS_TESTING_SAME_ON_DEVICE_H_
