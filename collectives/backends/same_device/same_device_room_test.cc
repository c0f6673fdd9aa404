#include "weft/collectives/backends/same_device/same_device_room.h"

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/backends/same_device/shared_device.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// Three ranks, each with a stream and a tensor, on the thread of the test.
class SameDeviceRoomTest : public ::testing::Test {
 protected:
  SameDeviceRoomTest() {
    for (int r = 0; r < 3; ++r) {
      auto made = devices_.runtime().CreateStream(device_.id());
      WEFT_EXPECT_OK(made);
      streams_.push_back(*made);
      tensors_.push_back(Tensor::Full({4}, r + 1).To(device_));
    }
    WEFT_EXPECT_OK(devices_.runtime().Synchronize(device_.id(), kPatience));
  }

  absl::Status Reduce(int rank) {
    Operation operation;
    operation.verb = Verb::kAllReduce;
    operation.dtype = DType::kF32;
    const Block block = {static_cast<std::byte*>(tensors_[rank].address()), 4};
    operation.inputs = {block};
    operation.outputs = {block};
    return room_.Launch(rank, operation, streams_[rank]);
  }
  // What the ranks have, once their streams have run.
  std::vector<float> Found() {
    std::vector<float> found;
    for (int r = 0; r < 3; ++r) {
      WEFT_EXPECT_OK(devices_.runtime().Synchronize(streams_[r], kPatience));
      found.push_back(tensors_[r].To(Device::Cpu()).ToVector<float>()[0]);
    }
    return found;
  }

  static constexpr absl::Duration kPatience = absl::Seconds(30);
  device::testing::SimulatedDevices devices_{11};
  const Device device_{devices_.context(), 0};
  std::vector<device::Stream> streams_;
  std::vector<Tensor> tensors_;
  SameDeviceRoom room_{3};
};

TEST_F(SameDeviceRoomTest, TheLastToComePutsTheWorkOfAllOnTheStreams) {
  EXPECT_THAT(room_.IsReady(0), IsOkAndHolds(true));  // nothing is launched
  WEFT_EXPECT_OK(Reduce(1));
  WEFT_EXPECT_OK(Reduce(0));
  EXPECT_THAT(room_.AwaitReady(0, absl::ZeroDuration()), IsOkAndHolds(false));
  EXPECT_THAT(room_.MissingFor(0), ElementsAre(2));
  EXPECT_THAT(Found(), ElementsAre(1, 2, 3));
  WEFT_EXPECT_OK(Reduce(2));
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(room_.IsReady(r), IsOkAndHolds(true));
    EXPECT_THAT(room_.MissingFor(r), IsEmpty());
  }
  EXPECT_THAT(Found(), ElementsAre(6, 6, 6));
}

// A rank that has seen the end of one may launch the next before the others
// have seen it.
TEST_F(SameDeviceRoomTest, RanksGoOnAtTheirOwnPace) {
  for (const int r : {0, 1, 2, 2, 0, 1}) WEFT_EXPECT_OK(Reduce(r));
  EXPECT_THAT(Found(), ElementsAre(18, 18, 18));
}

// Who has given up may take the memory back: nobody writes there any more.
TEST_F(SameDeviceRoomTest, NothingComesOnTheStreamsOnceItIsClosed) {
  WEFT_EXPECT_OK(Reduce(0));
  WEFT_EXPECT_OK(Reduce(1));
  room_.Close(absl::CancelledError("rank 0 gives up"));
  room_.Close(absl::CancelledError("and again"));
  EXPECT_THAT(Reduce(2),
              StatusIs(absl::StatusCode::kCancelled, "rank 0 gives up"));
  EXPECT_THAT(room_.AwaitReady(1, kPatience).status(),
              StatusIs(absl::StatusCode::kCancelled, "rank 0 gives up"));
  EXPECT_THAT(Found(), ElementsAre(1, 2, 3));
}

TEST_F(SameDeviceRoomTest, WhatWasPutOnTheStreamsBeforeItsCloseIsReady) {
  for (const int r : {0, 1, 2}) WEFT_EXPECT_OK(Reduce(r));
  room_.Close(absl::CancelledError("later"));
  EXPECT_THAT(room_.IsReady(0), IsOkAndHolds(true));
  EXPECT_THAT(Found(), ElementsAre(6, 6, 6));
}

TEST_F(SameDeviceRoomTest, ErrorOfTheDeviceIsOfAllRanks) {
  WEFT_EXPECT_OK(Reduce(0));
  WEFT_EXPECT_OK(Reduce(1));
  devices_.runtime().LoseDevice(device_.id());
  EXPECT_THAT(Reduce(2),
              StatusIs(absl::StatusCode::kUnavailable, "the device is lost"));
}

TEST(SharedDevice, RoomIsOneForAllWhoEnterIt) {
  device::testing::SimulatedDevices devices(1);
  auto shared = SharedDevice::Create(devices.context().shared_from_this(), 0);
  WEFT_ASSERT_OK(shared);
  auto first = (*shared)->Enter("a", 0, 2);
  WEFT_ASSERT_OK(first);
  EXPECT_FALSE((*first)->is_complete());
  EXPECT_EQ(*(*shared)->Enter("a", 1, 2), *first);
  EXPECT_TRUE((*first)->is_complete());
  EXPECT_NE(*(*shared)->Enter("b", 0, 2), *first);
  EXPECT_THAT((*shared)->Enter("a", 2, 3).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is of 2 ranks"));
  EXPECT_THAT((*shared)->Enter("a", 1, 2).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "of this name"));
  // One that nobody is in any more is another when it is entered again.
  const std::weak_ptr<SameDeviceRoom> old = *first;
  *first = nullptr;
  EXPECT_TRUE(old.expired());
  EXPECT_THAT((*shared)->Enter("a", 2, 3).status(), IsOk());
}

}  // namespace
}  // namespace weft::collectives
