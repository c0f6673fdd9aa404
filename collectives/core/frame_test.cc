#include "weft/collectives/core/frame.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/bytes.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr Frame::Kind kAllKinds[] = {
    Frame::kHello,   Frame::kAnnounce, Frame::kStatus,      Frame::kPart,
    Frame::kPartAck, Frame::kTransfer, Frame::kTransferAck, Frame::kAbort,
    Frame::kLeave,   Frame::kLeaveAck};

std::string TextOf(const Slices& slices) {
  std::string text;
  for (const Bytes& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.data()), slice.size());
  }
  return text;
}

Slices SlicesOf(const std::string& text) {
  return CopyOf(reinterpret_cast<const std::byte*>(text.data()),
                static_cast<int64_t>(text.size()));
}

Frame FrameOf(Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  frame.code = std::numeric_limits<uint32_t>::max();
  frame.sequence = 0x0102030405060708;
  frame.fingerprint = 0x1112131415161718;
  frame.tag = std::numeric_limits<uint64_t>::max();
  frame.text = std::string("what \0 was called", 17);
  if (kind == Frame::kPart || kind == Frame::kTransfer) {
    frame.content = SlicesOf("content");
    frame.total = 100;
    frame.offset = 93;
  }
  return frame;
}

TEST(Frame, IsReadAsItWasWritten) {
  for (const Frame::Kind kind : kAllKinds) {
    const Frame frame = FrameOf(kind);
    const auto read = Decode(Encode(FrameOf(kind)));
    ASSERT_THAT(read, IsOk()) << kind;
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->code, frame.code);
    EXPECT_EQ(read->sequence, frame.sequence);
    EXPECT_EQ(read->fingerprint, frame.fingerprint);
    EXPECT_EQ(read->tag, frame.tag);
    EXPECT_EQ(read->total, frame.total);
    EXPECT_EQ(read->offset, frame.offset);
    EXPECT_EQ(read->text, frame.text);
    EXPECT_EQ(TextOf(read->content), TextOf(frame.content));
  }
}

// However a transport has cut it.
TEST(Frame, IsReadFromAnyPieces) {
  const std::string bytes = TextOf(Encode(FrameOf(Frame::kPart)));
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    Slices pieces = SlicesOf(bytes.substr(0, cut));
    for (const Bytes& slice : SlicesOf(bytes.substr(cut))) {
      pieces.push_back(slice);
    }
    const auto read = Decode(pieces);
    ASSERT_THAT(read, IsOk()) << cut;
    EXPECT_EQ(read->text, FrameOf(Frame::kPart).text);
    EXPECT_EQ(TextOf(read->content), "content");
  }
}

TEST(Frame, TextIsCut) {
  Frame frame = FrameOf(Frame::kAbort);
  frame.text = std::string(2 * Frame::kMaxTextBytes, 'x');
  const auto read = Decode(Encode(std::move(frame)));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->text, std::string(Frame::kMaxTextBytes, 'x'));
}

// A part of a frame, and one with another kind, is none.
TEST(Frame, WhatEncodeDoesNotWriteIsRefused) {
  for (const Frame::Kind kind : kAllKinds) {
    const std::string bytes = TextOf(Encode(FrameOf(kind)));
    // Content may be of any length.
    const size_t head = bytes.size() - TextOf(FrameOf(kind).content).size();
    for (size_t size = 0; size < head; ++size) {
      EXPECT_THAT(Decode(SlicesOf(bytes.substr(0, size))).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument))
          << kind << " " << size;
    }
  }
  Frame beyond = FrameOf(Frame::kPart);
  beyond.offset = 94;
  EXPECT_THAT(Decode(Encode(beyond)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "7 bytes at 94 of a message of 100"));
  Frame unknown = FrameOf(Frame::kHello);
  for (const int kind : {0, static_cast<int>(Frame::kLeaveAck) + 1, 255}) {
    unknown.kind = static_cast<Frame::Kind>(kind);
    EXPECT_THAT(Decode(Encode(unknown)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << kind;
  }
}

}  // namespace
}  // namespace weft::collectives
