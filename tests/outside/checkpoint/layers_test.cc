// Layers with effects or random numbers within Checkpoint, and whole training
// runs with it and without: the same bits after some steps.

#include "weft/nn/layers.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/nn/attention.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::IsOk;

Tensors StateOf(const nn::Module& module) {
  Tensors all;
  for (const auto& [name, tensor] : module.StateDict()) {
    all.push_back(tensor.Clone());
  }
  return all;
}
Tensors GradientsOf(const nn::Module& module) {
  Tensors all;
  for (const Variable& p : module.Parameters()) all.push_back(p.grad());
  return all;
}
Tensors Joined(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(CheckpointedBatchNorm, MovesItsStatisticsOnce) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss = Sum(
        Exp(Maybe(on, [&](In in) { return Tanh(norm.Forward(in[0])); }, {x})));
    const Tensors between = StateOf(norm);
    loss.Backward();
    return Joined(Joined({loss.value(), x.grad()}, between),
                  Joined(StateOf(norm), GradientsOf(norm)));
  });
}

TEST(CheckpointedBatchNorm, MovesThemOnceInANestOfThreeAndInThreePasses) {
  const auto run = [](int depth, int passes) {
    nn::BatchNorm norm(3);
    OneFn f = [&](In in) { return Tanh(norm.Forward(Exp(in[0]))); };
    for (int i = 0; i < depth; ++i) {
      f = [inner = f](In in) { return Checkpoint(inner, in); };
    }
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss = Sum(f(std::vector<Variable>{x}));
    for (int i = 0; i < passes; ++i) {
      x.ClearGradient();
      norm.ClearGradients();
      loss.Backward(Retained());
    }
    return Joined({loss.value(), x.grad()},
                  Joined(StateOf(norm), GradientsOf(norm)));
  };
  const Tensors wanted = run(0, 1);
  EXPECT_TRUE(SameBits(run(1, 3), wanted));
  EXPECT_TRUE(SameBits(run(3, 1), wanted));
  EXPECT_TRUE(SameBits(run(3, 3), wanted));
}

TEST(CheckpointedBatchNorm, OneLayerUsedByTwoPartsMovesTwice) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    const OneFn f = [&](In in) { return Tanh(norm.Forward(in[0]) + in[0]); };
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss = Sum(Maybe(on, f, {Maybe(on, f, {x})}));
    loss.Backward();
    return Joined({loss.value(), x.grad()},
                  Joined(StateOf(norm), GradientsOf(norm)));
  });
}

TEST(CheckpointedBatchNorm, InEvaluationMovesNothing) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    norm.Forward(Variable(Numbers({8, 3}, 4)));
    norm.Eval();
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return Tanh(norm.Forward(in[0])); }, {x}));
    loss.Backward();
    return Joined({loss.value(), x.grad()},
                  Joined(StateOf(norm), GradientsOf(norm)));
  });
}

TEST(CheckpointedBatchNorm, WithoutRunningStatistics) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNormLayerOptions options;
    options.track_running_statistics = false;
    nn::BatchNorm norm(3, options);
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return Tanh(norm.Forward(in[0])); }, {x}));
    loss.Backward();
    return Joined({loss.value(), x.grad()}, GradientsOf(norm));
  });
}

// Another batch comes between the passes, as in a pipeline of micro-batches.
TEST(CheckpointedBatchNorm, TwoBatchesForwardThenTwoBackward) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    const OneFn f = [&](In in) { return Tanh(norm.Forward(Exp(in[0]))); };
    const Variable a = LeafOf({8, 3}, 1);
    const Variable b = LeafOf({6, 3}, 2);
    const Variable loss_a = Sum(Maybe(on, f, {a}));
    const Variable loss_b = Sum(Maybe(on, f, {b}));
    loss_a.Backward();
    loss_b.Backward();
    return Joined({a.grad(), b.grad()},
                  Joined(StateOf(norm), GradientsOf(norm)));
  });
}

TEST(CheckpointedBatchNorm, ForwardPassWhoseResultIsNotUsedCountsOnce) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    (void)Maybe(on, [&](In in) { return norm.Forward(in[0]); },
                {LeafOf({8, 3}, 1)});
    return StateOf(norm);
  });
}

