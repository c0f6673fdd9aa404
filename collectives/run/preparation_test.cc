#include "weft/collectives/run/preparation.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/call_site.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Preparation Prepare(Verb verb, int size = 2) {
  return Preparation(verb, size, CallSite());
}

// A column of a matrix: elements that do not lie side by side.
Tensor ColumnOf(const Tensor& matrix) { return matrix.Select(1, 0); }

TEST(Preparation, BlocksAreWhereTheTensorsAre) {
  Preparation call = Prepare(Verb::kAllReduce);
  const Tensor in = Tensor::Ones({3}), out = Tensor::Zeros({3});
  ASSERT_THAT(call.AddInput(in), IsOk());
  ASSERT_THAT(call.AddOutput(out), IsOk());
  const Operation& operation = call.operation();
  EXPECT_EQ(operation.inputs[0].memory, in.raw());
  EXPECT_EQ(operation.outputs[0].memory, out.raw());
  EXPECT_EQ(operation.outputs[0].elements, 3);
  EXPECT_EQ(operation.dtype, DType::kF32);
  EXPECT_THAT(call.CheckSameCount(0, 0), IsOk());
  EXPECT_THAT(call.CheckOverlap(), IsOk());
  const auto read = in.version(), written = out.version();
  ASSERT_THAT(call.Finish(), IsOk());
  EXPECT_EQ(in.version(), read);
  EXPECT_GT(out.version(), written);
}

