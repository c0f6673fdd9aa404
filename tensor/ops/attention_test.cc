#include "weft/tensor/ops/attention.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::ExpectSameOnDevice;

Tensor Transposed(const Tensor& x) { return x.Transpose(-2, -1); }

// By operations of its own for each part.
Tensor Reference(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionScores& scores) {
  Tensor visible = scores.mask;
  if (scores.is_causal) {
    const Tensor lower =
        Tril(Tensor::Ones({q.size(-2), k.size(-2)}, DType::kBool));
    visible = visible.defined() ? LogicalAnd(visible, lower) : lower;
  }
  Tensor s = Mul(MatMul(q, Transposed(k)), scores.scale);
  if (!visible.defined()) return MatMul(Softmax(s, -1), v);
  const Tensor hidden = LogicalNot(visible);
  s = MaskedFill(s, hidden, -1e30);
  return MatMul(MaskedFill(Softmax(s, -1), hidden, 0), v);
}

struct Sizes {
  Shape lead;
  int64_t queries, keys, d, e;
};

Shape With(const Shape& lead, int64_t rows, int64_t columns) {
  Shape shape = lead;
  shape.push_back(rows);
  shape.push_back(columns);
  return shape;
}

std::vector<AttentionScores> Options(const Sizes& s) {
  AttentionScores plain, causal, masked, both;
  plain.scale = causal.scale = 0.5;
  causal.is_causal = both.is_causal = true;
  Generator generator(7);
  masked.mask = Bernoulli(With(s.lead, s.queries, s.keys), 0.5, generator);
  both.mask = Bernoulli({s.keys}, 0.5, generator);  // of keys, for each query
  return {plain, causal, masked, both};
}

TEST(Attention, AgreesWithItsPartsInEveryLayout) {
  Generator generator(3);
  const Sizes sizes[] = {{{}, 3, 5, 4, 2},     {{2, 3}, 4, 4, 3, 3},
                         {{2}, 1, 6, 5, 1},    {{3}, 40, 33, 16, 20},
                         {{2, 2}, 6, 1, 2, 3}, {{2}, 0, 3, 2, 2},
                         {{0}, 3, 3, 2, 2}};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Sizes& s : sizes) {
      for (const Lie lie : kLies) {
        const Tensor q = Integers(With(s.lead, s.queries, s.d), dtype, -2, 2,
                                  generator, lie);
        const Tensor k =
            Integers(With(s.lead, s.keys, s.d), dtype, -2, 2, generator, lie);
        const Tensor v =
            Integers(With(s.lead, s.keys, s.e), dtype, -2, 2, generator, lie);
        for (const AttentionScores& options : Options(s)) {
          const Tensor wanted = Reference(q, k, v, options);
          const Tensor out = Tensor::Empty(wanted.shape(), dtype);
          AttentionInto(out, q, k, v, options);
          ExpectSame(out, wanted, Tolerance(dtype));
          // Rows with gaps, and columns with gaps.
          for (const bool is_transposed : {false, true}) {
            const Tensor wide =
                Tensor::Zeros(With(s.lead, is_transposed ? s.e : s.queries,
                                   3 + (is_transposed ? s.queries : s.e)),
                              dtype);
            const Tensor view =
                is_transposed ? Transposed(wide.Slice(-1, 1, 1 + s.queries))
                              : wide.Slice(-1, 1, 1 + s.e);
            AttentionInto(view, q, k, v, options);
            ExpectSame(view.Clone(), out);
          }
        }
      }
    }
  }
}

TEST(Attention, GradientsInViewsAreThoseInTensors) {
  Generator generator(4);
  const Shape lead = {2, 3};
  const Tensor q = Uniform(With(lead, 5, 4), -1, 1, generator);
  const Tensor k = Uniform(With(lead, 6, 4), -1, 1, generator);
  const Tensor v = Uniform(With(lead, 6, 3), -1, 1, generator);
  const Tensor grad = Uniform(With(lead, 5, 3), -1, 1, generator);
  AttentionScores causal;
  causal.is_causal = true;
  const Tensor out = Tensor::Empty(grad.shape());
  const Tensor weights = AttentionInto(out, q, k, v, causal);
  const AttentionGradients whole = {Tensor::EmptyLike(q), Tensor::EmptyLike(k),
                                    Tensor::EmptyLike(v)};
  AttentionBackwardInto(whole, grad, q, k, v, weights, causal);
  // One after another in rows, as SelfAttention has them, and transposed.
  const Tensor rows = Tensor::Zeros(With(lead, 6, 11));
  const Tensor columns = Tensor::Zeros(With(lead, 3, 6));
  const AttentionGradients parts = {rows.Slice(-2, 0, 5).Slice(-1, 0, 4),
                                    rows.Slice(-1, 4, 8), Transposed(columns)};
  AttentionBackwardInto(parts, grad, q, k, v, weights, causal);
  ExpectSame(parts.q.Clone(), whole.q);
  ExpectSame(parts.k.Clone(), whole.k);
  ExpectSame(parts.v.Clone(), whole.v);
  EXPECT_EQ(rows.Select(-1, 10).Contiguous().ToVector<float>(),
            std::vector<float>(36, 0));
  // One alone.
  const Tensor only_k = Tensor::Empty(k.shape());
  AttentionBackwardInto({{}, only_k, {}}, grad, q, k, v, weights, causal);
  ExpectSame(only_k, whole.k);
}

