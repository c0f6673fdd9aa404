#include "weft/train/settings.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_workers.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class AgreeOnSettingsTest : public ::testing::Test {
 protected:
  AgreeOnSettingsTest() {
    worker::TestWorkers::Options options;
    options.trainers = 2;
    workers_ = worker::TestWorkers::Start(options).value();
  }
  // What each trainer gets that has these settings.
  std::vector<absl::Status> Agree(const std::vector<Settings::Values>& settings,
                                  absl::Duration timeout = absl::Minutes(1)) {
    std::vector<absl::Status> statuses(settings.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(settings.size()); ++rank) {
      threads.emplace_back([&, rank] {
        auto& membership =
            workers_->Get("trainer" + std::to_string(rank)).membership();
        statuses[rank] =
            AgreeOnSettings(membership, rank, 2, settings[rank], timeout);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  std::unique_ptr<worker::TestWorkers> workers_;
};

TEST(Settings, SettingsRoundTripThroughText) {
  const Settings::Values settings = {{"--lr", "0.002"},
                                     {"images", "60000 of 28x28"}};
  EXPECT_EQ(ParseSettings(FormatSettings(settings)), settings);
  EXPECT_TRUE(ParseSettings("no settings").empty());
  EXPECT_TRUE(ParseSettings("").empty());
}

TEST(Settings, DifferenceNamesBothValuesAndBothWorkers) {
  const Settings::Values own = {{"--lr", "0.002"}, {"--seed", "1"}};
  EXPECT_THAT(CompareSettings("trainer0", own, "trainer1", own), IsOk());
  const absl::Status differs = CompareSettings(
      "trainer0", own, "trainer1", {{"--lr", "0.1"}, {"--seed", "1"}});
  EXPECT_THAT(differs, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "--lr is 0.002 at trainer0 and 0.1 at "
                                "trainer1"));
  EXPECT_FALSE(absl::StrContains(differs.message(), "--seed"));
  EXPECT_EQ(worker::ExitCodeFor(differs), worker::ExitCode::kConfig);
  EXPECT_THAT(CompareSettings("trainer0", {}, "trainer1", own),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "--seed is not there at trainer0 and 1 at trainer1"));
  EXPECT_THAT(CompareSettings("trainer0", own, "trainer1", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "--seed is 1 at trainer0 and not there at trainer1"));
}

TEST_F(AgreeOnSettingsTest, EqualSettingsAreAgreedOn) {
  const Settings::Values same = {{"--lr", "0.1"}, {"--seed", "7"}};
  EXPECT_THAT(Agree({same, same}), Each(IsOk()));
}

TEST_F(AgreeOnSettingsTest, SettingThatDiffersIsNamedWithBothValues) {
  for (const absl::Status& status :
       Agree({{{"--lr", "0.1"}, {"--seed", "7"}},
              {{"--lr", "0.2"}, {"--seed", "7"}}})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("trainer0"), HasSubstr("trainer1"),
                      HasSubstr("--lr"), HasSubstr("0.1"), HasSubstr("0.2"),
                      ::testing::Not(HasSubstr("--seed"))));
  }
}

TEST_F(AgreeOnSettingsTest, TrainerThatSaysNothingIsNamed) {
  EXPECT_THAT(Agree({{{"--lr", "0.1"}}}, absl::Seconds(3))[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "trainer1 has not said within 3s"));
}

}  // namespace
}  // namespace weft::train
