#include "weft/transport/grpc_transport.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/base/thread_pool.h"
#include "weft/net/channel.h"
#include "weft/net/endpoint.h"
#include "weft/net/tls/certificates.h"
#include "weft/net/tls/credentials.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/no_free_descriptors.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/shm/message_ring.h"
#include "weft/transport/shm/ring_connection.h"
#include "weft/transport/testing/observers.h"

namespace weft::rpc {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// One process's part: a loop, an endpoint at a socket, a transport.
class Node {
 public:
  Node(const TempDir& directory, const std::string& name, int memories = 64)
      : Node(absl::StrCat("unix:", directory.path(), "/", name), name,
             memories) {}
  // By TCP, as who the certificate says.
  explicit Node(net::Credentials credentials)
      : Node("127.0.0.1:0", credentials.identity()->Name(), 0,
             net::LoopOptions{credentials}) {}
  Node(const std::string& listen, const std::string& name, int memories,
       net::LoopOptions loop_options = {})
      : name_(name) {
    auto loop = net::Loop::Create(std::move(loop_options));
    WEFT_CHECK(loop.ok()) << loop.status().ToString();
    loop_ = *std::move(loop);
    net::EndpointOptions options;
    options.name = name;
    options.listen = listen;
    // A probe's connection would count among what calls leave.
    options.probe_every = absl::ZeroDuration();
    auto endpoint = net::Endpoint::Open(*loop_, options);
    WEFT_CHECK(endpoint.ok()) << endpoint.status().ToString();
    endpoint_ = *std::move(endpoint);
    transport::GrpcTransportOptions transport_options;
    transport_options.max_shared_memories = memories;
    transport_ =
        transport::MakeGrpcTransport(*loop_, *endpoint_, transport_options);
    transport_->Register(ConnectionPurpose());
    RegisterOther();
    const absl::Status started = endpoint_->Start();
    WEFT_CHECK(started.ok()) << started.ToString();
  }

  transport::Transport& transport() { return *transport_; }
  net::Loop& loop() { return *loop_; }
  const std::string& address() const { return endpoint_->address(); }
  Worker worker(uint32_t id) const {
    return {name_, {id, 1}, endpoint_->address()};
  }
  transport::Destination destination() const {
    return {name_, endpoint_->address()};
  }
  void Drop() { endpoint_.reset(); }

 private:
  // A service on the same port that is independent of calls.
  void RegisterOther() {
    endpoint_->RegisterUnary("/test.Other/Echo", [](net::IncomingCall call) {
      call.Reply(call.TakeRequest());
    });
    endpoint_->RegisterUnary("/test.Other/Never", [this](net::IncomingCall c) {
      unanswered_.push_back(std::move(c));
    });
  }

  const std::string name_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<transport::Transport> transport_;
  std::vector<net::IncomingCall> unanswered_;
};

// ------------------------------------------------------- agents over gRPC

int64_t Twice(int64_t x) { return 2 * x; }
WEFT_RPC(Twice);

std::vector<float> Echo(std::vector<float> x) { return x; }
WEFT_RPC_INLINE(Echo);

absl::Status Stay(CallContext& context) {
  Promise<void> stopped;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status& why) { stopped.Set(why); });
  return stopped.future().Wait(absl::Seconds(60));
}
WEFT_RPC(Stay);

int64_t ForClients(int64_t x) { return x; }
WEFT_RPC(ForClients);
WEFT_RPC_ROLES(ForClients, "client", "trainer");

int64_t ForAdmin(int64_t x) { return x; }
WEFT_RPC_INLINE(ForAdmin);
WEFT_RPC_ROLES(ForAdmin, "admin");

int64_t TwiceInline(int64_t x) { return 2 * x; }
WEFT_RPC_INLINE(TwiceInline);

std::string RoleOfPeer(CallContext& context) { return context.peer().role; }
WEFT_RPC(RoleOfPeer);

int64_t Sum(const Tensor& x) {
  double sum = 0;
  for (const float v : x.span<float>()) sum += v;
  return static_cast<int64_t>(sum);
}
WEFT_RPC_INLINE(Sum);

absl::StatusOr<int64_t> PingPong(CallContext& context, std::string other,
                                 int64_t depth) {
  if (depth == 0) return 0;
  WEFT_ASSIGN_OR_RETURN(
      const int64_t below,
      Call(context.To(other), PingPong, context.agent().name(), depth - 1));
  return below + 1;
}
WEFT_RPC(PingPong);

// How often it ran in this process.
int64_t CountUp() {
  static std::atomic<int64_t> runs{0};
  return ++runs;
}
WEFT_RPC(CountUp);

class Total {
 public:
  explicit Total(int64_t start) : sum_(start) {}
  int64_t Add(int64_t x) { return sum_ += x; }

 private:
  std::atomic<int64_t> sum_;
};
WEFT_RPC_CLASS(Total, int64_t);
WEFT_RPC_METHOD(Total, Add);

