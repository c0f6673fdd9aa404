// Streams over unix sockets of their own: OpenLocalStream, and who serves them.

#include "weft/net/call/local_stream.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/local/local_frames.h"
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

class LocalStreamTest : public OnUnix {
 protected:
  std::unique_ptr<Stream> OpenStream(const std::string& method,
                                     std::shared_ptr<StreamObserver> observer,
                                     const Metadata& metadata = {}) {
    auto stream = OpenLocalStream(client_->loop(), server_->address(), "ps0",
                                  method, std::move(observer), metadata);
    EXPECT_THAT(stream, IsOk());
    return stream.ok() ? *std::move(stream) : nullptr;
  }

  std::unique_ptr<Node> client_ = Node::Make("trainer0", Socket("client"));
  std::unique_ptr<Node> server_ = Node::Make("ps0", Socket());
};

TEST_F(LocalStreamTest, StreamKeepsTheOrderBothWaysAndEndsInPeace) {
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream(kPump, recorder, {{"key", "value"}});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream->Write(Text(std::to_string(i))));
    ASSERT_TRUE(recorder->AwaitWritten(i + 1));
  }
  EXPECT_EQ(recorder->AwaitMessages(20).back(), "19");
  stream->Close(absl::OkStatus());
  EXPECT_THAT(recorder->closed().Wait(kSoon), IsOk());
}

TEST_F(LocalStreamTest, StreamThatEndsBeforeItsFirstMessageIsHeardOnce) {
  const auto closed = std::make_shared<Recorder>();
  const auto stream = OpenStream(kPump, closed);
  stream->Close(absl::AbortedError("enough"));
  EXPECT_FALSE(stream->Write(Text("late")));
  EXPECT_THAT(closed->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  const auto destroyed = std::make_shared<Recorder>();
  (void)OpenStream(kPump, destroyed);
  EXPECT_THAT(destroyed->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled));
  const auto half_closed = std::make_shared<Recorder>();
  const auto silent = OpenStream(kPump, half_closed);
  silent->Close(absl::OkStatus());
  EXPECT_THAT(half_closed->closed().Wait(kSoon), IsOk());
}

TEST_F(LocalStreamTest, StreamThatIsNotWrittenOpensByItself) {
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream(kFlood, recorder);
  EXPECT_EQ(recorder->AwaitMessages(1).front().size(), size_t{64} << 10);
  stream->Write(Text("late"));
  EXPECT_TRUE(recorder->AwaitWritten(1));
}

TEST_F(LocalStreamTest, RefusedStreamIsToldWhy) {
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream("/test.Service/Nothing", recorder);
  ASSERT_TRUE(stream->Write(Text("hello")));
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnimplemented, "Nothing"));
}

TEST_F(LocalStreamTest, EndsWithItsConnection) {
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream(kPump, recorder);
  ASSERT_TRUE(stream->Write(Text("hello")));
  EXPECT_THAT(recorder->AwaitMessages(1), ElementsAre("hello"));
  server_ = nullptr;
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
  EXPECT_FALSE(stream->Write(Text("late")));
}

// A socket whose peers a test answers by itself.
class Imposter {
 public:
  explicit Imposter(const std::string& path)
      : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path.data(), path.size());
    EXPECT_EQ(
        bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name),
        0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
  }
  Descriptor Accept() {
    return Descriptor(accept(listener_.get(), nullptr, nullptr));
  }

 private:
  Descriptor listener_;
};

TEST_F(LocalStreamTest, PeerThatClosesAtOnceEndsTheStream) {
  Imposter rude(dir_.Path("rude"));
  for (const bool writes_before : {false, true}) {
    const auto recorder = std::make_shared<Recorder>();
    auto opened = OpenLocalStream(client_->loop(), Socket("rude"), "ps0", kPump,
                                  recorder);
    ASSERT_THAT(opened, IsOk());
    const auto stream = *std::move(opened);
    if (writes_before) stream->Write(Text("hello"));
    rude.Accept();
    if (!writes_before) stream->Write(Text("hello"));
    const absl::Status status = recorder->closed().Wait(kSoon);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 "another program has this address"));
  }
}

TEST_F(LocalStreamTest, PeerOfAnotherProtocolIsNamed) {
  Imposter other(dir_.Path("other"));
  // What a server of HTTP/2 says first, and what another program may.
  for (const std::string& words :
       {std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64", 15),
        std::string("220 mail.example ESMTP\n")}) {
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = *OpenLocalStream(client_->loop(), Socket("other"),
                                         "ps0", kPump, recorder);
    const Descriptor peer = other.Accept();
    ASSERT_EQ(send(peer.get(), words.data(), words.size(), 0),
              static_cast<ssize_t>(words.size()));
    EXPECT_THAT(
        recorder->closed().Wait(kSoon),
        StatusIs(absl::StatusCode::kUnavailable, "a worker of another build"));
  }
}

