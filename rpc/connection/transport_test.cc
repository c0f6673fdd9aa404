#include "weft/transport/transport.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/executor.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/connection/wire.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"
#include "weft/transport/simulated_transport.h"
#include "weft/transport/testing/transport_conformance.h"

namespace weft::rpc {
namespace {

using transport::TransportConformance;

using ::weft::testing::IsOk;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

class LocalPair final : public transport::TransportPair {
 public:
  LocalPair() { RegisterTestPurposes(); }
  transport::Transport& a() override { return *a_; }
  transport::Transport& b() override { return *b_; }
  transport::Destination b_destination() const override { return {"b", "b"}; }

 private:
  transport::LocalNetwork network_;
  std::unique_ptr<transport::Transport> a_ =
      network_.MakeTransport("a").value();
  std::unique_ptr<transport::Transport> b_ =
      network_.MakeTransport("b").value();
};

class SimulatedPair final : public transport::TransportPair {
 public:
  SimulatedPair() { RegisterTestPurposes(); }
  transport::Transport& a() override { return *a_; }
  transport::Transport& b() override { return *b_; }
  transport::Destination b_destination() const override { return {"b", "b"}; }
  bool has_threads() const override { return false; }

 private:
  sim::Simulator simulator_{1};
  transport::SimulatedNetwork network_{simulator_,
                                       transport::SimulatedNetwork::Options()};
  std::unique_ptr<transport::Transport> a_ = network_.MakeTransport("a");
  std::unique_ptr<transport::Transport> b_ = network_.MakeTransport("b");
};

INSTANTIATE_TEST_SUITE_P(Local, TransportConformance, ::testing::Values([] {
                           return std::make_unique<LocalPair>();
                         }));
INSTANTIATE_TEST_SUITE_P(Simulated, TransportConformance, ::testing::Values([] {
                           return std::make_unique<SimulatedPair>();
                         }));

// --------------------------------------- an agent that ends as a timer runs

// What a call begins once its agent is about to end.
struct HeldTimer {
  transport::Transport* transport = nullptr;
  Parker called;
  Promise<void> begun;
  Parker may_end;
  std::atomic<bool> has_ended{false};
};

// By then the agent has waited for connections that were being accepted.
absl::Status BeginOnceCancelled(CallContext& context) {
  auto* timer = context.Local<HeldTimer>();
  timer->called.Unpark();
  Promise<void> cancelled;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status&) { cancelled.Set(absl::OkStatus()); });
  EXPECT_THAT(cancelled.future().Wait(absl::Seconds(60)), IsOk());
  timer->transport->RunAt(timer->transport->clock().Now(), [timer] {
    timer->begun.Set(absl::OkStatus());
    EXPECT_TRUE(IsWoken(timer->may_end));
    timer->has_ended = true;
  });
  return timer->begun.future().Wait(absl::Seconds(60));
}
WEFT_RPC(BeginOnceCancelled);

TEST(LocalNetwork, WhereNoThreadCanBeStartedATransportSaysSo) {
  transport::LocalNetwork network;
  {
    const ScopedFailpoint threads("base/start_thread",
                                  "error(RESOURCE_EXHAUSTED,no thread)");
    EXPECT_THAT(network.MakeTransport("a"),
                StatusIs(absl::StatusCode::kResourceExhausted, "no thread"));
  }
  EXPECT_THAT(network.MakeTransport("a"), IsOk());
}

TEST(LocalAgent, EndsAfterRunningTimers) {
  transport::LocalNetwork network;
  const auto transport = network.MakeTransport("a").value();
  HeldTimer timer;
  timer.transport = transport.get();
  FixedDirectory directory;
  directory.Put(Worker{"a", {1, 1}, "a"});
  AgentOptions options;
  options.job = "job";
  options.name = "a";
  options.key = {1, 1};
  options.transport = transport.get();
  options.directory = &directory;
  auto agent = *Agent::Create(options);
  agent->SetLocal(&timer);
  const Future<void> call = CallAsync(agent->To("a"), BeginOnceCancelled);
  EXPECT_TRUE(IsWoken(timer.called));
  Promise<void> ended;
  std::thread ending([&] {
    agent = nullptr;
    EXPECT_TRUE(timer.has_ended);
    ended.Set(absl::OkStatus());
  });
  EXPECT_THAT(timer.begun.future().Wait(absl::Seconds(60)), IsOk());
  EXPECT_FALSE(ended.future().Wait(absl::Milliseconds(100)).ok());
  timer.may_end.Unpark();
  ending.join();
}

