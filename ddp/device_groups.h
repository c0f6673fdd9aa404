// RunGroups: ranks with simulated devices, as tests of ddp connect them: by way
// of the host, over a simulated NCCL, and on one device.

#ifndef WEFT_DDP_DEVICE_GROUPS_H_
#define WEFT_DDP_DEVICE_GROUPS_H_

#include <functional>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/nccl/nccl_world.h"
#include "weft/collectives/backends/same_device/same_device_world.h"
#include "weft/collectives/process_group.h"
#include "weft/device/current.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::ddp::testing {

// One rank; the current stream of its first device is not the default one.
struct Rank {
  collectives::ProcessGroup& group;
  device::testing::SimulatedDevices& devices;

  Device device(int index = 0) const { return {devices.context(), index}; }
};

// How ranks are connected, and by which seed their devices run.
enum class By { kHost, kNccl, kSameDevice };
struct Way {
  int seed = 0;
  By by = By::kHost;
};

inline void PrintTo(const Way& way, std::ostream* out) {
  *out << "seed " << way.seed
       << (way.by == By::kNccl         ? " over NCCL"
           : way.by == By::kSameDevice ? " on one device"
                                       : "");
}

inline std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (int seed = 0; seed < 20; ++seed) {
    for (const By by : {By::kHost, By::kNccl, By::kSameDevice}) {
      ways.push_back({seed, by});
    }
  }
  return ways;
}

inline std::vector<absl::Status> RunGroups(
    int size, Way way, const std::function<absl::Status(const Rank&)>& body) {
  collectives::NcclWorld apart(size, way.seed);
  collectives::SameDeviceWorld together(size, way.seed);
  return weft::testing::RunRanks(size, [&](int rank) -> absl::Status {
    device::testing::SimulatedDevices& devices = way.by == By::kSameDevice
                                                     ? together.devices(rank)
                                                     : apart.devices(rank);
    collectives::GroupOptions options;
    options.timeout = absl::Seconds(30);
    absl::StatusOr<std::unique_ptr<collectives::Backend>> backend =
        way.by == By::kSameDevice ? together.Connect(rank)
        : way.by == By::kNccl     ? apart.Connect(rank)
                                  : apart.host().Connect(rank);
    WEFT_RETURN_IF_ERROR(backend.status());
    const auto group =
        collectives::ProcessGroup::Create(*std::move(backend), options);
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream side,
        devices.runtime().CreateStream(devices.context().device(0)));
    const device::StreamScope scope(side);
    return body({*group, devices});
  });
}

}  // namespace weft::ddp::testing

#endif  // WEFT_DDP_DEVICE_GROUPS_H_
