#include "weft/net/endpoint.h"

#include <sys/un.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/health.h"
#include "weft/net/loop/loop.h"
#include "weft/net/on_unix.h"
#include "weft/proto/health.pb.h"
#include "weft/proto/reflection.pb.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::net {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::StatusIs;

// The three ways to connect.
struct Way {
  const char* name;
  bool tcp;
  bool tls;
};

class EveryWay : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string listen =
        GetParam().tcp ? "127.0.0.1:0" : "unix:" + dir_.Path("s");
    server_ = Node::Make("ps0", listen, With(CredentialsFor("ps")));
    client_ = *Loop::Create(With(CredentialsFor("trainer")));
    channel_ = Connect(*client_, server_->address());
  }
  void TearDown() override {
    channel_ = nullptr;
    client_ = nullptr;
  }
  Credentials CredentialsFor(const std::string& role) {
    if (GetParam().tls) return job_.For(role, 0);
    return GetParam().tcp ? Credentials::Insecure() : Credentials::LocalOnly();
  }

  Job job_;
  testing::TempDir dir_;
  std::unique_ptr<Node> server_;
  std::unique_ptr<Loop> client_;
  std::unique_ptr<Channel> channel_;
};

INSTANTIATE_TEST_SUITE_P(Net, EveryWay,
                         ::testing::Values(Way{"Unix", false, false},
                                           Way{"TcpInsecure", true, false},
                                           Way{"Mtls", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryWay, UnaryCallBringsTheAnswerBack) {
  for (int i = 0; i < 20; ++i) {
    auto answer =
        channel_->UnaryCall(kEcho, Text("hello " + std::to_string(i)), kSoon)
            .Wait(kSoon);
    WEFT_ASSERT_OK(answer);
    EXPECT_EQ(ToText(*answer), "hello " + std::to_string(i));
  }
}

TEST_P(EveryWay, SlicesOfEverySizeArriveWhole) {
  std::string wanted;
  Slices request;
  for (size_t size :
       {size_t{1}, size_t{511}, size_t{512}, size_t{70'000}, size_t{3} << 20}) {
    std::string part(size, static_cast<char>('a' + request.size()));
    wanted += part;
    request.push_back(Bytes::Own(std::move(part)));
  }
  auto answer = channel_->UnaryCall(kEcho, request, kSoon).Wait(kSoon);
  WEFT_ASSERT_OK(answer);
  EXPECT_TRUE(ToText(*answer) == wanted);
}

TEST_P(EveryWay, StreamKeepsTheOrderBothWays) {
  auto recorder = std::make_shared<Recorder>();
  std::unique_ptr<Stream> stream = channel_->OpenStream(kPump, recorder);
  std::vector<std::string> wanted;
  for (int i = 0; i < 100; ++i) {
    wanted.push_back(std::to_string(i));
    ASSERT_TRUE(stream->Write(Text(wanted.back())));
    ASSERT_TRUE(recorder->AwaitWritten(i + 1));
  }
  EXPECT_EQ(recorder->AwaitMessages(100), wanted);
  stream->Close(absl::OkStatus());
  WEFT_EXPECT_OK(recorder->closed().Wait(kSoon));
}

TEST_P(EveryWay, ServerKnowsItsPeer) {
  WEFT_ASSERT_OK(channel_->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  const Peer peer = server_->peer();
  EXPECT_EQ(peer.is_local, !GetParam().tcp);
  EXPECT_EQ(peer.identity.has_value(), GetParam().tls);
  if (GetParam().tls) {
    EXPECT_EQ(*peer.identity, (Identity{"job", "trainer", 0}));
  }
}

TEST_P(EveryWay, HealthSaysServing) {
  auto answer = channel_->UnaryCall("/grpc.health.v1.Health/Check", {}, kSoon)
                    .Wait(kSoon);
  WEFT_ASSERT_OK(answer);
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(response.ParseFromString(ToText(*answer)));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(OnUnix, AnErrorCrossesUnchanged) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  Future<Slices> answer = channel->UnaryCall(kHold, {}, kSoon);
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  held[0].Reply(absl::DataLossError("row 7 is torn"));
  EXPECT_EQ(answer.Wait(kSoon).status(), absl::DataLossError("row 7 is torn"));
}

TEST_F(OnUnix, UnknownMethodIsNamed) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  EXPECT_THAT(channel->UnaryCall("/no.Such/Method", {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "no method /no.Such/Method on ps0"));
}

TEST_F(OnUnix, DeadlineNamesMethodAndAddressAndReachesTheServer) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  Future<Slices> answer = channel->UnaryCall(kHold, {}, absl::Seconds(6));
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  // gRPC rounds what it sends up to two or three digits.
  EXPECT_LE(held[0].remaining(), absl::Seconds(6.1));
  auto [told, cancelled] = MakePromise<void>();
  held[0].OnCancel(
      [told = std::move(told)]() mutable { told.Set(absl::OkStatus()); });
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, kHold));
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, server->address()));
  WEFT_EXPECT_OK(cancelled.Wait(kSoon));
  EXPECT_TRUE(held[0].is_cancelled());
}

