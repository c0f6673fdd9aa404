#include "weft/rpc/connection/link.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/executor.h"
#include "weft/memory/allocator.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/class.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/stream_buffer.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/simulated_transport.h"
#include "weft/transport/testing/memory_sharing.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

using Floats = std::vector<float>;

Floats Mirror(Floats x) { return x; }
WEFT_RPC_INLINE(Mirror);

int64_t Size(const Floats& x) { return static_cast<int64_t>(x.size()); }
WEFT_RPC_INLINE(Size);

Floats Make(int64_t elements) { return Floats(elements, 1.5f); }
WEFT_RPC_INLINE(Make);

std::unique_ptr<Promise<int64_t>> end_of_held;

// Runs until the test sets that.
Future<int64_t> Held() {
  if (end_of_held == nullptr)
    end_of_held = std::make_unique<Promise<int64_t>>();
  return end_of_held->future();
}
WEFT_RPC_INLINE(Held);

// No two neighbours are equal, nor are the bodies of two seeds.
Floats Body(size_t elements, uint32_t seed) {
  Floats body(elements);
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : body) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8);
  }
  return body;
}

telemetry::Telemetry::Options Silently() {
  telemetry::Telemetry::Options options;
  options.log_level = telemetry::Level::kOff;
  return options;
}

std::unique_ptr<Agent> MakeAgent(transport::Transport& transport,
                                 Directory& directory, uint32_t id,
                                 Executor* executor = nullptr,
                                 telemetry::Telemetry* telemetry = nullptr,
                                 const Limits& limits = {}) {
  AgentOptions options;
  options.limits = limits;
  options.job = "job";
  options.name = absl::StrCat("w", id);
  options.key = WorkerKey{id, 1};
  options.transport = &transport;
  options.directory = &directory;
  options.executor = executor;
  options.telemetry = telemetry;
  auto agent = Agent::Create(options);
  WEFT_CHECK(agent.ok()) << agent.status().ToString();
  return *std::move(agent);
}

// Two agents on threads of their own, whose connections share memory.
class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest() {
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(Worker{name, WorkerKey{i, 1}, name});
      transports_.push_back(std::make_unique<transport::SharingTransport>(
          network_.MakeTransport(name).value(), depot_));
    }
  }
  void Start() {
    for (uint32_t i = 0; i < 2; ++i) {
      agents_.push_back(MakeAgent(*transports_[i], directory_, i));
    }
  }

  // Until w0 and w1 use the memory: what comes later does not use the
  // connection.
  void WarmUp() {
    const Floats body = Body(100000, 1);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
    }
  }

  const std::shared_ptr<transport::MemoryDepot> depot_ =
      std::make_shared<transport::MemoryDepot>();
  transport::LocalNetwork network_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(SharedMemoryTest, LargeBodiesPassThroughItBothWays) {
  Start();
  WarmUp();
  EXPECT_EQ(depot_->ends, 2);
  const int64_t before = depot_->written_bytes;
  // Some times as much as the memory holds.
  const Floats body = Body(6 << 20, 2);
  ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
  EXPECT_LT(depot_->written_bytes - before, 32 << 10);
}

// So that the receiver copies out while the sender copies in.
TEST_F(SharedMemoryTest, BodyOfSomeHundredKilobytesLeavesInSeveralChunks) {
  Start();
  WarmUp();
  const auto messages_of = [&](size_t elements) {
    const int64_t before = depot_->written_messages;
    EXPECT_EQ(*Call(agents_[0]->To("w1"), Size, Body(elements, 3)),
              static_cast<int64_t>(elements));
    return depot_->written_messages - before;
  };
  EXPECT_GE(messages_of(100000), 5);  // four chunks, and the reply
  EXPECT_LE(messages_of(30000), 3);   // 117 KiB: one chunk
}

TEST_F(SharedMemoryTest, CalleeMayUseItFirst) {
  Start();
  const Target w1 = agents_[0]->To("w1");
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Call(w1, Make, 7900)->size(), 7900u);
  EXPECT_EQ(depot_->asked, 0);  // 31 KB: not worth it
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Call(w1, Make, 8300)->size(), 8300u);
  EXPECT_EQ(depot_->ends, 2);
}

