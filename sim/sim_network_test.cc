#include "weft/sim/sim_network.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;

// Keeps all that happens to it.
class Recorder : public SimNode {
 public:
  void OnStart(int64_t incarnation) override {
    heard.push_back(absl::StrCat("start ", incarnation));
  }
  void OnMessage(const std::string& from, int64_t from_incarnation,
                 const Bytes& message) override {
    heard.push_back(
        absl::StrCat(from, "#", from_incarnation, ":", message.view()));
  }
  void OnReset(const std::string& peer) override {
    heard.push_back(absl::StrCat("reset ", peer));
  }
  void OnCrash() override { heard.push_back("crash"); }

  std::vector<std::string> heard;
};

Bytes Text(int64_t n) { return Bytes::Own(absl::StrCat(n)); }

// Two nodes, a and b, that have started.
class SimNetworkTest : public ::testing::Test {
 protected:
  void Build(FaultPlan::Options faults, SimNetwork::Options options = {}) {
    plan_ = std::make_unique<FaultPlan>(5, faults);
    network_ = std::make_unique<SimNetwork>(simulator_, *plan_, options);
    network_->AddNode("a", a_);
    network_->AddNode("b", b_);
    simulator_.RunUntilIdle();
    a_.heard.clear();
    b_.heard.clear();
  }
  void SendMany(int n) {
    for (int i = 0; i < n; ++i) network_->Send("a", "b", Text(i));
    simulator_.RunUntilIdle();
  }

  Simulator simulator_{5};
  Recorder a_, b_;
  std::unique_ptr<FaultPlan> plan_;
  std::unique_ptr<SimNetwork> network_;
};

