#include "weft/net/local/frame_sender.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "gtest/gtest.h"

namespace weft::net {
namespace {

using Sent = FrameSender::Sent;

std::string FrameOf(FrameKind kind, const std::string& body) {
  const FrameHeader header = HeaderOf(kind, body.size());
  return std::string(header.begin(), header.end()) + body;
}

class FrameSenderTest : public ::testing::Test {
 protected:
  FrameSenderTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_.data()),
              0);
    const int small = 4096;
    setsockopt(ends_[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  }
  ~FrameSenderTest() override {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }

  std::string ReadAll() {
    std::string all;
    std::array<char, 4096> some;
    for (;;) {
      const ssize_t bytes = read(ends_[1], some.data(), some.size());
      if (bytes <= 0) return all;
      all.append(some.data(), static_cast<size_t>(bytes));
    }
  }

  std::array<int, 2> ends_;
  FrameSender sender_;
};

TEST_F(FrameSenderTest, SendsSlicesWithWhatWasKept) {
  sender_.Keep(Bytes::Own(std::string("first")));
  sender_.Keep(Bytes());
  EXPECT_EQ(sender_.Send(ends_[0], FrameKind::kMessage,
                         {Bytes::Own(std::string("ab")), Bytes(),
                          Bytes::Own(std::string("c"))}),
            Sent::kAll);
  EXPECT_TRUE(sender_.is_empty());
  EXPECT_EQ(ReadAll(), "first" + FrameOf(FrameKind::kMessage, "abc"));
  EXPECT_EQ(sender_.Send(ends_[0], FrameKind::kPing), Sent::kAll);
  EXPECT_EQ(ReadAll(), FrameOf(FrameKind::kPing, ""));
}

TEST_F(FrameSenderTest, KeepsWhatDoesNotFitAndItsOrder) {
  std::string wanted;
  std::string body;
  for (int i = 0; i < 30'000; ++i) body += std::to_string(i);
  Slices slices;  // more of them than one call takes
  for (size_t at = 0; at < body.size(); at += 999)
    slices.push_back(Bytes::Own(body.substr(at, 999)));
  EXPECT_EQ(sender_.Send(ends_[0], FrameKind::kMessage, slices), Sent::kSome);
  wanted += FrameOf(FrameKind::kMessage, body);
  EXPECT_EQ(sender_.Send(ends_[0], FrameKind::kMessage,
                         {Bytes::Own(std::string("last"))}),
            Sent::kSome);
  wanted += FrameOf(FrameKind::kMessage, "last");
  std::string found = ReadAll();
  while (sender_.Flush(ends_[0]) == Sent::kSome) found += ReadAll();
  found += ReadAll();
  EXPECT_TRUE(sender_.is_empty());
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(sender_.sent_bytes(), wanted.size());
}

TEST_F(FrameSenderTest, NoticesThatNobodyReads) {
  close(ends_[1]);
  ends_[1] = -1;
  EXPECT_EQ(sender_.Send(ends_[0], FrameKind::kPing), Sent::kBroken);
  sender_.Keep(Bytes::Own(std::string("x")));
  EXPECT_EQ(sender_.Flush(ends_[0]), Sent::kBroken);
}

}  // namespace
}  // namespace weft::net