TEST_F(SharedMemoryTest, WithoutItBodiesLeaveWithTheMessages) {
  depot_->has_none = true;
  Start();
  const Floats body = Body(3 << 20, 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(*Call(agents_[0]->To("w1"), Mirror, body), body);
  }
  EXPECT_EQ(depot_->asked, 2);  // once by each end
  EXPECT_EQ(depot_->ends, 0);
}

TEST_F(SharedMemoryTest, SmallCallsShareNothing) {
  Start();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(*Call(agents_[0]->To("w1"), Size, Body(100, i)), 100);
  }
  EXPECT_EQ(depot_->asked, 0);
}

TEST_F(SharedMemoryTest, CallsOfManySizesFromManyThreadsKeepTheirBytes) {
  Start();
  const auto statuses = testing::RunRanks(4, [&](int rank) -> absl::Status {
    std::mt19937 random(rank);
    Agent& from = *agents_[rank % 2];
    const Target to = from.To(absl::StrCat("w", 1 - rank % 2));
    for (int round = 0; round < 10; ++round) {
      std::map<uint32_t, Future<Floats>> calls;
      std::map<uint32_t, size_t> sizes;
      for (int i = 0; i < 6; ++i) {
        const uint32_t seed = random();
        sizes[seed] = random() % (i == 0 ? 700000 : 40000);
        calls.emplace(seed, CallAsync(to, Mirror, Body(sizes[seed], seed)));
      }
      for (const auto& [seed, call] : calls) {
        const auto body = call.Wait(absl::Seconds(60));
        if (!body.ok()) return body.status();
        if (*body != Body(sizes[seed], seed)) {
          return absl::DataLossError(absl::StrCat("seed ", seed));
        }
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  EXPECT_EQ(depot_->ends, 4);  // w0 calls w1, and w1 calls w0
}

TEST_F(SharedMemoryTest, ABrokenConnectionLeavesItAndTheNextHasItsOwn) {
  Start();
  WarmUp();
  const Floats body = Body(4 << 20, 4);
  for (int i = 0; i < 5; ++i) {
    Future<Floats> call = CallAsync(agents_[0]->To("w1"), Mirror, body);
    network_.Break("w1");
    ASSERT_EQ(*call.Wait(absl::Seconds(60)), body);
  }
  WarmUp();
  EXPECT_GT(depot_->ends, 2);
}

// Another process may write what it likes there, at any time.
TEST_F(SharedMemoryTest, OverwrittenSharedMemoryGarblesOnlyTheBytes) {
  Start();
  WarmUp();
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(5);
    while (!stop) {
      for (const auto& segment : depot_->segments()) {
        for (int i = 0; i < 1000; ++i) {
          auto* const bytes =
              reinterpret_cast<volatile uint8_t*>(segment->data());
          bytes[random() % segment->size_bytes()] =
              static_cast<uint8_t>(random());
        }
      }
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto reply = Call(agents_[0]->To("w1"), Mirror, Body(300000, i));
    if (reply.ok()) continue;
    // Of the arguments or of the result, whichever was scribbled on.
    EXPECT_TRUE(absl::IsInvalidArgument(reply.status()) ||
                absl::IsInternal(reply.status()))
        << reply.status();
  }
  stop = true;
  scribbler.join();
  WarmUp();
}

// ----------------------------------------------------------- a hostile peer

// One that was let in properly and then writes what a test says.
class Hostile final : public transport::ConnectionObserver {
 public:
  void OnMessage(Slices message) override {
    EXPECT_THAT(ReadBatch(message, Instant(),
                          [this](Frame frame) {
                            frames.push_back(std::move(frame));
                            return absl::OkStatus();
                          }),
                IsOk());
  }
  void OnWritten() override {}
  void OnClosed(absl::Status status) override { closed = status; }

  std::vector<Frame> frames;
  absl::Status closed;
};

// The first message of w0 to w1.
Hello Introduction() {
  Hello hello;
  hello.job = "job";
  hello.name = "w0";
  hello.from = {0, 1};
  hello.to = {1, 1};
  hello.generation = 1;
  return hello;
}

// An agent and the hostile end of its connection.
class HostilePeerTest : public ::testing::Test {
 protected:
  HostilePeerTest(const std::string& agent, const std::string& peer)
      : at_agent_(network_.MakeTransport(agent), depot_),
        at_peer_(network_.MakeTransport(peer), depot_) {}

  template <typename... Frames>
  void Write(const Frames&... frames) {
    BatchWriter batch;
    (batch.Add(frames), ...);
    Send(std::move(batch));
  }
  void Send(BatchWriter&& batch) {
    EXPECT_NE(connection_->Write(std::move(batch).Finish()),
              transport::Connection::Written::kRefused);
    Settle();
  }
  void Settle() {
    Promise<void> never(at_peer_.driver());
    (void)never.future().Wait(absl::Milliseconds(100));
  }

  telemetry::Telemetry telemetry_{Silently()};
  sim::Simulator simulator_{1};
  transport::SimulatedNetwork network_{simulator_,
                                       transport::SimulatedNetwork::Options()};
  const std::shared_ptr<transport::MemoryDepot> depot_ =
      std::make_shared<transport::MemoryDepot>();
  FixedDirectory directory_;
  InlineExecutor executor_;
  transport::SharingTransport at_agent_;
  transport::SharingTransport at_peer_;
  const std::shared_ptr<Hostile> peer_ = std::make_shared<Hostile>();
  std::shared_ptr<transport::Connection> connection_;
  std::unique_ptr<Agent> agent_;
};

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
  EXPECT_EQ(depot_->asked, 0);
}

TEST_F(HostileCallerTest, ChunkInMemoryThatIsNotSharedEndsTheConnection) {
  depot_->has_none = true;
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

Chunk ChunkOf(uint64_t id, Slices data) {
  Chunk chunk;
  chunk.id = id;
  chunk.data = std::move(data);
  return chunk;
}

// Bytes of bodies that are being assembled or kept.
int64_t UsedBytes() { return memory::HostAllocator().stats().used_bytes; }

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
        [this](std::shared_ptr<transport::Connection> connection) {
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
  Future<int64_t> call =
      CallAsync(agent_->To("w1", absl::InfiniteDuration()), Size, Floats(1));
  Settle();
  Write(Welcome());
  lose();
  Write(Welcome());
  EXPECT_FALSE(call.Wait(absl::Milliseconds(9700)).ok());  // it takes long
  lose();
  EXPECT_FALSE(call.Wait(absl::Seconds(1)).ok());  // it is slow to welcome
  EXPECT_FALSE(call.IsReady());
  Write(Welcome());
  EXPECT_FALSE(call.Wait(absl::Minutes(1)).ok());
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

// Has a message in flight until the test says that it was written.
class SlowConnection final : public transport::Connection {
 public:
  Written Write(Slices message) override {
    bytes = TotalSize(message);
    frames.clear();
    EXPECT_THAT(ReadBatch(message, Instant(),
                          [this](Frame frame) {
                            frames.push_back(std::move(frame));
                            return absl::OkStatus();
                          }),
                IsOk());
    return Written::kUnderWay;
  }
  void Close(absl::Status status) override { closed = std::move(status); }

  absl::Status closed;
  std::vector<Frame> frames;  // of the last message
  size_t bytes = 0;
};

class Nobody final : public LinkOwner {
 public:
  absl::Status OnFrame(Link&, Frame&&) override { return absl::OkStatus(); }
  absl::StatusOr<bool> WantsBody(Link&, const Frame&) override { return true; }
  void OnLinkClosed(Link&, absl::Status) override {}
};

RequestPtr RequestOf(uint64_t id, size_t bytes) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->function = "F";
  request->body = {Bytes::Own(std::string(bytes, 'x'))};
  return request;
}

TEST(LinkQueues, ControlMessageWaitsForOneMessageAtMost) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(RequestOf(1, size_t{64} << 20));
  for (uint64_t id = 2; id <= 50; ++id) {
    link->Append(RequestOf(id, Link::kInChunks - 1));
  }
  link->Drain();
  int messages = 1;
  for (; messages <= 200 && !connection->frames.empty(); ++messages) {
    // What is in flight is all that the next close waits for.
    EXPECT_LE(connection->bytes,
              Link::kChunkBytes + Link::kInChunks + Link::kBatchBytes);
    const uint64_t closed = static_cast<uint64_t>(messages);
    link->Append(Ack{{{closed, closed}}, {}});
    connection->frames.clear();
    link->OnWritten();
    ASSERT_FALSE(connection->frames.empty());
    const auto* close = std::get_if<Ack>(&connection->frames.front());
    ASSERT_NE(close, nullptr) << "message " << messages;
    EXPECT_EQ(close->ids.front().first, closed);
    if (connection->frames.size() == 1) break;  // nothing else is left
  }
  EXPECT_GT(messages, 64);  // of the large body alone
  EXPECT_LT(messages, 200);
}

// Takes each message at once, while other threads append the next.
class BusyConnection final : public transport::Connection {
 public:
  Written Write(Slices) override {
    ++written;
    if (written < kMessages) link->Append(RequestOf(written + 1, 1));
    return Written::kDone;
  }
  void GiveWay() override { ++given_way; }
  void Close(absl::Status) override {}

  static constexpr int kMessages = 3 * Link::kInOneGo - 1;
  Link* link = nullptr;
  int written = 0;
  int given_way = 0;
};

TEST(LinkQueues, AThreadWritesSoManyMessagesOfOthersAndNoMore) {
  const auto connection = std::make_shared<BusyConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  connection->link = link.get();
  link->Attach(connection);
  link->Append(RequestOf(1, 1));
  for (int i = 1; i <= 2; ++i) {
    i == 1 ? link->Drain() : link->OnWritten();
    EXPECT_EQ(connection->written, i * Link::kInOneGo);
    EXPECT_EQ(connection->given_way, i);
    // Nobody else writes before OnWritten has come.
    EXPECT_FALSE(link->Append(Ack{{{1, 1}}, {}}));
    link->Drain();
    EXPECT_EQ(connection->written, i * Link::kInOneGo);
  }
  link->OnWritten();
  EXPECT_EQ(connection->written, BusyConnection::kMessages);
  EXPECT_EQ(connection->given_way, 2);
  EXPECT_TRUE(link->Append(Ack{{{2, 2}}, {}}));  // free again
}

// Has more messages at hand if the test says so.
class BurstConnection final : public transport::Connection {
 public:
  Written Write(Slices) override {
    ++written;
    return Written::kDone;
  }
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    ++asked;
    if (in_burst) after = std::move(fn);
    return in_burst;
  }
  void Close(absl::Status) override { closed = true; }

  bool in_burst = true;
  absl::AnyInvocable<void() &&> after;
  int asked = 0;
  int written = 0;
  bool closed = false;
};

// Answers each request with a reply.
class Replier final : public LinkOwner {
 public:
  absl::Status OnFrame(Link& link, Frame&& frame) override {
    auto reply = std::make_shared<Reply>();
    reply->id = std::get<RequestFrame>(frame).request->id;
    link.Append(ReplyPtr(std::move(reply)));
    link.Drain();
    return absl::OkStatus();
  }
  absl::StatusOr<bool> WantsBody(Link&, const Frame&) override { return true; }
  void OnLinkClosed(Link&, absl::Status) override {}
};

class LinkBurst : public ::testing::Test {
 protected:
  LinkBurst() { link_->Attach(connection_); }
  // What waits for the end of a burst holds the link, and so the connection.
  ~LinkBurst() override { connection_->after = nullptr; }
  void Receive() {
    BatchWriter batch;
    batch.Add(*RequestOf(++id_, 1), Instant(), /*body_follows=*/false);
    link_->OnMessage(std::move(batch).Finish());
  }

  const std::shared_ptr<BurstConnection> connection_ =
      std::make_shared<BurstConnection>();
  const std::shared_ptr<Link> link_ = std::make_shared<Link>(
      std::make_shared<Replier>(), SteadyClock(), int64_t{1} << 30);
  uint64_t id_ = 0;
};

TEST_F(LinkBurst, RepliesOfABurstLeaveTogether) {
  for (int i = 0; i < 5; ++i) Receive();
  EXPECT_EQ(connection_->written, 0);
  EXPECT_EQ(connection_->asked, 1);
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  Receive();
  EXPECT_EQ(connection_->written, 1);
  EXPECT_EQ(connection_->asked, 2);
}

TEST_F(LinkBurst, ReplyWithoutABurstLeavesAtOnce) {
  connection_->in_burst = false;
  Receive();
  EXPECT_EQ(connection_->written, 1);
}

TEST_F(LinkBurst, AfterAWaitForNothingRepliesLeaveAtOnceForAWhile) {
  Receive();
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  for (int i = 0; i < Link::kAloneAfterBurst; ++i) Receive();
  EXPECT_EQ(connection_->written, 1 + Link::kAloneAfterBurst);
  EXPECT_EQ(connection_->asked, 1);
  Receive();
  EXPECT_EQ(connection_->asked, 2);
}

TEST_F(LinkBurst, ConnectionWithoutBurstsIsAskedSeldom) {
  connection_->in_burst = false;
  const int messages = Link::kMessagesWithoutBurst + 170;
  for (int i = 0; i < messages; ++i) Receive();
  EXPECT_EQ(connection_->written, messages);
  EXPECT_GE(connection_->asked, Link::kMessagesWithoutBurst);
  EXPECT_LE(connection_->asked, Link::kMessagesWithoutBurst + 11);
  connection_->in_burst = true;
  for (int i = 0; i <= Link::kAloneAfterBurst; ++i) Receive();
  EXPECT_TRUE(connection_->after != nullptr);
}

TEST_F(LinkBurst, LinkThatEndsAfterWritingWritesTheBurstFirst) {
  Receive();
  link_->End(absl::OkStatus(), /*after_writing=*/true);
  EXPECT_FALSE(connection_->closed);
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 1);
  EXPECT_TRUE(connection_->closed);
}

TEST_F(LinkBurst, EndOfABurstAfterTheLinksEndDoesNothing) {
  Receive();
  link_->OnClosed(absl::UnavailableError("reset"));
  std::move(connection_->after)();
  EXPECT_EQ(connection_->written, 0);
}

// Gives each message that leaves to another link.
class Handover final : public transport::Connection {
 public:
  explicit Handover(Link* to) : to_(to) {}
  Written Write(Slices message) override {
    to_->OnMessage(std::move(message));
    return Written::kUnderWay;
  }
  void Close(absl::Status status) override { closed = std::move(status); }

  absl::Status closed;

 private:
  Link* const to_;
};

TEST(LinkQueues, ABodyIsCutOffWhenItsCallEndsAndLeavesItsRoomToOthers) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto receiver =
      std::make_shared<Link>(std::make_shared<Nobody>(), SteadyClock(),
                             int64_t{kBytes} + 2 * Link::kBodyOverheadBytes);
  const auto back = std::make_shared<SlowConnection>();
  receiver->Attach(back);
  const auto connection = std::make_shared<Handover>(receiver.get());
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  for (uint64_t id = 1; id <= 10; ++id) {
    link->Append(RequestOf(id, kBytes));
    link->Drain();
    link->OnWritten();  // two chunks of it have left
    link->Sweep([id](uint64_t ended) { return ended == id; });
    link->OnWritten();
    // Not told that it is too much, nor sent the rest.
    EXPECT_THAT(back->closed, IsOk()) << "call " << id;
  }
}

