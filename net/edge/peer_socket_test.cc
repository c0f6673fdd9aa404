#include "weft/net/edge/peer_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/descriptor.h"

namespace weft::net {
namespace {

using ::testing::Pair;

struct Ends {
  Descriptor near, far;
};

Ends UnixPair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

// `far` has connected from 127.0.0.1 to a listener of all addresses.
Ends TcpPair() {
  Descriptor listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  socklen_t length = sizeof any;
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&any), length), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&any), &length),
      0);
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = any.sin6_port;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Descriptor far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(
      connect(far.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
  return {Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)),
          std::move(far)};
}

TEST(PeerSocket, OfAUnixSocketIsNamedSoAndOfThisUser) {
  const Ends ends = UnixPair();
  EXPECT_THAT(PeerOf(ends.near.get()), Pair(kUnix, ""));
  EXPECT_TRUE(IsSameUser(ends.near.get()));
}

TEST(PeerSocket, MappedAddressIsThatOfIpv4) {
  const Ends ends = TcpPair();
  EXPECT_EQ(PeerOf(ends.near.get()).first, "127.0.0.1");
  ASSERT_EQ(write(ends.far.get(), "12345", 5), 5);
  char bytes[5];
  ASSERT_EQ(recv(ends.near.get(), bytes, sizeof bytes, MSG_WAITALL), 5);
  EXPECT_EQ(BytesHeard(ends.near.get()), 5);
}

TEST(PeerSocket, InodeTellsASocketFromItsSuccessor) {
  Ends ends = UnixPair();
  const int fd = ends.near.get();
  const auto inode = InodeOf(fd);
  ASSERT_TRUE(inode.has_value());
  EXPECT_NE(inode, InodeOf(ends.far.get()));
  ASSERT_EQ(dup2(ends.far.get(), fd), fd);
  EXPECT_NE(InodeOf(fd), inode);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_FALSE(InodeOf(pipes[0]).has_value());
  close(pipes[0]);
  close(pipes[1]);
}

TEST(PeerSocket, CutEndsTheConnectionAndThrowsAwayWhatHasCome) {
  const Ends ends = TcpPair();
  ASSERT_EQ(write(ends.far.get(), "unread", 6), 6);
  EXPECT_TRUE(CutSocket(ends.near.get(), *InodeOf(ends.near.get())));
  char byte;
  EXPECT_EQ(recv(ends.near.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_LE(recv(ends.far.get(), &byte, 1, 0), 0);
}

TEST(PeerSocket, ASuccessorIsNotCut) {
  const Ends ends = TcpPair();
  EXPECT_TRUE(CutSocket(ends.near.get(), *InodeOf(ends.near.get()) + 1));
  ASSERT_EQ(write(ends.far.get(), "1", 1), 1);
  char byte;
  EXPECT_EQ(recv(ends.near.get(), &byte, 1, 0), 1);
}

}  // namespace
}  // namespace weft::net
