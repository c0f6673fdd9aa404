#include "weft/train/saving/training_place.h"

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
  place.rank.is_known = true;
  place.rank.position.steps = steps;
  place.rank.position.epoch = epoch;
  return place;
}

TEST(TrainingPlace, TextKeepsEverything) {
  TrainingPlace place = After(12, 3);
  place.rank.fingerprint = std::numeric_limits<uint64_t>::max();
  place.rank.position.was_stopped = true;
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

}  // namespace
}  // namespace weft::train
