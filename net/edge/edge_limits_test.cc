// What one peer, and all, may have of an endpoint.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/admission.h"
#include "weft/net/edge/raw_peer.h"
#include "weft/net/edge_fixture.h"
#include "weft/net/endpoint_fixture.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// --------------------------------------------------------------------- limits

// Limits that are small, and ways to exceed them.
class Limits : public Edge {
 protected:
  void ServeWith(const std::function<void(LoopOptions&)>& lower) {
    LoopOptions options = With(job_.For("ps", 0));
    lower(options);
    Serve(std::move(options));
  }
  void ServeWith(AdmissionLimits limits) {
    Serve(With(job_.For("ps", 0)), limits);
  }
  // A call by trainer `rank` that stays open, if it is let in.
  Future<Slices> Hold(int rank, int64_t bytes) {
    loops_.push_back(*Loop::Create(With(job_.For("trainer", rank))));
    channels_.push_back(Connect(*loops_.back(), server_->address()));
    return channels_.back()->UnaryCall(kHold, Text(std::string(bytes, 'x')),
                                       kSoon);
  }
  // While a call of trainer 9 with `held` bytes is open, one of trainer `rank`
  // with `bytes` is refused in these words, of this kind.
  void ExpectNoRoom(int64_t held, int rank, int64_t bytes,
                    const std::string& kind, const std::string& words) {
    const Future<Slices> first = Hold(9, held);
    const std::vector<IncomingCall> open = server_->AwaitHeld(1);
    EXPECT_THAT(Hold(rank, bytes).Wait(kSoon),
                StatusIs(absl::StatusCode::kResourceExhausted, words));
    ExpectRefused(kind, words);
  }
  // One refusal, in these words, of this kind.
  void ExpectRefused(const std::string& kind, const std::string& words) {
    channels_.clear();
    EXPECT_EQ(Count("weft_net_refused_total", kind), 1) << kind;
    EXPECT_THAT(Log(), HasSubstr(absl::StrCat("refused kind=", kind)));
    EXPECT_THAT(log_.str(), HasSubstr(words));
  }
  void TearDown() override {
    channels_.clear();
    loops_.clear();
  }

  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

TEST_F(Limits, CallsOfOnePeer) {
  AdmissionLimits limits;
  limits.max_calls_per_peer = 1;
  ServeWith(limits);
  ExpectNoRoom(0, 9, 0, "max_calls_per_peer",
               "peer weft://job/trainer/9: 1 calls are open, and "
               "max_calls_per_peer is 1; try again later, or raise it by "
               "--limits=max_calls_per_peer=VALUE");
}

TEST_F(Limits, CallsOfAll) {
  AdmissionLimits limits;
  limits.max_calls = 1;
  ServeWith(limits);
  ExpectNoRoom(0, 8, 0, "max_calls",
               "endpoint: 1 calls are open, and max_calls is 1");
}

TEST_F(Limits, BytesOfOnePeer) {
  AdmissionLimits limits;
  limits.max_bytes_per_peer = 100;
  ServeWith(limits);
  ExpectNoRoom(60, 9, 50, "max_bytes_per_peer",
               "requests hold 60 bytes, this one has 50, and "
               "max_bytes_per_peer is 100");
}

TEST_F(Limits, BytesOfAll) {
  AdmissionLimits limits;
  limits.max_bytes = 100;
  ServeWith(limits);
  ExpectNoRoom(60, 8, 50, "max_bytes",
               "endpoint: requests hold 60 bytes, this one has 50, and "
               "max_bytes is 100");
}

TEST(Admission, EndedCallsFreeTheirQuota) {
  AdmissionLimits limits;
  limits.max_calls = 3;
  limits.max_calls_per_peer = 2;
  limits.max_bytes = 150;
  limits.max_bytes_per_peer = 100;
  const auto admission = std::make_shared<Admission>(limits);
  const auto small = *admission->Enter("a");  // stays
  ASSERT_THAT(small->AddBytes(10), IsOk());
  for (int i = 0; i < 5; ++i) {
    const auto large = admission->Enter("a");
    ASSERT_THAT(large, IsOk());
    ASSERT_THAT((*large)->AddBytes(90), IsOk());
    EXPECT_EQ(LimitOf(admission->Enter("a").status()), "max_calls_per_peer");
    EXPECT_EQ(LimitOf(small->AddBytes(1)), "max_bytes_per_peer");
    const auto other = admission->Enter("b");  // has room of its own
    ASSERT_THAT(other, IsOk());
    ASSERT_THAT((*other)->AddBytes(50), IsOk());
    EXPECT_EQ(LimitOf(admission->Enter("c").status()), "max_calls");
    EXPECT_EQ(LimitOf((*other)->AddBytes(1)), "max_bytes");
  }
}

TEST_F(Limits, Connections) {
  ServeWith([](LoopOptions& options) {
    options.max_connections = 1;
    options.max_connections_per_address = 9;
    options.handshake_timeout = kSoon * 2;  // nobody is cut
  });
  const auto first = LetIn();
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("max_connections",
                "1 connections are open, and max_connections is 1; raise it "
                "by --limits=max_connections=VALUE");
}

TEST_F(Limits, ConnectionsOfOneAddress) {
  ServeWith([](LoopOptions& options) {
    options.max_connections = 9;
    options.max_connections_per_address = 1;
    options.handshake_timeout = kSoon * 2;  // nobody is cut
  });
  const auto first = LetIn();
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("max_connections_per_address",
                "1 connections of its address are open, and "
                "max_connections_per_address is 1; raise it by "
                "--limits=max_connections_per_address=VALUE");
}

TEST_F(Limits, SilenceOfAConnection) {
  ServeWith([](LoopOptions& options) {
    options.handshake_timeout = absl::Milliseconds(200);
  });
  EXPECT_TRUE(RawPeer(server_->address()).AwaitEnd());
  ExpectRefused("handshake_timeout",
                "said too little for 200ms, which is handshake_timeout");
}

// These two gRPC keeps by itself: it says so to the caller, and counts nothing.
TEST_F(Limits, BytesOfAMessageAndOfItsHeaders) {
  ServeWith([](LoopOptions& options) {
    options.max_message_bytes = 1000;
    options.max_metadata_bytes = 2000;
  });
  EXPECT_THAT(Hold(9, 1001).Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "Received message larger than max (1001 vs. 1000)"));
  const Metadata large = {{"x", std::string(3000, 'x')}};
  EXPECT_THAT(
      channels_.back()->UnaryCall(kEcho, Text("x"), kSoon, large).Wait(kSoon),
      StatusIs(absl::StatusCode::kResourceExhausted, "exceeds limit"));
  WEFT_EXPECT_OK(Call());
}

