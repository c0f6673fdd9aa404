#include "weft/collectives/core/inbox.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kMostKept = 1 << 20;
constexpr int64_t kChunk = 4;

Frame FrameOf(Frame::Kind kind, uint64_t sequence, uint64_t tag, uint64_t total,
              uint64_t offset, uint64_t bytes) {
  Frame frame;
  frame.kind = kind;
  frame.code = static_cast<uint32_t>(DType::kF32);  // of a transfer
  frame.sequence = sequence;
  frame.tag = tag;
  frame.total = total;
  frame.offset = offset;
  if (bytes > 0) {
    frame.content = {Bytes::Own(std::vector<uint8_t>(bytes))};
  }
  return frame;
}

absl::Status AddPart(Inbox& inbox, uint64_t sequence, uint64_t tag,
                     uint64_t total, uint64_t offset, uint64_t bytes,
                     uint64_t current = 0) {
  Frame frame = FrameOf(Frame::kPart, sequence, tag, total, offset, bytes);
  return inbox.AddPart(frame, current);
}

absl::Status AddTransfer(Inbox& inbox, uint64_t sequence, uint64_t tag,
                         uint64_t total, uint64_t offset, uint64_t bytes) {
  Frame frame = FrameOf(Frame::kTransfer, sequence, tag, total, offset, bytes);
  return inbox.AddTransfer(frame);
}

TEST(Inbox, PartsAreTakenInOrderAsTheyCome) {
  Inbox inbox(kMostKept, kChunk);
  EXPECT_EQ(inbox.NextPart(20), nullptr);
  EXPECT_THAT(AddPart(inbox, 20, 0, 8, 0, 4), IsOk());
  ASSERT_NE(inbox.NextPart(20), nullptr);
  EXPECT_EQ(inbox.NextPart(20)->arrived, 4);
  EXPECT_FALSE(inbox.TookOfPart(4));
  EXPECT_THAT(AddPart(inbox, 20, 0, 8, 4, 4), IsOk());
  EXPECT_THAT(AddPart(inbox, 20, 1, 0, 0, 0), IsOk());
  EXPECT_TRUE(inbox.TookOfPart(4));
  ASSERT_NE(inbox.NextPart(20), nullptr) << "the empty message";
  EXPECT_EQ(inbox.NextPart(20)->tag, 1);
  EXPECT_TRUE(inbox.TookOfPart(0));
  EXPECT_EQ(inbox.NextPart(20), nullptr);
}

TEST(Inbox, PartsOfEarlierOperationsAreDroppedAndAcknowledged) {
  const uint64_t half = Inbox::kPartWindow / 8;
  Inbox inbox(kMostKept, half);
  EXPECT_THAT(AddPart(inbox, 20, 0, half, 0, half), IsOk());
  EXPECT_THAT(AddPart(inbox, 22, 0, 4, 0, 4), IsOk());
  EXPECT_EQ(inbox.TakeDueAck(), 0);
  EXPECT_EQ(inbox.NextPart(21), nullptr);  // drops those of 20
  EXPECT_THAT(AddPart(inbox, 21, 0, half, 0, half, /*current=*/22), IsOk());
  EXPECT_EQ(inbox.TakeDueAck(),
            static_cast<int64_t>(2 * (half + Inbox::kMessageBytes)));
  EXPECT_EQ(inbox.TakeDueAck(), 0);
  EXPECT_NE(inbox.NextPart(22), nullptr);
}

TEST(Inbox, PartsBeyondTheWindowAreRefused) {
  const uint64_t window = Inbox::kPartWindow - Inbox::kMessageBytes;
  Inbox inbox(kMostKept, window);
  EXPECT_THAT(AddPart(inbox, 20, 0, window, 0, window), IsOk());
  EXPECT_THAT(AddPart(inbox, 20, 1, 1, 0, 1), StatusIs(kInvalid));
}