class Diary {
 public:
  int64_t Read() const { return pages_; }
  void Burn() { pages_ = 0; }

 private:
  std::atomic<int64_t> pages_{7};
};
WEFT_RPC_CLASS(Diary);
WEFT_RPC_CLASS_ROLES(Diary, "client", "admin");
WEFT_RPC_METHOD(Diary, Read);
WEFT_RPC_METHOD(Diary, Burn);
WEFT_RPC_METHOD_ROLES(Diary, Burn, "admin");

absl::Status PagesForClients(Writer<int64_t> out) { return out.Write(1); }
WEFT_RPC_STREAM(PagesForClients);
WEFT_RPC_ROLES(PagesForClients, "client");

absl::Status Rows(Writer<Tensor> out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    WEFT_RETURN_IF_ERROR(
        out.Write(Tensor::Full({4096}, static_cast<double>(i))));
  }
  return absl::OkStatus();
}
WEFT_RPC_STREAM(Rows);

int64_t SumRows(Reader<Tensor> in) {
  double sum = 0;
  for (auto x = in.Next(); x.ok() && x->has_value(); x = in.Next()) {
    for (const float v : (*x)->span<float>()) sum += v;
  }
  return static_cast<int64_t>(sum);
}
WEFT_RPC_STREAM(SumRows);

absl::Status ScaleRows(Reader<Tensor> in, Writer<Tensor> out, double k) {
  for (;;) {
    WEFT_ASSIGN_OR_RETURN(std::optional<Tensor> x, in.Next());
    if (!x.has_value()) return absl::OkStatus();
    for (float& v : x->span<float>()) v *= static_cast<float>(k);
    WEFT_RETURN_IF_ERROR(out.Write(*std::move(x)));
  }
}
WEFT_RPC_STREAM(ScaleRows);

class GrpcAgents : public ::testing::Test {
 protected:
  explicit GrpcAgents(int max_threads = 256) : max_threads_(max_threads) {
    directory_.Put(a_.worker(0));
    directory_.Put(b_.worker(1));
    agent_a_ = MakeAgent(a_, "a", 0);
    agent_b_ = MakeAgent(b_, "b", 1);
  }

  std::unique_ptr<Agent> MakeAgent(Node& node, const std::string& name,
                                   uint32_t id, uint64_t epoch = 1,
                                   Executor* executor = nullptr) {
    AgentOptions options;
    options.job = "job";
    options.name = name;
    options.key = WorkerKey{id, epoch};
    options.transport = &node.transport();
    options.directory = &directory_;
    options.executor = executor;
    options.threads = 4;
    options.max_threads = max_threads_;
    options.give_up_after = give_up_after_;
    auto agent = Agent::Create(options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  }

  // For tests that wait for it. They connect under it first.
  void GiveUpSoon() {
    give_up_after_ = absl::Seconds(4);
    agent_a_ = MakeAgent(a_, "a", 0, 2);
  }

  // From a and b in turn, through ten nested calls.
  std::vector<Future<int64_t>> StartTwelveChains(absl::Duration timeout) {
    std::vector<Future<int64_t>> chains;
    for (int i = 0; i < 12; ++i) {
      chains.push_back(
          i % 2 == 0
              ? CallAsync(agent_a_->To("b", timeout), PingPong, "a", 10)
              : CallAsync(agent_b_->To("a", timeout), PingPong, "b", 10));
    }
    return chains;
  }

  const int max_threads_;
  absl::Duration give_up_after_ = absl::Seconds(30);
  TempDir temp_;
  FixedDirectory directory_;
  Node a_{temp_, "a"};
  Node b_{temp_, "b"};
  std::unique_ptr<Agent> agent_a_;
  std::unique_ptr<Agent> agent_b_;
};

TEST_F(GrpcAgents, CallBothWays) {
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(*Call(agent_b_->To("a"), Twice, 5), 10);
}

TEST_F(GrpcAgents, GatherManyCallsAndChunkLargeOnes) {
  const Target b = agent_a_->To("b");
  const std::vector<float> large(1 << 20, 1.5f);
  Future<std::vector<float>> echoed = CallAsync(b, Echo, large);
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 1000; ++i) calls.push_back(CallAsync(b, Twice, i));
  for (int64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(*calls[i].Wait(absl::Seconds(30)), 2 * i);
  }
  EXPECT_EQ(*echoed.Wait(absl::Seconds(30)), large);
}

TEST_F(GrpcAgents, WithNothingToDoBurnNoCpu) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 1), 2);
  timespec before;
  timespec after;
  // The wait itself is the pause: both agents are connected and idle in it.
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  Promise<void> never(a_.transport().driver());
  EXPECT_FALSE(never.future().Wait(absl::Milliseconds(500)).ok());
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const int64_t used_ms = (after.tv_sec - before.tv_sec) * 1000 +
                          (after.tv_nsec - before.tv_nsec) / 1'000'000;
  EXPECT_LT(used_ms, 100);
}