// -------------------------------------------------------------------- attacks

// HTTP/2 tells a good client how many calls it may have open; the others wait
// there, and none is refused.
TEST_F(Edge, CallsOfAGoodClientWaitForTheirTurn) {
  Serve();
  auto loop = *Loop::Create(With(job_.For("trainer", 9)));
  auto channel = Connect(*loop, server_->address());
  std::vector<Future<Slices>> calls;
  for (int i = 0; i < 5000; ++i)
    calls.push_back(channel->UnaryCall(kEcho, Text("x"), kSoon));
  for (const auto& call : calls) WEFT_EXPECT_OK(call.Wait(kSoon).status());
}

// HTTP/2 requires it after acknowledged settings: gRPC ends the connection.
TEST_F(Edge, BreakingAnAcknowledgedLimitEndsTheConnection) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_calls_per_connection = 64;
  Serve(std::move(options));
  auto peer = LetIn();
  constexpr uint8_t kAck = 1;
  std::string requests = Frame(kSettingsFrame, kAck, 0, "");
  for (uint32_t i = 0; i < 300; ++i) requests += HoldRequest(2 * i + 1);
  peer->Write(requests);
  EXPECT_TRUE(peer->AwaitEnd());
  EXPECT_LE(server_->most_held(), 64);
  WEFT_EXPECT_OK(Call());
}

// A listener on all addresses sees IPv4 peers by names that gRPC does not use.
TEST_F(Edge, APeerOfAllAddressesIsCutOffByItsNameToo) {
  LoopOptions options = With(job_.For("ps", 0));
  options.max_wasted_calls_per_peer = 5;
  options.telemetry = telemetry_.get();
  server_ = Node::Make("ps0", "[::]:0", std::move(options));
  const std::string& listening = server_->address();
  RawPeer peer("127.0.0.1" + listening.substr(listening.rfind(':')));
  ASSERT_TRUE(IsLetIn(peer, HelloOf(job_.For("trainer", 9))));
  std::string requests;
  for (uint32_t i = 0; i < 20; ++i) {
    requests += Frame(kHeadersFrame, kEndHeaders, 2 * i + 1,
                      HeaderBlock("/test.Service/None"));
  }
  peer.Write(requests);
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_GE(CountCutOff(), 1);
}

TEST_F(Edge, ACallWithoutARequestIsRefusedAndWrittenDown) {
  Serve();
  auto peer = LetIn();
  constexpr uint8_t kEndStream = 1;
  peer->Write(
      Frame(kHeadersFrame, kEndHeaders | kEndStream, 1, HeaderBlock(kEcho)));
  EXPECT_TRUE(peer->AwaitFrame(kHeadersFrame));  // its status
  peer = nullptr;
  EXPECT_EQ(Count("weft_net_refused_total", "request"), 1);
  EXPECT_THAT(Log(), HasSubstr("a unary call without a request"));
}

// Its connection is lost in the middle of a call: the handler learns it.
TEST_F(Edge, AVanishedPeersCallIsCancelled) {
  Serve();
  auto peer = LetIn();
  peer->Write(HoldRequest(1));
  std::vector<IncomingCall> held = server_->AwaitHeld(1);
  ASSERT_EQ(held.size(), 1u);
  EXPECT_FALSE(held[0].is_cancelled());
  auto [promise, cancelled] = MakePromise<void>();
  held[0].OnCancel([promise = std::move(promise)]() mutable {
    promise.Set(absl::OkStatus());
  });
  peer = nullptr;
  WEFT_EXPECT_OK(cancelled.Wait(kSoon));
  EXPECT_TRUE(held[0].is_cancelled());
}

}  // namespace
}  // namespace weft::net
