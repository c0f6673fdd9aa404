// Endpoints, loops, timers and listeners that end.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/net/health.h"
#include "weft/net/loop/loop.h"
#include "weft/net/on_unix.h"
#include "weft/net/probe_count.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::StatusIs;

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
    EXPECT_TRUE(recorder->closed().IsReady());
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

}  // namespace
}  // namespace weft::net
