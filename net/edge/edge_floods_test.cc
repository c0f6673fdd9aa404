// Floods: of calls, of resets, of handshakes, of pings.

#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/open_streams.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/edge_fixture.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::Becomes;

// -------------------------------------------------------------------- attacks

// Begins calls that are refused, and comes again when it is cut off; on a
// thread of its own.
class FloodOfCalls {
 public:
  // `by_the_book`: it acknowledges the server's settings, keeps to them and
  // waits for answers; else it writes without an end and reads nothing.
  FloodOfCalls(const std::string& address, RawPeer::Hello hello,
               bool by_the_book)
      : address_(address),
        hello_(std::move(hello)),
        by_the_book_(by_the_book),
        thread_([this] { Run(); }) {}
  ~FloodOfCalls() {
    done_.store(true);
    thread_.join();
  }

  int64_t asked() const { return asked_.load(); }
  bool AwaitCutOff() const {
    const Instant deadline = SteadyClock().Now() + kSoon;
    while (cut_off_.load() == 0 && SteadyClock().Now() < deadline)
      std::this_thread::yield();
    return cut_off_.load() > 0;
  }

 private:
  void Run() {
    while (!done_.load()) {
      RawPeer peer(address_);
      if (!peer.ShakeHands(hello_) || !peer.Write(Preface())) continue;
      if (!(by_the_book_ ? AskByTheBook(peer) : Ask(peer))) ++cut_off_;
    }
  }
  std::string Requests(int count) {
    std::string requests;
    for (int i = 0; i < count; ++i, stream_ += 2)
      requests += HoldRequest(stream_);
    asked_ += count;
    return requests;
  }
  // False once the other end has gone.
  bool Ask(RawPeer& peer) {
    for (stream_ = 1; !done_.load();) {
      if (!peer.Write(Requests(100))) return false;
    }
    return true;
  }
  bool AskByTheBook(RawPeer& peer) {
    constexpr uint8_t kAck = 1;
    constexpr int kOpen = 256;
    if (!peer.AwaitFrame(kSettingsFrame) ||
        !peer.Write(Frame(kSettingsFrame, kAck, 0, ""))) {
      return false;
    }
    stream_ = 1;
    if (!peer.Write(Requests(kOpen))) return false;
    while (!done_.load()) {
      // The HEADERS frame is that of a refusal, which ends its call.
      if (!peer.AwaitFrame(kHeadersFrame) || !peer.Write(Requests(1)))
        return false;
    }
    return true;
  }

  const std::string address_;
  const RawPeer::Hello hello_;
  const bool by_the_book_;
  uint32_t stream_ = 1;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> asked_{0};
  std::atomic<int> cut_off_{0};
  std::thread thread_;
};

// Calls that are answered in `time`.
int CallsIn(Channel& channel, absl::Duration time) {
  const Instant end = SteadyClock().Now() + time;
  int calls = 0;
  for (; SteadyClock().Now() < end; ++calls) {
    WEFT_EXPECT_OK(channel.UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  }
  return calls;
}

// ATT-M2, by a member whose calls are refused as fast as it asks for them.
TEST_F(Edge, PeerOfRefusedCallsIsDisconnectedAndOthersKeepTheirPace) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  constexpr absl::Duration kRound = absl::Seconds(1);
  CallsIn(*channel, kRound / 2);  // warms up
  int alone = 0;
  int beside = 0;
  for (int round = 0; round < 3; ++round) {
    alone += CallsIn(*channel, kRound);
    std::vector<std::unique_ptr<FloodOfCalls>> floods;
    for (int i = 0; i < 4; ++i) {
      floods.push_back(std::make_unique<FloodOfCalls>(
          server_->address(), HelloOf(job_.For("trainer", 9)), true));
    }
    beside += CallsIn(*channel, kRound);
    for (const auto& flood : floods) EXPECT_TRUE(flood->AwaitCutOff());
  }
  RecordProperty("pace_kept_percent", 100 * beside / alone);
  EXPECT_GE(Count("weft_net_refused_total", "max_wasted_calls_per_peer"), 4);
  EXPECT_LE(server_->most_held(), 8);
}

// ATT-M5, of streams as of calls: what is taken back counts.
TEST_F(Edge, PeerThatResetsStreamsWithoutEndIsDisconnected) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 50;
  Serve(std::move(options));
  auto peer = LetIn();
  const std::string cancel("\0\0\0\x08", 4);
  const std::string message(5, '\0');
  bool open = true;
  uint32_t next = 1;
  for (int batch = 0; open && batch < 100; ++batch) {
    std::string requests;
    std::string resets;
    for (int i = 0; i < 100; ++i, next += 2) {
      requests += Frame(kHeadersFrame, kEndHeaders, next, HeaderBlock(kPump)) +
                  Frame(kDataFrame, 0, next, message);
      resets += Frame(kResetFrame, 0, next, cancel);
    }
    open = peer->Write(requests);
    for (int i = 0; open && i < 100; ++i) open = peer->AwaitFrame(kDataFrame);
    open = open && peer->Write(resets);
  }
  EXPECT_FALSE(open && !peer->AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
  WEFT_EXPECT_OK(Call());
}