TEST_F(OnUnix, CancelReachesTheServer) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  Future<Slices> answer = channel->UnaryCall(kHold, {}, kSoon);
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  auto [told, cancelled] = MakePromise<void>();
  held[0].OnCancel(
      [told = std::move(told)]() mutable { told.Set(absl::OkStatus()); });
  answer.Cancel(absl::AbortedError("not needed"));
  WEFT_EXPECT_OK(cancelled.Wait(kSoon));
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "not needed"));
}

TEST_F(OnUnix, ADroppedCallIsAnswered) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  Future<Slices> answer = channel->UnaryCall(kHold, {}, kSoon);
  server->AwaitHeld(1).clear();
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kInternal, "dropped"));
}

TEST_F(OnUnix, MissingListenerIsUnavailableAndNamed) {
  auto loop = *Loop::Create();
  auto channel = Connect(*loop, Socket("nobody"));
  EXPECT_THAT(
      channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
      StatusIs(absl::StatusCode::kUnavailable, "ps0 at " + Socket("nobody")));
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream(kPump, recorder);
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, Socket("nobody")));
}

TEST_F(OnUnix, ACallThatWaitsFindsAServerThatStartsLater) {
  auto loop = *Loop::Create();
  ChannelOptions options;
  options.name = "ps0";
  options.wait_for_ready = true;
  auto channel = *Channel::Create(*loop, Socket(), options);
  Future<Slices> answer = channel->UnaryCall(kEcho, Text("early"), kSoon);
  auto server = Node::Make("ps0", Socket());
  auto result = answer.Wait(kSoon);
  WEFT_ASSERT_OK(result);
  EXPECT_EQ(ToText(*result), "early");
}

TEST_F(OnUnix, OneWriteIsInFlightAtATime) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream(kPump, recorder);
  // On the Loop, which cannot be done with the first between them.
  server->loop().Post([&] {
    EXPECT_TRUE(stream->Write(Text("first")));
    EXPECT_FALSE(stream->Write(Text("second")));
  });
  EXPECT_TRUE(recorder->AwaitWritten(1));
  EXPECT_TRUE(stream->Write(Text("third")));
  EXPECT_EQ(recorder->AwaitMessages(2),
            (std::vector<std::string>{"first", "third"}));
  stream->Close(absl::CancelledError("enough"));
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_FALSE(stream->Write(Text("late")));
}

// Counts what RunAfterBurst promised and what ran.
class BurstObserver final : public StreamObserver {
 public:
  struct Counts {
    std::atomic<int> messages{0};
    std::atomic<int> promised{0};
    std::atomic<int> ran{0};
  };

  BurstObserver(std::unique_ptr<Stream> stream, Counts& counts)
      : stream_(std::move(stream)), counts_(counts) {}
  void OnMessage(Slices) override {
    ++counts_.messages;
    if (stream_->RunAfterBurst([this] {
          EXPECT_TRUE(InlineScope::IsActive());
          ++counts_.ran;
        })) {
      ++counts_.promised;
    }
  }
  void OnWritten() override {}
  void OnClosed(absl::Status) override { stream_ = nullptr; }

