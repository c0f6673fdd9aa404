// DeviceWorld: the ranks of a test of a backend that moves tensors of devices:
// threads of one process, over the local backend, with simulated devices.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_calls.h"
#include "weft/collectives/backends/local/local_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::collectives {

class DeviceWorld : public TestWorld {
 public:
  // Whose devices are two for each rank, or the same two for all.
  enum class Devices { kOfEachRank, kOfAll };

  // `seed`: of the orders in which tasks of devices run.
  DeviceWorld(int size, uint64_t seed, Devices whose,
              const DiagnosisOptions& diagnosis)
      : size_(size), host_(size, HostOptionsOf(diagnosis)) {
    const int contexts = whose == Devices::kOfAll ? 1 : size;
    for (int i = 0; i < contexts; ++i) {
      devices_.push_back(std::make_unique<device::testing::SimulatedDevices>(
          seed * 8 + i, /*devices=*/2));
    }
  }

  // Whether anything was put on a device for an operation.
  virtual bool HasLaunched() = 0;
  // Expects what holds once the groups have ended.
  virtual void ExpectSound() {}

  // Runs `body` as each rank; their statuses.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(const DeviceRank&)>& body) {
    return testing::RunRanks(size_, [&](int rank) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Connect(rank));
      GroupOptions options;
      options.timeout = absl::Seconds(30);
      const auto group = ProcessGroup::Create(std::move(backend), options);
      return body({*group, devices(rank)});
    });
  }

  int size() const { return size_; }
  LocalWorld& host() { return host_; }
  device::testing::SimulatedDevices& devices(int rank) {
    return *devices_[devices_.size() == 1 ? 0 : rank];
  }
  device::SimulatedRuntime& runtime(int rank = 0) {
    return devices(rank).runtime();
  }

  // Options of the backend, for Connect.
  bool moves_host_tensors = false;
  int64_t host_bytes = int64_t{64} << 10;
  absl::Duration connect_timeout = absl::Minutes(1);
  absl::Duration longest_end = absl::Seconds(10);

 private:
  static LocalWorld::Options HostOptionsOf(const DiagnosisOptions& diagnosis) {
    LocalWorld::Options made;
    made.diagnosis = diagnosis;
    made.max_unasked_bytes = TestBackend::kMaxUnaskedBytes;
    return made;
  }

  const int size_;
  LocalWorld host_;
  std::vector<std::unique_ptr<device::testing::SimulatedDevices>> devices_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_WORLD_H_
