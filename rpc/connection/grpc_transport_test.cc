#include "weft/transport/grpc_transport.h"

#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/executor.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/base/thread_pool.h"
#include "weft/net/channel.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/grpc_agents.h"
#include "weft/tests/support/no_free_descriptors.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/testing/observers.h"

namespace weft::rpc {
namespace {

using ::testing::AnyOf;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;

// ------------------------------------------------------- agents over gRPC

absl::Status Stay(CallContext& context) {
  Promise<void> stopped;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status& why) { stopped.Set(why); });
  return stopped.future().Wait(absl::Seconds(60));
}
WEFT_RPC(Stay);

int64_t TwiceInline(int64_t x) { return 2 * x; }
WEFT_RPC_INLINE(TwiceInline);

int64_t Sum(const Tensor& x) {
  double sum = 0;
  for (const float v : x.span<float>()) sum += v;
  return static_cast<int64_t>(sum);
}
WEFT_RPC_INLINE(Sum);

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

TEST(GrpcTransport, ClosesTheChannelToARestartedPeersOldAddress) {
  // To a unix socket there is no channel.
  const net::LoopOptions options{net::Credentials::Insecure()};
  Node here("127.0.0.1:0", "a", 0, options);
  Node first("127.0.0.1:0", "ps0", 0, options);
  Node second("127.0.0.1:0", "ps0", 0, options);
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

}  // namespace
}  // namespace weft::rpc