TEST_F(GrpcAgents, SmallCallsOvertakeALargeTensor) {
  const Target b = agent_a_->To("b");
  const Tensor x = Tensor::Ones({16 << 20});  // 64 MiB
  int overtook = 0;
  // Behind it none would ever end first; a busy machine may hold this thread up
  // for one large call, hardly for ten.
  for (int round = 0; round < 10 && overtook < 5; ++round) {
    const Future<int64_t> large = CallAsync(b, Sum, x);
    while (!large.IsReady()) {
      ASSERT_EQ(*Call(b, TwiceInline, 4), 8);
      if (!large.IsReady()) ++overtook;
    }
    EXPECT_EQ(*large.Wait(absl::Seconds(60)), 16 << 20);
  }
  EXPECT_GE(overtook, 5);
}

// PROBE-P6
TEST_F(GrpcAgents, TwelvePingPongChainsOnFourThreadsFinish) {
  for (const auto& chain : StartTwelveChains(absl::Seconds(60))) {
    EXPECT_THAT(chain.Wait(absl::Seconds(60)), IsOkAndHolds(10));
  }
}

class GrpcAgentsOfFourThreads : public GrpcAgents {
 protected:
  GrpcAgentsOfFourThreads() : GrpcAgents(4) {}
};

// PROBE-P6. Each chain needs more threads of a worker than there are, so that
// all are held until calls that got none end and say so, or time is up.
TEST_F(GrpcAgentsOfFourThreads, ChainsThatCannotFinishEndAtTheirDeadline) {
  const Instant start = SteadyClock().Now();
  // Enough to see more than once that none of the threads goes on.
  const auto chains = StartTwelveChains(absl::Seconds(6));
  int said_why = 0;
  for (const auto& chain : chains) {
    const absl::Status end = chain.Wait(absl::Seconds(60)).status();
    EXPECT_THAT(end.code(), AnyOf(absl::StatusCode::kResourceExhausted,
                                  absl::StatusCode::kDeadlineExceeded))
        << end;
    said_why += end.ToString().find("no thread was free") != std::string::npos;
  }
  EXPECT_GT(said_why, 0);
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(30));
}

TEST_F(GrpcAgents, ObjectsAndStreams) {
  const Target b = agent_a_->To("b");
  const auto total = Make<Total>(b, 5);
  ASSERT_THAT(total, IsOk());
  EXPECT_EQ(*Call(*total, &Total::Add, 3), 8);
  EXPECT_THAT(Release(*total), IsOk());
  EXPECT_THAT(Call(*total, &Total::Add, 3),
              StatusIs(absl::StatusCode::kNotFound, "b"));
  Reader<Tensor> reader = OpenStream(b, Rows, 300);
  int64_t rows = 0;
  for (;;) {
    const auto row = reader.Next();
    ASSERT_THAT(row, IsOk());
    if (!row->has_value()) break;
    EXPECT_EQ((*row)->span<float>()[0], rows++);
  }
  EXPECT_EQ(rows, 300);
  auto upload = OpenStream(b, SumRows);
  auto scaled = OpenStream(b, ScaleRows, 2.0);
  for (int64_t i = 0; i < 300; ++i) {
    const Tensor row = Tensor::Full({4096}, static_cast<double>(i));
    ASSERT_THAT(upload.Write(row), IsOk());
    ASSERT_THAT(scaled.Write(row), IsOk());
    const auto y = scaled.Next();
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ((*y)->span<float>()[4095], 2 * i);
  }
  EXPECT_EQ(*upload.Finish(), 4096 * 300 * 299 / 2);
  scaled.EndWriting();
  EXPECT_EQ(*scaled.Next(), std::nullopt);
}

// F13: what else listens at the port neither needs calls nor holds them up.
TEST_F(GrpcAgents, ShareTheirPortWithAnUnrelatedService) {
  WEFT_ASSERT_OK_AND_ASSIGN(const auto channel,
                            net::Channel::Create(a_.loop(), b_.address()));
  const auto other = [&](const char* method) {
    return channel->UnaryCall(absl::StrCat("/test.Other/", method),
                              {Bytes::Copy("x")}, absl::Seconds(30));
  };
  std::vector<Future<Slices>> stuck;
  for (int i = 0; i < 64; ++i) stuck.push_back(other("Never"));
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  const Future<void> stay = CallAsync(agent_a_->To("b"), Stay);
  EXPECT_THAT(other("Echo").Wait(absl::Seconds(30)), IsOk());
  agent_b_.reset();  // the one ends, the other stays
  agent_a_->PeerGone({1, 1}, "it ended");
  EXPECT_THAT(stay.Wait(absl::Seconds(30)), ::testing::Not(IsOk()));
  EXPECT_THAT(other("Echo").Wait(absl::Seconds(30)), IsOk());
  EXPECT_FALSE(stuck[0].IsReady());
  Worker next = b_.worker(1);
  next.key.epoch = 2;
  directory_.Put(next);
  agent_b_ = MakeAgent(b_, "b", 1, 2);  // and begins after it
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 5), 10);
}

