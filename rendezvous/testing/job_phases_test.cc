// Tests of what a job of many workers costs: counts of messages and bytes,
// which do not depend on the machine.

#include "weft/rendezvous/testing/job_phases.h"

#include <iostream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace weft::rendezvous {
namespace {

using Costs = std::map<std::string, PhaseCosts>;  // by phase

constexpr int kRack = 16;
constexpr int kUnpaced = 64;  // CoordinatorCore::Options::unpaced_answers

Costs CostsOf(int workers) {
  PhaseOptions options;
  options.workers = workers;
  options.rack = kRack;
  Costs costs;
  for (const PhaseCosts& phase : RunJobPhases(options)) {
    std::cout << workers << " " << phase.phase << ": " << phase.time << ", in "
              << phase.in.messages << " of " << phase.in.bytes << " B, out "
              << phase.out.messages << " of " << phase.out.bytes
              << " B, a member " << phase.member_messages << " of "
              << phase.member_bytes << " B, log " << phase.log.messages
              << " of " << phase.log.bytes << " B\n";
    costs[phase.phase] = phase;
  }
  return costs;
}

class JobPhases : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    costs_ = new std::map<int, Costs>;
    for (const int workers : {64, 256}) {
      (*costs_)[workers] = CostsOf(workers);
    }
  }
  static void TearDownTestSuite() { delete costs_; }
  static const std::map<int, Costs>& costs() { return *costs_; }

 private:
  static std::map<int, Costs>* costs_;
};
std::map<int, Costs>* JobPhases::costs_ = nullptr;

TEST_F(JobPhases, MessagesOfAMemberDoNotGrowWithTheirNumber) {
  // Requests and answers. Up to kUnpaced watchers are told each change by
  // itself; then ten answers a second are the most.
  const std::map<std::string, int64_t> most = {
      {"join", 2 * kUnpaced + 30},
      {"idle, 10 s", 6},
      {"barrier", 6},
      {"barrier, one 12 s late", 14},
      {"one fails, silently", 12},
      {"one fails, seen", 4},
      {"rack fails, silently", 2 * 2 * kRack + 10},
      {"coordinator away 2 s", 6},
      {"leave", 2 * kUnpaced + 30},
      {"join, coordinator away 1 s", 2 * kUnpaced + 50},
  };
  for (const auto& [workers, phases] : costs()) {
    EXPECT_EQ(phases.size(), most.size());
    for (const auto& [phase, limit] : most) {
      EXPECT_LE(phases.at(phase).member_messages, limit)
          << workers << " " << phase;
      EXPECT_LE(phases.at(phase).in.messages, limit * workers) << phase;
      EXPECT_LE(phases.at(phase).out.messages, limit * workers) << phase;
    }
  }
}

TEST_F(JobPhases, BytesOfAMemberAreInProportionToWhatItLearns) {
  constexpr int64_t kEntry = 150;    // of a member in a view
  constexpr int64_t kDeparted = 60;  // of one that is gone
  constexpr int64_t kMessage = 50;   // of each of the messages, besides
  for (const auto& [workers, phases] : costs()) {
    const std::map<std::string, int64_t> most = {
        {"join", workers * kEntry + kUnpaced * kMessage},
        {"idle, 10 s", 3 * kMessage},
        {"barrier", 3 * kMessage},
        {"barrier, one 12 s late", 7 * kMessage},
        // Suspect, then gone.
        {"one fails, silently", kEntry + kDeparted + 6 * kMessage},
        {"one fails, seen", kDeparted + kMessage},
        {"rack fails, silently",
         kRack * (kEntry + kDeparted) + 2 * kRack * kMessage},
        {"coordinator away 2 s", 3 * kMessage},
        {"leave", workers * kDeparted + kUnpaced * kMessage},
        {"join, coordinator away 1 s", workers * kEntry + kUnpaced * kMessage},
    };
    for (const auto& [phase, limit] : most) {
      EXPECT_LE(phases.at(phase).member_bytes, limit)
          << workers << " " << phase;
    }
  }
}

TEST_F(JobPhases, RecordsOfTheLogAreOneForEachDecision) {
  for (const auto& [workers, phases] : costs()) {
    EXPECT_EQ(phases.at("join").log.messages, workers + 2);  // job and world
    EXPECT_EQ(phases.at("idle, 10 s").log.messages, 0);
    EXPECT_EQ(phases.at("barrier").log.messages, 1);
    EXPECT_EQ(phases.at("one fails, seen").log.messages, 1);
    EXPECT_EQ(phases.at("rack fails, silently").log.messages, kRack);
    EXPECT_EQ(phases.at("coordinator away 2 s").log.messages, 0);
    EXPECT_EQ(phases.at("leave").log.messages, workers - kRack - 2);
  }
}

}  // namespace
}  // namespace weft::rendezvous
