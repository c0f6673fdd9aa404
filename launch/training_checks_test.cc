#include "weft/launch/training_checks.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

class TrainingChecksTest : public ::testing::Test {
 protected:
  Generator generator_{1};
  ImageModel model_{8, 8, 3, generator_};
};

TEST_F(TrainingChecksTest, SettingsRoundTripThroughText) {
  const Settings settings = {{"--lr", "0.002"}, {"images", "60000 of 28x28"}};
  EXPECT_EQ(ParseSettings(FormatSettings(settings)), settings);
  EXPECT_TRUE(ParseSettings("no settings").empty());
  EXPECT_TRUE(ParseSettings("").empty());
}

TEST_F(TrainingChecksTest, DifferenceNamesBothValuesAndBothWorkers) {
  const Settings own = {{"--lr", "0.002"}, {"--seed", "1"}};
  EXPECT_THAT(CompareSettings("trainer0", own, "trainer1", own), IsOk());
  const absl::Status differs = CompareSettings(
      "trainer0", own, "trainer1", {{"--lr", "0.1"}, {"--seed", "1"}});
  EXPECT_THAT(differs, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "--lr is 0.002 at trainer0 and 0.1 at "
                                "trainer1"));
  EXPECT_FALSE(absl::StrContains(differs.message(), "--seed"));
  EXPECT_EQ(worker::ExitCodeFor(differs), worker::ExitCode::kConfig);
  EXPECT_THAT(CompareSettings("trainer0", own, "trainer1", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "--seed is 1 at trainer0 and not there at trainer1"));
}

TEST_F(TrainingChecksTest, CheckpointOfTheSameSettingsGivesItsPlace) {
  Settings settings = {{"--seed", "1"}, {"--lr", "0.1"}};
  const auto metadata = MetadataOf(settings, {});
  settings["--lr"] = "0.2";  // may change
  EXPECT_THAT(CheckMetadata("c", metadata, settings),
              testing::IsOkAndHolds(input::ShardedSampler::State().ToString()));
  // One of an earlier version has no settings.
  EXPECT_THAT(CheckMetadata("c", {{kPlaceInData, "here"}}, settings),
              testing::IsOkAndHolds("here"));
}

TEST_F(TrainingChecksTest, CheckpointOfOtherSettingsIsRefusedWithBothValues) {
  const auto metadata = MetadataOf({{"--seed", "1"}}, {});
  const auto place = CheckMetadata("dir/ckpt-1", metadata, {{"--seed", "2"}});
  EXPECT_THAT(place, StatusIs(absl::StatusCode::kFailedPrecondition,
                              "cannot go on from dir/ckpt-1: --seed is 1 there "
                              "and 2 now; give what it was saved with"));
  EXPECT_EQ(worker::ExitCodeFor(place.status()), worker::ExitCode::kConfig);
  EXPECT_THAT(CheckMetadata("c", {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "c was not saved by a trainer"));
}

TEST_F(TrainingChecksTest, FiniteLossIsOk) {
  EXPECT_THAT(CheckLoss(2.3, 7, "trainer0", model_), IsOk());
  EXPECT_THAT(CheckFinite(model_), IsOk());
}

TEST_F(TrainingChecksTest, LossThatIsNotFiniteNamesStepAndParameter) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(CheckLoss(nan, 7, "trainer1", model_),
              StatusIs(absl::StatusCode::kOutOfRange,
                       "trainer1, step 7: the loss is nan; all parameters are "
                       "finite; try a smaller --lr"));
  const auto state = model_.StateDict();
  const auto& [name, tensor] = *state.begin();
  tensor.span<float>()[1] = std::numeric_limits<float>::infinity();
  const absl::Status diverged = CheckLoss(nan, 7, "trainer1", model_);
  EXPECT_THAT(diverged,
              StatusIs(absl::StatusCode::kOutOfRange,
                       "the parameter " + name + " has inf at element 1"));
  EXPECT_EQ(worker::ExitCodeFor(diverged), worker::ExitCode::kDiverged);
  EXPECT_THAT(CheckFinite(model_),
              StatusIs(absl::StatusCode::kOutOfRange, name + " has inf"));
}

}  // namespace
}  // namespace weft::launch
