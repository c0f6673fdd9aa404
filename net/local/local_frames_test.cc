#include "weft/net/local/local_frames.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using End = LocalFrameReader::End;

std::string FrameOf(FrameKind kind, const std::string& body = "") {
  const FrameHeader header = HeaderOf(kind, body.size());
  return std::string(header.begin(), header.end()) + body;
}

const Opening& SomeOpening() {
  static const Opening& opening = *new Opening{
      "ps0", "/test.Service/Pump", {{"key", "value"}, {"any-bin", "\x01\xff"}}};
  return opening;
}

std::string OpeningFrame() {
  return FrameOf(FrameKind::kOpening, *ToBody(SomeOpening(), 1000));
}

using Frames = std::vector<std::pair<FrameKind, std::string>>;

// The frames of `bytes`, which come in pieces of `piece` bytes, every other one
// of them by Room(); or the first error.
absl::StatusOr<Frames> Read(End end, const std::string& bytes, size_t piece,
                            LocalFrameReader::Limits limits = {}) {
  LocalFrameReader reader(end, limits);
  Frames frames;
  const auto take_frame = [&] {
    const std::optional<Frame> frame = reader.TakeFrame();
    if (!frame.has_value()) return;
    frames.emplace_back(frame->kind, std::string(Flatten(frame->body).view()));
  };
  bool by_room = false;
  for (size_t at = 0; at < bytes.size();) {
    const size_t some = std::min(piece, bytes.size() - at);
    const absl::Span<uint8_t> room = reader.Room();
    by_room = !by_room && !room.empty();
    if (by_room) {
      const size_t filled = std::min(some, room.size());
      std::copy_n(bytes.begin() + at, filled, room.begin());
      reader.Filled(filled);
      at += filled;
    } else {
      const absl::StatusOr<size_t> taken = reader.Take(
          {reinterpret_cast<const uint8_t*>(bytes.data()) + at, some});
      if (!taken.ok()) return taken.status();
      at += *taken;
    }
    take_frame();
  }
  return frames;
}

absl::Status ErrorOf(End end, const std::string& bytes,
                     LocalFrameReader::Limits limits = {}) {
  const absl::Status whole = Read(end, bytes, bytes.size(), limits).status();
  EXPECT_EQ(Read(end, bytes, 1, limits).status(), whole);
  return whole;
}

TEST(LocalFrames, ArriveWholeHoweverTheirBytesAreCut) {
  const std::string large(70'000, 'x');
  const std::string bytes =
      std::string(kLocalPreface) + OpeningFrame() +
      FrameOf(FrameKind::kMessage, "hello") + FrameOf(FrameKind::kPing) +
      FrameOf(FrameKind::kMessage) + FrameOf(FrameKind::kMessage, large) +
      FrameOf(FrameKind::kPong) + FrameOf(FrameKind::kHalfClose) +
      FrameOf(FrameKind::kPing);
  const std::string opening = *ToBody(SomeOpening(), 1000);
  for (const size_t piece : {1, 2, 3, 7, 8, 9, 100, 4096, 65536, 1 << 20}) {
    const absl::StatusOr<Frames> frames = Read(End::kCallee, bytes, piece);
    ASSERT_THAT(frames, IsOk()) << piece;
    EXPECT_THAT(
        *frames,
        ElementsAre(Pair(FrameKind::kOpening, opening),
                    Pair(FrameKind::kMessage, "hello"),
                    Pair(FrameKind::kPing, ""), Pair(FrameKind::kMessage, ""),
                    Pair(FrameKind::kMessage, large),
                    Pair(FrameKind::kPong, ""), Pair(FrameKind::kHalfClose, ""),
                    Pair(FrameKind::kPing, "")));
  }
}

TEST(LocalFrames, CutAtEachByteAreTheSameFrames) {
  const std::string bytes = std::string(kLocalPreface) + OpeningFrame() +
                            FrameOf(FrameKind::kMessage, "hello");
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    LocalFrameReader reader(End::kCallee, {});
    Frames frames;
    for (absl::string_view part : {absl::string_view(bytes).substr(0, cut),
                                   absl::string_view(bytes).substr(cut)}) {
      while (!part.empty()) {
        const auto taken = reader.Take(
            {reinterpret_cast<const uint8_t*>(part.data()), part.size()});
        ASSERT_THAT(taken, IsOk());
        part.remove_prefix(*taken);
        if (const auto frame = reader.TakeFrame())
          frames.emplace_back(frame->kind,
                              std::string(Flatten(frame->body).view()));
      }
    }
    ASSERT_EQ(frames.size(), 2) << cut;
    EXPECT_EQ(frames[1],
              (std::pair(FrameKind::kMessage, std::string("hello"))));
  }
}