TEST_F(GrpcAgents, ALostPeerEndsItsCallsInTime) {
  GiveUpSoon();
  Future<void> call = CallAsync(agent_a_->To("b"), Stay);
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 1), 2);
  agent_b_.reset();
  b_.Drop();
  const absl::Status status = call.Wait(absl::Seconds(30));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "b"));
  EXPECT_TRUE(OutcomeUnknown(status));
  EXPECT_THAT(Call(agent_a_->To("b"), Twice, 1),
              StatusIs(absl::StatusCode::kUnavailable, "could not be reached"));
}

// Both ends are this process here: it has no descriptor left to connect with.
TEST_F(GrpcAgents, WantOfDescriptorsIsNotBlamedOnThePeer) {
  GiveUpSoon();
  absl::Status status;
  {
    const testing::NoFreeDescriptors none;
    status = Call(agent_a_->To("b"), Twice, 1).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               "this process could not connect to b at unix:"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               "raise it by `ulimit -n`"));
  EXPECT_THAT(Call(agent_a_->To("b"), Twice, 2), IsOkAndHolds(4));
}

// A function that runs for a second, or until the test lets it end.
struct LongRun {
  std::atomic<int> running{0};
  Parker began;
  Parker may_end;
};
LongRun& TheLongRun() {
  static auto* const run = new LongRun();
  return *run;
}
void RunLong() {
  LongRun& run = TheLongRun();
  ++run.running;
  run.began.Unpark();
  (void)run.may_end.ParkUntil(SteadyClock().Now() + absl::Seconds(1));
  --run.running;
}
WEFT_RPC(RunLong);

// Goes on once RunLong has begun: it is not told before that it was cancelled.
class PromptExecutor final : public Executor {
 public:
  void Schedule(Task task) override {
    pool_->Schedule(std::move(task));
    EXPECT_TRUE(IsWoken(TheLongRun().began));
  }

 private:
  const std::unique_ptr<ThreadPool> pool_ = *ThreadPool::Create({});
};

TEST_F(GrpcAgents, NoFunctionOutlivesItsAgent) {
  PromptExecutor executor;
  agent_b_.reset();
  agent_b_ = MakeAgent(b_, "b", 1, 1, &executor);
  const ScopedFailpoint about_to("rpc/serve", "block");
  const Future<void> call = CallAsync(agent_a_->To("b"), RunLong);
  EXPECT_TRUE(Becomes([&] { return about_to.hits() == 1; }));
  const ScopedFailpoint stopped("rpc/stopped", "off");
  std::thread ends([&] { agent_b_.reset(); });
  EXPECT_TRUE(Becomes([&] { return stopped.hits() == 1; }));
  DisarmFailpoint("rpc/serve");
  ends.join();
  EXPECT_EQ(TheLongRun().running, 0);
  TheLongRun().may_end.Unpark();
}

// ----------------------------------------------------------- shared memory

int CountDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

// Mappings of memory that connections share: for each end that is here one for
// messages and, once there was a large body, one for bodies.
int CountMemories() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:weft-rings") != line.npos;
  }
  return count;
}

TEST_F(GrpcAgents, OneHundredConnectionsLeaveNeitherDescriptorsNorMemory) {
  const std::vector<float> large(50000, 2.5f);
  const auto use = [&] {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
    }
  };
  use();
  EXPECT_EQ(CountMemories(), 2);
  const int before = CountDescriptors();
  for (uint64_t epoch = 2; epoch < 102; ++epoch) {
    agent_a_ = MakeAgent(a_, "a", 0, epoch);
    use();
  }
  // b may not have heard yet of all that ended.
  Clock& clock = a_.transport().clock();
  const Instant deadline = clock.Now() + absl::Seconds(30);
  while ((CountMemories() > 2 || CountDescriptors() > before) &&
         clock.Now() < deadline) {
    use();
  }
  EXPECT_EQ(CountMemories(), 2);
  EXPECT_LE(CountDescriptors(), before);
}

TEST(GrpcTransport, ClosesTheChannelToARestartedPeersOldAddress) {
  TempDir directory;
  const auto at = [&](const std::string& socket) {
    return absl::StrCat("unix:", directory.path(), "/", socket);
  };
  Node here(directory, "a");
  Node first(at("1"), "ps0", 0);
  Node second(at("2"), "ps0", 0);
  const auto greet = [&](const Node& node) {
    const auto hears =
        std::make_shared<transport::HearingObserver>(here.transport().driver());
    const auto connection = here.transport().Connect(ConnectionPurpose(),
                                                     node.destination(), hears);
    EXPECT_FALSE(hears->closed().Wait(absl::Seconds(20)).ok());
  };
  greet(first);  // where no agent listens
  const int before = CountDescriptors();
  greet(second);
  EXPECT_TRUE(Becomes([&] { return CountDescriptors() <= before; }))
      << CountDescriptors() << " descriptors, not " << before;
}