// ATT-M5: HTTP/2 does not bound the calls of who never acknowledges settings.
// What it began until it is noticed must be handled before others are again.
TEST_F(Edge, PeerThatBeginsCallsWithoutEndIsDisconnected) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  FloodOfCalls flood(server_->address(), HelloOf(job_.For("trainer", 9)),
                     false);
  while (flood.asked() < 1000) std::this_thread::yield();
  WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  EXPECT_TRUE(flood.AwaitCutOff());
  RecordProperty("asked", static_cast<int>(flood.asked()));
  // It is kept away, so that others have the time.
  const Instant start = SteadyClock().Now();
  for (int i = 0; i < 100; ++i) {
    WEFT_EXPECT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  }
  EXPECT_LT(SteadyClock().Now() - start, kSoon);
  EXPECT_GE(CountCutOff(), 1);
  EXPECT_LE(server_->most_held(), 8);
  EXPECT_GE(telemetry_->metrics()
                .CounterFor("weft_net_floods_total",
                            {{"peer", "trainer9 at 127.0.0.1"}})
                .Value(),
            1);
  EXPECT_THAT(Log(), HasSubstr("who=\"trainer9 (127.0.0.1:"));
}

// As the accept loop sees them: also of IPv6, whose names gRPC escapes.
TEST_F(Edge, StreamsThatAreOpenAreCountedByPeer) {
  for (const char* listen : {"127.0.0.1:0", "[::1]:0"}) {
    const auto server = Node::Make("ps0", listen, With(job_.For("ps", 0)));
    auto loop = *Loop::Create(With(job_.For("trainer", 9)));
    auto channel = Connect(*loop, server->address());
    WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
    std::vector<Future<Slices>> calls;
    for (int i = 0; i < 3; ++i)
      calls.push_back(channel->UnaryCall(kHold, Text("x"), kSoon));
    const std::vector<IncomingCall> held = server->AwaitHeld(3);
    const std::string peer = server->peer().address;
    const std::map<std::string, int64_t> wanted = {{peer, 3}};
    EXPECT_EQ(OpenStreams({peer, "10.0.0.1:1"}), wanted);
  }
}

// Connections of an outsider that shake no hands, each with one of `says`.
// Those that are ended come again, if `tireless`, on a thread.
class Flood {
 public:
  struct Options {
    std::string from;
    std::vector<std::string> says;
    int connections = 1000;
    bool tireless = false;
  };

  Flood(const std::string& address, Options options)
      : address_(address), options_(std::move(options)) {
    for (int i = 0; i < options_.connections; ++i) Begin();
    if (options_.tireless) thread_ = std::thread([this] { Run(); });
  }
  ~Flood() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }

  int begun() const { return begun_.load(); }

 private:
  // In a hundredth of a second, so that the attacker leaves the machine some.
  static constexpr int kAtOnce = 20;

  void Begin() {
    auto peer = std::make_unique<RawPeer>(address_, options_.from);
    EXPECT_TRUE(peer->connected());
    const int turn = begun_.fetch_add(1);
    peer->Write(options_.says[turn % options_.says.size()]);
    peers_.push_back(std::move(peer));
  }
  void Run() {
    while (!stop_.load()) {
      std::vector<pollfd> ends;
      for (const auto& peer : peers_) ends.push_back({peer->fd(), POLLIN, 0});
      poll(ends.data(), ends.size(), 10);
      int ended = 0;
      for (size_t i = ends.size(); i-- > 0 && ended < kAtOnce;) {
        if (ends[i].revents == 0) continue;
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
        ++ended;
      }
      for (; ended > 0; --ended) Begin();
    }
  }

  const std::string address_;
  const Options options_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  std::atomic<int> begun_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// ATT-M4: who says nothing, or too little, or no more than a hello, keeps
