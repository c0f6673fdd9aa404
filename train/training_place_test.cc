#include "weft/train/training_place.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::weft::testing::StatusIs;

TrainingPlace After(int64_t steps, int64_t epoch = 0) {
  TrainingPlace place;
  place.is_known = true;
  place.steps = steps;
  place.epoch = epoch;
  return place;
}

TEST(TrainingPlace, TextKeepsEverything) {
  TrainingPlace place = After(12, 3);
  place.fingerprint = std::numeric_limits<uint64_t>::max();
  place.was_stopped = true;
  place.mean_loss = 0.1;
  place.samples = 99;
  place.seed = std::numeric_limits<uint64_t>::max();
  place.stream = 7;
  place.data = {3, 40, 64, 5, false};
  place.run = {"abc", "checkpoint before"};
  place.checkpoint = "/a b/checkpoint 4";
  const auto read = ParsePlace(FormatPlace(place));
  WEFT_ASSERT_OK(read);
  EXPECT_EQ(FormatPlace(*read), FormatPlace(place));
  EXPECT_EQ(read->mean_loss, 0.1);
  EXPECT_EQ(read->seed, place.seed);
  EXPECT_EQ(read->run.before, "checkpoint before");
  EXPECT_EQ(read->checkpoint, "/a b/checkpoint 4");
  EXPECT_EQ(read->data.used, 40);
  WEFT_ASSERT_OK(ParsePlace(FormatPlace({})));
}

TEST(TrainingPlace, OtherTextsAreRefused) {
  const std::string text = FormatPlace(After(3));
  for (const std::string& other :
       {std::string(), std::string("1\n2"), text + "\nmore",
        "x" + text.substr(text.find('\n')).replace(1, 1, "x"),
        std::string(10, '\n')}) {
    EXPECT_THAT(ParsePlace(other),
                StatusIs(absl::StatusCode::kInvalidArgument, "place"))
        << other;
  }
}

TEST(TrainingPlace, FurthestIsTheLowestRankAfterMostSteps) {
  EXPECT_EQ(FurthestOf({}), -1);
  EXPECT_EQ(FurthestOf({TrainingPlace(), TrainingPlace()}), -1);
  EXPECT_EQ(FurthestOf({After(4), After(5), TrainingPlace(), After(5)}), 1);
  // At the end of an epoch, and at the begin of the next.
  EXPECT_EQ(FurthestOf({After(4, 0), After(4, 1)}), 1);
  // A place that is not known is that of one who has just come.
  TrainingPlace unknown = After(9);
  unknown.is_known = false;
  EXPECT_EQ(FurthestOf({unknown, After(0)}), 1);
  EXPECT_TRUE(IsSameStep(After(4, 0), After(4, 1)));
  EXPECT_FALSE(IsSameStep(After(4), After(5)));
  EXPECT_FALSE(IsSameStep(unknown, After(9)));
}

}  // namespace
}  // namespace weft::train