TEST(GrpcSharedMemory, GoesToSoManyConnectionsAndNoMore) {
  TempDir temp;
  FixedDirectory directory;
  Node server(temp, "s", /*memories=*/2);
  directory.Put(server.worker(9));
  AgentOptions options;
  options.job = "job";
  options.directory = &directory;
  options.name = "s";
  options.key = WorkerKey{9, 1};
  options.transport = &server.transport();
  const auto agent = *Agent::Create(options);
  const std::vector<float> large(50000, 2.5f);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Agent>> agents;
  for (uint32_t i = 0; i < 4; ++i) {
    options.name = absl::StrCat("c", i);
    options.key = WorkerKey{i, 1};
    nodes.push_back(std::make_unique<Node>(temp, options.name, 1));
    options.transport = &nodes.back()->transport();
    agents.push_back(*Agent::Create(options));
    for (int round = 0; round < 3; ++round) {
      ASSERT_EQ(*Call(agents.back()->To("s"), Echo, large), large);
    }
  }
  // The first two have some, at both ends; the others nothing.
  EXPECT_EQ(CountMemories(), 4);
  // What was refused is free for another.
  Node other(temp, "other");
  directory.Put(other.worker(8));
  options.name = "other";
  options.key = WorkerKey{8, 1};
  options.transport = &other.transport();
  const auto other_agent = *Agent::Create(options);
  ASSERT_EQ(*Call(agents.back()->To("other"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 6);
}

// What was written into the rings of this process, in all.
uint64_t BytesInRings() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-rings") == line.npos) continue;
    auto* const begin =
        reinterpret_cast<std::byte*>(std::strtoull(line.c_str(), nullptr, 16));
    for (const uint64_t offset :
         {uint64_t{0},
          transport::RingMemory::BytesFor(transport::SharedRings::kCapacity)}) {
      bytes += transport::RingMemory::At(begin + offset,
                                         transport::SharedRings::kCapacity)
                   .words->written.load();
    }
  }
  return bytes;
}

// How many of the mapped halves for bodies hold something.
int UsedBodyMemories() {
  std::ifstream maps("/proc/self/maps");
  int used = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:weft-rings") == line.npos) continue;
    auto* const bodies =
        reinterpret_cast<std::byte*>(std::strtoull(line.c_str(), nullptr, 16)) +
        transport::SharedRings::kRingBytes;
    for (const size_t half : {size_t{0}, transport::BodyMemory::kBytes}) {
      used += std::any_of(bodies + half, bodies + half + 4096,
                          [](std::byte b) { return b != std::byte{0}; })
                  ? 1
                  : 0;
    }
  }
  return used;
}

TEST_F(GrpcAgents, LargeBodiesWithinTheHostPassThroughTheMemoryOfTheRings) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(UsedBodyMemories(), 0);
  const std::vector<float> large(50000, 2.5f);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
  }
  EXPECT_EQ(UsedBodyMemories(), 4);  // both halves, which both ends map
  EXPECT_EQ(CountMemories(), 2);
}

TEST_F(GrpcAgents, SmallCallsWithinTheHostPassThroughRings) {
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 2);
  // Both map the same memory, so each byte is counted twice.
  uint64_t before = BytesInRings();
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Twice, i), 2 * i);
  }
  EXPECT_GT(BytesInRings() - before, 2 * 100 * 2 * 20u);
}

// The thread that looks at the rings is started with the first of them.
TEST_F(GrpcAgents, WhereNoThreadCanLookAtRingsCallsGoWithout) {
  {
    const ScopedFailpoint threads("base/start_thread",
                                  "error(RESOURCE_EXHAUSTED,no thread)");
    EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
    EXPECT_EQ(*Call(agent_b_->To("a"), Twice, 4), 8);
    EXPECT_GE(threads.hits(), 1);
    EXPECT_EQ(BytesInRings(), 0u);
  }
  agent_b_ = nullptr;
  agent_b_ = MakeAgent(b_, "b", 1, 2);
  directory_.Put(Worker{"b", WorkerKey{1, 2}, b_.address()});
  EXPECT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_GT(BytesInRings(), 0u);
}

TEST(GrpcRings, WhereTheCalleeHasNoneCallsGoAsEver) {
  TempDir temp;
  for (const auto& [here, there] : {std::pair(0, 64), std::pair(64, 0)}) {
    FixedDirectory directory;
    Node a(temp, "a", here);
    Node b(temp, "b", there);
    AgentOptions options;
    options.job = "job";
    options.directory = &directory;
    std::vector<std::unique_ptr<Agent>> agents;
    uint32_t id = 0;
    for (Node* node : {&a, &b}) {
      directory.Put(node->worker(id));
      options.name = node->worker(id).name;
      options.key = WorkerKey{id, 1};
      options.transport = &node->transport();
      agents.push_back(*Agent::Create(options));
      ++id;
    }
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(*Call(agents[0]->To("b"), Twice, i), 2 * i);
    }
    EXPECT_EQ(BytesInRings(), 0u);
  }
}