// ------------------------------------------- whole agents under a simulation

int64_t Mark(CallContext& context, int64_t i, const std::string& padding) {
  return ++(*context.Local<std::vector<int64_t>>())[i] +
         static_cast<int64_t>(padding.size());
}
WEFT_RPC_INLINE(Mark);

// Ends when it is given up, and says so.
struct Lingering {
  std::vector<Promise<void>> calls;
  Promise<void>* told = nullptr;
};
Future<void> Linger(CallContext& context) {
  auto* lingering = context.Local<Lingering>();
  Promise<void>& call = lingering->calls.emplace_back();
  call.OnCancel([lingering](const absl::Status&) {
    lingering->told->Set(absl::OkStatus());
  });
  return call.future();
}
WEFT_RPC_INLINE(Linger);

// The outcome of one run of some calls over a bad network.
struct Outcome {
  std::vector<int64_t> marks;
  int64_t broken = 0;
  uint64_t trace_hash = 0;
};

Outcome RunCalls(uint64_t seed) {
  constexpr int64_t kCalls = 20;
  Outcome run;
  run.marks.resize(kCalls);
  SimulatedRanks::Options options;
  options.seed = seed;
  options.network.breaks = 0.1;
  options.limits.calls = 1 + seed % 5;
  SimulatedRanks ranks(2, options);
  ranks[1].SetLocal(&run.marks);
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < kCalls; ++i) {
    // Some bodies travel in chunks.
    calls.push_back(CallAsync(ranks[0].To("w1"), Mark, i,
                              std::string(i % 4 == 0 ? 200000 : 10, 'x')));
  }
  for (const Future<int64_t>& call : calls) {
    EXPECT_THAT(call.Wait(absl::Seconds(60)), IsOk()) << "seed " << seed;
  }
  run.broken = ranks.network().broken();
  run.trace_hash = ranks.simulator().trace_hash();
  return run;
}

TEST(SimulatedAgents, EachCallRunsOnceUnderAnyFaults) {
  int64_t broken = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Outcome run = RunCalls(seed);
    ASSERT_THAT(run.marks, ::testing::Each(1)) << "seed " << seed;
    broken += run.broken;
  }
  EXPECT_GT(broken, 200);
}

// The messages that a stranger receives from an agent.
class Stranger final : public transport::ConnectionObserver {
 public:
  void OnMessage(Slices message) override {
    EXPECT_THAT(ReadBatch(message, Instant(),
                          [this](Frame frame) {
                            welcomes += std::holds_alternative<Welcome>(frame);
                            return absl::OkStatus();
                          }),
                IsOk());
  }
  void OnWritten() override {}
  void OnClosed(absl::Status status) override { closed = status; }

  int welcomes = 0;
  absl::Status closed;
};

// One agent, and a connection to it that nobody's agent has opened.
class StrangersTest : public ::testing::Test {
 protected:
  StrangersTest() {
    AgentOptions options;
    options.job = "job";
    options.name = "w1";
    options.key = WorkerKey{1, 1};
    options.transport = at_agent_.get();
    options.directory = &directory_;
    options.executor = &executor_;
    agent_ = *Agent::Create(options);
    connection_ =
        at_stranger_->Connect(ConnectionPurpose(), {"w1", "w1"}, stranger_);
  }

  void Pass(absl::Duration time) {
    Promise<void> never(at_stranger_->driver());
    (void)never.future().Wait(time);
  }