TEST(LocalFrames, CallerTakesMessagesUntilTheClosing) {
  const std::string closing = ToClosingBody(absl::NotFoundError("gone"));
  const std::string bytes = FrameOf(FrameKind::kMessage, "hello") +
                            FrameOf(FrameKind::kPing) +
                            FrameOf(FrameKind::kClosing, closing);
  EXPECT_THAT(Read(End::kCaller, bytes, 5), IsOk());
  EXPECT_THAT(ErrorOf(End::kCaller, bytes + FrameOf(FrameKind::kPing)),
              StatusIs(absl::StatusCode::kInvalidArgument, "none of it may"));
}

TEST(LocalFrames, OutOfOrderAreErrors) {
  const std::string preface(kLocalPreface);
  const std::string open = preface + OpeningFrame();
  for (const std::string& bytes :
       {preface + FrameOf(FrameKind::kMessage),
        preface + FrameOf(FrameKind::kPing), open + OpeningFrame(),
        open + FrameOf(FrameKind::kClosing),
        open + FrameOf(FrameKind::kHalfClose) + FrameOf(FrameKind::kMessage),
        open + FrameOf(FrameKind::kHalfClose) + FrameOf(FrameKind::kHalfClose),
        open + FrameOf(static_cast<FrameKind>(0)),
        open + FrameOf(static_cast<FrameKind>(7))}) {
    EXPECT_THAT(ErrorOf(End::kCallee, bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, "none of it may"));
  }
  for (const FrameKind kind : {FrameKind::kOpening, FrameKind::kHalfClose}) {
    EXPECT_THAT(ErrorOf(End::kCaller, FrameOf(kind)),
                StatusIs(absl::StatusCode::kInvalidArgument, "none of it may"));
  }
}

TEST(LocalFrames, OtherProtocolsAndVersionsAreNamed) {
  EXPECT_THAT(ErrorOf(End::kCallee, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "PRI"));
  EXPECT_THAT(ErrorOf(End::kCallee, "weft-local/2\nmore"),
              StatusIs(absl::StatusCode::kUnimplemented, "weft-local/2"));
  // What a server of HTTP/2 sends first.
  const std::string settings("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64", 15);
  EXPECT_THAT(ErrorOf(End::kCaller, settings),
              StatusIs(absl::StatusCode::kInvalidArgument, "kind 0"));
}

