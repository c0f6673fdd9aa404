// Layers and initialisers.

#include "weft/nn/layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/init.h"
#include "weft/nn/loss.h"
#include "weft/nn/module.h"
#include "weft/nn/nn_test_models.h"
#include "weft/nn/norm.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/random.h"

namespace weft::nn {
namespace {

using ::testing::ElementsAre;

// ---- layers

TEST(Sequential, RunsItsLayersInOrderUnderTheirNumbers) {
  Generator random(kSeed);
  Sequential net;
  net.Add<Conv2d>(1, 2, 3, random);
  net.Add<Relu>();
  net.Add<MaxPool2d>();
  net.Add<Flatten>();
  net.Add<Linear>(2 * 3 * 3, 4, random, LayerOptions{/*bias=*/false});
  const Variable y = net.Forward(Variable(Tensor::Ones({5, 1, 8, 8})));
  EXPECT_EQ(y.shape(), Shape({5, 4}));
  EXPECT_THAT(Names(net), ElementsAre("0.weight", "0.bias", "4.weight"));
}

TEST(Layers, AgreeWithTheirFunctions) {
  const Variable x(Tensor::FromVector<float>({-1, 2, 0.5, -3}, {1, 1, 2, 2}));
  const auto values = [](const Variable& v) {
    return v.value().ToVector<float>();
  };
  EXPECT_EQ(values(Relu().Forward(x)), values(weft::Relu(x)));
  EXPECT_EQ(values(Sigmoid().Forward(x)), values(weft::Sigmoid(x)));
  EXPECT_EQ(values(Tanh().Forward(x)), values(weft::Tanh(x)));
  EXPECT_THAT(values(MaxPool2d().Forward(x)), ElementsAre(2));
  EXPECT_THAT(values(AvgPool2d().Forward(x)), ElementsAre(-0.375));
  EXPECT_EQ(Flatten().Forward(x).shape(), Shape({1, 4}));
}

TEST(Layers, RefuseSizesThatAreNotPositive) {
  Generator random(kSeed);
  EXPECT_THROW(Linear(0, 1, random), Error);
  EXPECT_THROW(Conv2d(1, -1, 3, random), Error);
  EXPECT_THROW(Embedding(5, 0, random), Error);
}

TEST(Embedding, LooksRowsUp) {
  Generator random(kSeed);
  Embedding table(5, 3, random);
  const Tensor ids = Tensor::FromVector<int64_t>({4, 0, 4}, {3, 1});
  const Variable y = table.Forward(ids);
  EXPECT_EQ(y.shape(), Shape({3, 1, 3}));
  const Tensor weight = table.StateDict()["weight"];
  EXPECT_EQ(y.value().Select(0, 2).ToVector<float>(),
            weight.Select(0, 4).ToVector<float>());
}

TEST(Embedding, PaddingRowIsZeroAndGetsNoGradient) {
  Generator random(kSeed);
  for (const TableGradient kind :
       {TableGradient::kDense, TableGradient::kSparse}) {
    EmbeddingOptions options = LanguageModel::Padded(2);
    options.gradient = kind;
    Embedding table(4, 2, random, options);
    EXPECT_THAT(table.weight().value().Select(0, 2).ToVector<float>(),
                ElementsAre(0, 0));
    Sum(table.Forward(Tensor::FromVector<int64_t>({2, 1, 2, 3, 1}))).Backward();
    EXPECT_THAT(table.weight().grad().ToVector<float>(),
                ElementsAre(0, 0, 2, 2, 0, 0, 1, 1));
    EXPECT_EQ(table.weight().gradient().is_sparse(),
              kind == TableGradient::kSparse);
  }
  EXPECT_THROW(Embedding(4, 2, random, LanguageModel::Padded(4)), Error);
  EXPECT_THROW(Embedding(4, 2, random, LanguageModel::Padded(-1)), Error);
}

TEST(BatchNorm, EvaluationUsesTheRunningStatisticsAndLeavesThem) {
  BatchNorm norm(1);
  nn::StateDict state = norm.StateDict();
  state["running_mean"].Fill(3);
  state["running_var"].Fill(4);
  norm.Eval();
  const Variable x(Tensor::FromVector<float>({5, 3, 1}, {3, 1}));
  const std::vector<float> y = norm.Forward(x).value().ToVector<float>();
  EXPECT_NEAR(y[0], 1, 1e-5);
  EXPECT_NEAR(y[2], -1, 1e-5);
  EXPECT_EQ(state["running_mean"].item<float>(), 3);
  EXPECT_EQ(state["num_batches_tracked"].item<int64_t>(), 0);
  norm.Train();
  norm.Forward(x);
  EXPECT_FLOAT_EQ(state["running_mean"].item<float>(), 3);
  EXPECT_FLOAT_EQ(state["running_var"].item<float>(), 0.9f * 4 + 0.1f * 4);
  EXPECT_EQ(state["num_batches_tracked"].item<int64_t>(), 1);
}

TEST(BatchNorm, WithoutRunningStatisticsUsesEachBatch) {
  BatchNormLayerOptions options;
  options.track_running_statistics = false;
  options.norm.affine = false;
  BatchNorm norm(1, options);
  EXPECT_TRUE(norm.StateDict().empty());
  norm.Eval();
  const Variable x(Tensor::FromVector<float>({10, 20}, {2, 1}));
  const std::vector<float> y = norm.Forward(x).value().ToVector<float>();
  EXPECT_NEAR(y[0], -1, 1e-5);
  EXPECT_NEAR(y[1], 1, 1e-5);
}

TEST(BatchNorm, StatisticsOfACheckpointedLayerMoveOnce) {
  const auto train = [](bool is_checkpointed) {
    BatchNorm norm(2);
    for (int step = 0; step < 3; ++step) {
      const Variable x(Tensor::FromVector<float>(
                           {1.0f * step, 2, 3, 5.0f * step, 7, 11}, {3, 2}),
                       /*requires_grad=*/true);
      const auto layer = [&](absl::Span<const Variable> in) {
        return weft::Tanh(norm.Forward(in[0]));
      };
      Sum(is_checkpointed ? Checkpoint(layer, {x}) : layer({x})).Backward();
    }
    std::vector<double> all;
    for (const auto& [name, tensor] : norm.StateDict()) {
      for (const double v : tensor.To(DType::kF64).ToVector<double>()) {
        all.push_back(v);
      }
    }
    for (const Variable& parameter : norm.Parameters()) {
      for (const float v : parameter.grad().ToVector<float>()) all.push_back(v);
    }
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(NormLayers, RefuseSizesThatAreNotPositive) {
  EXPECT_THROW(LayerNorm({3, 0}), Error);
  EXPECT_THROW(RmsNorm(Shape{}), Error);
  EXPECT_THROW(BatchNorm(-1), Error);
}

TEST(MultiheadAttention, MaskHidesKeys) {
  Generator random(kSeed);
  MultiheadAttention attention(4, 2, random);
  const Tensor x = Normal({1, 3, 4}, 0, 1, random);
  AttentionOptions masked;
  masked.mask = Tensor::FromVector<int64_t>({1, 1, 0}).To(DType::kBool);
  const auto before =
      attention.Forward(Variable(x), masked).value().Select(1, 0);
  const std::vector<float> wanted = before.ToVector<float>();
  x.Select(1, 2).Fill(100);
  EXPECT_EQ(attention.Forward(Variable(x), masked)
                .value()
                .Select(1, 0)
                .ToVector<float>(),
            wanted);
  EXPECT_THROW(MultiheadAttention(4, 3, random), Error);
  EXPECT_THROW(attention.Forward(Variable(x.Select(0, 0))), Error);
}

TEST(EmbeddingBag, OfOneSizeIsEmbeddingBagWithOffsets) {
  Generator random(kSeed);
  EmbeddingBag bag(6, 2, BagMode::kMean, random);
  const Tensor ids = Tensor::FromVector<int64_t>({0, 1, 2, 3, 4, 5}, {2, 3});
  EXPECT_EQ(bag.Forward(ids).value().ToVector<float>(),
            bag.Forward(ids.View({6}), Tensor::FromVector<int64_t>({0, 3}))
                .value()
                .ToVector<float>());
  EXPECT_THROW(bag.Forward(ids.View({6})), Error);
}

TEST(Dropout, KeepsTheMeanInTrainingAndAllInEvaluation) {
  Generator random(kSeed);
  Dropout dropout(0.25, random);
  const Variable x(Tensor::Ones({10000}), /*requires_grad=*/true);
  const Variable y = dropout.Forward(x);
  const std::vector<float> values = y.value().ToVector<float>();
  int64_t dropped = 0;
  for (const float v : values) {
    dropped += v == 0;
    EXPECT_TRUE(v == 0 || std::abs(v - 1 / 0.75f) < 1e-6f) << v;
  }
  // 2500 expected, with a deviation of 43: ten of those.
  EXPECT_NEAR(static_cast<double>(dropped), 2500, 430);
  Sum(y).Backward();
  EXPECT_EQ(x.grad().ToVector<float>(), values);
  dropout.Eval();
  EXPECT_TRUE(dropout.Forward(x).value().IsSameAs(x.value()));
}

TEST(Dropout, RepeatsWithItsGenerator) {
  Generator a(kSeed), b(kSeed);
  Dropout one(0.5, a), two(0.5, b);
  const Variable x(Tensor::Ones({64}));
  EXPECT_EQ(one.Forward(x).value().ToVector<float>(),
            two.Forward(x).value().ToVector<float>());
  EXPECT_THROW(Dropout(1, a), Error);
}

// ---- initialisers

double Variance(const Tensor& x) {
  const std::vector<float> values = x.ToVector<float>();
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = static_cast<double>(values.size());
  return squares / n - (sum / n) * (sum / n);
}

// The variance of n = 40000 draws has a relative deviation of sqrt(2 / n), 0.7
// per cent, if normal, and less if uniform.
TEST(Init, HasTheVarianceOfItsFans) {
  Generator random(kSeed);
  const Shape shape = {100, 100, 2, 2};
  const double in = 400, out = 400;
  const double slack = 0.04;
  EXPECT_NEAR(Variance(KaimingUniform(shape, random)) * in / 2, 1, slack);
  EXPECT_NEAR(Variance(KaimingNormal(shape, random)) * in / 2, 1, slack);
  EXPECT_NEAR(Variance(XavierUniform(shape, random)) * (in + out) / 2, 1,
              slack);
  EXPECT_NEAR(Variance(XavierNormal(shape, random)) * (in + out) / 2, 1, slack);
}

TEST(Init, CountsFansAsInAndOutTimesTheField) {
  EXPECT_EQ(FansOf({5, 3}).in, 3);
  EXPECT_EQ(FansOf({5, 3}).out, 5);
  EXPECT_EQ(FansOf({5, 3, 2, 4}).in, 24);
  EXPECT_EQ(FansOf({5, 3, 2, 4}).out, 40);
  EXPECT_THROW(FansOf({5}), Error);
}

TEST(Init, OfLayersStaysWithinPyTorchsBound) {
  Generator random(kSeed);
  Linear layer(16, 64, random);
  float largest = 0;
  for (const auto& [name, tensor] : layer.StateDict()) {
    for (const float v : tensor.ToVector<float>()) {
      largest = std::max(largest, std::abs(v));
    }
  }
  EXPECT_LE(largest, 0.25f);
  EXPECT_GT(largest, 0.24f);
}

}  // namespace
}  // namespace weft::nn