// Each costs far more than the byte that it announces.
TEST(Bodies, TinyBodiesAreBoundedByTheirMemory) {
  constexpr int64_t kMost = 100;
  const auto link =
      std::make_shared<Link>(std::make_shared<Nobody>(), SteadyClock(),
                             kMost * (Link::kBodyOverheadBytes + 2));
  const auto connection = std::make_shared<SlowConnection>();
  link->Attach(connection);
  const auto announce = [&](uint64_t id, const std::string& function) {
    Request request;
    request.id = id;
    request.function = function;
    request.body = {Bytes::Copy("x")};
    BatchWriter batch;
    batch.Add(request, Instant(), /*body_follows=*/true);
    link->OnMessage(std::move(batch).Finish());
  };
  for (uint64_t id = 1; id <= kMost; ++id) announce(id, "F");
  EXPECT_THAT(connection->closed, IsOk());
  for (uint64_t id = 1; id <= kMost; ++id) {  // each leaves its room
    BatchWriter batch;
    batch.Add(ChunkOf(id, id % 2 == 0 ? Slices() : Slices{Bytes::Copy("x")}));
    link->OnMessage(std::move(batch).Finish());
  }
  announce(1, std::string(kMost * Link::kBodyOverheadBytes / 2, 'F'));
  EXPECT_THAT(connection->closed, IsOk());
  for (uint64_t id = 2; id <= kMost / 2 + 1; ++id) announce(id, "F");
  EXPECT_THAT(connection->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "a body of 1 bytes is announced while 50 others"));
  EXPECT_THAT(connection->closed, StatusIs(absl::StatusCode::kResourceExhausted,
                                           "--limits=rpc_bytes=VALUE"));
}

