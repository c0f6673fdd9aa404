// A callee, and a reader, that break the protocol of connections.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/executor.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/connection/link.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/stream_buffer.h"
#include "weft/rpc/testing/link_fixture.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/simulated_transport.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// ----------------------------------------------------------- a hostile callee

// The agent w0 calls it.
class HostileCalleeTest : public HostilePeerTest {
 protected:
  static constexpr size_t kReplyBytes = size_t{1} << 30;

  HostileCalleeTest() : HostilePeerTest("w0", "w1") {
    directory_.Put(Worker{"w1", WorkerKey{1, 1}, "w1"});
    at_peer_.Register(ConnectionPurpose());
    at_peer_.Accept(
        ConnectionPurpose(),
        [this](std::unique_ptr<transport::Connection> connection) {
          connection_ = std::move(connection);
          return std::shared_ptr<transport::ConnectionObserver>(peer_);
        });
    agent_ = MakeAgent(at_agent_, directory_, 0, &executor_, &telemetry_);
  }

  // Makes a call that reaches the callee, if it has welcomed.
  Future<int64_t> MakeCall() {
    Future<int64_t> call = CallAsync(agent_->To("w1"), Size, Floats(1));
    Settle();
    return call;
  }
  static void GiveUp(Future<int64_t>& call) {
    call.Cancel(absl::CancelledError("the test"));
  }
  void Announce(uint64_t id, size_t bytes = kReplyBytes) {
    // The same slice again and again, for it does not leave.
    static const Bytes slice = Bytes::Own(std::string(size_t{1} << 20, 'x'));
    Reply reply;
    reply.id = id;
    for (size_t left = bytes; left > 0; left -= slice.size()) {
      reply.body.push_back(slice);
    }
    BatchWriter batch;
    batch.Add(reply, /*body_follows=*/true);
    Send(std::move(batch));
  }
  void ExpectClosed(const std::string& why) {
    EXPECT_THAT(peer_->closed,
                StatusIs(absl::StatusCode::kInvalidArgument, why));
    peer_->closed = absl::OkStatus();
  }
};

TEST_F(HostileCalleeTest, UnrequestedBodyEndsTheConnection) {
  const int64_t before = UsedBytes();
  Future<int64_t> call = MakeCall();
  Announce(1);
  EXPECT_EQ(UsedBytes(), before);
  ExpectClosed("wanted a Welcome of w1 first");
  Write(Welcome());  // the call is resent to it
  Announce(2);
  EXPECT_EQ(UsedBytes(), before);
  ExpectClosed("w1 replies to call 2, which was not sent to it");
  Write(Welcome());
  Write(ChunkOf(1, {Bytes::Copy("x")}));
  ExpectClosed("announced none");
  Write(Welcome());
  Request request;
  request.id = 1;
  request.body = {Bytes::Copy("x")};
  BatchWriter batch;
  batch.Add(request, Instant(), /*body_follows=*/true);
  Send(std::move(batch));
  ExpectClosed("only a caller sends");
  GiveUp(call);
}

TEST_F(HostileCalleeTest, SecondWelcomeEndsTheConnection) {
  Future<int64_t> call = MakeCall();
  Write(Welcome());
  Write(Welcome());
  ExpectClosed("w1 sent a second Welcome");
  GiveUp(call);
}

TEST_F(HostileCalleeTest, ALateReplyIsPassedOverWithoutMemory) {
  Future<int64_t> call = MakeCall();
  Write(Welcome());
  GiveUp(call);
  const int64_t before = UsedBytes();
  Announce(1);
  Write(ChunkOf(1, {Bytes::Own(std::string(size_t{1} << 20, 'x'))}));
  EXPECT_EQ(UsedBytes(), before);
  Write(ChunkOf(1, {}));
  Future<int64_t> next = MakeCall();
  Reply reply;
  reply.id = 2;
  Encoder encoder;
  encoder.Write(int64_t{7});
  reply.body = *std::move(encoder).Finish();
  Write(ChunkOf(1, {Bytes::Copy("x")}));
  BatchWriter batch;
  batch.Add(reply, /*body_follows=*/true);
  batch.Add(ChunkOf(2, reply.body));
  Send(std::move(batch));
  EXPECT_THAT(next.Wait(absl::Seconds(1)), IsOkAndHolds(7));
  EXPECT_THAT(peer_->closed, IsOk());
}

