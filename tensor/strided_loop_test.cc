#include "weft/tensor/strided_loop.h"

#include <array>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft::internal {
namespace {

constexpr int kOperands = 3;
using Offsets = std::array<int64_t, kOperands>;

struct Operand {
  Shape shape;
  Shape strides;
};

// A shape that broadcasts to `shape`, with any strides.
Operand AnyOperand(const Shape& shape, Generator& generator) {
  Operand operand;
  const size_t lead = generator.NextBelow(shape.size() + 1);
  for (size_t d = lead; d < shape.size(); ++d) {
    operand.shape.push_back(generator.NextBelow(4) == 0 ? 1 : shape[d]);
    operand.strides.push_back(static_cast<int64_t>(generator.NextBelow(9)) - 4);
  }
  // Half of them lie as new tensors do, so that dimensions are joined.
  if (generator.NextBelow(2) == 0) {
    operand.strides = ContiguousStrides(operand.shape);
  }
  return operand;
}

int64_t OffsetOf(const Operand& operand, const Shape& index) {
  const size_t lead = index.size() - operand.shape.size();
  int64_t offset = 0;
  for (size_t d = 0; d < operand.shape.size(); ++d) {
    if (operand.shape[d] == 1) continue;
    offset += index[lead + d] * operand.strides[d];
  }
  return offset;
}

TEST(StridedLoop, WalksEachElementInRowMajorOrder) {
  Generator generator(1);
  for (int i = 0; i < 5000; ++i) {
    const Shape shape = AnyShape(5, 3, generator);
    std::array<Operand, kOperands> operands;
    std::array<Layout, kOperands> layouts;
    for (int k = 0; k < kOperands; ++k) {
      operands[k] = AnyOperand(shape, generator);
      layouts[k] = {operands[k].shape, operands[k].strides};
    }
    std::vector<Offsets> wanted;
    ForEachIndex(shape, [&](const Shape& index) {
      Offsets& at = wanted.emplace_back();
      for (int k = 0; k < kOperands; ++k) at[k] = OffsetOf(operands[k], index);
    });
    std::vector<Offsets> found;
    StridedLoop<kOperands>(shape, layouts)
        .ForEachRun([&](Offsets at, const Offsets& strides, int64_t n) {
          EXPECT_GT(n, 0);
          for (int64_t j = 0; j < n; ++j) {
            found.push_back(at);
            for (int k = 0; k < kOperands; ++k) at[k] += strides[k];
          }
        });
    ASSERT_EQ(found, wanted) << ShapeText(shape);
  }
}

TEST(StridedLoop, TakesOneRunWhereAllGoOn) {
  const auto runs = [](const Shape& shape, const Operand& a) {
    int count = 0;
    StridedLoop<2>(shape, {Layout{shape, ContiguousStrides(shape)},
                           Layout{a.shape, a.strides}})
        .ForEachRun([&](const auto&, const auto&, int64_t) { ++count; });
    return count;
  };
  EXPECT_EQ(runs({2, 3, 4}, {{2, 3, 4}, {12, 4, 1}}), 1);
  EXPECT_EQ(runs({2, 3, 4}, {{}, {}}), 1);                    // A scalar.
  EXPECT_EQ(runs({2, 1, 4}, {{2, 1, 4}, {4, 99, 1}}), 1);     // Size 1.
  EXPECT_EQ(runs({2, 3, 4}, {{2, 3, 4}, {24, 8, 2}}), 1);     // Every other.
  EXPECT_EQ(runs({2, 3, 4}, {{2, 3, 4}, {-12, -4, -1}}), 1);  // Backwards.
  EXPECT_EQ(runs({2, 3, 4}, {{3, 4}, {4, 1}}), 2);
  EXPECT_EQ(runs({2, 3, 4}, {{2, 3, 4}, {15, 5, 1}}), 6);  // Gaps.
  EXPECT_EQ(runs({}, {{}, {}}), 1);
  EXPECT_EQ(runs({2, 0}, {{2, 0}, {0, 1}}), 0);
}

TEST(StridedLoop, HasRoomForTheMostDimensions) {
  // No two dimensions of size 2 go on from each other.
  Shape shape(kMaxDims, 1), strides(kMaxDims, 0);
  for (int d = 0; d < kMaxDims; d += 4) {
    shape[d] = 2;
    strides[d] = d + 1;
  }
  int64_t elements = 0;
  StridedLoop<1>(shape, {Layout{shape, strides}})
      .ForEachRun([&](const auto&, const auto&, int64_t n) { elements += n; });
  EXPECT_EQ(elements, 256);
}

}  // namespace
}  // namespace weft::internal
