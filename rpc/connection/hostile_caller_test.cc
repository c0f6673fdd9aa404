// A caller that breaks the protocol of connections.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/testing/link_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::unique_ptr<Promise<int64_t>> end_of_held;

// Runs until the test sets that.
Future<int64_t> Held() {
  if (end_of_held == nullptr)
    end_of_held = std::make_unique<Promise<int64_t>>();
  return end_of_held->future();
}
WEFT_RPC_INLINE(Held);

// ----------------------------------------------------------- a hostile peer

// It calls the agent w1.
class HostileCallerTest : public HostilePeerTest {
 protected:
  HostileCallerTest() : HostilePeerTest("w1", "w0") {
    agent_ = MakeAgent(at_agent_, directory_, 1, &executor_, &telemetry_);
    Connect();
  }
  void Connect() {
    connection_ = at_peer_.Connect(ConnectionPurpose(),
                                   transport::Destination{"w1", "w1"}, peer_);
  }

  // The body is to follow.
  void Announce(const Request& request) {
    BatchWriter batch;
    batch.Add(request, at_peer_.clock().Now(), /*body_follows=*/true);
    Send(std::move(batch));
  }
  void ExpectClosed(
      const std::string& why,
      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_THAT(peer_->closed, StatusIs(code, why));
    peer_->closed = absl::OkStatus();
    Connect();
    peer_->frames.clear();
  }
};

TEST_F(HostileCallerTest, ConsumedBytesOfUnusedMemoryEndTheConnection) {
  Write(Consumed{1});  // nobody has said who it is
  ExpectClosed("memory that is not used");
  Write(Introduction());
  Write(Consumed{1});
  ExpectClosed("memory that is not used");
}

TEST_F(HostileCallerTest, MemoryIsNotUsedBeforeAdmission) {
  Chunk chunk;
  chunk.id = 1;
  chunk.in_memory = 4096;
  Write(chunk);
  ExpectClosed("");
  EXPECT_EQ(depot_.asked, 0);
}

TEST_F(HostileCallerTest, ChunkInMemoryThatIsNotSharedEndsTheConnection) {
  depot_.has_none = true;
  Request request;
  request.id = 1;
  request.function = "none";
  request.body = {Bytes::Own(std::string(size_t{1} << 20, 'x'))};
  Chunk chunk;
  chunk.id = 1;
  chunk.in_memory = 4096;
  Write(Introduction());
  Announce(request);
  Write(chunk);
  ExpectClosed("no memory", absl::StatusCode::kResourceExhausted);
}

// Beyond the credit that the Welcome gave, without closing one.
TEST_F(HostileCallerTest, CallsBeyondItsCreditAreRefusedAndCounted) {
  const int64_t credit = Limits().calls;
  Write(Introduction());
  BatchWriter batch;
  for (int64_t id = 1; id <= credit + 3; ++id) {
    Request request;
    request.id = id;
    request.function = "none";
    batch.Add(request, Instant(), /*body_follows=*/false);
  }
  Send(std::move(batch));
  int refused = 0;
  for (const Frame& frame : peer_->frames) {
    const auto* reply = std::get_if<ReplyFrame>(&frame);
    if (reply == nullptr || reply->reply->refusal != Refusal::kOverLimit)
      continue;
    ++refused;
    EXPECT_THAT(reply->reply->status,
                StatusIs(absl::StatusCode::kResourceExhausted,
                         "calls of this peer are open; 1024 are admitted"));
  }
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(telemetry_.metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "rpc_limits"}})
                .Value(),
            3);
}

TEST_F(HostileCallerTest, LaterSessionGenerationReplacesNoOtherSession) {
  Limits limits;
  limits.sessions = 2;
  agent_ = nullptr;
  agent_ = MakeAgent(at_agent_, directory_, 1, &executor_, &telemetry_, limits);
  const auto come = [&](const Hello& hello) -> absl::Status {
    connection_->Close(absl::OkStatus());
    Settle();
    Connect();
    peer_->frames.clear();
    Write(hello);
    for (const Frame& frame : peer_->frames) {
      const auto* welcome = std::get_if<Welcome>(&frame);
      if (welcome != nullptr) return welcome->status;
    }
    return absl::NotFoundError("no Welcome");
  };
  Hello other = Introduction();
  other.name = "w2";
  other.from = {2, 1};
  ASSERT_THAT(come(other), IsOk());
  Hello hello = Introduction();
  for (hello.generation = 1; hello.generation <= 3; ++hello.generation) {
    ASSERT_THAT(come(hello), IsOk());
  }
  other.resumes = true;
  EXPECT_THAT(come(other), IsOk());
}