// More than 32 bits count, of one block over and over: F40.
constexpr uint64_t kOverhang = 12345;
constexpr uint64_t kHuge = (uint64_t{1} << 32) + kOverhang;

RequestPtr HugeRequest() {
  constexpr uint64_t kBlock = 1 << 20;
  auto request = std::make_shared<Request>();
  request->id = 1;
  request->function = "F";
  const Bytes block = Bytes::Own(std::string(kBlock, 'x'));
  for (uint64_t left = kHuge, size = 0; left > 0; left -= size) {
    size = std::min(left, kBlock);
    request->body.push_back(block.subspan(0, size));
  }
  return request;
}

TEST(Bodies, OfMoreThanFourGigabytesLeaveWhole) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(HugeRequest());
  link->Drain();
  uint64_t announced = 0;
  uint64_t left = 0;
  while (!connection->frames.empty()) {
    for (const Frame& frame : connection->frames) {
      if (const auto* request = std::get_if<RequestFrame>(&frame)) {
        announced = request->body_bytes;
      } else if (const auto* chunk = std::get_if<Chunk>(&frame)) {
        left += TotalSize(chunk->data);
      }
    }
    connection->frames.clear();
    link->OnWritten();
  }
  EXPECT_EQ(announced, kHuge);
  EXPECT_EQ(left, kHuge);
}