 private:
  std::unique_ptr<Stream> stream_;
  Counts& counts_;
};

// Writes `left` messages, each as soon as the one before was written.
class Writer final : public StreamObserver {
 public:
  explicit Writer(int messages) : left_(messages) {}
  void OnMessage(Slices) override {}
  void OnWritten() override {
    if (left_-- > 0) stream->Write(Text("x"));
  }
  void OnClosed(absl::Status) override { stream = nullptr; }

  std::unique_ptr<Stream> stream;

 private:
  int left_;
};

TEST_F(OnUnix, FunctionAfterABurstAlwaysRuns) {
  constexpr char kBurst[] = "/weft.test.Burst/Stream";
  constexpr int kMessages = 2000;
  BurstObserver::Counts counts;
  auto server = *Loop::Create();
  auto endpoint = *Endpoint::Open(*server, {"ps0", Socket(), "", {}});
  endpoint->RegisterStream(kBurst, [&](std::unique_ptr<Stream> stream) {
    return std::make_shared<BurstObserver>(std::move(stream), counts);
  });
  WEFT_ASSERT_OK(endpoint->Start());
  auto client = *Loop::Create();
  auto channel = Connect(*client, endpoint->address());
  auto writer = std::make_shared<Writer>(kMessages);
  client->Post([&] {
    writer->stream = channel->OpenStream(kBurst, writer);
    writer->OnWritten();
  });
  EXPECT_TRUE(Becomes([&] { return counts.messages == kMessages; }));
  EXPECT_TRUE(Becomes([&] { return counts.ran == counts.promised; }));
  RecordProperty("bursts", counts.promised.load());
  client->Post([&] { writer->stream->Close(absl::CancelledError("enough")); });
  EXPECT_TRUE(Becomes([&] { return writer->stream == nullptr; }));
}

TEST_F(OnUnix, DroppedStreamIsClosed) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  auto recorder = std::make_shared<Recorder>();
  channel->OpenStream(kPump, recorder) = nullptr;
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(OnUnix, StreamDestroyedByItsAcceptorIsClosedOrRefused) {
  auto loop = *Loop::Create();
  auto endpoint = *Endpoint::Open(*loop, {"ps0", Socket(), "", {}});
  endpoint->RegisterStream(
      "/weft.test.Drop/Stream",
      [](std::unique_ptr<Stream>) { return std::make_shared<Recorder>(); });
  endpoint->RegisterStream("/weft.test.Refuse/Stream",
                           [](std::unique_ptr<Stream>) {
                             return absl::PermissionDeniedError("not you");
                           });
  WEFT_ASSERT_OK(endpoint->Start());
  auto channel = Connect(*loop, endpoint->address());
  auto dropped = std::make_shared<Recorder>();
  auto refused = std::make_shared<Recorder>();
  const auto first = channel->OpenStream("/weft.test.Drop/Stream", dropped);
  const auto second = channel->OpenStream("/weft.test.Refuse/Stream", refused);
  EXPECT_THAT(
      dropped->closed().Wait(kSoon),
      StatusIs(absl::StatusCode::kCancelled, "the stream was destroyed"));
  EXPECT_THAT(refused->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kPermissionDenied, "not you"));
}

TEST_F(OnUnix, ALostServerClosesItsStreams) {
  auto server = Node::Make("ps0", Socket());
  auto loop = *Loop::Create();
  auto channel = Connect(*loop, server->address());
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream(kPump, recorder);
  ASSERT_TRUE(stream->Write(Text("x")));
  ASSERT_EQ(recorder->AwaitMessages(1).size(), 1u);
  server = nullptr;
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 at unix:"));
}

