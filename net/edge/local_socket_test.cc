#include "weft/net/edge/local_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

class LocalSocketTest : public ::testing::Test {
 protected:
  LocalSocketTest() {
    auto socket = LocalSocket::Bind(path_);
    EXPECT_THAT(socket.status(), IsOk());
    socket_ = *std::move(socket);
    EXPECT_EQ(pipe(pipe_), 0);
  }
  ~LocalSocketTest() override {
    close(pipe_[0]);
    close(pipe_[1]);
  }

  Descriptor Connect() const {
    Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path_.data(), path_.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                      sizeof name),
              0);
    return fd;
  }

  static int OpenDescriptors() {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      (void)entry;
      ++count;
    }
    return count;
  }

  TempDir directory_;
  const std::string path_ = absl::StrCat(directory_.path(), "/s");
  std::unique_ptr<LocalSocket> socket_;
  int pipe_[2];
};

TEST_F(LocalSocketTest, ADescriptorComesUnderItsToken) {
  ASSERT_THAT(LocalSocket::Send(path_, 1, {pipe_[0]}), IsOk());
  ASSERT_THAT(LocalSocket::Send(path_, 2, {pipe_[1]}), IsOk());
  const auto writer = socket_->Take(2);
  ASSERT_THAT(writer.status(), IsOk());
  ASSERT_EQ(writer->size(), 1u);
  EXPECT_EQ(write(writer->front().get(), "x", 1), 1);
  char read_back = 0;
  EXPECT_EQ(read(pipe_[0], &read_back, 1), 1);
  EXPECT_EQ(read_back, 'x');
  EXPECT_NE(fcntl(writer->front().get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_THAT(socket_->Take(2), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(socket_->Take(1), IsOk());
}

TEST_F(LocalSocketTest, SeveralDescriptorsComeInTheirOrder) {
  ASSERT_THAT(LocalSocket::Send(path_, 1, {pipe_[1], pipe_[0], pipe_[1]}),
              IsOk());
  const auto taken = socket_->Take(1);
  ASSERT_THAT(taken.status(), IsOk());
  ASSERT_EQ(taken->size(), 3u);
  EXPECT_EQ(write((*taken)[0].get(), "ab", 2), 2);
  EXPECT_EQ(write((*taken)[2].get(), "c", 1), 1);
  char read_back[4] = {};
  EXPECT_EQ(read((*taken)[1].get(), read_back, 3), 3);
  EXPECT_STREQ(read_back, "abc");
}

TEST_F(LocalSocketTest, HundredsOfSendersAtOnceAreAllKept) {
  constexpr uint64_t kSenders = 500;
  for (uint64_t token = 0; token < kSenders; ++token) {
    ASSERT_THAT(LocalSocket::Send(path_, token, {pipe_[0]}), IsOk()) << token;
  }
  for (uint64_t token = 0; token < kSenders; ++token) {
    EXPECT_THAT(socket_->Take(token), IsOk()) << token;
  }
}

TEST_F(LocalSocketTest, UnclaimedDescriptorsAreBoundedAndClosed) {
  const int before = OpenDescriptors();
  for (uint64_t token = 0; token < 1000; ++token) {
    ASSERT_THAT(LocalSocket::Send(path_, token, {pipe_[0]}), IsOk());
    if (token % 100 == 0) (void)socket_->Take(~uint64_t{0});
  }
  (void)socket_->Take(~uint64_t{0});
  EXPECT_LE(OpenDescriptors(),
            before + static_cast<int>(LocalSocket::kMaxUntaken));
  socket_ = nullptr;
  EXPECT_EQ(OpenDescriptors(), before - 1);
}

TEST_F(LocalSocketTest, ConnectionsWithoutAMessageAreBoundedAndClosed) {
  const int before = OpenDescriptors();
  std::vector<Descriptor> silent;
  for (size_t i = 0; i < 2 * LocalSocket::kMaxUntaken; ++i) {
    silent.push_back(Connect());
  }
  ASSERT_THAT(LocalSocket::Send(path_, 1, {pipe_[0]}), IsOk());
  EXPECT_THAT(socket_->Take(1), IsOk());
  EXPECT_LE(OpenDescriptors(),
            before + static_cast<int>(3 * LocalSocket::kMaxUntaken));
  silent.clear();
  (void)socket_->Take(2);
  EXPECT_EQ(OpenDescriptors(), before);
}

// Senders of a socket where they stay. What an offer holds is the writing end
// of a pipe: the other end says when nobody has it any more.
class OfferTest : public LocalSocketTest {
 protected:
  OfferTest() {
    socket_ = nullptr;
    auto socket = LocalSocket::Bind(path_, LocalSocket::Senders::kStay);
    EXPECT_THAT(socket.status(), IsOk());
    socket_ = *std::move(socket);
    close(pipe_[0]);
    close(pipe_[1]);
    EXPECT_EQ(pipe2(pipe_, O_NONBLOCK), 0);
  }

  Descriptor Offer(uint64_t token) {
    auto offer = LocalSocket::Offer(path_, token, {pipe_[1]});
    EXPECT_THAT(offer.status(), IsOk()) << token;
    return offer.ok() ? *std::move(offer) : Descriptor();
  }
  // Nobody else has the writing end, not even the kernel.
  bool NobodyElseHasIt() {
    close(std::exchange(pipe_[1], -1));
    pollfd reader = {pipe_[0], 0, 0};
    return poll(&reader, 1, 0) == 1 && (reader.revents & POLLHUP) != 0;
  }
};

TEST_F(OfferTest, CanBeTakenOnceWhileItsSenderStays) {
  const Descriptor first = Offer(1), second = Offer(2);
  EXPECT_THAT(socket_->Take(2), IsOk());
  socket_->DropAbandoned();
  EXPECT_THAT(socket_->Take(1), IsOk());
  EXPECT_THAT(socket_->Take(1), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(OfferTest, OfWhoHasHungUpIsDroppedAsAnotherIsTaken) {
  const int before = OpenDescriptors();
  std::vector<Descriptor> abandoned;
  for (uint64_t token = 0; token < 20; ++token) {
    abandoned.push_back(Offer(token));
  }
  Descriptor offer = Offer(100);
  abandoned.clear();
  EXPECT_THAT(socket_->Take(100), IsOk());
  offer = Descriptor();
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_THAT(socket_->Take(1), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(NobodyElseHasIt());
}

TEST_F(OfferTest, OfWhoHasHungUpIsDroppedWithoutATake) {
  const int before = OpenDescriptors();
  for (uint64_t token = 0; token < 500; ++token) Offer(token);
  const Descriptor stays = Offer(5000);
  socket_->DropAbandoned();
  EXPECT_EQ(OpenDescriptors(),
            before + 3);  // an offer, both ends, and its pipe
  EXPECT_THAT(socket_->Take(5000), IsOk());
  socket_->DropAbandoned();
  EXPECT_TRUE(NobodyElseHasIt());
}

TEST_F(OfferTest, OfWhoStaysIsNotDroppedForThoseOfWhoHasHungUp) {
  const Descriptor stays = Offer(7);
  for (uint64_t token = 100; token < 100 + 4 * LocalSocket::kMaxUntaken;
       ++token) {
    Offer(token);
  }
  EXPECT_THAT(socket_->Take(1), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(socket_->Take(7), IsOk());
}

// More than there is room for wait in the kernel.
TEST_F(OfferTest, ManyOfWhoStaysAreAllKept) {
  std::vector<Descriptor> offers;
  const uint64_t count = 4 * LocalSocket::kMaxUntaken;
  for (uint64_t token = 0; token < count; ++token) {
    offers.push_back(Offer(token));
  }
  socket_->DropAbandoned();
  for (uint64_t token = 0; token < count; ++token) {
    EXPECT_THAT(socket_->Take(token), IsOk()) << token;
    if (token % 50 == 0) socket_->DropAbandoned();
  }
}

TEST_F(LocalSocketTest, EndKeepsTheFileOfASuccessor) {
  EXPECT_THAT(LocalSocket::Bind(path_),
              StatusIs(absl::StatusCode::kUnavailable, "in use"));
  unlink(path_.c_str());
  auto successor = LocalSocket::Bind(path_);
  ASSERT_THAT(successor.status(), IsOk());
  socket_ = nullptr;
  ASSERT_THAT(LocalSocket::Send(path_, 1, {pipe_[1]}), IsOk());
  EXPECT_THAT((*successor)->Take(1), IsOk());
  *successor = nullptr;
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(LocalSocketTest, MessagesOfAnotherFormAreDropped) {
  const int before = OpenDescriptors();
  for (const size_t size : {0, 1, 7, 9, 4000}) {
    const Descriptor sender = Connect();
    const std::string text(size, 'x');
    ASSERT_EQ(send(sender.get(), text.data(), size, MSG_DONTWAIT),
              static_cast<ssize_t>(size));
  }
  // More descriptors than there is room for.
  const uint64_t token = 7;
  iovec body = {const_cast<uint64_t*>(&token), sizeof token};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(8 * sizeof(int));
  for (int i = 0; i < 8; ++i) {
    memcpy(CMSG_DATA(c) + i * sizeof(int), &pipe_[0], sizeof(int));
  }
  {
    const Descriptor sender = Connect();
    ASSERT_EQ(sendmsg(sender.get(), &message, MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof token));
  }
  ASSERT_THAT(LocalSocket::Send(path_, 8, {pipe_[0]}), IsOk());
  EXPECT_THAT(socket_->Take(8), IsOk());
  (void)socket_->Take(7);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(LocalSocketTest, MissingListenerOrOpenDirectoryIsAnError) {
  EXPECT_THAT(LocalSocket::Send(path_ + "x", 1, {pipe_[0]}),
              StatusIs(absl::StatusCode::kUnavailable));
  socket_ = nullptr;
  EXPECT_THAT(LocalSocket::Send(path_, 1, {pipe_[0]}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(LocalSocket::Bind(std::string(200, '/')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "107"));
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  EXPECT_THAT(LocalSocket::Bind(path_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(LocalSocket::Send(path_, 1, {pipe_[0]}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace weft::net
