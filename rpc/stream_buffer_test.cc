#include "weft/rpc/stream_buffer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;

constexpr size_t kWindow = StreamBuffer::kWindowBytes;

std::vector<Slices> Values(size_t count, size_t bytes) {
  const Bytes value = Bytes::Own(std::string(bytes, 'x'));
  return std::vector<Slices>(count, Slices{value});
}

Future<void> Write(StreamBuffer& buffer, std::vector<Slices> values) {
  return buffer.Write(absl::MakeSpan(values));
}

// How many values a pull that need not wait brings.
size_t PullNow(StreamBuffer& buffer) {
  const Future<StreamBuffer::Batch> pull = buffer.Pull();
  EXPECT_TRUE(pull.IsReady());
  if (!pull.IsReady()) return 0;
  const auto batch = pull.Wait(absl::Seconds(1));
  EXPECT_THAT(batch, IsOk());
  return batch.ok() ? std::get<1>(*batch).size() : 0;
}

TEST(StreamBuffer, AWriterWithinTheWindowHasRoomOnceItsValuesArePulled) {
  StreamBuffer buffer(ParkingDriver());
  buffer.Open();
  EXPECT_TRUE(Write(buffer, Values(1, kWindow - 1)).IsReady());
  const Future<void> room = Write(buffer, Values(1, 5 * kWindow));
  EXPECT_FALSE(room.IsReady());
  EXPECT_EQ(PullNow(buffer), 2u);
  EXPECT_TRUE(room.IsReady());
}

TEST(StreamBuffer, WriterHasNoWindowBeforeTheFunctionStarts) {
  StreamBuffer buffer(ParkingDriver());
  const Future<void> room = Write(buffer, Values(1, 1));
  EXPECT_EQ(PullNow(buffer), 1u);
  EXPECT_FALSE(room.IsReady());
  buffer.Open();
  EXPECT_TRUE(room.IsReady());
}

// Its credit counts them until then: see docs/rpc_protocol.md.
TEST(StreamBuffer, WriterFarBeyondTheWindowWaitsForTheReader) {
  StreamBuffer buffer(ParkingDriver(), /*is_pushed=*/true);
  buffer.Open();
  const Future<void> room = Write(buffer, Values(64, kWindow / 2));
  for (int i = 0; i < 32; ++i) {
    EXPECT_FALSE(room.IsReady());
    EXPECT_EQ(PullNow(buffer), 2u) << "pull " << i;
  }
  EXPECT_FALSE(room.IsReady());  // the last are in the reader's hands
  const Future<StreamBuffer::Batch> next = buffer.Pull();
  EXPECT_TRUE(room.IsReady());
  EXPECT_FALSE(next.IsReady());
  EXPECT_TRUE(Write(buffer, Values(1, 1)).IsReady());  // as before
  EXPECT_TRUE(next.IsReady());
}

TEST(StreamBuffer, OnesOwnWriterHasRoomBeforeThat) {
  StreamBuffer buffer(ParkingDriver());
  buffer.Open();
  const Future<void> room = Write(buffer, Values(6, kWindow / 2));
  EXPECT_EQ(PullNow(buffer), 2u);
  EXPECT_EQ(PullNow(buffer), 2u);
  EXPECT_FALSE(room.IsReady());  // a window of them is there yet
  EXPECT_EQ(PullNow(buffer), 2u);
  EXPECT_TRUE(room.IsReady());
}

TEST(StreamBuffer, ManySmallValuesAreFarMoreToo) {
  StreamBuffer buffer(ParkingDriver(), /*is_pushed=*/true);
  buffer.Open();
  const Future<void> room =
      Write(buffer, Values(3 * StreamBuffer::kWindowValues, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(room.IsReady());
    EXPECT_EQ(PullNow(buffer), StreamBuffer::kWindowValues);
  }
  const Future<StreamBuffer::Batch> next = buffer.Pull();
  EXPECT_TRUE(room.IsReady());
}

}  // namespace
}  // namespace weft::rpc