TEST_F(OnUnix, TwoEndpointsOfOneLoopAreDistinguished) {
  auto server = Node::Make("ps0", Socket("a"));
  server->AddEndpoint("ps1", Socket("b"));
  for (int i : {0, 1}) {
    auto channel =
        Connect(server->loop(), server->address(i), "ps" + std::to_string(i));
    auto answer = channel->UnaryCall(kEcho, Text("who?"), kSoon).Wait(kSoon);
    WEFT_ASSERT_OK(answer);
    EXPECT_EQ(ToText(*answer), "ps" + std::to_string(i));
  }
  auto stranger = Connect(server->loop(), server->address(0), "ps7");
  EXPECT_THAT(stranger->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "no endpoint ps7"));
  EXPECT_THAT(Endpoint::Open(server->loop(), {"ps1", Socket("c"), "", {}}),
              StatusIs(absl::StatusCode::kAlreadyExists, "ps1"));
}

TEST_F(OnUnix, ALoneEndpointAnswersToAnyName) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address(), "whoever");
  WEFT_EXPECT_OK(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon));
}

TEST_F(OnUnix, EightThreadsWaitAtOnce) {
  auto server = Node::Make("ps0", Socket());
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string text = std::to_string(t) + ":" + std::to_string(i);
        auto answer = channel->UnaryCall(kEcho, Text(text), kSoon).Wait(kSoon);
        if (answer.ok() && ToText(*answer) == text) ++answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered.load(), 1600);
}

TEST_F(OnUnix, AWaitInsideACallbackIsRefused) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  auto [told, seen] = MakePromise<void>();
  Future<Slices> never = channel->UnaryCall(kHold, {}, kSoon);
  channel->UnaryCall(kEcho, {}, kSoon)
      .OnReady([&, told = std::make_shared<Promise<void>>(std::move(told))](
                   const auto&) { told->Set(never.Wait(kSoon).status()); });
  EXPECT_THAT(seen.Wait(kSoon),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  never.Cancel();
}

TEST_F(OnUnix, AHandlerMayCallOnAndAnswerLater) {
  auto back = Node::Make("ps1", Socket("back"));
  auto front = *Loop::Create();
  auto onward = Connect(*front, back->address(), "ps1");
  auto endpoint = *Endpoint::Open(*front, {"ps0", Socket("front"), "", {}});
  endpoint->RegisterUnary(kEcho, [&](IncomingCall call) {
    Slices request = call.TakeRequest();
    auto held = std::make_shared<IncomingCall>(std::move(call));
    onward->UnaryCall(kEcho, std::move(request), held->remaining())
        .OnReady([held](const Result<Slices>& answer) {
          answer.ok() ? held->Reply(*answer) : held->Reply(answer.status());
        });
  });
  WEFT_ASSERT_OK(endpoint->Start());
  auto client = *Loop::Create();
  auto channel = Connect(*client, endpoint->address());
  auto answer = channel->UnaryCall(kEcho, Text("twice"), kSoon).Wait(kSoon);
  WEFT_ASSERT_OK(answer);
  EXPECT_EQ(ToText(*answer), "twice");
}

TEST_F(OnUnix, TooLargeAMessageIsRefusedAndTheServerLivesOn) {
  LoopOptions options;
  options.max_message_bytes = 1 << 20;
  auto server = Node::Make("ps0", Socket(), options);
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  EXPECT_THAT(channel->UnaryCall(kEcho, Text(std::string(2 << 20, 'x')), kSoon)
                  .Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted));
  WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
}

TEST_F(OnUnix, AdmissionBoundsBytes) {
  AdmissionLimits limits;
  limits.max_bytes = 1000;
  auto server = Node::Make("ps0", Socket(), {}, limits);
  auto channel = Connect(server->loop(), server->address());
  const auto echo = [&](size_t bytes) {
    return channel->UnaryCall(kEcho, Text(std::string(bytes, 'x')), kSoon)
        .Wait(kSoon);
  };
  EXPECT_THAT(echo(1001), StatusIs(absl::StatusCode::kResourceExhausted,
                                   "max_bytes is 1000"));
  WEFT_EXPECT_OK(echo(1000));
}