// Of its memory only what has come is touched.
TEST(Bodies, OfMoreThanFourGigabytesAreTakenWhereTheyAreAdmitted) {
  for (const int64_t admitted : {Limits().bytes, int64_t{1} << 33}) {
    const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                             SteadyClock(), admitted);
    const auto connection = std::make_shared<SlowConnection>();
    link->Attach(connection);
    const int64_t before = UsedBytes();
    BatchWriter batch;
    batch.Add(*HugeRequest(), Instant(), /*body_follows=*/true);
    link->OnMessage(std::move(batch).Finish());
    if (admitted < int64_t{kHuge}) {
      EXPECT_THAT(connection->closed,
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           absl::StrCat("a body of ", kHuge, " bytes")));
      continue;
    }
    for (int i = 0; i < 2; ++i) {
      BatchWriter more;
      more.Add(ChunkOf(1, {Bytes::Own(std::string(kOverhang, 'x'))}));
      link->OnMessage(std::move(more).Finish());
    }
    EXPECT_THAT(connection->closed, IsOk());
    EXPECT_GE(UsedBytes() - before, int64_t{kHuge});  // it goes on
  }
}

// As a callee sends again what it is asked for again, on one connection.
TEST(LinkQueues, BodiesThatWaitForTheirTurnAreBoundedToo) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  const RequestPtr body = RequestOf(1, Link::kInChunks);
  size_t appended = 0;
  while (connection->closed.ok() && appended < 2 * Link::kMaxWaiting) {
    // More than one message takes along: the outbox is never empty for long.
    for (int i = 0; i < 4000; ++i, ++appended) link->Append(body);
    link->OnWritten();
  }
  EXPECT_THAT(connection->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "messages wait for a peer to read them"));
}

