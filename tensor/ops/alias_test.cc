// Operations that write: operands that overlap what is written, and targets
// that overlap themselves. And that messages name what the caller gave.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor OneToFour() { return Tensor::FromVector<double>({1, 2, 3, 4}, {2, 2}); }

TEST(MatMulAdd, WithItselfAsAnOperandUsesTheValuesFromBefore) {
  const Tensor b = Tensor::FromVector<double>({1, 1, 0, 1}, {2, 2});
  Tensor x = OneToFour();
  MatMulAdd_(x, x, b);
  ExpectValues(x, {2, 2}, {2, 5, 6, 11}, 0);
  x = OneToFour();
  MatMulAdd_(x, b, x);
  ExpectValues(x, {2, 2}, {5, 8, 6, 8}, 0);
  x = OneToFour();
  MatMulAdd_(x, x, x.Transpose(0, 1));
  ExpectValues(x, {2, 2}, {6, 13, 14, 29}, 0);
}

TEST(IndexAdd, OfItselfUsesTheValuesFromBefore) {
  const Tensor y = Tensor::FromVector<double>({1, 2, 3});
  IndexAdd_(y, 0, Tensor::FromVector<int64_t>({1, 2, 0}), y);
  ExpectValues(y, {3}, {4, 3, 5}, 0);
  const Tensor index = Tensor::FromVector<int64_t>({1, 0});
  IndexAdd_(index, 0, index, Tensor::FromVector<int64_t>({0, 1}));
  ExpectValues(index, {2}, {2, 0}, 0);
}

TEST(ScatterAdd, OfItselfUsesTheValuesFromBefore) {
  const Tensor z = Tensor::FromVector<double>({1, 2, 3});
  ScatterAdd_(z, 0, Tensor::FromVector<int64_t>({1, 2, 0}), z);
  ExpectValues(z, {3}, {4, 3, 5}, 0);
}

TEST(AddRows, OfItselfUsesTheValuesFromBefore) {
  const Tensor y = OneToFour();
  AddRows_(y, 1, {Tensor::FromVector<int64_t>({1, 0}), y, 2});
  ExpectValues(y, {2, 2}, {4, 6, 4, 6}, 0);
}

TEST(InPlace, FindsAnOperandOnTheSameMemoryInAnotherStorage) {
  double memory[] = {1, 2, 3, 4};
  const Tensor target = Tensor::FromBlob(memory + 1, {3}, DType::kF64, nullptr);
  const Tensor source = Tensor::FromBlob(memory, {3}, DType::kF64, nullptr);
  Add_(target, source);
  ExpectValues(target, {3}, {3, 5, 7}, 0);
  target.CopyFrom(source);
  ExpectValues(target, {3}, {1, 3, 5}, 0);
}

// Each write to a tensor that has several elements in one place.
TEST(InPlace, RefusesATargetThatOverlapsItself) {
  const Tensor base = Tensor::Arange(6).To(DType::kF64);
  const Tensor expanded = base.Slice(0, 0, 1).View({1, 1}).Expand({2, 2});
  const Tensor sliding =
      Tensor::FromStorage(base.storage(), 0, {2, 2}, {1, 1}, DType::kF64);
  const Tensor x = OneToFour();
  const Tensor index = Tensor::FromVector<int64_t>({0, 0});
  for (const Tensor& y : {expanded, sliding}) {
    const auto refused = HasSubstr("several elements in one place");
    EXPECT_THAT(Complaint([&] { y.Fill(1); }), refused);
    EXPECT_THAT(Complaint([&] { y.CopyFrom(x); }), refused);
    EXPECT_THAT(Complaint([&] { Add_(y, x); }), refused);
    EXPECT_THAT(Complaint([&] { Add_(y, 1); }), refused);
    EXPECT_THAT(Complaint([&] { Relu_(y); }), refused);
    EXPECT_THAT(Complaint([&] { IndexAdd_(y, 0, index, x); }), refused);
    EXPECT_THAT(Complaint([&] {
                  ScatterAdd_(y, 0, index.View({1, 2}), x.Slice(0, 0, 1));
                }),
                refused);
  }
  ExpectSame(base, Tensor::Arange(6).To(DType::kF64));
}

TEST(InPlace, WritesToStridedViewsThatDoNotOverlapThemselves) {
  const Tensor base = Tensor::Zeros({8}, DType::kF64);
  // Offsets 0 2 4 and 3 5 7: they interleave and do not meet.
  const Tensor y =
      Tensor::FromStorage(base.storage(), 0, {2, 3}, {3, 2}, DType::kF64);
  EXPECT_FALSE(internal::OverlapsItself(y));
  y.CopyFrom(Tensor::Arange(6).View({2, 3}));
  ExpectValues(base, {8}, {0, 0, 1, 3, 2, 4, 0, 5}, 0);
}

TEST(Errors, NameTheOperandsThatWereGiven) {
  const auto of = [](const Shape& shape) { return Tensor::Zeros(shape); };
  EXPECT_THAT(Complaint([&] {
                MatMul(of({2, 3, 4}), of({5, 4, 6}));
              }),
              AllOf(HasSubstr("[2, 3, 4]"), HasSubstr("[5, 4, 6]")));
  EXPECT_THAT(Complaint([&] {
                Linear(of({2, 3}), of({5, 4}), Tensor());
              }),
              AllOf(HasSubstr("Linear: x is f32[2, 3]"),
                    HasSubstr("weight is f32[5, 4]")));
  const Tensor condition = Tensor::Zeros({2}, DType::kBool);
  EXPECT_THAT(Complaint([&] {
                Where(condition, of({3}), of({4, 1}));
              }),
              AllOf(HasSubstr("condition is bool[2]"), HasSubstr("a f32[3]"),
                    HasSubstr("b f32[4, 1]")));
  EXPECT_THAT(Complaint([&] {
                of({6}).Reshape({-1, -1});
              }),
              HasSubstr("shape [-1, -1] has more than one -1"));
  EXPECT_THAT(Complaint([&] {
                Add(of({2}), of({3, 5}));
              }),
              HasSubstr("[2] and [3, 5]"));
  EXPECT_THAT(Complaint([&] { Greater(of({2}), condition); }),
              HasSubstr("Greater: lhs is f32[2], rhs is bool[2]"));
}

TEST(Tensor, ThatDoesNotFitMemoryIsResourceExhausted) {
  try {
    Tensor::Zeros({int64_t{1} << 43});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(error.status().message()),
                HasSubstr("no memory for 35184372088832 bytes"));
  }
}

}  // namespace
}  // namespace weft
