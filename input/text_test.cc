#include "weft/input/text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::input {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::StatusIs;
using Unit = TextDataset::Unit;

TEST(TextDataset, WindowsCarryTheNextCharacters) {
  const auto data = TextDataset::FromText("abcabca", Unit::kWindows, 3);
  WEFT_ASSERT_OK(data);
  EXPECT_EQ(data->characters(), "abc");
  ASSERT_EQ(data->size(), 2);
  const auto batch = data->GetBatch({0, 1});
  WEFT_ASSERT_OK(batch);
  EXPECT_THAT((*batch)[0].ToVector<int64_t>(), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT((*batch)[1].ToVector<int64_t>(), ElementsAre(1, 2, 0, 1, 2, 0));
  EXPECT_EQ(TextDataset::FromText("abcabc", Unit::kWindows, 3)->size(), 1);
  EXPECT_EQ(TextDataset::FromText("", Unit::kWindows, 3)->size(), 0);
}

TEST(TextDataset, LinesArePaddedToTheLongest) {
  for (const char* text : {"ba\n\nabb\n", "ba\n\nabb"}) {
    const auto data = TextDataset::FromText(text, Unit::kLines, 0);
    WEFT_ASSERT_OK(data);
    ASSERT_EQ(data->size(), 3);
    EXPECT_EQ(data->pad_id(), 2);
    const auto batch = data->GetBatch({0, 1, 2});
    WEFT_ASSERT_OK(batch);
    EXPECT_THAT((*batch)[0].ToVector<int64_t>(),
                ElementsAre(1, 0, 2, 2, 2, 2, 0, 1, 1));
    EXPECT_THAT((*batch)[1].ToVector<int64_t>(), ElementsAre(2, 0, 3));
    EXPECT_THAT((*data->Get(0))[0].ToVector<int64_t>(), ElementsAre(1, 0));
  }
}

TEST(TextDataset, RefusesAWindowOfNothing) {
  EXPECT_THAT(TextDataset::FromText("abc", Unit::kWindows, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "window is 0"));
}

}  // namespace
}  // namespace weft::input