TEST_F(HostileCalleeTest, ALateReplyInSharedMemoryLeavesItsRoomToOthers) {
  Future<int64_t> call = MakeCall();
  Write(Welcome());
  GiveUp(call);
  Announce(1, Link::kPayloadRingBytes);
  Chunk chunk;
  chunk.id = 1;
  chunk.in_memory = Link::kMemoryChunkBytes;
  for (size_t i = 0; i < Link::kPayloadRingBytes / Link::kMemoryChunkBytes;
       ++i) {
    Write(chunk);
  }
  uint64_t consumed = 0;
  for (const Frame& frame : peer_->frames) {
    const auto* said = std::get_if<Consumed>(&frame);
    if (said != nullptr) consumed = said->position;
  }
  EXPECT_EQ(consumed, uint64_t{Link::kPayloadRingBytes});
  EXPECT_THAT(peer_->closed, IsOk());
}

TEST_F(HostileCalleeTest, ThatCanBeReachedIsNotGivenUpForTwoBreaks) {
  const auto lose = [&] {
    connection_->Close(absl::UnavailableError("the test"));
    Settle();  // and it is there again
  };
  const auto runs_out = StatusIs(absl::StatusCode::kDeadlineExceeded);
  Future<int64_t> call =
      CallAsync(agent_->To("w1", absl::InfiniteDuration()), Size, Floats(1));
  Settle();
  Write(Welcome());
  lose();
  Write(Welcome());
  EXPECT_THAT(call.Wait(absl::Milliseconds(9700)), runs_out);  // it takes long
  lose();
  EXPECT_THAT(call.Wait(absl::Seconds(1)), runs_out);  // slow to welcome
  EXPECT_FALSE(call.IsReady());
  Write(Welcome());
  EXPECT_THAT(call.Wait(absl::Minutes(1)), runs_out);
  EXPECT_FALSE(call.IsReady());
  GiveUp(call);
}

// Welcomes whoever calls, and breaks the connection by welcoming once more.
class WelcomesTwice final : public transport::ConnectionObserver {
 public:
  explicit WelcomesTwice(std::shared_ptr<transport::Connection> connection)
      : connection_(std::move(connection)) {}
  void OnMessage(Slices) override {
    BatchWriter batch;
    batch.Add(Welcome());
    batch.Add(Welcome());
    (void)connection_->Write(std::move(batch).Finish());
  }
  void OnWritten() override {}
  void OnClosed(absl::Status) override {}

 private:
  const std::shared_ptr<transport::Connection> connection_;
};