// The other process of the next tests, which runs this program.
TEST(GrpcPeerProcess, DISABLED_ServesUntilKilled) {
  const char* listen = std::getenv("WEFT_TEST_LISTEN");
  ASSERT_NE(listen, nullptr);
  Node node(listen, "b", /*memories=*/64);
  FixedDirectory directory;
  AgentOptions options;
  options.job = "job";
  options.name = "b";
  options.key = WorkerKey{1, 1};
  options.transport = &node.transport();
  options.directory = &directory;
  const auto agent = Agent::Create(options);
  ASSERT_THAT(agent.status(), IsOk());
  std::cout << "serving" << std::endl;
  Promise<void> never(node.transport().driver());
  (void)never.future().Wait(absl::Minutes(2));
}

// "b" is a process of its own.
class GrpcPeer : public GrpcAgents {
 protected:
  void SetUp() override {
    const std::string listen = absl::StrCat("unix:", temp_.path(), "/peer");
    directory_.Put({"b", {1, 1}, listen});
    agent_b_ = nullptr;
    testing::Command command;
    command.argv = {std::filesystem::read_symlink("/proc/self/exe").string(),
                    "--gtest_also_run_disabled_tests",
                    "--gtest_filter=GrpcPeerProcess.*"};
    command.env = {absl::StrCat("WEFT_TEST_LISTEN=", listen)};
    auto peer = testing::Process::Start(command);
    ASSERT_THAT(peer.status(), IsOk());
    peer_ = *std::move(peer);
    ASSERT_THAT(peer_->WaitForOutput("serving", absl::Seconds(60)), IsOk());
  }

  // Returns once it runs no more.
  void Stop() {
    peer_->Signal(SIGSTOP);
    EXPECT_TRUE(testing::Becomes([&] {
      std::ifstream stat(absl::StrCat("/proc/", peer_->pid(), "/stat"));
      std::string pid, name, state;
      stat >> pid >> name >> state;
      return state == "T";
    }));
  }

  std::vector<Future<int64_t>> Count(int calls) {
    std::vector<Future<int64_t>> counts;
    for (int i = 0; i < calls; ++i) {
      counts.push_back(CallAsync(agent_a_->To("b"), CountUp));
    }
    return counts;
  }

  std::unique_ptr<testing::Process> peer_;
};

TEST_F(GrpcPeer, KilledWithUnreadMessagesEndsItsCallsAndLeavesNothing) {
  GiveUpSoon();
  ASSERT_EQ(*Call(agent_a_->To("b"), Twice, 4), 8);
  EXPECT_EQ(CountMemories(), 1);
  Stop();
  const uint64_t before = BytesInRings();
  const auto calls = Count(200);
  // Once the first call has left the stream.
  EXPECT_TRUE(Becomes([&] { return BytesInRings() - before > 200 * 20u; }));
  peer_->Signal(SIGKILL);
  for (const Future<int64_t>& call : calls) {
    const absl::Status status = call.Wait(absl::Seconds(60)).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(OutcomeUnknown(status));
  }
  EXPECT_TRUE(Becomes([] { return CountMemories() == 0; }));
}

TEST_F(GrpcPeer, StoppedForSecondsRunsEachCallOnceWhenItGoesOn) {
  std::set<int64_t> counts;
  const auto gather = [&](const std::vector<Future<int64_t>>& calls) {
    for (const Future<int64_t>& call : calls) {
      const auto count = call.Wait(absl::Seconds(60));
      ASSERT_THAT(count.status(), IsOk());
      counts.insert(*count);
    }
  };
  gather(Count(50));
  const auto under_way = Count(50);
  Stop();
  const auto while_stopped = Count(100);
  EXPECT_THAT(Call(agent_a_->To("b", absl::Seconds(2)), Twice, 4).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  peer_->Signal(SIGCONT);
  gather(under_way);
  gather(while_stopped);
  gather(Count(50));
  EXPECT_EQ(counts.size(), 250u);
  EXPECT_EQ(*counts.rbegin(), 250);
}

TEST_F(GrpcPeer, KilledInMidTransferEndsItsCallsAndLeavesNothing) {
  GiveUpSoon();
  const std::vector<float> large(4 << 20, 2.5f);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(*Call(agent_a_->To("b"), Echo, large), large);
  }
  EXPECT_EQ(CountMemories(), 1);
  std::vector<Future<std::vector<float>>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(CallAsync(agent_a_->To("b"), Echo, large));
  }
  ASSERT_EQ(*calls[0].Wait(absl::Seconds(60)), large);  // the others are on it
  peer_->Signal(SIGKILL);
  for (size_t i = 1; i < calls.size(); ++i) {
    const absl::Status status = calls[i].Wait(absl::Seconds(60)).status();
    if (status.ok()) continue;  // had come before
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(OutcomeUnknown(status));
  }
  EXPECT_TRUE(Becomes([] { return CountMemories() == 0; }));
}