// nobody out, of another address or of its own. None of them expires before a
// call would: whoever is let in got a place beside them.
class FloodOfHandshakes : public Edge {
 protected:
  void Serve(absl::Duration handshake_timeout) {
    LoopOptions options = With(job_.For("ps", 0));
    options.handshake_timeout = handshake_timeout;
    Edge::Serve(std::move(options));
  }
  // A member joins anew, so many times; for each it tries until it is let in.
  void ExpectLetIn(int times, const char* when) {
    const Instant start = SteadyClock().Now();
    for (int i = 0; i < times; ++i) {
      auto loop = *Loop::Create(With(job_.For("trainer", 0)));
      ChannelOptions options;
      options.name = "ps0";
      options.wait_for_ready = true;
      auto channel = *Channel::Create(*loop, server_->address(), options);
      WEFT_EXPECT_OK(channel->UnaryCall(kEcho, {}, kSoon).Wait(kSoon)) << when;
    }
    RecordProperty(absl::StrReplaceAll(when, {{" ", "_"}}),
                   absl::FormatDuration(SteadyClock().Now() - start));
  }
  void SetUp() override {
    rlimit limit;  // often 1024, and the flood is of this process
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  // A handshake has a fifth of this before it makes room.
  static constexpr absl::Duration kTime = absl::Seconds(40);
  static_assert(kTime > kSoon);
  const std::string hello_ = ClientHello();
  const std::string half_ = hello_.substr(0, 11);
};

TEST_F(FloodOfHandshakes, LetsMembersIn) {
  Serve(absl::Hours(1));  // there are places that an address leaves to others
  {
    Flood flood(server_->address(), {"127.0.0.2", {half_, hello_, ""}});
    ExpectLetIn(5, "beside those that wait");
  }
  {
    Flood flood(server_->address(),
                {"127.0.0.2", {half_, hello_, ""}, 1000, /*tireless=*/true});
    ExpectLetIn(5, "beside those that come again");
    EXPECT_TRUE(Becomes([&] { return flood.begun() > 1000; }));
  }
  ExpectLetIn(5, "afterwards");
}

TEST_F(FloodOfHandshakes, FromManyAddressesLetsMembersIn) {
  Serve(kTime);
  std::vector<std::unique_ptr<Flood>> floods;
  for (int i = 2; i < 12; ++i) {
    floods.push_back(std::make_unique<Flood>(
        server_->address(), Flood::Options{absl::StrCat("127.0.0.", i),
                                           {half_, hello_, ""},
                                           100,
                                           /*tireless=*/i % 2 == 0}));
  }
  ExpectLetIn(5, "beside them");
}

// Members share an address with the flood, as behind a NAT. Of connections that
// come again and again, only half hellos are recognised.
TEST_F(FloodOfHandshakes, FromTheMembersAddressLetsMembersIn) {
  Serve(kTime);
  auto member = LetIn();
  member->Write(HoldRequest(1));
  const std::vector<IncomingCall> held = server_->AwaitHeld(1);
  {
    Flood flood(server_->address(), {"127.0.0.1", {half_, hello_, ""}});
    ExpectLetIn(1, "beside those that wait");
  }
  {
    Flood flood(server_->address(),
                {"127.0.0.1", {half_}, 1000, /*tireless=*/true});
    ExpectLetIn(5, "beside those that come again");
  }
  ASSERT_EQ(held.size(), 1u);
  EXPECT_FALSE(held[0].is_cancelled());  // who was there stays
}

// ATT-M4: a body that comes by single bytes is waited for, at nobody's cost.
TEST_F(Edge, BodySentByteByByteDelaysNoOtherPeer) {
  Serve();
  auto peer = LetIn();
  peer->Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kEcho)));
  for (const char byte :
       Frame(kDataFrame, 1, 1, absl::string_view("\0\0\0\0\4body", 9))) {
    WEFT_EXPECT_OK(Call());
    ASSERT_TRUE(peer->Write(std::string(1, byte)));
  }
  EXPECT_TRUE(peer->AwaitFrame(kDataFrame)) << "it was served in the end";
}

TEST_F(Edge, RapidResetsStartNoMoreHandlersThanAdmitted) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  auto peer = LetIn();
  const std::string cancel("\0\0\0\x08", 4);
  bool open = true;
  for (uint32_t batch = 0; open && batch < 100; ++batch) {
    std::string requests;
    std::string resets;
    for (uint32_t i = 0; i < 100; ++i) {
      const uint32_t stream = 2 * (100 * batch + i) + 1;
      requests += HoldRequest(stream);
      resets += Frame(kResetFrame, 0, stream, cancel);
    }
    // Some are reset before their handlers start, and some after.
    open =
        peer->Write(requests) &&
        (batch % 2 == 1 || (peer->Write(Frame(kPingFrame, 0, 0, "01234567")) &&
                            peer->AwaitFrame(kPingFrame))) &&
        peer->Write(resets);
  }
  EXPECT_TRUE(!open || peer->AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
  WEFT_EXPECT_OK(Call());
  EXPECT_GE(server_->most_held(), 1);
  EXPECT_LE(server_->most_held(), 8);
}

TEST_F(Edge, APingFloodIsCutOff) {
  Serve();
  auto peer = LetIn();
  bool open = true;
  for (int i = 0; open && i < 10'000; ++i)
    open = peer->Write(Frame(kPingFrame, 0, 0, "01234567"));
  EXPECT_TRUE(peer->AwaitEnd());
  WEFT_EXPECT_OK(Call());
}

// ATT-M6: what it does not read waits in its own window, and delays no other.
TEST_F(Edge, PeerThatNeverReadsDelaysNoOtherPeer) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  std::vector<std::unique_ptr<RawPeer>> deaf;
  const int kept = KeptPercent(
      *channel,
      [&] {
        // Their windows of 64 KiB are full, and they give no more.
        for (int i = 0; i < 10; ++i) {
          deaf.push_back(LetIn());
          deaf.back()->Write(
              Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kFlood)));
          EXPECT_TRUE(deaf.back()->AwaitFrame(kDataFrame));
        }
      },
      [&] {
        EXPECT_LT(ResidentBytes() - before, 32 * kMiB);
        deaf.clear();
      });
  RecordProperty("pace_kept_percent", kept);
  EXPECT_GT(kept, 30);
}

}  // namespace
}  // namespace weft::net
