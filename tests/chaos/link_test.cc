#include "weft/tests/chaos/link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace weft::testing {
namespace {

constexpr int kLongMs = 60000;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, at, size), 0);
    EXPECT_EQ(listen(listener_, 4), 0);
    EXPECT_EQ(getsockname(listener_, at, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~LinkTest() override {
    for (const int fd : {listener_, near_, far_}) close(fd);
  }

  void Connect(const Link& link) {
    const sockaddr_in address = Loopback(link.port());
    ASSERT_EQ(connect(near_, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    ASSERT_TRUE(Comes(listener_, kLongMs));
    far_ = accept(listener_, nullptr, nullptr);
    ASSERT_GE(far_, 0);
  }
  static bool Comes(int fd, int wait_ms) {
    pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, wait_ms) == 1;
  }
  static void Send(int fd, const std::string& bytes) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // As many bytes as were sent, or fewer once the other end has closed.
  static std::string Receive(int fd, size_t count) {
    std::string bytes(count, '\0');
    size_t got = 0;
    while (got < count && Comes(fd, kLongMs)) {
      const ssize_t more = recv(fd, bytes.data() + got, count - got, 0);
      if (more <= 0) break;
      got += static_cast<size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }

  int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  int near_ = socket(AF_INET, SOCK_STREAM, 0);
  int far_ = -1;
  int port_ = 0;
};

TEST_F(LinkTest, PassesBothWaysAndCloses) {
  const Link link(port_);
  Connect(link);
  const std::string much(1 << 20, 'x');
  Send(near_, "there");
  EXPECT_EQ(Receive(far_, 5), "there");
  std::thread sends([&] { Send(far_, much); });
  EXPECT_EQ(Receive(near_, much.size()) == much, true);
  sends.join();
  shutdown(far_, SHUT_RDWR);
  EXPECT_EQ(Receive(near_, 1), "");
}

TEST_F(LinkTest, WhatIsSentWhileItIsCutArrivesAfterwards) {
  Link link(port_);
  Connect(link);
  link.Cut(true);
  Send(near_, "first");
  EXPECT_FALSE(Comes(far_, 100));
  link.Cut(false);
  EXPECT_EQ(Receive(far_, 5), "first");
  Send(far_, "then");
  EXPECT_EQ(Receive(near_, 4), "then");
}

}  // namespace
}  // namespace weft::testing