TEST(LocalFrames, TooLargeAreErrorsBeforeTheirBody) {
  LocalFrameReader::Limits limits;
  limits.max_message_bytes = 100;
  limits.max_opening_bytes = 200;
  const auto header = [](FrameKind kind, size_t bytes) {
    const FrameHeader header = HeaderOf(kind, bytes);
    return std::string(header.begin(), header.end());
  };
  const std::string preface(kLocalPreface);
  EXPECT_THAT(Read(End::kCallee,
                   preface + OpeningFrame() +
                       FrameOf(FrameKind::kMessage, std::string(100, 'x')),
                   9, limits),
              IsOk());
  EXPECT_THAT(
      ErrorOf(End::kCallee,
              preface + OpeningFrame() + header(FrameKind::kMessage, 101),
              limits),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_message_bytes"));
  EXPECT_THAT(
      ErrorOf(End::kCallee, preface + header(FrameKind::kOpening, 201), limits),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_metadata_bytes"));
  EXPECT_THAT(ErrorOf(End::kCaller, header(FrameKind::kClosing, 5000), limits),
              StatusIs(absl::StatusCode::kInvalidArgument, "larger than max"));
  EXPECT_THAT(ErrorOf(End::kCaller, header(FrameKind::kPing, 1), limits),
              StatusIs(absl::StatusCode::kInvalidArgument, "larger than max"));
}

TEST(LocalFrames, AnnouncedBytesThatDoNotComeHoldLittle) {
  LocalFrameReader reader(End::kCaller, {});
  const FrameHeader header = HeaderOf(FrameKind::kMessage, 200 << 20);
  ASSERT_THAT(reader.Take(absl::Span<const uint8_t>(header)), IsOk());
  ASSERT_FALSE(reader.Room().empty());
  EXPECT_LE(reader.held_bytes(), size_t{16} << 10);
  for (size_t come = 0; come < size_t{4} << 20;) {
    const size_t some = std::min<size_t>(reader.Room().size(), 1000);
    reader.Filled(some);
    come += some;
    EXPECT_LE(reader.held_bytes(), std::max(size_t{16} << 10, 17 * come));
  }
}

TEST(LocalFrames, OpeningIsReadAsItWasWritten) {
  const absl::StatusOr<Opening> opening =
      ParseOpening(*ToBody(SomeOpening(), 1000));
  ASSERT_THAT(opening, IsOk());
  EXPECT_EQ(opening->endpoint, "ps0");
  EXPECT_EQ(opening->method, "/test.Service/Pump");
  EXPECT_EQ(opening->metadata, SomeOpening().metadata);
}

TEST(LocalFrames, OpeningThatIsCutOrLongerIsAnError) {
  const std::string body = *ToBody(SomeOpening(), 1000);
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_THAT(ParseOpening(body.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument, "cut short"));
  }
  EXPECT_THAT(ParseOpening(body + "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, "behind its end"));
}

TEST(LocalFrames, OpeningOfOtherTextIsRefusedByBothEnds) {
  for (const Opening& opening :
       std::vector<Opening>{{"p\n0", "/a/b", {}},
                            {"ps0", "a/b", {}},
                            {"ps0", "", {}},
                            {"ps0", "/a\x01", {}},
                            {"ps0", "/a/b", {{"", "x"}}},
                            {"ps0", "/a/b", {{"Key", "x"}}},
                            {"ps0", "/a/b", {{"key", "a\nb"}}}}) {
    EXPECT_THAT(ToBody(opening, 1000),
                StatusIs(absl::StatusCode::kInvalidArgument, "wanted"));
  }
  EXPECT_THAT(
      ToBody(SomeOpening(), 20),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_metadata_bytes"));
  std::string body = *ToBody({"ps0", "/a/b", {{"key", "value"}}}, 1000);
  body[body.size() - 1] = '\n';
  EXPECT_THAT(ParseOpening(body),
              StatusIs(absl::StatusCode::kInvalidArgument, "printed"));
}

TEST(LocalFrames, ClosingCarriesAnyStatus) {
  const auto said = [](const std::string& body) {
    absl::Status said = absl::InternalError("nothing");
    EXPECT_THAT(ParseClosing(body, &said), IsOk());
    return said;
  };
  EXPECT_THAT(said(ToClosingBody(absl::OkStatus())), IsOk());
  EXPECT_THAT(said(ToClosingBody(absl::AbortedError("why\n"))),
              StatusIs(absl::StatusCode::kAborted, "why\n"));
  const std::string cut =
      ToClosingBody(absl::AbortedError(std::string(9000, 'x')));
  EXPECT_EQ(said(cut).message().size(), 2000);
  EXPECT_THAT(said(std::string("\x63\0\0\0odd", 7)),
              StatusIs(absl::StatusCode::kUnknown, "odd"));
  absl::Status nothing;
  EXPECT_THAT(ParseClosing("abc", &nothing),
              StatusIs(absl::StatusCode::kInvalidArgument, "a closing"));
  EXPECT_THAT(ParseClosing(std::string(2005, 'x'), &nothing),
              StatusIs(absl::StatusCode::kInvalidArgument, "a closing"));
}

}  // namespace
}  // namespace weft::net
