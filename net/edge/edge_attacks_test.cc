// Peers that want the memory, the descriptors or the time of an endpoint.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/edge_fixture.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::StatusIs;

int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

// -------------------------------------------------------------------- attacks

// AddressSanitizer keeps freed memory for a while.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kFreedYetHeld = 16 * kMiB;
#else
constexpr int64_t kFreedYetHeld = 0;
#endif

// ATT-M1: what is only declared takes no memory.
TEST_F(Edge, ADeclaredLengthTakesNoMemory) {
  Serve();
  auto peer = LetIn();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  uint32_t stream = 1;
  for (const uint32_t declared :
       {uint32_t{4 * kMiB + 1}, uint32_t{1} << 31, uint32_t{0xffffffff}}) {
    const std::string length = {
        0, static_cast<char>(declared >> 24), static_cast<char>(declared >> 16),
        static_cast<char>(declared >> 8), static_cast<char>(declared)};
    for (int i = 0; i < 10; ++i, stream += 2) {
      peer->Write(
          Frame(kHeadersFrame, kEndHeaders, stream, HeaderBlock(kEcho)));
      peer->Write(Frame(kDataFrame, 0, stream, length + std::string(100, 'x')));
    }
  }
  peer->Write(Frame(kPingFrame, 0, 0, "01234567"));
  EXPECT_TRUE(peer->AwaitFrame(kPingFrame));  // all of it was read
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  WEFT_EXPECT_OK(Call());
}

// ATT-M1, sent in earnest. gRPC looks at a length when the message is whole, so
// that what bounds it is max_buffered_bytes. The sender's buffers count, too: 6
// to 13 MiB were seen where that is 4, and 16 to 35 where it is 16.
class EdgeWithRoomFor : public Edge,
                        public ::testing::WithParamInterface<int64_t> {};

INSTANTIATE_TEST_SUITE_P(Edge, EdgeWithRoomFor,
                         ::testing::Values(4 * kMiB, 16 * kMiB));

TEST_P(EdgeWithRoomFor, AnOversizeMessageIsCutOffBeforeItIsWhole) {
  constexpr int64_t kSent = 160 * kMiB;
  LoopOptions options = With(job_.For("ps", 0));
  options.max_message_bytes = 4 * kMiB;
  options.max_buffered_bytes = GetParam();
  Serve(std::move(options));
  LoopOptions hostile = With(job_.For("trainer", 9));
  hostile.max_message_bytes = 2 * kSent;
  auto loop = *Loop::Create(std::move(hostile));
  auto channel = Connect(*loop, server_->address());
  WEFT_ASSERT_OK(channel->UnaryCall(kEcho, Text("x"), kSoon).Wait(kSoon));
  Slices large = Text(std::string(kSent, 'x'));
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
  const int64_t before = PeakBytes();
  EXPECT_THAT(channel->UnaryCall(kEcho, std::move(large), kSoon).Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LT(PeakBytes() - before, 2 * GetParam() + 16 * kMiB + kFreedYetHeld);
  WEFT_EXPECT_OK(Call());
}

// ATT-M2: one peer's calls are capped, and no others.
TEST_F(Edge, OnePeersManyCallsAreCappedAndOthersAreServed) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 10'000;
  Serve(std::move(options), limits);
  auto greedy_loop = *Loop::Create(With(job_.For("trainer", 9)));
  auto greedy = Connect(*greedy_loop, server_->address());
  std::vector<Future<Slices>> calls;
  for (int i = 0; i < 2000; ++i)
    calls.push_back(greedy->UnaryCall(kHold, {}, kSoon));
  for (int i = 0; i < 50; ++i) WEFT_ASSERT_OK(Call());
  server_->AwaitHeld(8);  // dropped, which answers them
  int refused = 0;
  for (const auto& call : calls)
    refused += absl::IsResourceExhausted(call.Wait(kSoon).status());
  EXPECT_GE(refused, 1000);
  EXPECT_LE(server_->most_held(), 8);
}

// ATT-M2: what one peer holds, as much as it may, costs others little. A third
// of their pace is far below what is seen (docs/security.md).
TEST_F(Edge, OthersKeepTheirPaceWhileOnePeerHoldsAllItMay) {
  Serve();
  auto loop = *Loop::Create(With(job_.For("trainer", 0)));
  auto channel = Connect(*loop, server_->address());
  std::unique_ptr<RawPeer> greedy;
  std::vector<IncomingCall> held;
  const int kept = KeptPercent(
      *channel,
      [&] {
        greedy = LetIn();
        for (uint32_t i = 0; i < 256; ++i)
          greedy->Write(HoldRequest(2 * i + 1));
        held = server_->AwaitHeld(256);
        EXPECT_EQ(held.size(), 256u);
      },
      [&] {
        held.clear();
        greedy = nullptr;
      });
  RecordProperty("pace_kept_percent", kept);
  EXPECT_GT(kept, 33);
}