TEST(CheckpointedBatchNorm, UnderANoGradScopeInsideThePartCountsOnce) {
  ExpectSameWithAndWithout([](bool on) {
    nn::BatchNorm norm(3);
    const Variable x = LeafOf({8, 3}, 1);
    const Variable loss = Sum(Maybe(
        on,
        [&](In in) {
          Variable scale;
          {
            const NoGradScope scope;
            scale = Maybe(on, [&](In inner) { return norm.Forward(inner[0]); },
                          {in[0]});
          }
          return Tanh(in[0]) * scale;
        },
        {x}));
    loss.Backward();
    return Joined({loss.value(), x.grad()}, StateOf(norm));
  });
}

TEST(CheckpointedDropout, InAChainWithOneGenerator) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(3);
    nn::Dropout first(0.5, random), second(0.1, random), third(0, random);
    const Variable x = LeafOf({16, 5}, 1);
    Variable y =
        Maybe(on, [&](In in) { return Exp(first.Forward(in[0])); }, {x});
    y = second.Forward(y);
    y = Maybe(on,
              [&](In in) { return Tanh(third.Forward(second.Forward(in[0]))); },
              {y});
    const Variable loss = Sum(y);
    loss.Backward();
    return Tensors{loss.value(), x.grad(),
                   Tensor::Scalar<int64_t>(random.position()),
                   Tensor::Scalar<int64_t>(random.NextU32())};
  });
}

TEST(CheckpointedDropout, InEvaluationDrawsNothing) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(3);
    nn::Dropout layer(0.5, random);
    layer.Eval();
    const Variable x = LeafOf({16, 5}, 1);
    const Variable loss =
        Sum(Maybe(on, [&](In in) { return Tanh(layer.Forward(in[0])); }, {x}));
    loss.Backward();
    return Tensors{loss.value(), x.grad(),
                   Tensor::Scalar<int64_t>(random.position())};
  });
}

TEST(CheckpointedEmbedding, HasRowsAsItsGradient) {
  for (const TableGradient form :
       {TableGradient::kDense, TableGradient::kSparse}) {
    ExpectSameWithAndWithout([&](bool on) {
      Generator random(3);
      nn::EmbeddingOptions options;
      options.gradient = form;
      nn::Embedding table(7, 4, random, options);
      const Tensor rows = Tensor::FromVector<int64_t>({6, 2, 6, 0});
      const Variable loss = Sum(
          Maybe(on, [&](In) { return Tanh(Exp(table.Forward(rows))); }, {}));
      loss.Backward();
      EXPECT_EQ(table.weight().gradient().is_sparse(),
                form == TableGradient::kSparse);
      return Tensors{loss.value(), table.weight().grad()};
    });
  }
}

// A weight that two parts and the outside share.
TEST(CheckpointedModules, WithATiedWeight) {
  ExpectSameWithAndWithout([](bool on) {
    Generator random(3);
    nn::Embedding table(7, 4, random);
    nn::Linear out(table.weight(), random);
    const Tensor rows = Tensor::FromVector<int64_t>({6, 2, 6, 0});
    const Variable h =
        Maybe(on, [&](In) { return Tanh(table.Forward(rows)); }, {});
    const Variable logits = Maybe(on,
                                  [&](In in) {
                                    return out.Forward(in[0]) *
                                           Sum(table.weight() * table.weight());
                                  },
                                  {h});
    const Variable loss = CrossEntropy(logits, rows);
    loss.Backward();
    return Joined({loss.value()}, Joined(GradientsOf(table), GradientsOf(out)));
  });
}

// All kinds of layers, trained.
class Net final : public nn::Module {
 public:
  Net(Generator& random, Generator& noise)
      : convolution_(1, 4, 3, random),
        norm_(4),
        hidden_(4 * 4 * 4, 16, random),
        layer_norm_({16}),
        dropout_(0.3, noise),
        attention_(16, 4, random),
        output_(16, 5, random) {
    AddModule("convolution", convolution_);
    AddModule("norm", norm_);
    AddModule("hidden", hidden_);
    AddModule("layer_norm", layer_norm_);
    AddModule("dropout", dropout_);
    AddModule("attention", attention_);
    AddModule("output", output_);
  }

