#include "weft/collectives/backends/same_device/shared_room.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::device::testing::SimulatedDevices;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr auto kCancelled = absl::StatusCode::kCancelled;

// Three ranks with a Runtime, a stream and a tensor each, on one thread.
class SharedRoomTest : public ::testing::TestWithParam<int> {
 protected:
  SharedRoomTest() {
    auto memory = SharedRoom::MakeMemory(3);
    WEFT_EXPECT_OK(memory);
    handle_ = SharedRoom::HandleOf(*memory);
    for (int r = 0; r < 3; ++r) {
      devices_.push_back(
          std::make_unique<SimulatedDevices>(GetParam() * 3 + r));
      streams_.push_back(*runtime(r).CreateStream(PlaceOf(r).id()));
      tensors_.push_back(Tensor::Full({4}, r + 1).To(PlaceOf(r)));
      WEFT_EXPECT_OK(runtime(r).Synchronize(PlaceOf(r).id(), kPatience));
      if (r > 0) memory = SharedRoom::OpenMemory(handle_, 3);
      auto room = SharedRoom::Enter(*std::move(memory), r, 3, streams_[r]);
      WEFT_EXPECT_OK(room);
      rooms_.push_back(*std::move(room));
    }
  }

  Device PlaceOf(int rank) const { return {devices_[rank]->context(), 0}; }
  device::SimulatedRuntime& runtime(int rank) const {
    return devices_[rank]->runtime();
  }
  absl::Status Reduce(int rank) {
    Operation operation;
    operation.verb = Verb::kAllReduce;
    operation.dtype = DType::kF32;
    const Block block = {static_cast<std::byte*>(tensors_[rank].address()), 4};
    operation.inputs = {block};
    operation.outputs = {block};
    return rooms_[rank]->Launch(operation).status();
  }
  // What the ranks have, once their streams have run: each runs only while it
  // waits.
  std::vector<float> Found() {
    for (bool is_over = false; !is_over;) {
      is_over = true;
      for (int r = 0; r < 3; ++r) {
        const absl::StatusOr<bool> one = runtime(r).Query(streams_[r]);
        WEFT_EXPECT_OK(one);
        is_over = is_over && *one;
      }
    }
    std::vector<float> found;
    for (const Tensor& tensor : tensors_) {
      found.push_back(tensor.To(Device::Cpu()).ToVector<float>()[0]);
    }
    return found;
  }

  RoomHandle handle_;
  std::vector<std::unique_ptr<SimulatedDevices>> devices_;
  std::vector<device::Stream> streams_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<SharedRoom>> rooms_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, SharedRoomTest, ::testing::Range(0, 20));

TEST_P(SharedRoomTest, TheFirstRankPutsTheWorkOfAllOnItsStream) {
  EXPECT_THAT(rooms_[0]->Absent(), IsEmpty());
  EXPECT_THAT(rooms_[1]->IsReady(), IsOkAndHolds(true));  // nothing is launched
  WEFT_EXPECT_OK(Reduce(0));
  WEFT_EXPECT_OK(Reduce(2));
  EXPECT_THAT(rooms_[0]->AwaitReady(absl::ZeroDuration()), IsOkAndHolds(false));
  EXPECT_THAT(rooms_[2]->IsReady(), IsOkAndHolds(false));
  EXPECT_THAT(rooms_[0]->Missing(), ElementsAre(1));
  EXPECT_THAT(Found(), ElementsAre(1, 2, 3));
  WEFT_EXPECT_OK(Reduce(1));
  EXPECT_THAT(rooms_[1]->IsReady(), IsOkAndHolds(false));
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(rooms_[r]->IsReady(), IsOkAndHolds(true));
    EXPECT_THAT(rooms_[r]->Missing(), IsEmpty());
  }
  EXPECT_THAT(Found(), ElementsAre(6, 6, 6));
}

// The streams wait for each other, operation after operation, on nobody's host.
TEST_P(SharedRoomTest, OperationsFollowEachOtherOnTheStreams) {
  for (int round = 0; round < 4; ++round) {
    for (const int r : {2, 0, 1}) WEFT_EXPECT_OK(Reduce(r));
    for (const int r : {0, 1, 2}) {
      EXPECT_THAT(rooms_[r]->IsReady(), IsOkAndHolds(true));
    }
  }
  EXPECT_THAT(Found(), ElementsAre(162, 162, 162));
}

// A stream whose event is over may have waited for one that has failed.
TEST_P(SharedRoomTest, OperationHasEndedOnceItHasOnAllRanks) {
  for (const int r : {1, 2, 0}) WEFT_EXPECT_OK(Reduce(r));
  EXPECT_FALSE(rooms_[1]->HasEnded(1));
  EXPECT_FALSE(rooms_[0]->HasEnded(1));
  EXPECT_FALSE(rooms_[2]->HasEnded(1));
  EXPECT_FALSE(rooms_[1]->HasEnded(1));  // the first has not seen it
  EXPECT_TRUE(rooms_[0]->HasEnded(1));
  for (const int r : {1, 2}) EXPECT_TRUE(rooms_[r]->HasEnded(1));
  EXPECT_FALSE(rooms_[0]->HasEnded(2));
}