// What is not contiguous is copied, and what is written comes back from the
// copy when the operation has ended.
TEST(Preparation, StridedTensorsAreReadAndWrittenByACopy) {
  const Tensor matrix = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  Preparation call = Prepare(Verb::kAllReduce);
  ASSERT_THAT(call.AddInPlace(ColumnOf(matrix)), IsOk());
  const Block block = call.operation().outputs[0];
  EXPECT_EQ(call.operation().inputs[0].memory, block.memory);
  float* const elements = reinterpret_cast<float*>(block.memory);
  EXPECT_THAT(std::vector<float>(elements, elements + 3), ElementsAre(1, 3, 5));
  for (int i = 0; i < 3; ++i) elements[i] *= 10;
  EXPECT_THAT(matrix.ToVector<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  ASSERT_THAT(call.Finish(), IsOk());
  EXPECT_THAT(matrix.ToVector<float>(), ElementsAre(10, 2, 30, 4, 50, 6));
}

TEST(Preparation, InputsAreNotWrittenBack) {
  const Tensor matrix = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  Preparation call = Prepare(Verb::kAllReduce);
  ASSERT_THAT(call.AddInput(ColumnOf(matrix)), IsOk());
  reinterpret_cast<float*>(call.operation().inputs[0].memory)[0] = 9;
  ASSERT_THAT(call.Finish(), IsOk());
  EXPECT_THAT(matrix.ToVector<float>(), ElementsAre(1, 2, 3, 4));
}

TEST(Preparation, PartsAreEqualAndInOrder) {
  const Tensor six = Tensor::Arange(6);
  Preparation call = Prepare(Verb::kReduceScatter, 3);
  ASSERT_THAT(call.AddInputParts(six), IsOk());
  const Blocks& parts = call.operation().inputs;
  ASSERT_EQ(parts.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(parts[i].elements, 2);
    EXPECT_EQ(*reinterpret_cast<int64_t*>(parts[i].memory), 2 * i);
  }
  EXPECT_THAT(Prepare(Verb::kReduceScatter, 4).AddInputParts(six),
              StatusIs(kInvalid, "do not divide into 4 equal parts"));
  EXPECT_THAT(Prepare(Verb::kAllGather, 4).AddOutputParts(six),
              StatusIs(kInvalid, "6 elements"));
}

TEST(Preparation, WhatCannotBeIsRefused) {
  const Tensor f32 = Tensor::Ones({2}), i64 = Tensor::Arange(2);
  EXPECT_THAT(Prepare(Verb::kAllReduce).AddInput(Tensor()),
              StatusIs(kInvalid, "undefined"));
  Preparation mixed = Prepare(Verb::kAllReduce);
  ASSERT_THAT(mixed.AddInput(f32), IsOk());
  EXPECT_THAT(mixed.AddOutput(i64), StatusIs(kInvalid, "found f32 and i64"));
  for (const size_t count : {0, 1, 3}) {
    const std::vector<Tensor> list(count, f32);
    EXPECT_THAT(Prepare(Verb::kAllToAll).AddInputs(list),
                StatusIs(kInvalid, "one input for each of 2 ranks, found " +
                                       std::to_string(count)));
    EXPECT_THAT(Prepare(Verb::kAllToAll).AddOutputs(list),
                StatusIs(kInvalid, "one output for each of 2 ranks"));
  }
  for (const int root : {-1, 2}) {
    EXPECT_THAT(Prepare(Verb::kBroadcast).SetRoot(root),
                StatusIs(kInvalid, "a root from 0 to 1"));
  }
  Preparation uneven = Prepare(Verb::kAllReduce);
  ASSERT_THAT(uneven.AddInput(Tensor::Ones({3})), IsOk());
  ASSERT_THAT(uneven.AddOutput(f32), IsOk());
  EXPECT_THAT(uneven.CheckSameCount(0, 0),
              StatusIs(kInvalid, "input has 3 elements, the output for it 2"));
}

// One element in several places can be read, and not written.
TEST(Preparation, ExpandedTensorsAreOnlyRead) {
  const Tensor one = Tensor::Ones({1, 1}).Expand({4, 1});
  EXPECT_THAT(Prepare(Verb::kAllReduce).AddInput(one), IsOk());
  EXPECT_THAT(Prepare(Verb::kAllReduce).AddOutput(one),
              StatusIs(kInvalid, "is expanded"));
  EXPECT_THAT(Prepare(Verb::kAllReduce).AddInPlace(one),
              StatusIs(kInvalid, "is expanded"));
}

TEST(Preparation, OutputsOverlapOnlyAnInputThatIsThemselves) {
  const Tensor all = Tensor::Zeros({6});
  const auto part = [&](int64_t begin, int64_t end) {
    return all.Slice(0, begin, end);
  };
  const auto check = [](const Tensor& in, const Tensor& out) {
    Preparation call = Prepare(Verb::kAllReduce);
    EXPECT_THAT(call.AddInput(in), IsOk());
    EXPECT_THAT(call.AddOutput(out), IsOk());
    return call.CheckOverlap();
  };
  EXPECT_THAT(check(part(0, 3), part(0, 3)), IsOk());
  EXPECT_THAT(check(part(0, 3), part(3, 6)), IsOk());
  EXPECT_THAT(check(part(3, 6), part(0, 3)), IsOk());
  EXPECT_THAT(check(part(0, 3), part(2, 5)), StatusIs(kInvalid, "overlaps"));
  EXPECT_THAT(check(part(0, 3), part(0, 2)), StatusIs(kInvalid, "overlaps"));
  EXPECT_THAT(check(part(1, 2), part(0, 3)), StatusIs(kInvalid, "overlaps"));
  EXPECT_THAT(check(part(1, 1), part(0, 3)), IsOk());  // of no elements
  Preparation outputs = Prepare(Verb::kAllGather);
  ASSERT_THAT(outputs.AddOutputs({part(0, 2), part(1, 3)}), IsOk());
  EXPECT_THAT(outputs.CheckOverlap(), StatusIs(kInvalid, "overlaps"));
}

TEST(Preparation, ReductionsAreCheckedAgainstTheDtype) {
  Preparation call = Prepare(Verb::kAllReduce);
  ASSERT_THAT(call.AddInPlace(Tensor::Ones({2})), IsOk());
  EXPECT_THAT(call.SetReduction(ReduceOp::kXor), StatusIs(kInvalid, "xor"));
  EXPECT_THAT(call.SetReduction({ReduceOp::kAverage, 2}), IsOk());
  EXPECT_EQ(call.operation().reduction.factor, 2);
}

}  // namespace
}  // namespace weft::collectives
