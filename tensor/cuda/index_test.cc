#include "weft/tensor/cuda/index.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/strided_loop.h"

namespace weft::internal::cuda {
namespace {

struct RandomLayout {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  Layout plain() const {
    return {static_cast<int>(sizes.size()), sizes.data(), strides.data()};
  }
  internal::Layout layout() const { return {sizes, strides}; }
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : generator_(seed) {}

  int64_t Number(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(generator_);
  }

  std::vector<int64_t> Sizes(int64_t low) {
    std::vector<int64_t> sizes(static_cast<size_t>(Number(0, 6)));
    for (int64_t& size : sizes) size = Number(low, 4);
    return sizes;
  }

  // What broadcasts to `sizes`: dimensions left out in front, some of size 1,
  // strides that go on from each other, that are 0, negative or anything.
  RandomLayout LayoutFor(const std::vector<int64_t>& sizes) {
    RandomLayout result;
    const size_t left_out =
        static_cast<size_t>(Number(0, 3) == 0 ? Number(0, sizes.size()) : 0);
    result.sizes.assign(sizes.begin() + left_out, sizes.end());
    result.strides.resize(result.sizes.size());
    int64_t next = Number(0, 2) == 0 ? -1 : 1;
    for (size_t d = result.sizes.size(); d-- > 0;) {
      if (Number(0, 4) == 0) result.sizes[d] = 1;
      const int64_t choice = Number(0, 5);
      const int64_t stride = choice == 0   ? 0
                             : choice == 1 ? Number(-9, 9)
                                           : next;
      result.strides[d] = stride;
      next = stride * result.sizes[d];
    }
    return result;
  }

 private:
  std::mt19937 generator_;
};

TEST(StridedIndex, FindsEveryElementWhereStridedLoopDoes) {
  int64_t walked = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::vector<int64_t> sizes = draw.Sizes(seed % 10 == 0 ? 0 : 1);
    RandomLayout operands[3];
    for (RandomLayout& operand : operands) operand = draw.LayoutFor(sizes);
    const StridedLoop<3> loop(
        sizes,
        {operands[0].layout(), operands[1].layout(), operands[2].layout()});
    StridedIndex<3> index;
    ASSERT_TRUE(MakeIndex<3>(
        static_cast<int>(sizes.size()), sizes.data(),
        {operands[0].plain(), operands[1].plain(), operands[2].plain()},
        &index));
    int64_t i = 0;
    loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
      for (int64_t j = 0; j < n; ++j, ++i) {
        const Offsets<3> found = index.At(i);
        for (int k = 0; k < 3; ++k) {
          ASSERT_EQ(found[k], at[k] + j * strides[k]) << i << " " << k;
        }
      }
    });
    ASSERT_EQ(i, index.count);
    walked += i;
  }
  EXPECT_GT(walked, 10000);
}

TEST(StridedIndex, JoinsDimensionsThatGoOn) {
  const int64_t sizes[] = {2, 3, 4};
  const int64_t dense[] = {12, 4, 1};
  const int64_t row[] = {0, 0, 1};
  StridedIndex<1> one;
  ASSERT_TRUE(MakeIndex<1>(3, sizes, {{3, sizes, dense}}, &one));
  EXPECT_EQ(one.dims, 1);
  EXPECT_EQ(one.count, 24);
  StridedIndex<2> two;
  ASSERT_TRUE(
      MakeIndex<2>(3, sizes, {{3, sizes, dense}, {3, sizes, row}}, &two));
  EXPECT_EQ(two.dims, 2);
}

TEST(StridedIndex, FindsElementsBeyond32Bits) {
  const int64_t sizes[] = {int64_t{1} << 20, 3, int64_t{1} << 20};
  const int64_t strides[] = {int64_t{1} << 22, -5, 2};
  StridedIndex<1> index;
  ASSERT_TRUE(MakeIndex<1>(3, sizes, {{3, sizes, strides}}, &index));
  const int64_t i = (int64_t{1000} * 3 + 2) * sizes[2] + 17;
  EXPECT_GT(i, int64_t{1} << 31);
  EXPECT_EQ(index.At(i)[0], 1000 * strides[0] + 2 * -5 + 17 * 2);
}

TEST(StridedIndex, RefusesMoreDimensionsThanAKernelTakes) {
  int64_t sizes[9];
  int64_t strides[9];
  for (int d = 0; d < 9; ++d) {
    sizes[d] = 2;
    strides[d] = 7 * (d + 1);
  }
  StridedIndex<1> index;
  EXPECT_TRUE(MakeIndex<1>(8, sizes, {{8, sizes, strides}}, &index));
  EXPECT_FALSE(MakeIndex<1>(9, sizes, {{9, sizes, strides}}, &index));
}

}  // namespace
}  // namespace weft::internal::cuda