// Transfers of one lane are asked for in any order.
TEST_P(SharedRoomTest, EarlierOperationThatIsAskedForAgainHidesNoLaterOne) {
  for (const uint64_t number : {1, 2}) {
    for (const int r : {1, 2, 0}) WEFT_EXPECT_OK(Reduce(r));
    for (const int r : {1, 2}) {
      EXPECT_THAT(rooms_[r]->IsReady(), IsOkAndHolds(true));
      EXPECT_FALSE(rooms_[r]->HasEnded(number));
    }
  }
  for (const int r : {1, 2}) EXPECT_FALSE(rooms_[r]->HasEnded(1));
  EXPECT_TRUE(rooms_[0]->HasEnded(2));
  EXPECT_TRUE(rooms_[0]->HasEnded(1));
  for (const int r : {1, 2}) EXPECT_TRUE(rooms_[r]->HasEnded(2));
}

// Who has given up may take the memory back: nobody writes there any more.
TEST_P(SharedRoomTest, NothingComesOnTheStreamsOnceItIsClosed) {
  for (const int r : {0, 1}) WEFT_EXPECT_OK(Reduce(r));
  rooms_[1]->Close(absl::CancelledError("rank 1 gives up"));
  rooms_[0]->Close(absl::CancelledError("and again"));
  EXPECT_THAT(Reduce(2), StatusIs(kCancelled, "rank 1 gives up"));
  EXPECT_THAT(rooms_[0]->AwaitReady(kPatience).status(),
              StatusIs(kCancelled, "rank 1 gives up"));
  EXPECT_THAT(Found(), ElementsAre(1, 2, 3));
}

// What is on the first rank's stream by then still uses the others' memory:
// their streams wait for it though they have given up.
TEST_P(SharedRoomTest, StreamOfARankThatGivesUpWaitsForWhatUsesItsMemory) {
  const device::Stream slow = *runtime(2).CreateStream(PlaceOf(2).id());
  auto behind = runtime(2).CreateEvent(PlaceOf(2).id());
  WEFT_ASSERT_OK(behind);
  runtime(2).SetHangs(slow, true);
  WEFT_EXPECT_OK(runtime(2).MemsetAsync(tensors_[2].address(), 0, 16, slow));
  WEFT_EXPECT_OK(runtime(2).RecordEvent(*behind, slow));
  WEFT_EXPECT_OK(runtime(2).StreamWaitEvent(streams_[2], *behind));
  for (const int r : {1, 2, 0}) WEFT_EXPECT_OK(Reduce(r));
  rooms_[1]->Close(absl::CancelledError("rank 1 gives up"));
  EXPECT_THAT(runtime(1).Query(streams_[1]), IsOkAndHolds(false));
  EXPECT_THAT(runtime(1).Synchronize(streams_[1], absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "not done"));
  runtime(2).SetHangs(slow, false);
  EXPECT_THAT(rooms_[2]->IsReady(), IsOkAndHolds(true));
  EXPECT_THAT(Found(), ElementsAre(3, 3, 3));
}

TEST_P(SharedRoomTest, ErrorOfTheFirstDeviceIsOfAllRanks) {
  for (const int r : {1, 2}) WEFT_EXPECT_OK(Reduce(r));
  runtime(0).LoseDevice(PlaceOf(0).id());
  WEFT_EXPECT_OK(Reduce(0));
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(rooms_[r]->AwaitReady(kPatience).status(),
                StatusIs(absl::StatusCode::kUnavailable, "the device is lost"));
  }
}

// A rank that has freed what it has laid down is named.
TEST_P(SharedRoomTest, MemoryThatIsNotThereIsNamed) {
  auto memory = runtime(1).Allocate(PlaceOf(1).id(), 4096);
  WEFT_ASSERT_OK(memory);
  Operation operation;
  operation.verb = Verb::kAllReduce;
  operation.dtype = DType::kF32;
  operation.inputs = {{static_cast<std::byte*>(*memory), 4}};
  operation.outputs = operation.inputs;
  WEFT_EXPECT_OK(rooms_[1]->Launch(operation).status());
  WEFT_EXPECT_OK(runtime(1).Free(PlaceOf(1).id(), *memory));
  for (const int r : {0, 2}) WEFT_EXPECT_OK(Reduce(r));
  EXPECT_THAT(rooms_[0]->IsReady().status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the memory of rank 1 of the shared device"));
}

TEST_P(SharedRoomTest, IsForRanksThatAreNotInItAndKnowIt) {
  auto again = SharedRoom::OpenMemory(handle_, 3);
  WEFT_ASSERT_OK(again);
  EXPECT_THAT(
      SharedRoom::Enter(*std::move(again), 1, 3, streams_[1]).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, "is in this room"));
  EXPECT_THAT(SharedRoom::OpenMemory(handle_, 2).status(),
              StatusIs(absl::StatusCode::kUnavailable, "that of 2 ranks"));
  RoomHandle other = handle_;
  ++other.nonce[0];
  EXPECT_THAT(SharedRoom::OpenMemory(other, 3).status(),
              StatusIs(absl::StatusCode::kUnavailable, "found another"));
  other.fd = 1 << 20;
  EXPECT_THAT(SharedRoom::OpenMemory(other, 3).status(),
              StatusIs(absl::StatusCode::kUnavailable, "descriptor"));
}

}  // namespace
}  // namespace weft::collectives