// A call that was given up waits in its ordered queue all the same, and counts.
TEST_F(HostileCallerTest, AnOrderedQueueHoldsNoMoreCallsThanItsCallerMayRun) {
  const Limits limits;
  const uint64_t most = 2 * (limits.calls + limits.nested_calls);
  const std::string function = internal::NameOf<&Held>();
  end_of_held = nullptr;
  Write(Introduction());
  const auto call = [&](uint64_t first, uint64_t last, bool gives_up) {
    BatchWriter batch;
    for (uint64_t id = first; id <= last; ++id) {
      Request request;
      request.id = id;
      request.ordered_queue = 1;
      request.function = function;
      request.signature = internal::DigestOf("i64()");
      request.deadline = at_peer_.clock().Now() + absl::Hours(1);
      batch.Add(request, at_peer_.clock().Now(), /*body_follows=*/false);
      if (gives_up) batch.Add(Cancel{{{id, id}}});
    }
    peer_->frames.clear();
    Send(std::move(batch));
    const ReplyFrame* reply = nullptr;
    for (const Frame& frame : peer_->frames) {
      if (const auto* r = std::get_if<ReplyFrame>(&frame)) reply = r;
    }
    return reply == nullptr ? absl::OkStatus() : reply->reply->status;
  };
  EXPECT_THAT(call(1, 1, false), IsOk());  // runs
  for (uint64_t id = 2; id <= most; id += 100) {
    EXPECT_THAT(call(id, std::min(id + 99, most), true), IsOk());
  }
  EXPECT_THAT(
      call(most + 1, most + 1, false),
      StatusIs(absl::StatusCode::kResourceExhausted, "given-up ones included"));
  end_of_held->Set(7);
  EXPECT_THAT(call(most + 2, most + 2, false), IsOk());
}

TEST_F(HostileCallerTest, ChunksThatCannotBeAreNotRead) {
  Request request;
  request.id = 1;
  request.function = "none";
  request.body = {Bytes::Own(std::string(size_t{8} << 20, 'x'))};
  Chunk chunk;
  chunk.id = 1;
  for (const uint64_t size : {uint64_t{Link::kPayloadRingBytes} + 1,
                              uint64_t{1} << 40, ~uint64_t{0}}) {
    Write(Introduction());
    Announce(request);
    chunk.in_memory = size;
    Write(chunk);
    ExpectClosed("");
  }
}

TEST_F(HostileCallerTest, BodyBeforeAdmissionIsRefused) {
  Request request;
  request.id = 1;
  request.function = "none";
  request.body = {Bytes::Own(std::string(size_t{1} << 20, 'x'))};
  const int64_t before = UsedBytes();
  Announce(request);
  EXPECT_EQ(UsedBytes(), before);
  ExpectClosed("wanted a Hello");
  Hello stranger = Introduction();
  stranger.job = "another";
  BatchWriter batch;
  batch.Add(stranger);
  batch.Add(request, Instant(), /*body_follows=*/true);
  Send(std::move(batch));
  EXPECT_EQ(UsedBytes(), before);
  ExpectClosed("wanted a Hello, and to admit its sender");
  Write(ChunkOf(1, {Bytes::Copy("x")}));
  ExpectClosed("wanted a Hello");
}

TEST_F(HostileCallerTest, NoBodyOfAReplyIsTakenOfACaller) {
  Reply reply;
  reply.id = 1;
  reply.body = {Bytes::Own(std::string(size_t{1} << 20, 'x'))};
  BatchWriter batch;
  batch.Add(Introduction());
  batch.Add(reply, /*body_follows=*/true);
  Send(std::move(batch));
  ExpectClosed("only a callee sends");
  Write(Introduction(), ChunkOf(1, {Bytes::Copy("x")}));
  ExpectClosed("announced none");
}

// Bodies whose calls hold all the calls and bytes that a caller may have out,
// nested ones too, and of which none is whole before all are announced.
TEST_F(HostileCallerTest, AllThatCreditAllowsMayBeOnItsWayAtOnce) {
  Limits limits;
  limits.calls = 3;
  limits.nested_calls = 10;
  limits.bytes = 30000;
  agent_ = nullptr;
  agent_ = MakeAgent(at_agent_, directory_, 1, &executor_, &telemetry_, limits);
  Write(Introduction());
  std::vector<Request> requests(limits.calls + limits.nested_calls);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.id = i + 1;
    request.function = "none";
    request.deadline = Instant::Infinite();
    request.depth = i < static_cast<size_t>(limits.calls) ? 0 : 1;
    const int64_t share =
        limits.bytes /
        (request.depth == 0 ? limits.calls : limits.nested_calls);
    request.body = {
        Bytes::Own(std::string(share - kMessageOverheadBytes, 'x'))};
    EXPECT_EQ(request.bytes(), share);
    Announce(request);
  }
  for (const Request& request : requests) {
    Write(ChunkOf(request.id, request.body));
  }
  size_t unknown = 0;
  for (const Frame& frame : peer_->frames) {
    const auto* reply = std::get_if<ReplyFrame>(&frame);
    if (reply == nullptr) continue;
    EXPECT_EQ(reply->reply->refusal, Refusal::kUnknownFunction);
    ++unknown;
  }
  EXPECT_EQ(unknown, requests.size());
  EXPECT_THAT(peer_->closed, IsOk());
}

}  // namespace
}  // namespace weft::rpc
