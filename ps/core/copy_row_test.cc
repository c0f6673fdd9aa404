#include "weft/ps/core/copy_row.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace weft::ps {
namespace {

TEST(CopyRow, RowOfAnyLengthIsCopiedAndNothingBehindIt) {
  for (int64_t n = 0; n <= 130; ++n) {
    std::vector<float> from(n), to(n + 1, -1.0f);
    for (int64_t i = 0; i < n; ++i) from[i] = static_cast<float>(i);
    EXPECT_EQ(CopyRow(from.data(), n, to.data()), to.data() + n) << n;
    EXPECT_EQ(to[n], -1.0f) << n;
    to.pop_back();
    EXPECT_EQ(to, from) << n;
  }
}

}  // namespace
}  // namespace weft::ps
