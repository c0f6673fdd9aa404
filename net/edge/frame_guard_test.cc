// Test of FrameGuard with virtual time: what is a flood, and what honest peers
// send.

#include "weft/net/edge/frame_guard.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/net/edge/raw_peer.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;

constexpr uint8_t kPriorityFrame = 2;
constexpr uint8_t kWindowUpdateFrame = 8;
constexpr uint8_t kUnknownFrame = 0x77;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kAck = 1;

std::string Message(size_t size) {
  const std::string prefix = {
      0, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
      static_cast<char>(size >> 8), static_cast<char>(size)};
  return prefix + std::string(size, 'x');
}

std::string Call(uint32_t stream) {
  return Frame(kHeadersFrame, kEndHeaders, stream, HeaderBlock("/a.B/C"));
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

class FrameGuardTest : public ::testing::Test {
 protected:
  explicit FrameGuardTest(FrameGuard::Options options = {}) : guard_(options) {
    EXPECT_EQ(Hear(Preface()), "");
  }

  const std::string& Hear(absl::string_view bytes) {
    return guard_.OnReceived(bytes, now_);
  }
  // What comes of `frame` over and over at once.
  std::string Flooded(const std::string& frame) {
    return Hear(Times(20'000, frame));
  }

  FrameGuard guard_;
  Instant now_ = Instant::FromNanoseconds(1'000'000);
};

TEST_F(FrameGuardTest, EmptyDataFramesAreAFlood) {
  Hear(Call(1));
  EXPECT_THAT(Flooded(Frame(kDataFrame, 0, 1, "")), HasSubstr("of type DATA"));
}

TEST_F(FrameGuardTest, DataFramesOfOneByteOfALargeMessageAreAFlood) {
  Hear(Call(1) + Frame(kDataFrame, 0, 1, Message(1 << 20).substr(0, 5)));
  EXPECT_THAT(Flooded(Frame(kDataFrame, 0, 1, "x")), HasSubstr("DATA"));
}

TEST_F(FrameGuardTest, MessagesOnUnopenedStreamsCountAsFlood) {
  EXPECT_THAT(Flooded(Frame(kDataFrame, 0, 1, Message(0))), HasSubstr("DATA"));
}

TEST_F(FrameGuardTest, FramesOfControlWithoutAReasonAreAFlood) {
  const struct {
    std::string frame;
    std::string name;
  } cases[] = {
      {Frame(kSettingsFrame, 0, 0, ""), "SETTINGS"},
      {Frame(kSettingsFrame, kAck, 0, ""), "SETTINGS"},
      {Frame(kPingFrame, 0, 0, "01234567"), "PING"},
      {Frame(kPingFrame, kAck, 0, "01234567"), "PING"},
      {Frame(kPriorityFrame, 0, 1, "12345"), "PRIORITY"},
      {Frame(kWindowUpdateFrame, 0, 0, "1234"), "WINDOW_UPDATE"},
      {Frame(kResetFrame, 0, 1, "1234"), "RST_STREAM"},
      {Frame(kUnknownFrame, 0, 0, ""), "unknown"},
      {Frame(kHeadersFrame, kEndHeaders, 1, ""), "HEADERS"},
      {Frame(kContinuationFrame, 0, 1, ""), "CONTINUATION"},
  };
  for (const auto& one : cases) {
    FrameGuard guard({});
    guard.OnReceived(Preface() + Call(1), now_);
    EXPECT_THAT(guard.OnReceived(Times(20'000, one.frame), now_),
                HasSubstr(absl::StrCat("of type ", one.name)));
  }
}

TEST_F(FrameGuardTest, RecordsOfTlsWithoutDataAreAFlood) {
  for (int i = 0; i < 10; ++i) guard_.OnTlsRecord();  // of a handshake
  EXPECT_EQ(Hear(""), "");
  for (int i = 0; i < 200; ++i) guard_.OnTlsRecord();
  EXPECT_THAT(Hear(""), HasSubstr("of type TLS"));
}

TEST_F(FrameGuardTest, SettingsOfManyEntriesCostMoreThanOne) {
  const std::string large = Frame(kSettingsFrame, 0, 0, std::string(16380, 0));
  EXPECT_NE(Hear(Times(10, large)), "");
}

// gRPC ends such a connection by itself, for it breaks the rules.
TEST_F(FrameGuardTest, FrameOfAnyDeclaredLengthCostsOnlyTheBytesReceived) {
  EXPECT_EQ(Hear(std::string(10'000, static_cast<char>(0xff))), "");
}

TEST_F(FrameGuardTest, AHeaderBlockWithoutEndIsAFloodAtItsLimit) {
  FrameGuard::Options options;
  options.max_header_bytes = 40'000;
  FrameGuard guard(options);
  const std::string part(16'384, 'x');
  guard.OnReceived(Preface(), now_);
  EXPECT_EQ(guard.OnReceived(Frame(kHeadersFrame, 0, 1, part) +
                                 Frame(kContinuationFrame, 0, 1, part) +
                                 Frame(kContinuationFrame, kEndHeaders, 1, ""),
                             now_),
            "");
  EXPECT_EQ(guard.OnReceived(Frame(kHeadersFrame, 0, 3, part) +
                                 Frame(kContinuationFrame, 0, 3, part),
                             now_),
            "");
  // Its header is enough: the payload has not come.
  EXPECT_THAT(
      guard.OnReceived(Frame(kContinuationFrame, 0, 3, part).substr(0, 9),
                       now_),
      HasSubstr("a header block of 49152 bytes or more; at most 40000"));
}

TEST_F(FrameGuardTest, TheVerdictStays) {
  const std::string flood = Flooded(Frame(kSettingsFrame, 0, 0, ""));
  now_ += absl::Hours(1);
  EXPECT_EQ(Hear(Call(1)), flood);
}

TEST_F(FrameGuardTest, FloodInPiecesOfOneByteIsFoundToo) {
  const std::string flood = Times(3'000, Frame(kPingFrame, 0, 0, "01234567"));
  for (const char byte : flood) Hear({&byte, 1});
  EXPECT_THAT(Hear("x"), HasSubstr("PING"));
}

TEST_F(FrameGuardTest, SlowFramesOfControlAreNoFlood) {
  for (int i = 0; i < 1000; ++i) {
    now_ += absl::Milliseconds(100);
    ASSERT_EQ(Hear(Times(40, Frame(kPingFrame, 0, 0, "01234567"))), "");
  }
}

TEST_F(FrameGuardTest, TimeAloneAllowsNoMoreThanTheBeginning) {
  now_ += absl::Hours(100);
  EXPECT_EQ(Hear(Times(1'990, Frame(kSettingsFrame, 0, 0, ""))), "");
  EXPECT_NE(Hear(Times(20, Frame(kSettingsFrame, 0, 0, ""))), "");
}

TEST_F(FrameGuardTest, CallsWithTheirUsualFramesAreNoFlood) {
  for (uint32_t i = 0; i < 100'000; ++i) {
    const uint32_t stream = 2 * i + 1;
    ASSERT_EQ(
        Hear(Call(stream) + Frame(kDataFrame, kEndStream, stream, Message(0)) +
             Frame(kWindowUpdateFrame, 0, 0, "1234") +
             Frame(kWindowUpdateFrame, 0, stream, "1234")),
        "");
  }
}

TEST_F(FrameGuardTest, SmallMessagesOnOneStreamAreNoFlood) {
  Hear(Call(1));
  for (int i = 0; i < 100'000; ++i) {
    // The prefix of a message may come in a frame of its own.
    ASSERT_EQ(Hear(Frame(kDataFrame, 0, 1, Message(1).substr(0, 5)) +
                   Frame(kDataFrame, 0, 1, "x") +
                   Frame(kWindowUpdateFrame, 0, 0, "1234")),
              "");
  }
}

TEST_F(FrameGuardTest, LargeMessagesInFullFramesAreNoFlood) {
  Hear(Call(1));
  const std::string message = Message(4 << 20);
  std::string frames;
  for (size_t at = 0; at < message.size(); at += 16'384)
    frames += Frame(kDataFrame, 0, 1, message.substr(at, 16'384));
  for (int i = 0; i < 64; ++i) ASSERT_EQ(Hear(frames), "");
}

TEST_F(FrameGuardTest, ReaderOfOurDataMayAcknowledgeEachFrameOfIt) {
  Hear(Call(1));
  const std::string ours = Frame(kDataFrame, 0, 1, std::string(16'384, 'x'));
  const std::string answer = Frame(kWindowUpdateFrame, 0, 0, "1234") +
                             Frame(kWindowUpdateFrame, 0, 1, "1234") +
                             Frame(kPingFrame, 0, 0, "01234567");
  for (int i = 0; i < 1'000; ++i) {
    guard_.OnSent(ours);
    ASSERT_EQ(Hear(answer), "");
  }
  // A long stream sends so much at once, as far as its window goes.
  for (int i = 0; i < 1'024; ++i) guard_.OnSent(ours);
  EXPECT_EQ(Hear(Times(1'024, answer)), "");
}

TEST_F(FrameGuardTest, OurAcknowledgementsExplainNoFrames) {
  std::string verdict;
  for (int i = 0; i < 20'000 && verdict.empty(); ++i) {
    verdict = Hear(Frame(kPingFrame, 0, 0, "01234567") +
                   Frame(kSettingsFrame, 0, 0, ""));
    guard_.OnSent(Frame(kPingFrame, kAck, 0, "01234567") +
                  Frame(kSettingsFrame, kAck, 0, ""));
  }
  EXPECT_NE(verdict, "");
}

TEST_F(FrameGuardTest, BudgetEarnedByCallsHasAnEnd) {
  for (uint32_t i = 0; i < 10'000; ++i) {
    Hear(Call(2 * i + 1) +
         Frame(kDataFrame, kEndStream, 2 * i + 1, Message(0)));
  }
  EXPECT_NE(Hear(Times(10'001, Frame(kSettingsFrame, 0, 0, ""))), "");
}

TEST_F(FrameGuardTest, ConnectionThatIsNotHttp2IsLeftToGrpc) {
  FrameGuard guard({});
  EXPECT_EQ(guard.OnReceived(std::string(1 << 20, '\0'), now_), "");
}

}  // namespace
}  // namespace weft::net