// Otherwise each small message, or small piece of one, would take more memory
// than is counted.
TEST(Inbox, MessagesTakeMoreOfTheWindowThanTheirContent) {
  Inbox inbox(kMostKept, kChunk);
  const int64_t fit = Inbox::kPartWindow / (Inbox::kMessageBytes + 1);
  for (int64_t i = 0; i < fit; ++i) {
    ASSERT_THAT(AddPart(inbox, 20, i, 1, 0, 1), IsOk()) << i;
  }
  EXPECT_THAT(AddPart(inbox, 20, fit, 1, 0, 1), StatusIs(kInvalid));
}

TEST(Inbox, PiecesThatAreNotWholeChunksAreRefused) {
  for (const uint64_t bytes : {0, 1, 3}) {
    Inbox inbox(kMostKept, kChunk);
    EXPECT_THAT(AddPart(inbox, 20, 0, 8, 0, bytes), StatusIs(kInvalid));
    EXPECT_THAT(AddTransfer(inbox, 1, 7, 8, 0, bytes), StatusIs(kInvalid));
  }
}

TEST(Inbox, PartThatChangesItsSizeIsRefused) {
  Inbox inbox(kMostKept, kChunk);
  EXPECT_THAT(AddPart(inbox, 20, 0, 8, 0, 4), IsOk());
  EXPECT_THAT(AddPart(inbox, 20, 0, 12, 4, 4), StatusIs(kInvalid));
}

TEST(Inbox, TransfersAreFoundByTheirTags) {
  Inbox inbox(kMostKept, kChunk);
  EXPECT_TRUE(inbox.LacksTransfer(7));
  EXPECT_THAT(AddTransfer(inbox, 1, 7, 8, 0, 4), IsOk());
  EXPECT_FALSE(inbox.LacksTransfer(7));
  EXPECT_FALSE(inbox.TakeTransfer(7).has_value()) << "it is not whole";
  EXPECT_THAT(AddTransfer(inbox, 1, 7, 8, 4, 4), IsOk());
  EXPECT_THAT(AddTransfer(inbox, 2, 9, 4, 0, 4), IsOk());
  EXPECT_EQ(inbox.kept_bytes(), KeptBytes(8) + KeptBytes(4));
  EXPECT_EQ(inbox.oldest_tag(), 7);
  const auto second = inbox.TakeTransfer(9);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->total, 4);
  const auto first = inbox.TakeTransfer(7);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->content.size(), 2);
  EXPECT_EQ(inbox.kept_bytes(), 0);
}

TEST(Inbox, TransfersThatAreNoTensorOrDoNotFitAreRefused) {
  Inbox inbox(kMostKept, kChunk);
  EXPECT_THAT(AddTransfer(inbox, 1, 7, 5, 0, 4), StatusIs(kInvalid));
  EXPECT_THAT(AddTransfer(inbox, 1, 7, uint64_t{1} << 62, 0, 4),
              StatusIs(kInvalid));
  Frame no_dtype = FrameOf(Frame::kTransfer, 1, 7, 4, 0, 4);
  no_dtype.code = 63;
  EXPECT_THAT(inbox.AddTransfer(no_dtype), StatusIs(kInvalid));
  EXPECT_THAT(AddTransfer(inbox, 1, 7, 8, 4, 4), StatusIs(kInvalid));
  EXPECT_THAT(AddTransfer(inbox, 1, 7, 8, 0, 4), IsOk());
  EXPECT_THAT(AddTransfer(inbox, 2, 7, 8, 0, 4), StatusIs(kInvalid))
      << "the first has not ended";
}

TEST(Inbox, TransfersBeyondTheBoundAreRefused) {
  Inbox inbox(kMostKept, kMostKept);
  EXPECT_THAT(AddTransfer(inbox, 1, 7, kMostKept, 0, kMostKept), IsOk());
  const absl::Status more = AddTransfer(inbox, 2, 7, 4, 0, 4);
  EXPECT_THAT(more, StatusIs(kInvalid));
  EXPECT_THAT(std::string(more.message()), HasSubstr("under way"));
}

}  // namespace
}  // namespace weft::collectives
