// SameDeviceWorld: ranks of the same_device backend in one test, on one
// simulated device, over a group of threads.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/device.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

using SameDeviceRank = DeviceRank;  // the first device is shared

class SameDeviceWorld : public TestWorld {
 public:
  // `seed`: of the order in which tasks of the device run.
  SameDeviceWorld(int size, uint64_t seed,
                  const DiagnosisOptions& diagnosis = {})
      : size_(size),
        host_(size, HostOptionsOf(diagnosis)),
        devices_(seed, /*devices=*/2) {
    auto made = SharedDevice::Create(devices_.context().shared_from_this(), 0);
    WEFT_CHECK(made.ok()) << made.status();
    options.device = *std::move(made);
  }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return ConnectSameDevice(options, host_.Connect(rank));
  }

  // Runs `body` as each rank; their statuses.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(const SameDeviceRank&)>& body) {
    return testing::RunRanks(size_, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Connect(rank));
      GroupOptions group_options;
      group_options.timeout = absl::Seconds(30);
      const auto group =
          ProcessGroup::Create(std::move(backend), group_options);
      return body({*group, devices_});
    });
  }

  // Tasks of this name that have run: "Reduce".
  int64_t Count(const std::string& name) const {
    const std::vector<std::string> trace = devices_.runtime().trace();
    return std::count_if(trace.begin(), trace.end(),
                         [&](const std::string& task) {
                           return absl::StartsWith(task, name + " on stream");
                         });
  }

  int size() const { return size_; }
  LocalWorld& host() { return host_; }
  device::testing::SimulatedDevices& devices() { return devices_; }
  device::SimulatedRuntime& runtime() { return devices_.runtime(); }

  SameDeviceOptions options;

 private:
  static LocalWorld::Options HostOptionsOf(const DiagnosisOptions& diagnosis) {
    LocalWorld::Options made;
    made.diagnosis = diagnosis;
    made.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    return made;
  }

  const int size_;
  LocalWorld host_;
  mutable device::testing::SimulatedDevices devices_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_