  sim::Simulator simulator_{1};
  transport::SimulatedNetwork network_{simulator_,
                                       transport::SimulatedNetwork::Options()};
  FixedDirectory directory_;
  InlineExecutor executor_;
  std::unique_ptr<transport::Transport> at_agent_ =
      network_.MakeTransport("w1");
  std::unique_ptr<transport::Transport> at_stranger_ =
      network_.MakeTransport("w0");
  std::unique_ptr<Agent> agent_;
  std::shared_ptr<Stranger> stranger_ = std::make_shared<Stranger>();
  std::shared_ptr<transport::Connection> connection_;
};

TEST_F(StrangersTest, SilentPeerIsDisconnected) {
  Pass(absl::Seconds(5));
  EXPECT_THAT(stranger_->closed, IsOk());
  Pass(absl::Seconds(10));
  EXPECT_FALSE(stranger_->closed.ok());
}

TEST_F(StrangersTest, RefusedPeerIsNotifiedOnce) {
  Hello hello;
  hello.job = "another";
  hello.name = "w0";
  BatchWriter batch;
  for (int i = 0; i < 1000; ++i) batch.Add(hello);
  ASSERT_NE(connection_->Write(std::move(batch).Finish()),
            transport::Connection::Written::kRefused);
  Pass(absl::Seconds(1));
  EXPECT_EQ(stranger_->welcomes, 1);
  EXPECT_FALSE(stranger_->closed.ok());
}

// A call that takes 64 MiB along, over a link of 1 GB/s: 67 ms. What others
// that begin meanwhile take.
class BulkTest : public ::testing::Test {
 protected:
  BulkTest() {
    ranks_[1].SetLocal(&marks_);
    ranks_[1].SetLocal(&lingering_);
  }

  static SimulatedRanks::Options Slow() {
    SimulatedRanks::Options options;
    options.network.min_latency = options.network.max_latency =
        absl::Microseconds(50);
    options.network.bytes_per_second = 1e9;
    return options;
  }

  Instant Now() { return ranks_.transport(0).clock().Now(); }
  void Pass(absl::Duration time) {
    Promise<void> never(ranks_.transport(0).driver());
    (void)never.future().Wait(time);
  }

  std::vector<int64_t> marks_ = {0, 0};
  Lingering lingering_;
  SimulatedRanks ranks_{2, Slow()};
};

TEST_F(BulkTest, ALargeBodyDelaysNoSmallCallAndNoCancellation) {
  const Target b = ranks_[0].To("w1");
  const Instant begin = Now();
  Future<int64_t> large =
      CallAsync(b, Mark, 0, std::string(size_t{64} << 20, 'x'));
  Pass(absl::Milliseconds(5));
  int small = 0;
  while (!large.IsReady()) {
    const Instant start = Now();
    ASSERT_THAT(Call(b, Mark, 1, ""), IsOk());
    // What is on its way, a chunk of 1 MiB, goes first, and so may the next.
    if (large.IsReady()) break;
    EXPECT_LT(Now() - start, absl::Milliseconds(4));
    ++small;
    // The callee receives a cancellation as fast.
    Promise<void> told(ranks_.transport(0).driver());
    lingering_.told = &told;
    Future<void> lingers = CallAsync(b, Linger);
    Pass(absl::Milliseconds(4));
    const Instant given_up = Now();
    lingers.Cancel();
    ASSERT_THAT(told.future().Wait(absl::Seconds(10)), IsOk());
    if (large.IsReady()) break;
    EXPECT_LT(Now() - given_up, absl::Milliseconds(4));
  }
  EXPECT_THAT(large.Wait(absl::Seconds(60)), IsOk());
  EXPECT_GT(Now() - begin, absl::Milliseconds(60));
  EXPECT_GE(small, 5);
}

TEST(SimulatedAgents, OneSeedIsOneRun) {
  EXPECT_EQ(RunCalls(7).trace_hash, RunCalls(7).trace_hash);
}

}  // namespace
}  // namespace weft::rpc
