#include "weft/launch/commands/stragglers.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Runs `steps` steps of an operation that all ranks must come to: each comes
// after its own computation, all leave when the last has come, 1 ms later.
class SimulatedSteps {
 public:
  explicit SimulatedSteps(int ranks) : lost_(ranks, 0), free_at_(ranks, 0) {}

  // `computes`: seconds before the operation, of each rank.
  void Step(const std::string& verb, int64_t fingerprint,
            const std::vector<double>& computes) {
    std::vector<double> came;
    double last = 0;
    int slowest = 0;
    for (size_t r = 0; r < computes.size(); ++r) {
      came.push_back(free_at_[r] + computes[r]);
      if (came[r] > last) slowest = static_cast<int>(r);
      last = std::max(last, came[r]);
    }
    for (size_t r = 0; r < computes.size(); ++r) {
      calls[absl::StrCat("trainer", r)][next_] = {verb, fingerprint,
                                                  last - came[r] + 0.001};
      lost_[slowest] += last - came[r];
      free_at_[r] = last + 0.001;
    }
    ++next_;
  }
  // The part of the lost time of which `rank` was the last.
  double ShareOf(int rank) const {
    double all = 0;
    for (const double one : lost_) all += one;
    return lost_[rank] / all;
  }

  TimedCalls calls;

 private:
  std::vector<double> lost_;
  std::vector<double> free_at_;
  int64_t next_ = 0;
};

double ShareOf(const std::string& worker, const Waiting& waiting) {
  const auto it = waiting.for_worker.find(worker);
  return it == waiting.for_worker.end() ? 0 : it->second / waiting.seconds();
}

// One rank computes for longer than the others in some of the steps; each has
// some noise. Its share is found to within a tenth.
TEST(Stragglers, SlowRankIsFoundWithItsShare) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    sim::Random random(seed);
    const int ranks = 2 + static_cast<int>(random.Below(15));
    const int slow = static_cast<int>(random.Below(ranks));
    SimulatedSteps steps(ranks);
    for (int i = 0; i < 200; ++i) {
      std::vector<double> computes;
      for (int r = 0; r < ranks; ++r) {
        const bool is_late = r == slow && random.Chance(0.7);
        computes.push_back(0.010 +
                           1e-6 * static_cast<double>(random.Below(500)) +
                           (is_late ? 0.005 : 0));
      }
      steps.Step("AllReduce", 7, computes);
    }
    const auto found = WaitingIn(steps.calls);
    ASSERT_EQ(found.size(), 1u);
    const Waiting& waiting = found.begin()->second;
    EXPECT_EQ(waiting.operations, 200);
    EXPECT_NEAR(ShareOf(absl::StrCat("trainer", slow), waiting),
                steps.ShareOf(slow), 0.1)
        << seed;
    EXPECT_GT(ShareOf(absl::StrCat("trainer", slow), waiting), 0.5) << seed;
  }
}

// trainer0 waits 3 s for two, of which one comes 1 s before the other.
TEST(Stragglers, WhileSeveralAreMissingEachHasAnEqualPart) {
  SimulatedSteps steps(3);
  steps.Step("Barrier", 1, {0, 2, 3});
  const auto found = WaitingIn(steps.calls);
  const Waiting& waiting = found.begin()->second;
  EXPECT_NEAR(waiting.seconds(), 4, 1e-9);  // 3 s and 1 s
  EXPECT_NEAR(waiting.for_worker.at("trainer1"), 1, 1e-9);
  EXPECT_NEAR(waiting.for_worker.at("trainer2"), 3, 1e-9);
}

TEST(Stragglers, EachOperationHasItsOwnShares) {
  SimulatedSteps steps(2);
  for (int i = 0; i < 10; ++i) {
    steps.Step("AllReduce", 7, {0.1, 0.3});
    steps.Step("AllGather", 8, {0.2, 0.1});
  }
  const std::string text = StragglerText(steps.calls);
  EXPECT_THAT(text, HasSubstr("in 20 operations that all have finished they "
                              "waited 3.000 s for each other: for trainer1 "
                              "67 %, trainer0 33 %\n"));
  EXPECT_THAT(text, HasSubstr("AllReduce like #18, 10 times: 2.000 s, trainer1 "
                              "100 %\n"));
  EXPECT_THAT(text, HasSubstr("AllGather like #19, 10 times: 1.000 s, trainer0 "
                              "100 %\n"));
  EXPECT_LT(text.find("AllReduce"), text.find("AllGather"));
}

// The root of a broadcast waits for nobody.
TEST(Stragglers, OperationsInWhichNotAllWaitForAllAreLeftOut) {
  SimulatedSteps steps(2);
  steps.Step("Broadcast", 7, {0, 3});
  EXPECT_THAT(WaitingIn(steps.calls), IsEmpty());
  EXPECT_EQ(StragglerText(steps.calls), "");
}

TEST(Stragglers, OperationsThatNotAllHaveFinishedAreLeftOut) {
  SimulatedSteps steps(2);
  steps.Step("AllReduce", 7, {0, 3});
  steps.Step("AllReduce", 7, {0, 2});
  steps.calls["trainer1"].erase(0);
  EXPECT_NEAR(WaitingIn(steps.calls).begin()->second.seconds(), 2, 1e-9);
  steps.calls["trainer1"][1].fingerprint = 8;
  EXPECT_THAT(WaitingIn(steps.calls), IsEmpty());
  steps.calls.erase("trainer1");
  EXPECT_THAT(WaitingIn(steps.calls), IsEmpty());
}

// They may have come from a peer.
TEST(Stragglers, TimesThatMakeNoSenseDoNoHarm) {
  TimedCalls calls;
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double seconds : {infinite, -infinite, -5.0, 1e308}) {
    calls["trainer0"][0] = {"Barrier", 1, seconds};
    calls["trainer1"][0] = {"Barrier", 1, 1};
    EXPECT_THAT(StragglerText(calls), Not(HasSubstr("nan")));
  }
}

}  // namespace
}  // namespace weft::launch