  // level 0: no part; 1: each block; 2: blocks within one part of all.
  Variable Forward(const Variable& x, int level) {
    const OneFn all = [this, level](In in) {
      const bool on = level > 0;
      Variable y =
          Maybe(on,
                [this](In i) {
                  return Relu(norm_.Forward(convolution_.Forward(i[0])));
                },
                {in[0]});
      y = Maybe(on,
                [this](In i) {
                  return dropout_.Forward(Gelu(layer_norm_.Forward(
                      hidden_.Forward(FlattenFrom(i[0], 1)))));
                },
                {y});
      y = Maybe(on,
                [this](In i) {
                  const Variable t = Unsqueeze(i[0], 0);
                  return Squeeze(dropout_.Forward(attention_.Forward(t)), 0) +
                         i[0];
                },
                {y});
      return Maybe(on, [this](In i) { return output_.Forward(i[0]); }, {y});
    };
    return Maybe(level > 1, all, {x});
  }

 private:
  nn::Conv2d convolution_;
  nn::BatchNorm norm_;
  nn::Linear hidden_;
  nn::LayerNorm layer_norm_;
  nn::Dropout dropout_;
  nn::MultiheadAttention attention_;
  nn::Linear output_;
};

Tensors Trained(int level, const optimizer::RuleOptions& rule,
                bool accumulates) {
  Generator random(1), noise(2), data(3);
  Net net(random, noise);
  auto made = optimizer::Optimizer::Create({{rule, net.NamedParameters()}});
  EXPECT_THAT(made, IsOk());
  Tensors found;
  for (int step = 0; step < 6; ++step) {
    if (!accumulates || step % 2 == 0) (*made)->ZeroGrad();
    const Variable x(Uniform({6, 1, 6, 6}, -1, 1, data));
    const Tensor y = Uniform({6}, 0, 5, data).To(DType::kI64);
    const Variable loss = CrossEntropy(net.Forward(x, level), y);
    loss.Backward();
    found.push_back(loss.value());
    if (!accumulates || step % 2 == 1) {
      EXPECT_THAT((*made)->Step(), IsOk());
    }
  }
  found.push_back(Tensor::Scalar<int64_t>(noise.position()));
  return Joined(found, StateOf(net));
}

TEST(CheckpointedTraining, EndsWithTheSameBits) {
  const std::vector<optimizer::RuleOptions> rules = {
      optimizer::SgdOptions{0.05, 0.9}, optimizer::AdamWOptions{0.01}};
  for (const optimizer::RuleOptions& rule : rules) {
    for (const bool accumulates : {false, true}) {
      const Tensors wanted = Trained(0, rule, accumulates);
      EXPECT_TRUE(SameBits(Trained(1, rule, accumulates), wanted));
      EXPECT_TRUE(SameBits(Trained(2, rule, accumulates), wanted));
    }
  }
}

// Layers frozen, as when a model is tuned.
TEST(CheckpointedTraining, WithFrozenLayersHasTheSameBits) {
  const auto run = [](int level) {
    Generator random(1), noise(2), data(3);
    Net net(random, noise);
    std::vector<nn::NamedParameter> all = net.NamedParameters();
    for (size_t i = 0; i < all.size() / 2; ++i) {
      all[i].variable.SetRequiresGrad(false);
    }
    const Variable x(Uniform({6, 1, 6, 6}, -1, 1, data));
    const Tensor y = Uniform({6}, 0, 5, data).To(DType::kI64);
    const Variable loss = CrossEntropy(net.Forward(x, level), y);
    loss.Backward();
    return Joined({loss.value()}, GradientsOf(net));
  };
  const Tensors wanted = run(0);
  EXPECT_TRUE(SameBits(run(1), wanted));
  EXPECT_TRUE(SameBits(run(2), wanted));
}

TEST(CheckpointedTraining, EvaluationBetweenForwardAndBackwardDoesNoHarm) {
  // A look at the model in evaluation, as a clumsy loop takes it, that returns
  // to training before the pass.
  const auto run = [](int level) {
    Generator random(1), noise(2), data(3);
    Net net(random, noise);
    const Variable x(Uniform({6, 1, 6, 6}, -1, 1, data));
    const Tensor y = Uniform({6}, 0, 5, data).To(DType::kI64);
    const Variable loss = CrossEntropy(net.Forward(x, level), y);
    net.Eval();
    {
      const NoGradScope scope;
      net.Forward(x, level);
    }
    net.Train();
    loss.Backward();
    return Joined({loss.value()}, Joined(GradientsOf(net), StateOf(net)));
  };
  const Tensors wanted = run(0);
  EXPECT_TRUE(SameBits(run(1), wanted));
  EXPECT_TRUE(SameBits(run(2), wanted));
}

}  // namespace
}  // namespace weft::outside
