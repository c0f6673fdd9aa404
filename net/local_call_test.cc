// What the serving end of streams over unix sockets does with peers that are
// silent, slow, wrong or gone.

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/net/call/local_stream.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/local/local_frames.h"
#include "weft/net/on_unix.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::string FrameOf(FrameKind kind, const std::string& body = "") {
  const FrameHeader header = HeaderOf(kind, body.size());
  return std::string(header.begin(), header.end()) + body;
}

std::string BeginningOf(const std::string& method,
                        const std::string& endpoint = "ps0",
                        const Metadata& metadata = {}) {
  return std::string(kLocalPreface) +
         FrameOf(FrameKind::kOpening,
                 *ToBody({endpoint, method, metadata}, 1 << 20));
}

// A peer that speaks bytes.
class RawLocalPeer {
 public:
  explicit RawLocalPeer(const std::string& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        reader_(LocalFrameReader::End::kCaller, {}) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path.data(), path.size());
    EXPECT_EQ(
        connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    const timeval patience = {30, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  // What fits.
  void Send(const std::string& bytes) {
    send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // None: the other end has closed, or says what it must not.
  std::optional<Frame> Receive(size_t piece = 4096) {
    for (;;) {
      if (auto frame = reader_.TakeFrame()) return frame;
      if (bytes_.empty()) {
        bytes_.resize(piece);
        const ssize_t read = recv(fd_.get(), bytes_.data(), bytes_.size(), 0);
        bytes_.resize(read > 0 ? static_cast<size_t>(read) : 0);
        if (read <= 0) return std::nullopt;
      }
      const auto taken = reader_.Take(
          {reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size()});
      if (!taken.ok()) return std::nullopt;
      bytes_.erase(0, *taken);
    }
  }
  // Passes over all before it; kDataLoss if none comes.
  absl::Status AwaitClosing() {
    while (const auto frame = Receive()) {
      if (frame->kind != FrameKind::kClosing) continue;
      absl::Status said;
      EXPECT_THAT(ParseClosing(Flatten(frame->body).view(), &said), IsOk());
      return said;
    }
    return absl::DataLossError("no closing came");
  }
  void HangUp() { fd_ = Descriptor(); }

 private:
  Descriptor fd_;
  LocalFrameReader reader_;
  std::string bytes_;
};

int CountDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

class LocalCallTest : public OnUnix {
 protected:
  LocalCallTest() {
    telemetry::Telemetry::Options options;
    options.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(options);
  }

  void Serve(LoopOptions options = {}) {
    options.telemetry = telemetry_.get();
    server_ = Node::Make("ps0", Socket(), std::move(options));
  }
  RawLocalPeer Peer() { return RawLocalPeer(dir_.Path("s")); }

  // Whether a newcomer gets back what it says.
  bool Serves() {
    RawLocalPeer peer = Peer();
    peer.Send(BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello"));
    const auto frame = peer.Receive();
    return frame.has_value() && Flatten(frame->body).view() == "hello";
  }
  // Others are served meanwhile.
  void ExpectServes() { EXPECT_TRUE(Serves()); }
  std::string Log() {
    server_ = nullptr;
    return log_.str();
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  std::unique_ptr<Node> server_;
};

TEST_F(LocalCallTest, ServesStreamsAndUnaryCallsOfTheEndpointThatIsNamed) {
  Serve();
  server_->AddEndpoint("ps1", Socket("other"));
  for (const std::string name : {"ps0", "ps1"}) {
    RawLocalPeer peer = Peer();
    peer.Send(BeginningOf(kEcho, name) + FrameOf(FrameKind::kMessage, "who?") +
              FrameOf(FrameKind::kHalfClose));
    const auto answer = peer.Receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(Flatten(answer->body).view(), name);
    EXPECT_THAT(peer.AwaitClosing(), IsOk());
    EXPECT_TRUE(server_->peer().is_local);
  }
  RawLocalPeer lost = Peer();
  lost.Send(BeginningOf(kEcho, "ps7"));
  EXPECT_THAT(lost.AwaitClosing(),
              StatusIs(absl::StatusCode::kUnavailable, "no endpoint ps7"));
  RawLocalPeer halved = Peer();
  halved.Send(BeginningOf(kEcho) + FrameOf(FrameKind::kHalfClose));
  EXPECT_THAT(
      halved.AwaitClosing(),
      StatusIs(absl::StatusCode::kInvalidArgument, "without a request"));
  RawLocalPeer pinging = Peer();
  pinging.Send(BeginningOf(kPump) + FrameOf(FrameKind::kPing));
  EXPECT_EQ(pinging.Receive()->kind, FrameKind::kPong);
}

// Answers each message with how many had come when its burst was over, or
// with 0 if there was none.
class BurstObserver final : public StreamObserver {
 public:
  explicit BurstObserver(std::unique_ptr<Stream> stream)
      : stream_(std::move(stream)) {}
  void OnMessage(Slices) override {
    ++come_;
    const bool waits =
        stream_->RunAfterBurst([this] { answer_ += std::to_string(come_); });
    if (!waits) answer_ += "0";
    if (come_ % 5 == 1) stream_->RunAfterBurst([this] { Answer(); });
    if (come_ == 1) Answer();
  }
  void OnClosed(absl::Status) override {}

 private:
  void Answer() { stream_->Write(Text(std::exchange(answer_, ""))); }

  const std::unique_ptr<Stream> stream_;
  int come_ = 0;
  std::string answer_;
};

TEST_F(LocalCallTest, BurstOfMessagesIsToldAndItsEnd) {
  Serve();
  auto endpoint =
      *Endpoint::Open(server_->loop(), {"burst", Socket("b"), "", {}});
  endpoint->RegisterStream(
      "/test.Service/Burst", [](std::unique_ptr<Stream> stream) {
        return std::make_shared<BurstObserver>(std::move(stream));
      });
  ASSERT_THAT(endpoint->Start(), IsOk());
  RawLocalPeer peer(dir_.Path("b"));
  peer.Send(BeginningOf("/test.Service/Burst", "burst"));
  ExpectServes();  // meanwhile that was read
  peer.Send(FrameOf(FrameKind::kMessage, "alone"));
  EXPECT_EQ(Flatten(peer.Receive()->body).view(), "0");
  std::string burst;
  for (int i = 0; i < 5; ++i) burst += FrameOf(FrameKind::kMessage, "many");
  peer.Send(burst);
  // Each of the five is told once the last of them, the sixth of all, was
  // there.
  EXPECT_EQ(Flatten(peer.Receive()->body).view(), "66666");
}

TEST_F(LocalCallTest, OpeningThatEndsAtAnyByteLeavesNothing) {
  Serve();
  ExpectServes();
  const int before = CountDescriptors();
  const std::string all = BeginningOf(kPump, "ps0", {{"key", "value"}}) +
                          FrameOf(FrameKind::kMessage, "hello");
  for (size_t size = 0; size <= all.size(); ++size) {
    RawLocalPeer peer = Peer();
    peer.Send(all.substr(0, size));
    if (size % 2 == 0) continue;  // at once, or when it was looked at
    ExpectServes();
  }
  EXPECT_TRUE(Becomes([&] { return CountDescriptors() <= before; }));
  ExpectServes();
}

TEST_F(LocalCallTest, OpeningThatComesInPiecesIsServed) {
  Serve();
  const std::string all =
      BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello");
  RawLocalPeer peer = Peer();
  for (const char byte : all) {
    peer.Send(std::string(1, byte));
    ExpectServes();  // meanwhile that was read
  }
  EXPECT_EQ(Flatten(peer.Receive()->body).view(), "hello");
}

TEST_F(LocalCallTest, PeerThatIsSilentBeforeItsCallIsClosed) {
  LoopOptions options;
  options.handshake_timeout = absl::Milliseconds(200);
  Serve(options);
  for (const std::string& beginning :
       {std::string(), std::string(kLocalPreface.substr(0, 5)),
        std::string(kLocalPreface), BeginningOf(kPump).substr(0, 30)}) {
    RawLocalPeer peer = Peer();
    peer.Send(beginning);
    EXPECT_THAT(peer.AwaitClosing(), Not(IsOk())) << beginning;
  }
  // On a busy machine a newcomer may be taken for a silent one.
  EXPECT_TRUE(Becomes([&] { return Serves(); }));
  EXPECT_THAT(Log(), HasSubstr("handshake_timeout"));
}

TEST_F(LocalCallTest, WhatIsWrongEndsItsConnectionWithTheReason) {
  LoopOptions options;
  options.max_message_bytes = 1000;
  Serve(options);
  const std::string garbage = FrameOf(static_cast<FrameKind>(9), "xyz");
  const std::string broken =
      std::string(kLocalPreface) + FrameOf(FrameKind::kOpening, "xyz");
  for (const std::string& wrong : {BeginningOf(kPump) + garbage, broken}) {
    RawLocalPeer peer = Peer();
    peer.Send(wrong);
    EXPECT_THAT(peer.AwaitClosing(),
                StatusIs(absl::StatusCode::kInvalidArgument, ""));
  }
  RawLocalPeer other = Peer();
  other.Send("weft-local/9\n");
  EXPECT_THAT(other.AwaitClosing(),
              StatusIs(absl::StatusCode::kUnimplemented, "another build"));
  RawLocalPeer large = Peer();
  large.Send(BeginningOf(kPump) +
             FrameOf(FrameKind::kMessage, std::string(1001, 'x')));
  EXPECT_THAT(
      large.AwaitClosing(),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_message_bytes"));
  RawLocalPeer talkative = Peer();
  talkative.Send(
      BeginningOf(kPump, "ps0", {{"key", std::string(20'000, 'x')}}));
  EXPECT_THAT(
      talkative.AwaitClosing(),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_metadata_bytes"));
  ExpectServes();
  EXPECT_THAT(Log(), HasSubstr("max_message_bytes"));
}

TEST_F(LocalCallTest, MessagesThatAreNotWholeAreBoundedTogether) {
  LoopOptions options;
  options.max_buffered_bytes = 150'000;
  Serve(options);
  const std::string whole =
      BeginningOf(kPump) +
      FrameOf(FrameKind::kMessage, std::string(100'000, 'x'));
  const std::string part = whole.substr(0, 50'000);
  RawLocalPeer first = Peer();
  first.Send(part);
  ExpectServes();
  RawLocalPeer second = Peer();
  second.Send(part);
  EXPECT_THAT(
      second.AwaitClosing(),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_buffered_bytes"));
  first.HangUp();
  EXPECT_TRUE(Becomes([&] {
    RawLocalPeer third = Peer();
    third.Send(whole);
    const auto frame = third.Receive();
    return frame.has_value() && frame->kind == FrameKind::kMessage;
  }));
}

TEST_F(LocalCallTest, PeerThatReadsSlowlyGetsAllAndOneThatDoesNotIsLeft) {
  Serve();
  RawLocalPeer slow = Peer();
  slow.Send(BeginningOf(kFlood));
  for (int i = 0; i < 50; ++i) {
    const auto frame = slow.Receive(/*piece=*/1111);
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(Flatten(frame->body).view(), std::string(64 << 10, 'x'));
  }
  // Both are in the middle of a message now, and nobody reads.
  RawLocalPeer deaf = Peer();
  deaf.Send(BeginningOf(kFlood));
  ExpectServes();
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "still open"));
}

TEST_F(LocalCallTest, ShuttingDownWaitsForStreamsWithinItsGrace) {
  Serve();
  RawLocalPeer peer = Peer();
  peer.Send(BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello"));
  EXPECT_EQ(Flatten(peer.Receive()->body).view(), "hello");
  peer.Send(FrameOf(FrameKind::kHalfClose));
  EXPECT_THAT(server_->endpoint().Shutdown(kSoon), IsOk());
  EXPECT_THAT(peer.AwaitClosing(), IsOk());

  server_ = nullptr;
  Serve();
  RawLocalPeer stays = Peer();
  stays.Send(BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello"));
  EXPECT_EQ(Flatten(stays.Receive()->body).view(), "hello");
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "still open"));
  EXPECT_THAT(stays.AwaitClosing(),
              StatusIs(absl::StatusCode::kUnavailable, "shutting down"));
}

TEST_F(LocalCallTest, PeerThatIsStoppedIsFound) {
  LoopOptions options;
  options.keepalive_interval = absl::Milliseconds(100);
  options.keepalive_timeout = absl::Milliseconds(100);
  Serve(options);
  RawLocalPeer stopped = Peer();
  stopped.Send(BeginningOf(kPump));
  const auto ping = stopped.Receive();
  ASSERT_TRUE(ping.has_value());
  EXPECT_EQ(ping->kind, FrameKind::kPing);
  EXPECT_FALSE(stopped.Receive().has_value());
}

TEST_F(LocalCallTest, PeerThatAnswersPingsStays) {
  LoopOptions options;
  options.keepalive_interval = absl::Milliseconds(100);
  // On a busy machine an answer takes its time.
  options.keepalive_timeout = absl::Seconds(4);
  Serve(options);
  RawLocalPeer lives = Peer();
  lives.Send(BeginningOf(kPump));
  // An end with a poller answers by itself.
  const auto recorder = std::make_shared<Recorder>();
  auto client = *Loop::Create();
  const auto stream =
      *OpenLocalStream(*client, server_->address(), "ps0", kPump, recorder);
  ASSERT_TRUE(stream->Write(Text("hello")));
  ASSERT_EQ(recorder->AwaitMessages(1).size(), 1u);
  const Instant end = SteadyClock().Now() + options.keepalive_interval +
                      options.keepalive_timeout + absl::Seconds(1);
  while (SteadyClock().Now() < end) {
    const auto ping = lives.Receive();
    ASSERT_TRUE(ping.has_value());
    EXPECT_EQ(ping->kind, FrameKind::kPing);
    lives.Send(FrameOf(FrameKind::kPong));
  }
  ASSERT_TRUE(stream->Write(Text("again")));
  EXPECT_EQ(recorder->AwaitMessages(2).back(), "again");
}

TEST_F(LocalCallTest, ConnectionsBeyondTheLimitAreClosedAndOthersStay) {
  LoopOptions options;
  options.max_connections = 65;
  options.max_connections_per_address = 64;
  Serve(options);
  std::vector<std::unique_ptr<RawLocalPeer>> peers;
  for (int i = 0; i < 70; ++i) {
    auto peer = std::make_unique<RawLocalPeer>(dir_.Path("s"));
    peer->Send(BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello"));
    const auto frame = peer->Receive();
    EXPECT_EQ(frame.has_value(), i < 64) << i;
    peers.push_back(std::move(peer));
  }
  peers.front()->Send(FrameOf(FrameKind::kMessage, "again"));
  EXPECT_EQ(Flatten(peers.front()->Receive()->body).view(), "again");
  peers.resize(10);
  EXPECT_TRUE(Becomes([&] {
    RawLocalPeer peer = Peer();
    peer.Send(BeginningOf(kPump) + FrameOf(FrameKind::kMessage, "hello"));
    return peer.Receive().has_value();
  }));
}

}  // namespace
}  // namespace weft::net
