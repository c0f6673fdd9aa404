#include "weft/net/endpoint.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/health.h"
#include "weft/net/loop/loop.h"
#include "weft/net/probe_count.h"
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
  std::shared_ptr<Stream> stream = channel_->OpenStream(kPump, recorder);
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

class OnUnix : public ::testing::Test {
 protected:
  std::string Socket(const std::string& name = "s") {
    return "unix:" + dir_.Path(name);
  }

  testing::TempDir dir_;
};

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
  Future<Slices> answer = channel->UnaryCall(kHold, {}, absl::Seconds(3));
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  // gRPC rounds what it sends up to two or three digits.
  EXPECT_LE(held[0].remaining(), absl::Seconds(3.1));
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

  BurstObserver(std::shared_ptr<Stream> stream, Counts& counts)
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
  std::shared_ptr<Stream> stream_;
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

  std::shared_ptr<Stream> stream;

 private:
  int left_;
};

TEST_F(OnUnix, FunctionAfterABurstAlwaysRuns) {
  constexpr char kBurst[] = "/weft.test.Burst/Stream";
  constexpr int kMessages = 2000;
  BurstObserver::Counts counts;
  auto server = *Loop::Create();
  auto endpoint = *Endpoint::Open(*server, {"ps0", Socket(), "", {}});
  endpoint->RegisterStream(kBurst, [&](std::shared_ptr<Stream> stream) {
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
  const auto stream = std::make_shared<LastMessage>();
  auto watcher = health.WatchAcceptor()(stream);
  WEFT_ASSERT_OK(watcher);
  const ScopedFailpoint amid("net/health", "1*delay(300ms)");
  std::thread asking([&] { (*watcher)->OnMessage({}); });
  EXPECT_TRUE(Becomes([&] { return amid.hits() == 1; }));
  health.SetServing(false);
  asking.join();
  (*watcher)->OnWritten();
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(response.ParseFromString(stream->last));
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

TEST_F(OnUnix, ShutdownCancelsCallsThatDoNotEnd) {
  auto server = Node::Make("ps0", Socket());
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  Future<Slices> answer = channel->UnaryCall(kHold, {}, kSoon);
  std::vector<IncomingCall> held = server->AwaitHeld(1);
  EXPECT_THAT(server->endpoint().Shutdown(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "ps0"));
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 is shutting down"));
  held[0].Reply(Slices());  // reaches nobody, harms nobody
}

TEST_F(OnUnix, NoHandlerBeginsOnceShutdownHasReturned) {
  auto server = Node::Make("ps0", Socket());
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  const ScopedFailpoint between("net/before_owner", "block");
  const auto answer = channel->UnaryCall(kEcho, Text("x"), kSoon);
  ASSERT_TRUE(Becomes([&] { return between.hits() == 1; }));
  WEFT_EXPECT_OK(server->endpoint().Shutdown(absl::ZeroDuration()));
  DisarmFailpoint("net/before_owner");
  EXPECT_THAT(answer.Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 is shutting down"));
}

// A loop has a thread that accepts and one that polls.
TEST(Loop, WhereNoThreadCanBeStartedCreateSaysSo) {
  for (const char* fails : {"1*error(RESOURCE_EXHAUSTED,no thread)",
                            "1*off->1*error(RESOURCE_EXHAUSTED,no thread)"}) {
    const ScopedFailpoint threads("base/start_thread", fails);
    EXPECT_THAT(Loop::Create().status(),
                StatusIs(absl::StatusCode::kResourceExhausted, "no thread"))
        << fails;
  }
  WEFT_EXPECT_OK(Loop::Create());
}

TEST_F(OnUnix, ShutdownUnderLoadIsClean) {
  for (int round = 0; round < 5; ++round) {
    auto server = Node::Make("ps0", Socket());
    auto client = *Loop::Create();
    auto channel = Connect(*client, server->address());
    auto recorder = std::make_shared<Recorder>();
    auto stream = channel->OpenStream(kPump, recorder);
    std::atomic<bool> stop{false};
    std::atomic<int> answered{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        while (!stop) {
          if (channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon).ok())
            ++answered;
        }
      });
    }
    EXPECT_TRUE(Becomes([&] { return answered.load() >= 20; }));
    server = nullptr;  // in the middle of it
    stop = true;
    for (std::thread& thread : threads) thread.join();
    stream = nullptr;
    channel = nullptr;
    WEFT_EXPECT_OK(client->Shutdown(absl::ZeroDuration()));
    EXPECT_FALSE(recorder->closed().Wait(kSoon).ok());
  }
}

// Opens another stream once its own has ended.
class OpensAnother final : public StreamObserver {
 public:
  OpensAnother(Channel& channel, std::shared_ptr<Recorder> another)
      : channel_(channel), another_(std::move(another)) {}

  void OnMessage(Slices) override {}
  void OnClosed(absl::Status) override {
    const auto stream = channel_.OpenStream(kPump, another_);
    was_closed_within_ = another_->closed().IsReady();
  }
  bool was_closed_within() const { return was_closed_within_; }

 private:
  Channel& channel_;
  const std::shared_ptr<Recorder> another_;
  bool was_closed_within_ = false;
};

TEST_F(OnUnix, AStreamOpenedAsTheLoopEndsIsClosedAfterItsOpening) {
  auto server = Node::Make("ps0", Socket());
  auto client = *Loop::Create();
  auto channel = Connect(*client, server->address());
  auto another = std::make_shared<Recorder>();
  auto first = std::make_shared<OpensAnother>(*channel, another);
  auto stream = channel->OpenStream(kPump, first);
  WEFT_EXPECT_OK(client->Shutdown(absl::ZeroDuration()));
  EXPECT_THAT(another->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "shutting down"));
  EXPECT_FALSE(first->was_closed_within());
}