TEST_F(HostileCalleeTest, ThatEndsEachConnectionIsGivenUp) {
  int connections = 0;
  at_peer_.Accept(
      ConnectionPurpose(),
      [&](std::shared_ptr<transport::Connection> connection) {
        ++connections;
        return std::make_shared<WelcomesTwice>(std::move(connection));
      });
  Future<int64_t> call =
      CallAsync(agent_->To("w1", absl::InfiniteDuration()), Size, Floats(1));
  EXPECT_THAT(call.Wait(absl::Minutes(1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "w1 could not be reached at w1 for 10s: w1 sent a "
                       "second Welcome"));
  EXPECT_LT(connections, 30);  // with pauses that grow
}

// ----------------------------------------------------------------- its queues

// A worker's own transport, but for who connects: that is the test.
class Door final : public transport::Transport {
 public:
  explicit Door(std::unique_ptr<transport::Transport> inner)
      : inner_(std::move(inner)) {}

  Driver& driver() override { return inner_->driver(); }
  void Register(const transport::Purpose& purpose) override {
    inner_->Register(purpose);
  }
  void Accept(const transport::Purpose&, Acceptor acceptor) override {
    open = std::move(acceptor);
  }
  std::unique_ptr<transport::Connection> Connect(
      const transport::Purpose& purpose, const transport::Destination& to,
      std::shared_ptr<transport::ConnectionObserver> observer) override {
    return inner_->Connect(purpose, to, std::move(observer));
  }
  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return inner_->RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return inner_->CancelTimer(id); }
  void AwaitTimers() override { inner_->AwaitTimers(); }

  Acceptor open;

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

// Results that live, in all.
std::atomic<int64_t> kept_bytes{0};

Bytes Keep(int64_t bytes) {
  auto* const memory = new std::string(bytes, 'x');
  kept_bytes += bytes;
  return Bytes::Wrap(memory->data(), memory->size(),
                     std::shared_ptr<const void>(memory, [=](const void*) {
                       kept_bytes -= bytes;
                       delete memory;
                     }));
}
WEFT_RPC_INLINE(Keep);

// A caller that the agent w1 has let in, and that never reads.
class HostileReader : public ::testing::Test {
 protected:
  HostileReader() {
    agent_ = MakeAgent(door_, directory_, 1, &executor_);
    observer_ = *door_.open(std::make_unique<SlowConnection>());
    BatchWriter batch;
    batch.Add(Introduction());
    observer_->OnMessage(std::move(batch).Finish());
  }
  ~HostileReader() override {
    observer_->OnClosed(absl::UnavailableError("the test has ended"));
  }

  template <typename... A>
  void Send(uint64_t id, const Function* function, A&&... arguments) {
    Encoder encoder;
    encoder.Write(std::forward<A>(arguments)...);
    Request request;
    request.id = id;
    request.function = function->name;
    request.signature = function->digest;
    request.deadline = Instant::Infinite();
    request.body = *std::move(encoder).Finish();
    BatchWriter batch;
    batch.Add(request, Instant(), /*body_follows=*/false);
    observer_->OnMessage(std::move(batch).Finish());
  }
  // It is not waited for any more, so that its quota is free.
  void GiveUp(uint64_t id) {
    BatchWriter batch;
    batch.Add(Cancel{{{id, id}}});
    observer_->OnMessage(std::move(batch).Finish());
  }

  sim::Simulator simulator_{1};
  transport::SimulatedNetwork network_{simulator_,
                                       transport::SimulatedNetwork::Options()};
  FixedDirectory directory_;
  InlineExecutor executor_;
  Door door_{network_.MakeTransport("w1")};
  std::unique_ptr<Agent> agent_;
  std::shared_ptr<transport::ConnectionObserver> observer_;
};

TEST_F(HostileReader, MakesNoRepliesPileUp) {
  const Function* const keep = Registry::Global().FindAddress(
      reinterpret_cast<Function::Address>(&Keep));
  for (uint64_t id = 1; id <= 500; ++id) {
    Send(id, keep, int64_t{100000});
    GiveUp(id);
    EXPECT_LE(kept_bytes.load(), 2 * int64_t{Link::kHeavyBytes}) << id;
  }
}

// Reads nothing, and lasts.
struct Lasting {
  std::vector<Reader<Bytes>> readers;
  std::unique_ptr<Promise<int64_t>> never;
};
Future<int64_t> Last(CallContext& context, Reader<Bytes> in) {
  auto& lasting = *context.Local<Lasting>();
  lasting.readers.push_back(std::move(in));
  return lasting.never->future();
}
WEFT_RPC_STREAM(Last);

TEST_F(HostileReader, MakesNoPushesPileUp) {
  auto lasting = std::make_shared<Lasting>();
  lasting->never = std::make_unique<Promise<int64_t>>(door_.driver());
  agent_->SetLocal(lasting);
  Send(1, Registry::Global().FindAddress(
              reinterpret_cast<Function::Address>(&Last)));
  ASSERT_EQ(lasting->readers.size(), 1u);
  const Function* const push = Registry::Global().FindName("weft::rpc::Push");
  for (uint64_t id = 2; id <= 200; ++id) {
    // As it lies in the message, which the values share.
    std::vector<Slices> values;
    values.push_back({Keep(100000)});
    Send(id, push, internal::StreamId{1}, false, std::move(values));
    GiveUp(id);
    EXPECT_LE(kept_bytes.load(), 3 * int64_t{StreamBuffer::kWindowBytes}) << id;
  }
}

}  // namespace
}  // namespace weft::rpc
