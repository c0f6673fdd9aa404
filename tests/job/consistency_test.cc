// A trainer that stands still, or dies, in a job whose rounds close by a
// quorum, and in one whose staleness is bounded; there a server dies, too.

#include <signal.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Three trainers on two servers, whose silence is borne for longer than a test
// takes: what ends a wait here is not that one is taken for dead.
class ConsistencyOfAJob : public ::testing::Test {
 protected:
  void Start(const Flags& of_trainers, int replicas = 1) {
    job_.trainers = 3;
    job_.flags = {"--silence=300s", absl::StrCat("--replicas=", replicas)};
    servers_ = job_.StartServers();
    Flags flags = {kForLong, "--loss-every=1"};
    flags.insert(flags.end(), of_trainers.begin(), of_trainers.end());
    trainers_ = job_.StartTrainers(flags);
    AwaitSteps(1);
  }

  // The last step of trainer 0, which says each of its own.
  int64_t Steps() const {
    int64_t steps = 0;
    for (const auto& line : absl::StrSplit(trainers_[0]->output(), '\n')) {
      const Json object = Json::parse(std::string(line), nullptr,
                                      /*allow_exceptions=*/false);
      if (object.is_object() && object.contains("step")) {
        steps = object["step"].get<int64_t>();
      }
    }
    return steps;
  }
  void AwaitSteps(int64_t more) const {
    const int64_t wanted = Steps() + more;
    ASSERT_TRUE(Becomes([&] { return Steps() >= wanted; }))
        << trainers_[0]->output();
  }

  // The table, as `weft status` shows it; null if it cannot tell.
  Json Table() const {
    const auto status = StartProcess(
        {Program("weft"), "status", "--coordinator=" + job_.coordinator,
         "--job=" + job_.name, "--tables", "--no-training", "--json"});
    if (!status->Wait(kLong).ok()) return nullptr;
    const Json answer = Json::parse(status->output(), nullptr,
                                    /*allow_exceptions=*/false);
    if (!answer.is_object()) return nullptr;
    return answer.value("tables", Json::object())
        .value("tables", Json::object())
        .value("model", Json());
  }

  void StopThoseThatAreLeft() {
    for (const auto& trainer : trainers_) {
      if (trainer != nullptr) trainer->Signal(SIGTERM);
    }
    for (const auto& trainer : trainers_) {
      if (trainer == nullptr) continue;
      EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
          << trainer->output();
    }
  }
  void Kill(int trainer) {
    trainers_[trainer]->Signal(SIGKILL);
    ASSERT_THAT(trainers_[trainer]->Wait(kLong), IsOk());
    trainers_[trainer] = nullptr;
  }

  Job job_;
  Processes servers_, trainers_;
};

TEST_F(ConsistencyOfAJob, QuorumGoesOnWithoutATrainerThatStandsStill) {
  Start({"--quorum=2", "--late=fold"});
  trainers_[2]->Signal(SIGSTOP);
  AwaitSteps(60);
  // The trainer goes on where the others are; the gradient that it had before
  // is late.
  trainers_[2]->Signal(SIGCONT);
  Json table;
  ASSERT_TRUE(Becomes([&] {
    table = Table();
    return table.is_object() &&
           table.value("late_dropped", 0) + table.value("late_folded", 0) > 0;
  })) << table;
  EXPECT_EQ(table["quorum"], 2);
  AwaitSteps(20);
  // The quorum is two of the trainers left, and then one.
  Kill(2);
  AwaitSteps(20);
  Kill(1);
  AwaitSteps(20);
  StopThoseThatAreLeft();
  EXPECT_GT(ResultOf(*trainers_[0]).test_accuracy, 0.5);
}

TEST_F(ConsistencyOfAJob, StalenessLetsATrainerRunAheadByTheBoundAndNoLonger) {
  constexpr int64_t kStaleness = 2;
  Start({"--async", absl::StrCat("--staleness=", kStaleness)});
  trainers_[2]->Signal(SIGSTOP);
  // The two others wait, at both servers or at one.
  Json table;
  ASSERT_TRUE(Becomes([&] {
    table = Table();
    return table.is_object() && table.value("waiting_pulls", 0) >= 2 &&
           table["clocks"]["slowest_rank"] == 2;
  })) << table;
  EXPECT_EQ(table["clocks"]["slowest_worker"], "trainer2");
  EXPECT_EQ(table["clocks"]["workers"], 3);
  const auto least = table["clocks"]["least"].get<int64_t>();
  EXPECT_LE(table["clocks"]["most"].get<int64_t>(), least + kStaleness + 1);
  // What a trainer says is read later than it is said, never before.
  EXPECT_LE(Steps(), least + kStaleness + 1);
  // Nobody waits for it once it is dead.
  Kill(2);
  AwaitSteps(60);
  StopThoseThatAreLeft();
}

// The clocks outlive a server: the trainers go on, and one that stands still
// after that is waited for, until it is dead.
TEST_F(ConsistencyOfAJob, StalenessWithTwoReplicasOutlivesTheDeathOfAServer) {
  constexpr int64_t kStaleness = 2;
  Start({"--async", absl::StrCat("--staleness=", kStaleness)}, /*replicas=*/2);
  AwaitSteps(10);
  servers_[1]->Signal(SIGKILL);
  ASSERT_THAT(servers_[1]->Wait(kLong), IsOk());
  AwaitSteps(20);
  trainers_[2]->Signal(SIGSTOP);
  Json table;
  ASSERT_TRUE(Becomes([&] {
    table = Table();
    return table.is_object() && table.value("waiting_pulls", 0) >= 2 &&
           table["clocks"]["slowest_rank"] == 2;
  })) << table;
  EXPECT_EQ(table["clocks"]["slowest_worker"], "trainer2");
  EXPECT_EQ(table["clocks"]["workers"], 3);
  EXPECT_LE(Steps(), table["clocks"]["least"].get<int64_t>() + kStaleness + 1);
  Kill(2);
  AwaitSteps(60);
  StopThoseThatAreLeft();
}

}  // namespace
}  // namespace weft::testing