TEST_F(SimNetworkTest, WithoutFaultsALinkKeepsOrderAndLosesNothing) {
  Build({});
  SendMany(100);
  ASSERT_THAT(b_.heard, SizeIs(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(b_.heard[i], absl::StrCat("a#1:", i));
}

TEST_F(SimNetworkTest, LosesByThePlan) {
  Build(FaultPlan::Options::Of({Fault::kLoss}, 0.3));
  SendMany(200);
  EXPECT_THAT(b_.heard, SizeIs(200 - plan_->hits(Fault::kLoss)));
  EXPECT_GT(plan_->hits(Fault::kLoss), 0);
}

TEST_F(SimNetworkTest, RulesChooseMessagesByTheirKind) {
  FaultPlan::Options faults;
  faults.rules = {FaultPlan::Rule::Drop("odd", "", 2),
                  FaultPlan::Rule::Delay("even", absl::Seconds(1))};
  SimNetwork::Options options;
  options.describe = [](const Bytes& message) {
    const bool is_odd = (message.view().back() - '0') % 2 == 1;
    return FaultPlan::Message{is_odd ? "odd" : "even", ""};
  };
  Build(faults, options);
  const Instant start = simulator_.Now();
  SendMany(6);
  EXPECT_THAT(b_.heard, ElementsAre("a#1:0", "a#1:2", "a#1:4", "a#1:5"));
  EXPECT_GE(simulator_.Now() - start, absl::Seconds(1));
  EXPECT_LT(simulator_.Now() - start, absl::Seconds(1.1));
  EXPECT_THAT(plan_->CheckHits(), IsOk()) << plan_->Replay();
}

TEST_F(SimNetworkTest, MessageHitByARuleIsExemptFromTheRates) {
  auto faults =
      FaultPlan::Options::Of({Fault::kDelay, Fault::kReordering}, 1.0);
  faults.rules = {FaultPlan::Rule::Delay("", absl::Seconds(1))};
  SimNetwork::Options options;
  options.max_delay = absl::Hours(1);
  Build(faults, options);
  const Instant start = simulator_.Now();
  SendMany(6);
  EXPECT_THAT(b_.heard, ElementsAre("a#1:0", "a#1:1", "a#1:2", "a#1:3", "a#1:4",
                                    "a#1:5"));
  EXPECT_LT(simulator_.Now() - start, absl::Seconds(1.1));
  EXPECT_EQ(plan_->opportunities(Fault::kDelay), 0);
  EXPECT_EQ(plan_->opportunities(Fault::kReordering), 0);
}

TEST_F(SimNetworkTest, DuplicatesByThePlan) {
  Build(FaultPlan::Options::Of({Fault::kDuplication}, 0.3));
  SendMany(200);
  EXPECT_THAT(b_.heard, SizeIs(200 + plan_->hits(Fault::kDuplication)));
  EXPECT_GT(plan_->hits(Fault::kDuplication), 0);
}

TEST_F(SimNetworkTest, ReordersByThePlanAndLosesNone) {
  Build(FaultPlan::Options::Of({Fault::kReordering}, 0.3));
  std::vector<std::string> in_order;
  for (int i = 0; i < 100; ++i) in_order.push_back(absl::StrCat("a#1:", i));
  SendMany(100);
  EXPECT_NE(b_.heard, in_order);
  EXPECT_THAT(b_.heard, ::testing::UnorderedElementsAreArray(in_order));
}

TEST_F(SimNetworkTest, DelaysKeepOrder) {
  Build(FaultPlan::Options::Of({Fault::kDelay}, 0.3));
  const Instant before = simulator_.Now();
  SendMany(100);
  ASSERT_THAT(b_.heard, SizeIs(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(b_.heard[i], absl::StrCat("a#1:", i));
  EXPECT_GT(simulator_.Now() - before, absl::Milliseconds(10));
}

TEST_F(SimNetworkTest, AOneWayPartitionLetsTheOtherWayPass) {
  Build({});
  network_->CutOneWay("a", "b");
  network_->Send("a", "b", Text(1));
  network_->Send("b", "a", Text(2));
  simulator_.RunUntilIdle();
  EXPECT_THAT(b_.heard, IsEmpty());
  EXPECT_THAT(a_.heard, ElementsAre("b#1:2"));
}

TEST_F(SimNetworkTest, PartitionDropsMessagesInFlightAndHeals) {
  Build({});
  network_->Send("a", "b", Text(1));
  network_->Cut("a", "b");
  network_->Send("b", "a", Text(2));
  simulator_.RunUntilIdle();
  network_->Heal("a", "b");
  network_->Send("a", "b", Text(3));
  simulator_.RunUntilIdle();
  EXPECT_THAT(a_.heard, IsEmpty());
  EXPECT_THAT(b_.heard, ElementsAre("a#1:3"));
  EXPECT_EQ(plan_->hits(Fault::kTwoWayPartition), 1);
}

TEST_F(SimNetworkTest, ACrashForgetsMessagesToTheDeadNotThoseOfTheDead) {
  SimNetwork::Options silent;
  silent.crash_resets = 0;
  Build({}, silent);
  network_->Send("a", "b", Text(1));
  network_->Send("b", "a", Text(2));
  network_->Crash("a");
  EXPECT_FALSE(network_->IsUp("a"));
  network_->Send("a", "b", Text(3));  // the dead do not speak
  network_->Restart("a");
  network_->Send("a", "b", Text(4));
  simulator_.RunUntilIdle();
  EXPECT_THAT(a_.heard, ElementsAre("crash", "start 2"));
  EXPECT_THAT(b_.heard, ElementsAre("a#1:1", "a#2:4"));
}

TEST_F(SimNetworkTest, ACrashMayResetItsPeers) {
  SimNetwork::Options loud;
  loud.crash_resets = 1;
  Build({}, loud);
  network_->Crash("a");
  simulator_.RunUntilIdle();
  EXPECT_THAT(b_.heard, ElementsAre("reset a"));
}

TEST_F(SimNetworkTest, ResetDropsMessagesInFlightAndNotifiesBoth) {
  Build({});
  network_->Send("a", "b", Text(1));
  network_->Reset("a", "b");
  simulator_.RunUntilIdle();
  EXPECT_THAT(a_.heard, ElementsAre("reset b"));
  EXPECT_THAT(b_.heard, ElementsAre("reset a"));
}

// Sends to the next of `size` nodes all that it hears, and a tick of its own.
class Gossip : public SimNode {
 public:
  Gossip(Simulator& simulator, SimNetwork& network, int self, int size)
      : simulator_(simulator),
        network_(network),
        name_(absl::StrCat("n", self)),
        next_(absl::StrCat("n", (self + 1) % size)) {}

  void OnStart(int64_t incarnation) override { Tick(incarnation); }
  void OnMessage(const std::string&, int64_t, const Bytes& message) override {
    if (message.size() < 8) Say(absl::StrCat(message.view(), "."));
  }

 private:
  void Say(std::string text) {
    network_.Send(name_, next_, Bytes::Own(std::move(text)));
  }
  void Tick(int64_t incarnation) {
    if (network_.incarnation(name_) != incarnation || !network_.IsUp(name_)) {
      return;
    }
    Say("");
    simulator_.After(
        absl::Milliseconds(2), [this, incarnation] { Tick(incarnation); },
        "tick");
  }

  Simulator& simulator_;
  SimNetwork& network_;
  const std::string name_;
  const std::string next_;
};

struct ChaosRun {
  uint64_t trace_hash;
  int64_t delivered;
  std::string report;
};

ChaosRun RunChaos(uint64_t seed, FaultPlan* total) {
  Simulator simulator(seed);
  auto options = FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering,
       Fault::kOneWayPartition, Fault::kTwoWayPartition, Fault::kReset,
       Fault::kCrash},
      0.02, /*min_hits=*/3);
  options.within = 50;
  FaultPlan plan(seed, options);
  SimNetwork network(simulator, plan);
  std::vector<std::unique_ptr<Gossip>> nodes;
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(std::make_unique<Gossip>(simulator, network, i, 4));
    network.AddNode(absl::StrCat("n", i), *nodes.back());
  }
  SimNetwork::Chaos chaos;
  chaos.until = Instant() + absl::Seconds(1);
  network.StartChaos(chaos);
  simulator.RunUntil(Instant() + absl::Seconds(1));
  EXPECT_THAT(plan.CheckHits(), IsOk()) << "seed " << seed;
  total->Absorb(plan);
  return {simulator.trace_hash(), network.delivered(), network.Report()};
}

TEST(SimNetworkChaos, OneSeedIsOneRunUnderEveryFault) {
  FaultPlan total(0);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const ChaosRun first = RunChaos(seed, &total);
    const ChaosRun second = RunChaos(seed, &total);
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.report, second.report) << "seed " << seed;
    EXPECT_NE(first.trace_hash, RunChaos(seed + 1000, &total).trace_hash);
    EXPECT_GT(first.delivered, 1000);
  }
  std::printf("%s", total.Report().c_str());
}

}  // namespace
}  // namespace weft::sim