TEST(Attention, NanOfAHiddenKeyDoesNotSpread) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Tensor q = Tensor::Ones({2, 2});
  const Tensor k = Tensor::FromVector<float>({1, 1, kNan, kNan}, {2, 2});
  AttentionScores causal;
  causal.is_causal = true;
  const Tensor out = Tensor::Empty({2, 2});
  AttentionInto(out, q, k, Tensor::Ones({2, 2}), causal);
  EXPECT_EQ(out.data<float>()[0], 1);
  EXPECT_TRUE(std::isnan(out.data<float>()[2]));
}

TEST(Attention, ErrorNamesTheMismatch) {
  const Tensor q = Tensor::Zeros({2, 3, 4}), out = Tensor::Zeros({2, 3, 4});
  EXPECT_THAT(Complaint([&] {
                AttentionInto(out, q, Tensor::Zeros({2, 3, 5}), q, {});
              }),
              HasSubstr("key f32[2, 3, 5]"));
  AttentionScores bad;
  bad.mask = Tensor::Ones({5}, DType::kBool);
  EXPECT_THAT(Complaint([&] { AttentionInto(out, q, q, q, bad); }),
              HasSubstr("mask is bool[5]"));
  bad.mask = Tensor::Ones({3});
  EXPECT_THAT(Complaint([&] { AttentionInto(out, q, q, q, bad); }),
              HasSubstr("wanted bool"));
}

// A target or weights of another shape would be written to or read beyond
// their end.
TEST(Attention, RefusesTargetsAndWeightsThatDoNotFit) {
  const Tensor q = Tensor::Zeros({2, 3, 4}), k = Tensor::Zeros({2, 5, 4});
  const Tensor v = Tensor::Zeros({2, 5, 6}), grad = Tensor::Zeros({2, 3, 6});
  const Tensor weights = Tensor::Zeros({2, 3, 5});
  const auto back = [&](const AttentionGradients& out, const Tensor& w) {
    return CodeOf([&] { AttentionBackwardInto(out, grad, q, k, v, w, {}); });
  };
  EXPECT_EQ(back({q.Clone(), k.Clone(), v.Clone()}, weights),
            absl::StatusCode::kOk);
  const auto refused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(back({q.Slice(0, 0, 1).Clone(), {}, {}}, weights), refused);
  EXPECT_EQ(back({{}, q.Clone(), {}}, weights), refused);
  EXPECT_EQ(back({{}, {}, v.View({1, 10, 6})}, weights), refused);
  EXPECT_EQ(back({q.To(DType::kF64), {}, {}}, weights), refused);
  EXPECT_EQ(back({{}, {}, v.Slice(0, 0, 1).Expand({2, 5, 6})}, weights),
            refused);
  EXPECT_EQ(back({}, weights.Slice(1, 0, 2)), refused);
  EXPECT_EQ(back({}, weights.View({6, 5})), refused);
  EXPECT_EQ(back({}, weights.To(DType::kF64)), refused);
  EXPECT_EQ(CodeOf([&] {
              AttentionInto(grad.Slice(0, 0, 1).Clone().Expand({2, 3, 6}), q, k,
                            v, {});
            }),
            refused);
}

TEST(Attention, ReadsWeightsOfAnyLayout) {
  Generator generator(5);
  const Tensor q = Reals({2, 3, 4}, DType::kF64, generator);
  const Tensor k = Reals({2, 5, 4}, DType::kF64, generator);
  const Tensor grad = Reals({2, 3, 4}, DType::kF64, generator);
  const Tensor weights =
      AttentionInto(Tensor::Empty({2, 3, 4}, DType::kF64), q, k, k, {});
  const Tensor wanted = Tensor::EmptyLike(q), found = Tensor::EmptyLike(q);
  AttentionBackwardInto({wanted, {}, {}}, grad, q, k, k, weights, {});
  for (const Lie lie : kLies) {
    const Tensor other = EmptyThatLies(lie, weights.shape(), DType::kF64);
    other.CopyFrom(weights);
    AttentionBackwardInto({found, {}, {}}, grad, q, k, k, other, {});
    ExpectSame(found, wanted);
  }
}