TEST_F(OnUnix, AClosedLoopRefuses) {
  auto loop = *Loop::Create();
  auto channel = Connect(*loop, Socket());
  WEFT_EXPECT_OK(loop->Shutdown(absl::ZeroDuration()));
  EXPECT_THAT(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "shutting down"));
  auto recorder = std::make_shared<Recorder>();
  auto stream = channel->OpenStream(kPump, recorder);
  EXPECT_FALSE(stream->Write(Text("x")));
  EXPECT_THAT(recorder->closed().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Endpoint::Open(*loop, {"ps0", Socket(), "", {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(OnUnix, TimersRunInOrderAndCanBeCancelled) {
  auto loop = *Loop::Create();
  std::vector<int> ran;  // on the Loop only
  auto [done, finished] = MakePromise<void>(loop->driver());
  // On the Loop, so that none is due before all are set.
  loop->Post([&, done = std::make_shared<Promise<void>>(std::move(done))] {
    const Instant now = SteadyClock().Now();
    loop->RunAt(now + absl::Milliseconds(20), [&ran, done] {
      ran.push_back(2);
      done->Set(absl::OkStatus());
    });
    loop->RunAt(now + absl::Milliseconds(5), [&] { ran.push_back(1); });
    const Loop::TimerId unwanted =
        loop->RunAt(now + absl::Milliseconds(10), [&] { ran.push_back(9); });
    EXPECT_TRUE(loop->CancelTimer(unwanted));
    EXPECT_FALSE(loop->CancelTimer(unwanted));
    loop->Post([&] { ran.push_back(0); });
  });
  WEFT_ASSERT_OK(finished.Wait(kSoon));
  WEFT_ASSERT_OK(loop->Shutdown(absl::ZeroDuration()));
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
}

TEST_F(OnUnix, AnAddressInUseSaysSo) {
  auto server = Node::Make("ps0", Socket());
  EXPECT_THAT(
      Endpoint::Open(server->loop(), {"ps1", Socket(), "", {}}),
      StatusIs(absl::StatusCode::kUnavailable, "in use by another process"));
}

TEST(ProbeCount, ReopensAndThenGivesUp) {
  using Then = ProbeCount::Then;
  ProbeCount count(3);
  const auto after = [&](int misses) {
    Then then = Then::kNothing;
    for (int i = 0; i < misses; ++i) {
      EXPECT_EQ(then, Then::kNothing);
      then = count.OnProbed(false);
    }
    return then;
  };
  EXPECT_EQ(after(2), Then::kNothing);
  EXPECT_EQ(count.OnProbed(true), Then::kNothing);  // begins anew
  EXPECT_EQ(after(3), Then::kReopen);
  EXPECT_EQ(after(3), Then::kGiveUp);
  EXPECT_EQ(after(3), Then::kReopen);
  EXPECT_EQ(count.OnProbed(true), Then::kNothing);
  EXPECT_EQ(after(3), Then::kReopen);
}

// An endpoint whose listener nobody reaches any more: its file is gone.
class LostListener : public OnUnix {
 protected:
  void SetUp() override {
    loop_ = *Loop::Create();
    EndpointOptions options;
    options.name = "ps0";
    options.listen = Socket();
    options.probe_every = absl::Milliseconds(5);
    options.on_unreachable = [this](const absl::Status& why) {
      told_.Set(why);
    };
    endpoint_ = *Endpoint::Open(*loop_, options);
    endpoint_->RegisterUnary(kEcho,
                             [](IncomingCall call) { call.Reply(Slices()); });
    WEFT_ASSERT_OK(endpoint_->Start());
  }

  // Maybe by a further listener: on a busy machine a probe comes too late.
  void ExpectServed() {
    ChannelOptions options;
    options.name = "ps0";
    options.wait_for_ready = true;
    auto client = *Loop::Create();
    auto channel = *Channel::Create(*client, Socket(), options);
    WEFT_EXPECT_OK(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon));
  }

  Promise<void> told_;  // by the endpoint, until its end
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Endpoint> endpoint_;
};

TEST_F(LostListener, IsMadeAnew) {
  ASSERT_EQ(unlink(dir_.Path("s").c_str()), 0);
  ExpectServed();
}

TEST_F(LostListener, IsReportedWhenItCannotBeMadeAnew) {
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);  // open to others
  ASSERT_EQ(unlink(dir_.Path("s").c_str()), 0);
  EXPECT_THAT(told_.future().Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable,
                       "nor can a new listener: socket directory"));
}

// Each new one is lost at once.
TEST_F(LostListener, IsReportedWhenANewOneDoesNotHelp) {
  const Future<void> told = told_.future();
  EXPECT_TRUE(Becomes([&] {
    unlink(dir_.Path("s").c_str());
    return told.IsReady();
  }));
  // Why it does not help depends on when it was lost.
  EXPECT_THAT(told.Wait(kSoon), StatusIs(absl::StatusCode::kUnavailable,
                                         "nor can a new listener: "));
  EXPECT_THAT(told.Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "ps0 at " + Socket()));
}

