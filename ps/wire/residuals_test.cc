#include "weft/ps/wire/residuals.h"

#include <cstdint>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

TEST(Residuals, RowKeepsWhatWasPutThereByShard) {
  Residuals residuals(2, 1 << 20);
  residuals.Of(0, 7)[1] = 3;
  residuals.Of(1, 7)[1] = 4;
  residuals.Of(0, 8)[0] = 5;
  EXPECT_EQ(residuals.Of(0, 7)[0], 0);
  EXPECT_EQ(residuals.Of(0, 7)[1], 3);
  EXPECT_EQ(residuals.Of(1, 7)[1], 4);
  EXPECT_EQ(residuals.Of(0, 8)[0], 5);
  EXPECT_EQ(residuals.Of(1, 8)[0], 0);
}

TEST(Residuals, NoMoreRowsThanTheirBytesAndThoseAskedForLatelyStay) {
  constexpr int64_t kRows = 100;
  Residuals residuals(1, kRows * Residuals::BytesOfRow(1));
  for (uint64_t key = 0; key < 10; ++key) *residuals.Of(0, key) = 1;
  for (uint64_t key = 1000; key < 3000; ++key) {
    *residuals.Of(0, key) = 2;
    for (uint64_t kept = 0; kept < 10; ++kept) {
      ASSERT_EQ(*residuals.Of(0, kept), 1) << key;
    }
  }
  EXPECT_EQ(residuals.rows(), kRows);
  EXPECT_EQ(*residuals.Of(0, 1000), 0);  // it went
  EXPECT_EQ(*residuals.Of(0, 2999), 2);
}

TEST(Residuals, OneRowIsKeptWhateverTheBytes) {
  Residuals residuals(8, 0);
  residuals.Of(0, 1)[7] = 1;
  EXPECT_EQ(residuals.Of(0, 1)[7], 1);
  EXPECT_EQ(residuals.Of(0, 2)[7], 0);
  EXPECT_EQ(residuals.Of(0, 1)[7], 0);
}

// Against a map: a row has what was put there, or zeros once it went.
TEST(Residuals, NoRowHasWhatWasPutIntoAnother) {
  Residuals residuals(1, 50 * Residuals::BytesOfRow(1));
  std::mt19937 random(1);
  std::map<uint64_t, float> put;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = random() % 80;
    float& value = *residuals.Of(0, key);
    ASSERT_TRUE(value == 0 || value == put[key]) << key;
    value = put[key] = static_cast<float>(i + 1);
  }
}

}  // namespace
}  // namespace weft::ps
