#include "weft/tensor/ops/fold.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace weft::internal {
namespace {

// A number for each place, such that neither a lost nor a doubled one leaves
// the sum as it is.
int64_t NumberAt(int64_t i) { return i * i % 1009 + 1; }

// Not AddOp: the loops over it, of which a program chooses one when it starts,
// are in the library of reductions already.
struct Plus {
  int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

TEST(FoldTerms, TakesEachTermOnceAtEachLength) {
  const auto check = [](int64_t n) {
    int64_t wanted = 0;
    for (int64_t i = 0; i < n; ++i) wanted += NumberAt(i);
    ASSERT_EQ(SumTerms<int64_t>(n, NumberAt), wanted) << n;
  };
  for (int64_t n = 0; n < 200; ++n) check(n);
  // Around one block of 128 x 32, and 32 and 1024 of them, where levels pass
  // on.
  for (const int64_t blocks : {1, 2, 31, 32, 33, 1023, 1024, 1025}) {
    // Only two lengths around the larger numbers: each takes up to millions of
    // terms.
    const int64_t step = blocks > 100 ? 50 : 11;
    for (int64_t n = blocks * 4096 - 33; n <= blocks * 4096 + 33; n += step) {
      check(n);
    }
  }
}

// Rows and columns around the widths and heights that have ways of their own.
TEST(FoldRows, TakesEachElementOnceInEachLayout) {
  for (const int64_t columns :
       {1, 2, 3, 31, 64, 127, 128, 129, 255, 256, 257, 300, 513}) {
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 600}) {
      for (const int layout : {0, 1, 2}) {
        // Without gaps, with gaps between rows, with gaps between columns.
        const int64_t step = layout == 2 ? 2 : 1;
        const RowsLayout rows_layout = {
            rows, columns, columns * step + (layout == 1 ? 3 : 0), step};
        std::vector<int64_t> in(
            static_cast<size_t>(rows * rows_layout.row_stride + 1), 1 << 30);
        std::vector<int64_t> wanted(static_cast<size_t>(columns));
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const int64_t number = NumberAt(i * columns + j);
            in[static_cast<size_t>(i * rows_layout.row_stride + j * step)] =
                number;
            wanted[static_cast<size_t>(j)] += number;
          }
        }
        std::vector<int64_t> out(static_cast<size_t>(columns), -1);
        FoldRows<int64_t>(in.data(), rows_layout, out.data(), 0, Plus());
        ASSERT_EQ(out, wanted) << rows << " x " << columns << ", " << layout;
      }
    }
  }
}

// Long columns reach the cascade's upper levels.
TEST(FoldRows, PassesEachLevelOn) {
  for (const int64_t rows : {4 * 1024, 4 * 1024 + 1, 4 * 32768 + 5}) {
    const std::vector<int64_t> in(static_cast<size_t>(3 * rows), 1);
    for (const int64_t gap :
         {0, 1}) {  // Narrow rows, and two of three columns.
      std::vector<int64_t> out(3, -1);
      FoldRows<int64_t>(in.data(), {rows, 3 - gap, 3, 1}, out.data(), 0,
                        Plus());
      for (int64_t j = 0; j < 3 - gap; ++j) {
        EXPECT_EQ(out[static_cast<size_t>(j)], rows);
      }
    }
  }
}

}  // namespace
}  // namespace weft::internal
