// The suite of backends that move tensors of devices, each of which runs it:
//
//   INSTANTIATE_TEST_SUITE_P(Nccl, DeviceTensors, DeviceCases(MakeNccl()));
//   INSTANTIATE_TEST_SUITE_P(Nccl, DeviceTransfersTest, ...);
//   INSTANTIATE_TEST_SUITE_P(Nccl, DeviceRefusals, ::testing::Values(...));

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_SUITE_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_SUITE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/device/device_world.h"

namespace weft::collectives {

struct DeviceWorldKind {
  std::string name;
  std::function<std::unique_ptr<DeviceWorld>(int size, uint64_t seed)> make;

  friend void PrintTo(const DeviceWorldKind& kind, std::ostream* out) {
    *out << kind.name;
  }
};

// Of a kind of worlds, by seed and size.
class DeviceTensors
    : public ::testing::TestWithParam<std::tuple<DeviceWorldKind, int, int>> {
 protected:
  int seed() const { return std::get<1>(GetParam()); }
  int size() const { return std::get<2>(GetParam()); }
  std::unique_ptr<DeviceWorld> Make(int ranks) const {
    return std::get<0>(GetParam()).make(ranks, seed());
  }
  // Expects OK of each rank.
  void RunAll(DeviceWorld& world,
              const std::function<absl::Status(const DeviceRank&)>& body);
};

// Send and Receive: on the devices where host_bytes is 0.
class DeviceTransfersTest : public DeviceTensors {};

// What is found before anything is on a device.
class DeviceRefusals : public ::testing::TestWithParam<DeviceWorldKind> {};

// 20 seeds of each kind.
inline auto DeviceCases(const std::vector<DeviceWorldKind>& kinds,
                        const std::vector<int>& sizes) {
  return ::testing::Combine(::testing::ValuesIn(kinds), ::testing::Range(0, 20),
                            ::testing::ValuesIn(sizes));
}
inline std::string DeviceCaseName(
    const ::testing::TestParamInfo<DeviceTensors::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_seed",
                      std::get<1>(info.param), "_ranks",
                      std::get<2>(info.param));
}
inline std::string DeviceKindName(
    const ::testing::TestParamInfo<DeviceWorldKind>& info) {
  return info.param.name;
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_SUITE_H_
