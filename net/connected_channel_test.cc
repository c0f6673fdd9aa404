// Channels that are one connection to a unix socket: Channel::Connect.

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/loop/loop.h"
#include "weft/net/on_unix.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

int CountDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

class ConnectedChannel : public OnUnix {
 protected:
  std::unique_ptr<Channel> ConnectTo(const std::string& name = "ps0") {
    auto channel =
        Channel::Connect(client_->loop(), server_->address(), {name});
    EXPECT_THAT(channel, IsOk());
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  std::unique_ptr<Node> client_ = Node::Make("trainer0", Socket("client"));
  std::unique_ptr<Node> server_ = Node::Make("ps0", Socket());
};

TEST_F(ConnectedChannel, StreamKeepsTheOrderBothWaysAndEndsInPeace) {
  const auto channel = ConnectTo();
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = channel->OpenStream(kPump, recorder, {{"key", "value"}});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream->Write(Text(std::to_string(i))));
    ASSERT_TRUE(recorder->AwaitWritten(i + 1));
  }
  EXPECT_EQ(recorder->AwaitMessages(20).back(), "19");
  stream->Close(absl::OkStatus());
  EXPECT_THAT(recorder->closed().Wait(kSoon), IsOk());
}

TEST_F(ConnectedChannel, UnaryCallOfALocalPeerReachesTheEndpointOfItsName) {
  server_->AddEndpoint("ps1", Socket("other"));
  for (const std::string name : {"ps0", "ps1"}) {
    const auto channel = ConnectTo(name);
    const auto answer =
        channel->UnaryCall(kEcho, Text("who?"), kSoon).Wait(kSoon);
    ASSERT_THAT(answer, IsOk());
    EXPECT_EQ(ToText(*answer), name);
  }
  EXPECT_TRUE(server_->peer().is_local);
}

TEST_F(ConnectedChannel, StreamThatEndsBeforeItsFirstMessageIsHeardOnce) {
  const auto channel = ConnectTo();
  const auto closed = std::make_shared<Recorder>();
  const auto stream = channel->OpenStream(kPump, closed);
  stream->Close(absl::AbortedError("enough"));
  EXPECT_FALSE(stream->Write(Text("late")));
  EXPECT_THAT(closed->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  const auto destroyed = std::make_shared<Recorder>();
  (void)channel->OpenStream(kPump, destroyed);
  EXPECT_THAT(destroyed->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled));
  const auto half_closed = std::make_shared<Recorder>();
  const auto silent = channel->OpenStream(kPump, half_closed);
  silent->Close(absl::OkStatus());
  EXPECT_THAT(half_closed->closed().Wait(kSoon), IsOk());
}

TEST_F(ConnectedChannel, StreamThatIsNotWrittenOpensByItself) {
  const auto channel = ConnectTo();
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = channel->OpenStream(kFlood, recorder);
  EXPECT_EQ(recorder->AwaitMessages(1).front().size(), size_t{64} << 10);
  stream->Write(Text("late"));
  EXPECT_TRUE(recorder->AwaitWritten(1));
}

TEST_F(ConnectedChannel, RefusedStreamIsToldWhy) {
  const auto channel = ConnectTo();
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = channel->OpenStream("/test.Service/Nothing", recorder);
  ASSERT_TRUE(stream->Write(Text("hello")));
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnimplemented, "Nothing"));
}

TEST_F(ConnectedChannel, EndsWithItsConnection) {
  const auto channel = ConnectTo();
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = channel->OpenStream(kPump, recorder);
  ASSERT_TRUE(stream->Write(Text("hello")));
  EXPECT_THAT(recorder->AwaitMessages(1), ElementsAre("hello"));
  server_ = nullptr;
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
  server_ = Node::Make("ps0", Socket());  // which it does not look for
  EXPECT_THAT(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
  EXPECT_THAT(ConnectTo()->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon),
              IsOk());
}

TEST_F(ConnectedChannel, PeerThatClosesAtOnceEndsTheStream) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string path = dir_.Path("rude");
  memcpy(name.sun_path, path.data(), path.size());
  const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(
      bind(listener.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  for (const bool writes_before : {false, true}) {
    auto channel = Channel::Connect(client_->loop(), "unix:" + path, {"ps0"});
    ASSERT_THAT(channel, IsOk());
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = (*channel)->OpenStream(kPump, recorder);
    if (writes_before) stream->Write(Text("hello"));
    close(accept(listener.get(), nullptr, nullptr));
    if (!writes_before) stream->Write(Text("hello"));
    const absl::Status status = recorder->closed().Wait(kSoon);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 "another program has this address"));
  }
}

TEST_F(ConnectedChannel, ConnectsToUnixSocketsThatAreThere) {
  EXPECT_THAT(Channel::Connect(client_->loop(), "127.0.0.1:7000").status(),
              StatusIs(absl::StatusCode::kUnimplemented, "unix"));
  EXPECT_THAT(Channel::Connect(client_->loop(), Socket("nobody")).status(),
              StatusIs(absl::StatusCode::kUnavailable, "nobody"));
  EXPECT_THAT(Channel::Connect(client_->loop(), "unix:x").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ConnectedChannel, LeavesNoDescriptors) {
  {
    const auto warm = ConnectTo();
    EXPECT_THAT(warm->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon), IsOk());
  }
  const int before = CountDescriptors();
  for (int i = 0; i < 100; ++i) {
    const auto channel = ConnectTo();
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = channel->OpenStream(kPump, recorder);
    if (i % 3 > 0) stream->Write(Text("hello"));
    if (i % 3 > 1) recorder->AwaitMessages(1);
  }
  EXPECT_TRUE(Becomes([&] { return CountDescriptors() <= before; }))
      << CountDescriptors() << " descriptors, not " << before;
}

TEST_F(ConnectedChannel, LoopThatEndsEndsItsStreams) {
  auto loop = *Loop::Create();
  auto channel = *Channel::Connect(*loop, server_->address(), {"ps0"});
  const auto silent = std::make_shared<Recorder>();
  const auto silent_stream = channel->OpenStream(kPump, silent);
  const auto open = std::make_shared<Recorder>();
  const auto open_stream = channel->OpenStream(kPump, open);
  ASSERT_TRUE(open_stream->Write(Text("hello")));
  open->AwaitMessages(1);
  WEFT_EXPECT_OK(loop->Shutdown(absl::ZeroDuration()));
  for (const auto& recorder : {silent, open}) {
    EXPECT_THAT(recorder->closed().Wait(kSoon),
                StatusIs(absl::StatusCode::kUnavailable, "shutting down"));
  }
}

}  // namespace
}  // namespace weft::net