// ----------------------------------------------------- functions and roles

// A server, ps0, and one caller of each role, with certificates.
class SecureAgents : public ::testing::Test {
 protected:
  SecureAgents() {
    authority_ = *net::MakeAuthority("job", Now());
    telemetry::Telemetry::Options log;
    log.log_output = &log_;
    telemetry_ = std::make_unique<telemetry::Telemetry>(log);
  }

  static net::Validity Now() {
    return {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)};
  }
  Node& Add(const std::string& role, int rank = 0) {
    const net::MemberCertificate made = *net::MakeMemberCertificate(
        authority_, {"job", role, rank}, {"127.0.0.1"}, Now());
    nodes_.push_back(std::make_unique<Node>(*net::Credentials::FromPem(
        authority_.certificate, made.certificate, made.key)));
    return *nodes_.back();
  }
  std::unique_ptr<Agent> MakeAgent(Node& node, const Worker& self,
                                   std::vector<AccessRule> access = {},
                                   const Registry* registry = nullptr) {
    AgentOptions options;
    options.registry = registry;
    options.job = "job";
    options.name = self.name;
    options.key = self.key;
    options.transport = &node.transport();
    options.directory = &directory_;
    options.telemetry = telemetry_.get();
    options.access = std::move(access);
    auto agent = Agent::Create(options);
    WEFT_CHECK(agent.ok()) << agent.status().ToString();
    return *std::move(agent);
  }

  std::ostringstream log_;
  std::unique_ptr<telemetry::Telemetry> telemetry_;
  net::Authority authority_;
  FixedDirectory directory_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(SecureAgents, AFunctionKnowsTheRoleOfItsCaller) {  // F44
  Node& server = Add("ps");
  const Worker ps0 = server.worker(0);
  directory_.Put(ps0);
  const auto ps = MakeAgent(server, ps0);
  Node& node = Add("trainer", 7);
  Worker self = node.worker(1);
  self.role = "admin";  // its certificate decides
  const auto trainer = MakeAgent(node, self);
  EXPECT_EQ(*Call(trainer->To("ps0"), RoleOfPeer), "trainer");
}

TEST_F(SecureAgents, EachRoleMayCallItsFunctions) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps =
      MakeAgent(server, server.worker(0),
                {{internal::NameOf<&Echo>(), net::Roles::Only({"visitor"})}});
  struct Row {
    std::string role;
    bool twice, for_clients, for_admin, echo;
  };
  // Twice is as registered, without a word on roles; Echo as the options say.
  const std::vector<Row> table = {
      {"ps", true, false, false, false},
      {"trainer", true, true, false, false},
      {"admin", true, false, true, false},
      {"client", false, true, false, false},
      {"visitor", false, false, false, true},
  };
  uint32_t id = 1;
  int refused = 0;
  for (const Row& row : table) {
    Node& node = Add(row.role, 7);
    const Worker self = node.worker(id++);
    const auto caller = MakeAgent(node, self);
    const auto expect = [&](const absl::Status& got, bool allowed,
                            const std::string& function) {
      if (allowed) {
        EXPECT_THAT(got, IsOk());
        return;
      }
      ++refused;
      EXPECT_THAT(got, StatusIs(absl::StatusCode::kPermissionDenied,
                                absl::StrCat("ps0: ", row.role, "7 has role ",
                                             row.role)));
      EXPECT_THAT(got, StatusIs(absl::StatusCode::kPermissionDenied, function));
    };
    const Target to = caller->To("ps0", absl::Seconds(30));
    expect(Call(to, Twice, 1).status(), row.twice, "Twice is for role ps");
    expect(Call(to, ForClients, 1).status(), row.for_clients,
           "ForClients is for role client, trainer");
    expect(Call(to, ForAdmin, 1).status(), row.for_admin,
           "ForAdmin is for role admin");
    expect(Call(to, Echo, std::vector<float>{1}).status(), row.echo,
           "Echo is for role visitor");
  }
  EXPECT_EQ(telemetry_->metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "function"}})
                .Value(),
            refused);
  EXPECT_THAT(log_.str(), ::testing::HasSubstr("kind=function who=client7"));
}