TEST_F(OnUnix, AdmissionBoundsCalls) {
  AdmissionLimits limits;
  limits.max_calls = 2;
  auto server = Node::Make("ps0", Socket(), {}, limits);
  auto channel = Connect(server->loop(), server->address());
  Future<Slices> first = channel->UnaryCall(kHold, {}, kSoon);
  Future<Slices> second = channel->UnaryCall(kHold, {}, kSoon);
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  for (IncomingCall& call : server->AwaitHeld(2 - held.size()))
    held.push_back(std::move(call));
  ASSERT_EQ(held.size(), 2u);
  EXPECT_THAT(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted, "2 calls"));
  for (IncomingCall& call : held) call.Reply(Slices());
  WEFT_EXPECT_OK(first.Wait(kSoon));
  WEFT_EXPECT_OK(second.Wait(kSoon));
  held.clear();
  // A place comes back when its call is over here, maybe after its answer came.
  EXPECT_TRUE(Becomes(
      [&] { return channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon).ok(); }));
}

TEST_F(OnUnix, HealthWatchReportsChangesAndTheEnd) {
  auto server = Node::Make("ps0", Socket());
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream("/grpc.health.v1.Health/Watch", recorder);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("test.Service");
  ASSERT_TRUE(stream->Write(Text(request.SerializeAsString())));
  stream->Close(absl::OkStatus());  // as a server-streaming stub does
  ASSERT_EQ(recorder->AwaitMessages(1).size(), 1u);
  server->endpoint().SetServing(false);
  const std::vector<std::string> told = recorder->AwaitMessages(2);
  ASSERT_EQ(told.size(), 2u);
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(response.ParseFromString(told[0]));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  ASSERT_TRUE(response.ParseFromString(told[1]));
  EXPECT_EQ(response.status(),
            grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  server->Drop();
  EXPECT_TRUE(recorder->closed().Wait(kSoon).code() !=
              absl::StatusCode::kDeadlineExceeded);
}

// A stream whose last message a test looks at.
class LastMessage final : public Stream {
 public:
  bool Write(Slices message) override {
    last = ToText(message);
    return true;
  }
  void Close(absl::Status) override {}
  const Peer& peer() const override { return peer_; }
  const std::string& method() const override { return method_; }
  const Metadata& metadata() const override { return metadata_; }

  std::string last;

 private:
  const Peer peer_;
  const std::string method_;
  const Metadata metadata_;
};

TEST(Health, AWatcherIsLeftWithTheNewestStatus) {
  Health health;
  health.SetServing(true);
  auto opened = std::make_unique<LastMessage>();
  const LastMessage& stream = *opened;  // the watcher's
  auto watcher = health.WatchAcceptor()(std::move(opened));
  WEFT_ASSERT_OK(watcher);
  const ScopedFailpoint amid("net/health", "1*delay(300ms)");
  std::thread asking([&] { (*watcher)->OnMessage({}); });
  EXPECT_TRUE(Becomes([&] { return amid.hits() == 1; }));
  health.SetServing(false);
  asking.join();
  (*watcher)->OnWritten();
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(response.ParseFromString(stream.last));
  EXPECT_EQ(response.status(),
            grpc::health::v1::HealthCheckResponse::NOT_SERVING);
}

TEST_F(OnUnix, ReflectionListsTheServices) {
  auto server = Node::Make("ps0", Socket());
  auto channel = Connect(server->loop(), server->address());
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      recorder);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("");
  ASSERT_TRUE(stream->Write(Text(request.SerializeAsString())));
  ASSERT_TRUE(recorder->AwaitWritten(1));
  request.set_file_containing_symbol("grpc.health.v1.Health");
  ASSERT_TRUE(stream->Write(Text(request.SerializeAsString())));
  const std::vector<std::string> answers = recorder->AwaitMessages(2);
  ASSERT_EQ(answers.size(), 2u);
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  ASSERT_TRUE(response.ParseFromString(answers[0]));
  ASSERT_EQ(response.list_services_response().service_size(), 3);
  EXPECT_EQ(response.list_services_response().service(2).name(),
            "test.Service");
  ASSERT_TRUE(response.ParseFromString(answers[1]));
  EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(),
            1);
}

}  // namespace
}  // namespace weft::net