// A listener that accepts connections and does not answer is a foreign one.
TEST_F(LostListener, IsMadeAnewInThePlaceOfOneThatDoesNotAnswer) {
  const std::string path = dir_.Path("s");
  const auto inode = [&] {
    struct stat found = {};
    return stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
  };
  const std::string beside = dir_.Path("s2");
  const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  strncpy(name.sun_path, beside.c_str(), sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(other, 64), 0);
  struct stat found = {};
  ASSERT_EQ(stat(beside.c_str(), &found), 0);
  const ino_t others = found.st_ino;
  ASSERT_EQ(rename(beside.c_str(), path.c_str()), 0);
  EXPECT_TRUE(Becomes([&] { return inode() != 0 && inode() != others; }));
  ExpectServed();
  close(other);
}

TEST(Security, TcpWithoutCertificatesNamesTheCommand) {
  auto loop = *Loop::Create();
  EXPECT_THAT(Endpoint::Open(*loop, {"ps0", "127.0.0.1:0", "", {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "weft certs init --dir="));
  EXPECT_THAT(Channel::Create(*loop, "127.0.0.1:1", {"ps0"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "weft certs init --dir="));
}

class Mtls : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = Node::Make("ps0", "127.0.0.1:0", With(job_.For("ps", 0)));
  }

  // The result of a call with `credentials`.
  absl::Status Call(Credentials credentials, const std::string& name = "ps0") {
    auto loop = *Loop::Create(With(std::move(credentials)));
    auto channel = Connect(*loop, server_->address(), name);
    return channel->UnaryCall(kEcho, {}, absl::Seconds(10))
        .Wait(kSoon)
        .status();
  }

  Job job_;
  std::unique_ptr<Node> server_;
};

TEST_F(Mtls, AMemberIsServed) { WEFT_EXPECT_OK(Call(job_.For("trainer", 3))); }

TEST_F(Mtls, AnotherAuthorityIsRefused) {
  EXPECT_THAT(Call(Job().For("trainer", 0)),
              StatusIs(absl::StatusCode::kUnauthenticated, server_->address()));
}

TEST_F(Mtls, AnExpiredCertificateIsRefused) {
  EXPECT_THAT(Call(job_.For("trainer", 0, -absl::Hours(1))),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(Mtls, AServerWithAnotherNameIsRefused) {
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(Call(job_.For("trainer", 0), "ps1"),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       "hostname mismatch; another than ps1 answers there"));
  // gRPC's own line of it would say no more.
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::AllOf(
          ::testing::Not(
              ::testing::HasSubstr("No match found for server name")),
          ::testing::Not(::testing::HasSubstr("certificate verify failed"))));
}

TEST_F(Mtls, PlainTextIsRefused) {
  EXPECT_THAT(Call(Credentials::Insecure()),
              StatusIs(absl::StatusCode::kUnavailable));
  WEFT_EXPECT_OK(Call(job_.For("trainer", 0)));
}

TEST_F(Mtls, ServerOutsideTheJobIsNamed) {
  const auto plain =
      Node::Make("ps0", "127.0.0.1:0", With(Credentials::Insecure()));
  const auto call = [&](const std::string& address) {
    auto loop = *Loop::Create(With(job_.For("trainer", 0)));
    return Connect(*loop, address)
        ->UnaryCall(kEcho, {}, absl::Seconds(10))
        .Wait(kSoon)
        .status();
  };
  EXPECT_THAT(call(plain->address()),
              StatusIs(absl::StatusCode::kUnavailable, "it speaks no TLS"));
  const std::string gone = plain->address();
  plain->Drop();
  EXPECT_THAT(call(gone), StatusIs(absl::StatusCode::kUnavailable,
                                   absl::StrCat("ps0 at ", gone, ": Failed")));
  EXPECT_THAT(call(gone), StatusIs(absl::StatusCode::kUnavailable,
                                   "nobody listens there: is it running"));
}

TEST_F(Mtls, AMemberOfAnotherJobIsRefused) {
  Job other("other");
  other.authority = job_.authority;  // even if signed by the same authority
  auto loop = *Loop::Create(With(other.For("trainer", 0)));
  // Without a name it asks for the number, which the server's certificate has.
  auto channel = *Channel::Create(*loop, server_->address(), {});
  EXPECT_THAT(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "is of job other, this is job job"));
}

TEST_F(Mtls, ReflectionIsForAdmin) {
  for (const std::string role : {"trainer", "admin"}) {
    auto loop = *Loop::Create(With(job_.For(role, 0)));
    auto channel = Connect(*loop, server_->address());
    auto recorder = std::make_shared<Recorder>();
    auto stream = channel->OpenStream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        recorder);
    stream->Close(absl::OkStatus());
    const absl::Status status = recorder->closed().Wait(kSoon);
    EXPECT_EQ(status.code(), role == "admin"
                                 ? absl::StatusCode::kOk
                                 : absl::StatusCode::kPermissionDenied)
        << status;
  }
}

}  // namespace
}  // namespace weft::net