// ATT-M4, CVE-2023-4785: descriptors run out, and connections are refused; once
// some are free, it serves again.
TEST_F(Edge, ServesAgainOnceDescriptorsAreFree) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const size_t colon = server_->address().rfind(':');
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(
      static_cast<uint16_t>(std::stoi(server_->address().substr(colon + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Descriptor> idle;
  for (int i = 0; i < 120; ++i)
    idle.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit tight = {static_cast<rlim_t>(dup(idle[0].get())),
                        limit.rlim_max};
  Descriptor next(static_cast<int>(tight.rlim_cur));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (const Descriptor& one : idle) {
    EXPECT_EQ(
        connect(one.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  int refused = 0;
  for (const Descriptor& one : idle) {
    pollfd end = {one.get(), POLLIN, 0};
    refused +=
        poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kSoon))) == 1;
  }
  EXPECT_EQ(refused, 120);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  WEFT_EXPECT_OK(Call());
  EXPECT_GT(Count("weft_net_refused_total", "descriptors"), 0);
}

// A header of `size` bytes, in as many frames as it takes. False if the
// connection was cut meanwhile.
bool WriteHeaderBomb(RawPeer& peer, size_t size) {
  constexpr size_t kFrame = 16384;
  const std::string block = HeaderBlock(kEcho, {{"x", std::string(size, 'x')}});
  bool open = true;
  for (size_t at = 0; open && at < block.size(); at += kFrame) {
    const bool last = at + kFrame >= block.size();
    open =
        peer.Write(Frame(at == 0 ? kHeadersFrame : kContinuationFrame,
                         last ? kEndHeaders : 0, 1, block.substr(at, kFrame)));
  }
  return open;
}

// ATT-M5, without a certificate: nothing reaches HTTP/2. See also EdgeRefuses.
TEST_F(Edge, AHeaderBombWithoutACertificateMeetsTheHandshake) {
  constexpr int64_t kBomb = 4 * kMiB;
  Serve();
  int64_t before = 0;
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 6; ++i) {
    if (i == 1) before = ResidentBytes();  // with what this test takes itself
    peers.push_back(std::make_unique<RawPeer>(server_->address()));
    RawPeer& peer = *peers.back();
    peer.ShakeHands(RawPeer::Hello());
    if (peer.Write(Preface())) WriteHeaderBomb(peer, kBomb);  // until cut off
    EXPECT_FALSE(peer.AwaitFrame(kSettingsFrame));
  }
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  WEFT_EXPECT_OK(Call());
}

// ATT-M5, with one: gRPC would keep a header until it is whole, however large.
TEST_F(Edge, AMembersHeaderBombIsCutOff) {
  Serve();
  WEFT_ASSERT_OK(Call());
  const int64_t before = ResidentBytes();
  auto peer = LetIn();
  // The server's settings are never acknowledged.
  WriteHeaderBomb(*peer, 2 * kMiB);
  EXPECT_TRUE(peer->AwaitEnd());
  peer = nullptr;
  EXPECT_LT(ResidentBytes() - before, 64 * kMiB);
  WEFT_EXPECT_OK(Call());
  EXPECT_TRUE(Becomes(
      [&] { return Count("weft_net_refused_total", "http2_frames") == 1; }));
}

TEST_F(Edge, APeerThatNeverReadsDoesNotKeepAnEndpointFromEnding) {
  Serve();
  auto peer = LetIn();
  peer->Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kFlood)));
  EXPECT_TRUE(peer->AwaitFrame(kDataFrame));
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(Edge, APeerThatLetsNoReplyOutDoesNotKeepAnEndpointFromEnding) {
  LoopOptions options = With(job_.For("ps", 0));
  options.keepalive_timeout = absl::Minutes(5);  // as if it answered pings
  Serve(std::move(options));
  auto peer = LetIn();
  // Its streams begin with a window of 0: the body of the reply must wait.
  peer->Write(
      Frame(kSettingsFrame, 0, 0, absl::string_view("\0\4\0\0\0\0", 6)) +
      Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kEcho)) +
      Frame(kDataFrame, 1, 1, absl::string_view("\0\0\0\0\4body", 9)));
  EXPECT_TRUE(peer->AwaitFrame(kHeadersFrame));  // those of the reply
  EXPECT_THAT(server_->endpoint().Shutdown(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// ATT-M3, in small: all of it at once, again and again.
TEST_F(Edge, MemoryIsBoundedUnderMixedHostility) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 8;
  Serve(With(job_.For("ps", 0)), limits);
  const auto misbehave = [&](int round) {
    RawPeer peer(server_->address());
    switch (round % 4) {
      case 0:
        peer.Write(std::string(1000, static_cast<char>(round)));
        break;
      case 1:
        peer.ShakeHands(RawPeer::Hello());
        break;
      case 2:
        IsLetIn(peer, HelloOf(job_.For("trainer", 9)));
        peer.Write(Frame(kHeadersFrame, kEndHeaders, 1, HeaderBlock(kHold)));
        peer.Write(std::string(10'000, '\xff'));
        break;
      default:
        IsLetIn(peer, HelloOf(job_.For("trainer", 9)));
        peer.Write(Frame(kHeadersFrame, 0, 1, HeaderBlock(kEcho)));
        break;
    }
  };
  for (int i = 0; i < 40; ++i) misbehave(i);  // what it takes once
  const int64_t before = ResidentBytes();
  for (int i = 0; i < 200; ++i) {
    misbehave(i);
    if (i % 10 == 0) {
      WEFT_EXPECT_OK(Call());
    }
  }
  EXPECT_LT(ResidentBytes() - before, 64 * kMiB);
}

}  // namespace
}  // namespace weft::net