TEST_F(LocalStreamTest, PeerThatHangsUpAmidAMessageEndsTheStream) {
  Imposter peers(dir_.Path("cut"));
  const std::string whole = "0123456789";
  const FrameHeader header = HeaderOf(FrameKind::kMessage, whole.size());
  const std::string frame = std::string(header.begin(), header.end()) + whole;
  for (size_t size = 1; size < frame.size(); ++size) {
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = *OpenLocalStream(client_->loop(), Socket("cut"), "ps0",
                                         kPump, recorder);
    {
      const Descriptor peer = peers.Accept();
      send(peer.get(), frame.data(), frame.size(), 0);
      send(peer.get(), frame.data(), size, 0);
    }
    EXPECT_THAT(recorder->closed().Wait(kSoon),
                StatusIs(absl::StatusCode::kUnavailable, "Socket closed"));
    EXPECT_THAT(recorder->AwaitMessages(1), ElementsAre(whole));
  }
}

TEST_F(LocalStreamTest, PeerThatIsStoppedIsFound) {
  LoopOptions options;
  options.keepalive_interval = absl::Milliseconds(100);
  options.keepalive_timeout = absl::Milliseconds(100);
  const auto loop = *Loop::Create(options);
  Imposter stopped(dir_.Path("stopped"));
  const auto recorder = std::make_shared<Recorder>();
  const auto stream =
      *OpenLocalStream(*loop, Socket("stopped"), "ps0", kPump, recorder);
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "keepalive"));
}

TEST_F(LocalStreamTest, MessagesOfAllSizesArriveWhole) {
  LoopOptions options;
  options.max_message_bytes = 3 << 20;
  server_ = nullptr;
  server_ = Node::Make("ps0", Socket(), options);
  client_ = Node::Make("trainer0", Socket("client2"), options);
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream(kPump, recorder);
  size_t count = 0;
  for (const size_t size :
       {0, 1, 7, 8, 9, 16384, 65536, 70'000, 1 << 20, 3 << 20, 0, 5}) {
    std::string text(size, 'x');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * i / 7);
    Slices slices;  // some of them empty
    for (size_t at = 0; at < size; at += 50'001) {
      slices.push_back(Bytes::Own(text.substr(at, 50'001)));
      slices.push_back(Bytes());
    }
    ASSERT_TRUE(stream->Write(slices));
    const std::vector<std::string> all = recorder->AwaitMessages(++count);
    ASSERT_EQ(all.size(), count);
    EXPECT_TRUE(all.back() == text) << size;
    ASSERT_TRUE(recorder->AwaitWritten(static_cast<int>(count)));
  }
  stream->Write(Text(std::string((3 << 20) + 1, 'x')));
  EXPECT_THAT(
      recorder->closed().Wait(kSoon),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_message_bytes"));
}

TEST_F(LocalStreamTest, ManyThreadsMayWriteAndCloseAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = OpenStream(kPump, recorder);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (int k = 0; k < 50; ++k) stream->Write(Text("x"));
        if (i == 3) stream->Close(absl::AbortedError("enough"));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(recorder->closed().Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, "enough"));
  }
}

TEST_F(LocalStreamTest, MetadataArrivesAndTooMuchIsRefused) {
  const std::string value(5000, 'v');
  const auto recorder = std::make_shared<Recorder>();
  const auto stream = OpenStream(kPump, recorder, {{"key", value}});
  stream->Write(Text("hello"));
  EXPECT_THAT(recorder->AwaitMessages(1), ElementsAre("hello"));
  EXPECT_THAT(
      OpenLocalStream(client_->loop(), server_->address(), "ps0", kPump,
                      recorder, {{"key", value + value}})
          .status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_metadata_bytes"));
}

TEST_F(LocalStreamTest, ConnectsToUnixSocketsThatAreThere) {
  const auto open = [&](const std::string& address) {
    return OpenLocalStream(client_->loop(), address, "", kPump,
                           std::make_shared<Recorder>())
        .status();
  };
  EXPECT_THAT(open("127.0.0.1:7000"),
              StatusIs(absl::StatusCode::kUnimplemented, "unix"));
  EXPECT_THAT(open(Socket("nobody")),
              StatusIs(absl::StatusCode::kUnavailable, "nobody"));
  EXPECT_THAT(open("unix:x"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(LocalStreamTest, LeavesNoDescriptors) {
  {
    const auto recorder = std::make_shared<Recorder>();
    const auto warm = OpenStream(kPump, recorder);
    warm->Write(Text("hello"));
    recorder->AwaitMessages(1);
  }
  const int before = CountDescriptors();
  for (int i = 0; i < 100; ++i) {
    const auto recorder = std::make_shared<Recorder>();
    const auto stream = OpenStream(kPump, recorder);
    if (i % 3 > 0) stream->Write(Text("hello"));
    if (i % 3 > 1) recorder->AwaitMessages(1);
  }
  EXPECT_TRUE(Becomes([&] { return CountDescriptors() <= before; }))
      << CountDescriptors() << " descriptors, not " << before;
}

TEST_F(LocalStreamTest, LoopThatEndsEndsItsStreams) {
  auto loop = *Loop::Create();
  const auto silent = std::make_shared<Recorder>();
  const auto silent_stream =
      *OpenLocalStream(*loop, server_->address(), "ps0", kPump, silent);
  const auto open = std::make_shared<Recorder>();
  const auto open_stream =
      *OpenLocalStream(*loop, server_->address(), "ps0", kPump, open);
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
