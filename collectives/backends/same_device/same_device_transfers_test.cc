// Send, Receive and Exchange between tensors of ranks that share a device: on
// the device where host_bytes is 0.

#include <atomic>
#include <cstdint>
#include <functional>
#include <tuple>
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
  OnTheDevice(int size, uint64_t seed) : SameDeviceWorld(size, seed) {
    options.host_bytes = 0;
  }
};

class SameDeviceTransfers
    : public ::testing::TestWithParam<std::tuple<uint64_t, int>> {
 protected:
  uint64_t seed() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, SameDeviceTransfers,
                         ::testing::Combine(::testing::Range<uint64_t>(0, 20),
                                            ::testing::Values(2, 4)));

TEST_P(SameDeviceTransfers, AreMatchedByTagAndKeepTheirOrder) {
  OnTheDevice world(2, seed());
  EXPECT_THAT(world.Run(MatchByTagAndKeepTheOrder), Each(IsOk()));
}

TEST_P(SameDeviceTransfers, OfAllPairsGoOnAtOnceInAnyOrder) {
  OnTheDevice world(size(), seed());
  EXPECT_THAT(world.Run([&](const SameDeviceRank& rank) {
    return SendBetweenAllPairsAtOnce(rank, seed());
  }),
              Each(IsOk()));
}

TEST_P(SameDeviceTransfers, ExchangeAndReceiveAny) {
  OnTheDevice world(size(), seed());
  EXPECT_THAT(world.Run(ExchangeAndReceiveFromAny), Each(IsOk()));
}

TEST_P(SameDeviceTransfers, TensorOfAnotherKindIsAnErrorAndIsDropped) {
  OnTheDevice world(2, seed());
  EXPECT_THAT(world.Run(RefuseTensorsOfAnotherKind), Each(IsOk()));
}

TEST_P(SameDeviceTransfers, BetweenTheCpuAndDevices) {
  SameDeviceWorld world(2, seed());
  world.options.host_bytes = seed() % 2 == 0 ? 0 : 100;
  EXPECT_THAT(world.Run(SendBetweenTheCpuAndDevices), Each(IsOk()));
}

TEST_P(SameDeviceTransfers, AreOrderedByEventsAndKeptUntilThem) {
  OnTheDevice world(2, seed());
  EXPECT_THAT(world.Run(SendWhatIsNotComputedYet), Each(IsOk()));
}

TEST_P(SameDeviceTransfers, PeerThatDoesNotCallIsNamedAndTheGroupGoesOn) {
  OnTheDevice world(2, seed());
  std::atomic<bool> is_late{false};
  EXPECT_THAT(world.Run([&](const SameDeviceRank& rank) {
    return GiveUpWhatIsNotReceived(rank, is_late);
  }),
              Each(IsOk()));
}

// ----- what goes wrong

// Rank 0 sends to rank 1 what its stream, which hangs, has still to compute.
// Once the copy waits on the device `end` is called on each rank.
std::vector<absl::Status> SendFromAStreamThatHangs(
    OnTheDevice& world, const CallOptions& options,
    const std::function<void(const SameDeviceRank&)>& end) {
  std::atomic<int> ended{0};
  return world.Run([&](const SameDeviceRank& rank) -> absl::Status {
    ProcessGroup& group = rank.group;
    const Tensor x = rank.Place(Numbers(group.rank(), 100));
    WANT_EQ(HostBytesOf(x), BytesOf(Numbers(group.rank(), 100)));
    WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                          world.runtime().CreateStream(rank.device().id()));
    const device::StreamScope scope(stream);
    WEFT_RETURN_IF_ERROR(group.Barrier());
    Tensor sent = x;
    if (group.rank() == 0) {
      world.runtime().SetHangs(stream, true);
      sent = x.Clone();
    }
    Future<void> begun = group.rank() == 0
                             ? group.SendAsync(sent, 1, 0, options)
                             : group.ReceiveAsync(x, 0, 0, options);
    // That of Clone, and the copy.
    WANT_EQ(bool(Becomes([&] {
              return world.runtime().pending_tasks() == 2 ||
                     !group.health().ok();
            })),
            true);
    end(rank);
    const absl::Status status = begun.Wait(kPatience);
    ++ended;
    WANT_EQ(bool(Becomes([&] { return ended == group.size(); })), true);
    world.runtime().SetHangs(stream, false);
    return status;
  });
}

TEST(SameDeviceTransfersFail, StreamThatHangsEndsThemAtTheDeadline) {
  OnTheDevice world(2, 3);
  const auto statuses = SendFromAStreamThatHangs(
      world, Within(absl::Milliseconds(300)), [](const SameDeviceRank&) {});
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(kLate, "rank"));
  }
}

TEST(SameDeviceTransfersFail, RevokeEndsWhatIsInFlight) {
  OnTheDevice world(2, 4);
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [](const SameDeviceRank& rank) {
        if (rank.group.rank() == 1) {
          rank.group.Revoke(absl::CancelledError("a rank is slow"));
        }
      });
  EXPECT_THAT(statuses, Each(StatusIs(kCancelled, "a rank is slow")));
}

TEST(SameDeviceTransfersFail, DeathOfTheOtherRankIsNamed) {
  OnTheDevice world(2, 5);
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [&](const SameDeviceRank& rank) {
        if (rank.group.rank() == 1) world.host().Kill(1);
      });
  EXPECT_THAT(statuses[0], StatusIs(kLost, "rank 1 has ended"));
}

TEST(SameDeviceTransfersFail, DeviceThatIsLostIsNamedOnBothRanks) {
  OnTheDevice world(2, 6);
  const auto statuses =
      SendFromAStreamThatHangs(world, {}, [&](const SameDeviceRank& rank) {
        if (rank.group.rank() == 1) {
          world.runtime().LoseDevice(rank.device().id());
        }
      });
  EXPECT_THAT(statuses, Each(StatusIs(kLost, "the device is lost")));
}

TEST(SameDeviceTransfersFail, TagOfTheBackendIsRefused) {
  OnTheDevice world(2, 7);
  const auto statuses = world.Run([](const SameDeviceRank& rank) {
    const Tensor x = ZerosOf(rank, 4);
    return rank.group.Send(x, 1 - rank.group.rank(), ~uint64_t{0});
  });
  EXPECT_THAT(statuses, Each(StatusIs(kInvalid, "same_device backend's own")));
}

}  // namespace
}  // namespace weft::collectives