TEST(LinkQueues, SweepKeepsBodiesThatAreAwaited) {
  const auto connection = std::make_shared<SlowConnection>();
  const auto link = std::make_shared<Link>(std::make_shared<Nobody>(),
                                           SteadyClock(), int64_t{1} << 30);
  link->Attach(connection);
  link->Append(RequestOf(1, 1));
  link->Drain();
  for (uint64_t id = 2; id <= 9; ++id) {
    EXPECT_FALSE(link->is_heavy());
    link->Append(RequestOf(id, Link::kHeavyBytes / 8 + 1));
  }
  EXPECT_TRUE(link->is_heavy());
  link->Sweep([](uint64_t id) { return id % 2 == 0; });
  EXPECT_FALSE(link->is_heavy());
  std::vector<uint64_t> left;
  for (int i = 0; i < 20; ++i) {
    link->OnWritten();
    for (const Frame& frame : connection->frames) {
      const auto* request = std::get_if<RequestFrame>(&frame);
      if (request != nullptr) left.push_back(request->request->id);
    }
    connection->frames.clear();
  }
  EXPECT_THAT(left, ::testing::ElementsAre(3, 5, 7, 9));
}

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
  std::shared_ptr<transport::Connection> Connect(
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
    observer_ = *door_.open(std::make_shared<SlowConnection>());
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

TEST(GivenUpCalls, OfLargeArgumentsDoNotOverrunTheCallee) {
  telemetry::Telemetry telemetry{Silently()};
  SimulatedRanks::Options options;
  options.limits.bytes = int64_t{1} << 20;
  options.telemetry = &telemetry;
  SimulatedRanks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  ASSERT_THAT(Call(w1, Size, Floats(10)), IsOkAndHolds(10));
  const Floats half(options.limits.bytes / 2 / sizeof(float));
  for (int i = 0; i < 6; ++i) {
    CallAsync(w1, Size, half).Cancel(absl::CancelledError("the test"));
  }
  EXPECT_THAT(Call(w1, Size, half), IsOkAndHolds(half.size()));
  EXPECT_THAT(telemetry.recorder().DumpText(),
              ::testing::Not(::testing::HasSubstr("rpc.lost")));
}

TEST(Results, OneThatIsTooMuchEndsItsOwnCallAlone) {
  telemetry::Telemetry telemetry{Silently()};
  SimulatedRanks::Options options;
  options.result_bytes = int64_t{1} << 20;
  options.telemetry = &telemetry;
  SimulatedRanks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  Future<Floats> large = CallAsync(w1, Make, int64_t{1} << 20);
  Future<int64_t> small = CallAsync(w1, Size, Floats(3));
  EXPECT_THAT(small.Wait(absl::Minutes(1)), IsOkAndHolds(3));
  const absl::Status end = large.Wait(absl::Minutes(1)).status();
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted,
                            "Make: its result cannot be read: a body of"));
  EXPECT_EQ(PhaseOf(end), Phase::kDecode);
  EXPECT_FALSE(OutcomeUnknown(end));
  // Nor does what was passed over stand in the way of the next.
  const Future<Floats> fits = CallAsync(w1, Make, int64_t{1} << 17);
  EXPECT_THAT(fits.Wait(absl::Minutes(1)), IsOk());
  EXPECT_THAT(telemetry.recorder().DumpText(),
              ::testing::Not(::testing::HasSubstr("rpc.lost")));
}