TEST_F(SecureAgents, MakerOfAnObjectOrStreamMayUseAndEndIt) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto visitors = net::Roles::Only({"visitor"});
  const std::string total = absl::StrCat(internal::NameOfType<Total>(), "::*");
  const auto ps = MakeAgent(server, server.worker(0),
                            {{total, visitors},
                             {internal::NameOf<&Rows>(), visitors},
                             {"*", net::Roles::Only({"admin"})}});
  Node& node = Add("visitor", 7);
  const auto caller = MakeAgent(node, node.worker(1));
  const Target to = caller->To("ps0", absl::Seconds(30));
  EXPECT_THAT(Call(to, Twice, 1).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, "role admin"));
  const auto made = Make<Total>(to, 5);
  ASSERT_THAT(made.status(), IsOk());
  EXPECT_EQ(*Call(*made, &Total::Add, 3), 8);
  EXPECT_THAT(Release(*made), IsOk());
  Reader<Tensor> reader = OpenStream(to, Rows, 3);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(reader.Next().status(), IsOk());
  EXPECT_FALSE(reader.Next()->has_value());
  // A call of another of the same id reaches no object of the visitor.
  Node& other = Add("admin", 8);
  const auto admin = MakeAgent(other, other.worker(2));
  const auto theirs = Make<Total>(to, 5);
  ASSERT_THAT(theirs.status(), IsOk());
  EXPECT_THAT(
      Release(Handle<Total>(admin->To("ps0", absl::Seconds(30)), theirs->id())),
      StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(*Call(*theirs, &Total::Add, 3), 8);
}

TEST_F(SecureAgents, ClassesMethodsAndStreamsHaveRolesToo) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps = MakeAgent(server, server.worker(0));
  struct Row {
    std::string role;
    bool make, burn, pages;
  };
  const std::vector<Row> table = {{"trainer", false, false, false},
                                  {"client", true, false, true},
                                  {"admin", true, true, false}};
  const auto status = [](bool allowed) {
    return allowed ? absl::StatusCode::kOk
                   : absl::StatusCode::kPermissionDenied;
  };
  uint32_t id = 1;
  for (const Row& row : table) {
    Node& node = Add(row.role, 7);
    const auto caller = MakeAgent(node, node.worker(id++));
    const Target to = caller->To("ps0", absl::Seconds(30));
    const auto diary = Make<Diary>(to);
    EXPECT_EQ(diary.status().code(), status(row.make)) << row.role;
    if (diary.ok()) {
      EXPECT_EQ(*Call(*diary, &Diary::Read), 7);  // as the class is
      EXPECT_EQ(Call(*diary, &Diary::Burn).code(), status(row.burn))
          << row.role;
      EXPECT_EQ(*Call(*diary, &Diary::Read), row.burn ? 0 : 7);
    }
    EXPECT_EQ(OpenStream(to, PagesForClients).Next().status().code(),
              status(row.pages))
        << row.role;
  }
}

TEST_F(SecureAgents, WelcomeListsOnlyTheFunctionsOfTheRole) {
  Node& server = Add("ps");
  directory_.Put(server.worker(0));
  const auto ps = MakeAgent(server, server.worker(0));
  Registry few;  // differs, so the other's functions are sent
  few.Add(internal::Describe<&Twice>(RunsOn::kExecutor));
  few.Add(internal::Describe<&ForClients>(RunsOn::kExecutor));
  Node& node = Add("client", 7);
  const auto client = MakeAgent(node, node.worker(1), {}, &few);
  const Target to = client->To("ps0", absl::Seconds(30));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*Call(to, ForClients, 4), 4);
    EXPECT_THAT(Call(to, Twice, 1).status(),
                StatusIs(absl::StatusCode::kUnimplemented, "for this caller"));
  }
}

TEST_F(SecureAgents, KeyMustBelongToTheNameInTheDirectory) {
  Node& server = Add("ps");
  Node& owner = Add("trainer", 1);
  Node& thief = Add("trainer", 2);
  directory_.Put(server.worker(0));
  auto ps = MakeAgent(server, server.worker(0));
  // It comes first, with a key that is not its own.
  Worker stolen = thief.worker(1);
  auto early = MakeAgent(thief, stolen);
  EXPECT_THAT(Call(early->To("ps0"), Twice, 1), IsOk());
  // Once the directory knows whose it is, the owner takes it.
  directory_.Put(owner.worker(1));
  const auto agent = MakeAgent(owner, owner.worker(1));
  EXPECT_THAT(Call(agent->To("ps0"), Twice, 1), IsOk());
  early.reset();
  const auto late = MakeAgent(thief, stolen);
  EXPECT_THAT(Call(late->To("ps0"), Twice, 1),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "is of trainer1, not of trainer2"));
  // And nobody is served under a name that is not in his certificate.
  Worker other = thief.worker(3);
  other.name = "trainer1";
  const auto liar = MakeAgent(thief, other);
  EXPECT_THAT(Call(liar->To("ps0"), Twice, 1),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "the certificate is of trainer2"));
  EXPECT_EQ(telemetry_->metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "name"}})
                .Value(),
            2);
  ps.reset();  // nobody writes to the log any more
  EXPECT_THAT(
      log_.str(),
      HasSubstr("refused kind=name who=trainer1 what=\"to call\" why="));
}

}  // namespace
}  // namespace weft::rpc
