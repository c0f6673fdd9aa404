// SameDeviceWorld: ranks of the same_device backend in one test, on one
// simulated device, over a group of threads.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/collectives/backends/device/device_world.h"
#include "weft/collectives/backends/same_device/same_device_backend.h"
#include "weft/tensor/device.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// How ranks, which are threads in these tests, take each other.
enum class Sharers {
  kThreads,    // they have one Runtime
  kProcesses,  // each has its own, and opens the others' memory and events
};

inline void PrintTo(Sharers sharers, std::ostream* out) {
  *out << (sharers == Sharers::kThreads ? "threads" : "processes");
}

// The first of the devices is shared.
class SameDeviceWorld : public DeviceWorld {
 public:
  SameDeviceWorld(int size, uint64_t seed, Sharers sharers = Sharers::kThreads,
                  const DiagnosisOptions& diagnosis = {})
      : DeviceWorld(size, seed,
                    sharers == Sharers::kThreads ? Devices::kOfAll
                                                 : Devices::kOfEachRank,
                    diagnosis),
        sharers_(sharers) {
    for (int r = 0; r < size; ++r) {
      if (r > 0 && sharers == Sharers::kThreads) {
        shared_.push_back(shared_[0]);
        continue;
      }
      auto made =
          SharedDevice::Create(devices(r).context().shared_from_this(), 0);
      WEFT_CHECK(made.ok()) << made.status();
      shared_.push_back(*std::move(made));
    }
  }
  // What one has still to run others wait for.
  ~SameDeviceWorld() override {
    for (int r = 0; r < size(); ++r) {
      for (int i = 0; i < 2; ++i) {
        (void)runtime(r).Synchronize(device::Device::Simulated(i),
                                     absl::Milliseconds(1));
      }
    }
  }

  absl::StatusOr<std::unique_ptr<Backend>> Connect(int rank) override {
    return ConnectSameDevice(OptionsOf(rank), host().Connect(rank));
  }
  SameDeviceOptions OptionsOf(int rank) const {
    SameDeviceOptions options;
    options.device = shared_[rank];
    options.host_bytes = host_bytes;
    options.longest_end = longest_end;
    options.moves_host_tensors = moves_host_tensors;
    options.connect_timeout = connect_timeout;
    return options;
  }

  // Tasks of this name that have run: "Reduce".
  int64_t Count(const std::string& name) {
    int64_t count = 0;
    const int contexts = sharers_ == Sharers::kThreads ? 1 : size();
    for (int r = 0; r < contexts; ++r) {
      const std::vector<std::string> trace = runtime(r).trace();
      count += std::count_if(
          trace.begin(), trace.end(), [&](const std::string& task) {
            return absl::StartsWith(task, name + " on stream");
          });
    }
    return count;
  }
  // Reductions are done by nothing else on the device.
  bool HasLaunched() override { return Count("Reduce") > 0; }

  // Whether an operation of all ranks waits on the device for a stream that
  // hangs, on which that of Clone is, too.
  bool WaitsForAStreamThatHangs() {
    return runtime(0).pending_tasks() >= 2 &&
           (sharers_ == Sharers::kProcesses || runtime(0).pending_tasks() == 2);
  }

  Sharers sharers() const { return sharers_; }

 private:
  const Sharers sharers_;
  std::vector<std::shared_ptr<SharedDevice>> shared_;  // by rank
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_WORLD_H_