// ------------------------------------------------------- a network that breaks

int64_t MarkOnce(CallContext& context, int64_t i, const Floats& body) {
  ++(*context.Local<std::vector<int64_t>>())[i];
  return body == Body(body.size(), static_cast<uint32_t>(i));
}
WEFT_RPC_INLINE(MarkOnce);

TEST(SimulatedSharedMemory, EachCallRunsOnceWithItsBytesUnderAnyFaults) {
  constexpr int64_t kCalls = 12;
  int ends = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    sim::Simulator simulator(seed);
    transport::SimulatedNetwork::Options network_options;
    network_options.breaks = 0.05;
    transport::SimulatedNetwork network(simulator, network_options);
    const auto depot = std::make_shared<transport::MemoryDepot>();
    FixedDirectory directory;
    InlineExecutor executor;
    std::vector<std::unique_ptr<transport::Transport>> transports;
    std::vector<std::unique_ptr<Agent>> agents;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory.Put(Worker{name, WorkerKey{i, 1}, name});
      transports.push_back(std::make_unique<transport::SharingTransport>(
          network.MakeTransport(name), depot));
      agents.push_back(MakeAgent(*transports.back(), directory, i, &executor));
    }
    std::vector<int64_t> marks(kCalls);
    agents[1]->SetLocal(&marks);
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < kCalls; ++i) {
      calls.push_back(CallAsync(agents[0]->To("w1"), MarkOnce, i,
                                Body(i % 3 == 0 ? 50000 : 9000, i)));
    }
    for (const Future<int64_t>& call : calls) {
      const auto is_whole = call.Wait(absl::Seconds(60));
      ASSERT_THAT(is_whole.status(), IsOk()) << "seed " << seed;
      EXPECT_EQ(*is_whole, 1) << "seed " << seed;
    }
    EXPECT_THAT(marks, ::testing::Each(1)) << "seed " << seed;
    ends += depot->ends;
    agents.clear();
  }
  EXPECT_GT(ends, 10);
}

}  // namespace
}  // namespace weft::rpc