TEST(Attention, OfNothingTakesNoTimeAndOfNoKeysIs0) {
  const Tensor none = Tensor::Zeros({int64_t{1} << 40, 0, 2});
  EXPECT_EQ(AttentionInto(none, none, none, none, {}).numel(), 0);
  const Tensor out = Tensor::Full({1, 2, 3}, 7);
  AttentionInto(out, Tensor::Ones({1, 2, 4}), Tensor::Ones({1, 0, 4}),
                Tensor::Ones({1, 0, 3}), {});
  ExpectSame(out, Tensor::Zeros({1, 2, 3}));
}

// Each set of gradients that may be wanted, into whole rows and into others.
TEST(Attention, IsTheSameOnADevice) {
  Generator generator(35);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor q = Reals({2, 3, 4, 6}, dtype, generator);
    const Tensor k = Reals({2, 3, 5, 6}, dtype, generator);
    const Tensor v = Reals({2, 3, 5, 7}, dtype, generator);
    const Tensor grad = Reals({2, 3, 4, 7}, dtype, generator);
    const Tensor mask =
        Integers({2, 1, 4, 5}, DType::kI64, 0, 1, generator).To(DType::kBool);
    for (const Lie lie : kLies) {
      for (const bool is_masked : {false, true}) {
        const std::vector<Tensor> inputs = {q, k, v, grad,
                                            is_masked ? mask : Tensor()};
        ExpectSameOnDevice("Attention", inputs, [&](auto in) {
          const auto operand = [&](int i) { return ThatLies(lie, in[i]); };
          const Tensor q = operand(0), k = operand(1), v = operand(2);
          const Tensor grad = operand(3);
          AttentionScores scores;
          scores.scale = 0.5;
          scores.is_causal = !is_masked;
          scores.mask = operand(4);
          const Tensor out = ThatLies(lie, in[3].Clone());
          const Tensor weights = AttentionInto(out, q, k, v, scores);
          std::vector<Tensor> found = {out, weights};
          for (int wanted = 0; wanted < 8; ++wanted) {
            AttentionGradients to;
            if ((wanted & 1) != 0) to.q = ThatLies(lie, in[0].Clone());
            if ((wanted & 2) != 0) to.k = ThatLies(lie, in[1].Clone());
            if ((wanted & 4) != 0) to.v = ThatLies(lie, in[2].Clone());
            AttentionBackwardInto(to, grad, q, k, v, ThatLies(lie, weights),
                                  scores);
            found.insert(found.end(), {to.q, to.k, to.v});
          }
          return found;
        });
      }
    }
  }
}

// Parts of one tensor, as a layer of heads makes them.
TEST(Attention, OnADeviceWritesPartsOfRows) {
  Generator generator(36);
  const Tensor packed = Reals({5, 3, 8}, DType::kF32, generator);
  ExpectSameOnDevice("Attention", {packed}, [](auto in) {
    const auto part = [](const Tensor& x, int64_t i) {
      return x.Select(1, i).View({5, 2, 4}).Transpose(0, 1);
    };
    const Tensor q = part(in[0], 0), k = part(in[0], 1), v = part(in[0], 2);
    const Tensor out = Tensor::ZerosLike(in[0]);
    const Tensor weights = AttentionInto(part(out, 1), q, k, v, {});
    const Tensor to = Tensor::ZerosLike(in[0]);
    AttentionBackwardInto({part(to, 0), part(to, 1), part(to, 2)}, v, q, k, v,
                          weights, {});
    return std::vector<Tensor>{out, weights, to};
  });
}

TEST(Attention, OfTwoDevicesNamesBoth) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Ones({2, 2}), there = x.To(device);
  AttentionScores masked;
  masked.mask = Tensor::Ones({2, 2}, DType::kBool);
  const std::function<void()> bad[] = {
      [&] { AttentionInto(x, there, there, there, {}); },
      [&] { AttentionInto(there, there, x, there, {}); },
      [&] { AttentionInto(there, there, there, there, masked); },
      [&] { AttentionBackwardInto({}, x, x, x, x, there, {}); },
      [&] {
        AttentionBackwardInto({there, {}, {}}, x, x, x, x, x, {});
      },
  };
  for (const auto& call : bad) {
    EXPECT_THAT(Complaint(call),
                AllOf(HasSubstr("on simulated:0"), HasSubstr("on cpu")));
  }
}

}  // namespace
}  // namespace weft
