// Simulation of members and their coordinator under a seeded network: loss,
// duplication, delay, partitions, crashes and restarts of either side.

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/testing/simulated_job.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/wire.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using sim::Fault;

// What must never go back or come back, of a whole run.
class Witness final : public JobObserver {
 public:
  void OnBegin(const std::string& name) override {
    seen_[name] = 0;
    if (++begun_[name] > 1) ++hits["restarted"];
  }
  void OnJoined(const std::string& name, WorkerKey key) override {
    EXPECT_GT(key.epoch, highest_[name]) << name << ": its epoch went back";
    highest_[name] = key.epoch;
    ++hits["joined"];
  }
  void OnEnd(const std::string& /*name*/, const absl::Status& why) override {
    ++hits[why.ok() ? "ended" : "ended by an error"];
  }
  void OnView(const std::string& name, const v1::View& told) override {
    const View view = FromWire(told);
    EXPECT_GT(view.version(), seen_[name]) << name << ": a view went back";
    seen_[name] = view.version();
    for (const Member& member : view.members()) {
      EXPECT_EQ(view.Find(member.name)->key, member.key) << "in twice";
      EXPECT_FALSE(view.IsGone(member.key)) << member.name;
    }
    for (const Departed& departed : view.departed()) {
      EXPECT_EQ(gone_.count(departed.key), 1u)
          << departed.name << " is gone, which nobody decided";
    }
  }
  void OnRecord(const v1::LogRecord& record) override {
    if (!record.has_departed()) return;
    gone_[FromWire(record.departed().key())] = record.departed().reason();
    ++hits[record.departed().left() ? "left" : "declared gone"];
  }
  void OnRefusal(const absl::Status& why) override {
    ++hits[absl::StrCat("refused ", absl::StatusCodeToString(why.code()))];
  }
  void OnCoordinatorStart(uint32_t term) override {
    if (term > 1) ++hits["coordinator restarted"];
  }

  std::map<std::string, int64_t> hits;

 private:
  std::map<std::string, int> begun_;
  std::map<std::string, Epoch> seen_;     // of this life
  std::map<std::string, Epoch> highest_;  // epoch of a name
  std::map<WorkerKey, std::string> gone_;
};

// One seed: two minutes of faults, one of peace. Returns the trace's hash.
uint64_t RunSeed(uint64_t seed, sim::FaultPlan& total,
                 std::map<std::string, int64_t>& hits) {
  sim::Simulator simulator(seed);
  sim::FaultPlan::Options rates = sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering},
      0.02);
  for (const Fault fault : {Fault::kOneWayPartition, Fault::kTwoWayPartition,
                            Fault::kReset, Fault::kCrash}) {
    rates.rate[static_cast<int>(fault)] = 0.05;
  }
  sim::FaultPlan faults(seed, rates);
  sim::SimNetwork network(simulator, faults);
  Witness witness;
  SimulatedJob job(simulator, network, {}, &witness);
  for (int i = 0; i < job.size(); ++i) {
    simulator.After(absl::Milliseconds(simulator.random().Below(3000)), [&, i] {
      if (network.IsUp(SimulatedJob::NameOf(i)) && !job.member(i).is_in()) {
        job.member(i).Begin();
      }
    });
  }
  for (int i = 0; i < 6; ++i) {
    simulator.After(
        absl::Seconds(simulator.random().Below(120)),
        [&job, who = static_cast<int>(simulator.random().Below(job.size()))] {
          job.member(who).Leave();
        });
  }
  sim::SimNetwork::Chaos chaos;
  chaos.every = absl::Seconds(1);
  chaos.until = simulator.Now() + absl::Seconds(120);
  chaos.max_partition = absl::Seconds(20);
  chaos.max_down = absl::Seconds(15);
  network.StartChaos(chaos);
  simulator.RunUntil(chaos.until + absl::Seconds(20));
  network.HealAll();
  // Messages are still lost, so they agree not at every moment, but soon.
  const auto agree = [&] {
    return FromWire(job.coordinator().view()).IsComplete() && job.Agrees();
  };
  const Instant deadline = simulator.Now() + absl::Seconds(60);
  while (!agree() && simulator.Now() < deadline) {
    simulator.RunUntil(simulator.Now() + absl::Milliseconds(100));
  }
  EXPECT_TRUE(agree()) << "seed " << seed << ": "
                       << FromWire(job.coordinator().view()).Summary();
  // The view that each member has made of the changes is the coordinator's.
  const uint64_t truth = DigestOf(job.coordinator().view());
  EXPECT_EQ(job.coordinator().view().digest(), truth);
  for (int i = 0; i < job.size(); ++i) {
    EXPECT_EQ(DigestOf(job.member(i).view()), truth) << i;
  }
  total.Absorb(faults);
  for (const auto& [what, count] : witness.hits) hits[what] += count;
  return simulator.trace_hash();
}

TEST(MembershipSimulation, MembersAgreeOnOneViewAfterAnyNetworkFaults) {
  constexpr uint64_t kSeeds = 40;
  sim::FaultPlan::Options rates = sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering,
       Fault::kOneWayPartition, Fault::kTwoWayPartition, Fault::kReset,
       Fault::kCrash},
      0.01);
  sim::FaultPlan total(0, rates);
  std::map<std::string, int64_t> hits;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RunSeed(seed, total, hits);
    if (HasFailure()) {
      FAIL() << "seed " << seed;
    }
  }
  WEFT_EXPECT_OK(total.CheckHits());
  std::cout << total.Report() << "\n";
  for (const auto& [what, count] : hits) {
    std::cout << "  " << what << ": " << count << "\n";
  }
  for (const char* what :
       {"coordinator restarted", "declared gone", "left", "joined", "restarted",
        "refused FAILED_PRECONDITION", "refused UNAVAILABLE"}) {
    EXPECT_GT(hits[what], 0) << what << " never happened";
  }
}

TEST(MembershipSimulation, ASeedReplaysBitForBit) {
  sim::FaultPlan total(0);
  std::map<std::string, int64_t> hits;
  EXPECT_EQ(RunSeed(7, total, hits), RunSeed(7, total, hits));
  EXPECT_NE(RunSeed(7, total, hits), RunSeed(8, total, hits));
}

}  // namespace
}  // namespace weft::rendezvous
