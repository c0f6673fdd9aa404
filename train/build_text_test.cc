#include "weft/train/build_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::train {
namespace {

// Debian's linker gives each program an id.
TEST(BuildText, HasTheVersionAndTheIdOfTheProgram) {
  EXPECT_THAT(BuildText(), ::testing::ContainsRegex(
                               "^weft [0-9.]+, program [0-9a-f]{32,40}$"));
  EXPECT_EQ(BuildText(), BuildText());
}

}  // namespace
}  // namespace weft::train
