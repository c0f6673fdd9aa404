// What goes wrong in Send and Receive between ranks that share a device; what
// goes right is in the suite of devices.

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/device/device_transfer_calls.h"
#include "weft/collectives/backends/same_device/same_device_world.h"
#include "weft/collectives/process_group.h"
#include "weft/collectives/testing/conformance_values.h"
#include "weft/device/current.h"
#include "weft/device/runtime.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::Each;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);

// All that is sent from the device stays there.
class OnTheDevice : public SameDeviceWorld {
 public:
  OnTheDevice(int size, uint64_t seed, Sharers sharers)
      : SameDeviceWorld(size, seed, sharers) {
    host_bytes = 0;
  }
};

class SameDeviceTransfersFail : public ::testing::TestWithParam<Sharers> {};

INSTANTIATE_TEST_SUITE_P(Sharers, SameDeviceTransfersFail,
                         ::testing::Values(Sharers::kThreads,
                                           Sharers::kProcesses),
                         ::testing::PrintToStringParamName());

// Rank 0 sends to rank 1 what its stream, which hangs, has still to compute.
// Once the copy waits on the device `end` is called on each rank.
std::vector<absl::Status> SendFromAStreamThatHangs(
    OnTheDevice& world, const CallOptions& options,
    const std::function<void(const DeviceRank&)>& end) {
  std::atomic<int> ended{0};
  return world.Run([&](const DeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    WANT_EQ(HostBytesOf(x), BytesOf(Numbers(group.rank(), 100)));
    WEFT_ASSIGN_OR_RETURN(
        const device::Stream stream,
        rank.devices.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    WEFT_RETURN_IF_ERROR(group.Barrier());
    Tensor sent = x;
    if (group.rank() == 0) {
      rank.devices.runtime().SetHangs(stream, true);
      sent = x.Clone();
    }
    Future<void> begun = group.rank() == 0
                             ? group.SendAsync(sent, 1, 0, options)
                             : group.ReceiveAsync(x, 0, 0, options);
    WANT_EQ(bool(Becomes([&] {
              return world.WaitsForAStreamThatHangs() || !group.health().ok();
            })),
            true);
    end(rank);
    const absl::Status status = begun.Wait(kPatience);
    ++ended;
    WANT_EQ(bool(Becomes([&] { return ended == group.size(); })), true);
    rank.devices.runtime().SetHangs(stream, false);
    return status;
  });
}

TEST_P(SameDeviceTransfersFail, StreamThatHangsEndsThemAtTheDeadline) {
  OnTheDevice world(2, 3, GetParam());
  const auto statuses = SendFromAStreamThatHangs(
      world, Within(absl::Seconds(4)),  // enough for both to call it
      [](const DeviceRank&) {});
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(kLate, "rank"));
  }
}

TEST_P(SameDeviceTransfersFail, RevokeEndsWhatIsInFlight) {
  OnTheDevice world(2, 4, GetParam());
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [](const DeviceRank& rank) {
        if (rank.group.rank() == 1) {
          rank.group.Revoke(absl::CancelledError("a rank is slow"));
        }
      });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST_P(SameDeviceTransfersFail, DeathOfTheOtherRankIsNamed) {
  OnTheDevice world(2, 5, GetParam());
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [&](const DeviceRank& rank) {
        if (rank.group.rank() == 1) world.host().Kill(1);
      });
  EXPECT_THAT(statuses[0], StatusIs(kLost, "rank 1 has ended"));
}

TEST_P(SameDeviceTransfersFail, DeviceThatIsLostIsNamedOnBothRanks) {
  OnTheDevice world(2, 6, GetParam());
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [&](const DeviceRank& rank) {
        if (rank.group.rank() == 1) {
          rank.devices.runtime().LoseDevice(rank.device().id());
        }
      });
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "the device is lost")));
}

}  // namespace
}  // namespace weft::collectives
