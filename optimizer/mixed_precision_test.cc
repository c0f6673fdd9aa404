// GradScaler, master weights, and training in f16 and bf16.

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/ops.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/nn/attention.h"
#include "weft/nn/layers.h"
#include "weft/nn/module.h"
#include "weft/nn/norm.h"
#include "weft/optimizer/grad_scaler.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

std::unique_ptr<GradScaler> MakeScaler(GradScaler::Options options = {}) {
  auto scaler = GradScaler::Create(options);
  EXPECT_THAT(scaler, IsOk());
  return *std::move(scaler);
}

std::unique_ptr<Optimizer> MakeOptimizer(std::vector<Parameter> parameters,
                                         RuleOptions rule = SgdOptions{0.5}) {
  auto optimizer = Optimizer::Create({{rule, std::move(parameters)}});
  EXPECT_THAT(optimizer, IsOk());
  return *std::move(optimizer);
}

Variable Leaf(double value, DType dtype = DType::kF32) {
  return Variable(Tensor::Full({2}, value, dtype), /*requires_grad=*/true);
}

std::vector<float> Elements(const Variable& x) {
  return x.value().To(DType::kF32).ToVector<float>();
}

TEST(GradScaler, StepsAsWithoutItWhereGradientsAreFinite) {
  const Variable w = Leaf(1);
  const auto optimizer = MakeOptimizer({{"w", w}});
  const auto scaler = MakeScaler();
  scaler->Scale(Sum(Mul(w, 0.25))).Backward();
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(16384, 16384));
  EXPECT_THAT(scaler->Step(*optimizer), IsOkAndHolds(true));
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(0.25, 0.25));
  EXPECT_THAT(Elements(w), ElementsAre(0.875, 0.875));
  EXPECT_THAT(scaler->Update(), IsOk());
  EXPECT_EQ(scaler->scale(), 65536);
  EXPECT_EQ(scaler->steps_at_scale(), 1);
}

TEST(GradScaler, SkipsTheStepOfAGradientThatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    const Variable w = Leaf(1), v = Leaf(2);
    const auto optimizer =
        MakeOptimizer({{"w", w}, {"v", v}}, AdamOptions{0.1});
    const auto scaler = MakeScaler();
    w.SetGradient(Tensor::Ones({2}));
    Tensor last = Tensor::Ones({2});
    last.data<float>()[1] = static_cast<float>(bad);
    v.SetGradient(last);
    EXPECT_THAT(scaler->Step(*optimizer), IsOkAndHolds(false));
    EXPECT_THAT(scaler->Update(), IsOk());
    EXPECT_THAT(Elements(w), ElementsAre(1, 1));
    EXPECT_EQ(optimizer->StateDict().at("w/step").item<int64_t>(), 0);
    EXPECT_EQ(scaler->scale(), 32768);
  }
}

TEST(GradScaler, GrowsAfterAnIntervalAndFallsAtOnce) {
  const Variable w = Leaf(1);
  const auto optimizer = MakeOptimizer({{"w", w}});
  GradScaler::Options options;
  options.initial_scale = 8;
  options.growth_interval = 3;
  const auto scaler = MakeScaler(options);
  const auto step = [&](float gradient) {
    w.SetGradient(Tensor::Full({2}, gradient));
    EXPECT_THAT(scaler->Step(*optimizer), IsOk());
    EXPECT_THAT(scaler->Update(), IsOk());
    return scaler->scale();
  };
  const float bad = std::numeric_limits<float>::infinity();
  std::vector<double> scales;
  for (const float gradient : {1.f, 1.f, bad, 1.f, 1.f, 1.f, 1.f, bad, bad}) {
    scales.push_back(step(gradient));
  }
  EXPECT_THAT(scales, ElementsAre(8, 8, 4, 4, 4, 8, 8, 4, 2));
}

TEST(GradScaler, LooksAtGradientsOnADeviceAndSparseOnes) {
  for (const bool is_bad : {false, true}) {
    device::testing::SimulatedDevices devices(/*seed=*/3);
    const Device device(devices.context(), 0);
    const Variable table(Tensor::Ones({4, 2}, DType::kF32, device), true);
    const auto optimizer = MakeOptimizer({{"table", table}});
    const auto scaler = MakeScaler();
    Tensor rows = Tensor::Full({1, 2}, 65536);
    if (is_bad) rows.data<float>()[0] = std::nanf("");
    table.SetGradient(SparseRows{Tensor::Ones({1}, DType::kI64).To(device),
                                 rows.To(device), 4});
    EXPECT_THAT(scaler->Step(*optimizer), IsOkAndHolds(!is_bad));
    const float wanted = is_bad ? 1 : 0.5f;
    EXPECT_THAT(Elements(table), ElementsAre(1, 1, wanted, wanted, 1, 1, 1, 1));
  }
}

TEST(GradScaler, RefusesCallsOutOfOrder) {
  const Variable w = Leaf(1), other = Leaf(1);
  const auto optimizer = MakeOptimizer({{"w", w}});
  const auto second = MakeOptimizer({{"w", other}});
  const auto scaler = MakeScaler();
  const auto is_refused = [](const absl::Status& status, const char* what) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, what));
  };
  is_refused(scaler->Update(), "no gradients were unscaled");
  w.SetGradient(Tensor::Full({2}, 65536));
  EXPECT_THAT(scaler->Unscale(*optimizer), IsOk());
  is_refused(scaler->Unscale(*optimizer), "since the last Update");
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(1, 1));
  EXPECT_THAT(scaler->Step(*optimizer), IsOkAndHolds(true));
  is_refused(scaler->Step(*optimizer).status(), "has had its step");
  EXPECT_THAT(scaler->Step(*second), IsOkAndHolds(true));  // has no gradient
  EXPECT_THAT(scaler->Update(), IsOk());
  EXPECT_THAT(scaler->Unscale(*optimizer), IsOk());
}

TEST(GradScaler, RefusesParametersOfF16AndOptionsThatCannotWork) {
  const Variable w = Leaf(1, DType::kF16);
  const auto optimizer = MakeOptimizer({{"w", w}});
  w.SetGradient(Tensor::Ones({2}, DType::kF16));
  EXPECT_THAT(MakeScaler()->Step(*optimizer),
              StatusIs(absl::StatusCode::kInvalidArgument, "\"w\" is f16[2]"));
  for (const GradScaler::Options& bad :
       {GradScaler::Options{0}, GradScaler::Options{-1},
        GradScaler::Options{std::nan("")}, GradScaler::Options{1, 1},
        GradScaler::Options{1, 2, 1}, GradScaler::Options{1, 2, 0},
        GradScaler::Options{1, 2, 0.5, 0}}) {
    EXPECT_THAT(GradScaler::Create(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, "wanted"));
  }
}

TEST(GradScaler, StateGoesThroughADict) {
  const Variable w = Leaf(1);
  const auto optimizer = MakeOptimizer({{"w", w}});
  const auto scaler = MakeScaler();
  w.SetGradient(Tensor::Ones({2}));
  EXPECT_THAT(scaler->Step(*optimizer), IsOk());
  EXPECT_THAT(scaler->Update(), IsOk());
  GradScaler::Options options;
  options.initial_scale = 2;
  const auto other = MakeScaler(options);
  EXPECT_THAT(other->LoadStateDict(scaler->StateDict()), IsOk());
  EXPECT_EQ(other->scale(), 65536);
  EXPECT_EQ(other->steps_at_scale(), 1);
  auto state = scaler->StateDict();
  const auto is_refused = [&](const char* what) {
    EXPECT_THAT(other->LoadStateDict(state),
                StatusIs(absl::StatusCode::kInvalidArgument, what));
    EXPECT_EQ(other->scale(), 65536);
    state = scaler->StateDict();
  };
  state["scale"] = Tensor::Scalar<double>(-1);
  is_refused("a scale of -1");
  state["scale"] = Tensor::Scalar<float>(1);
  is_refused("\"scale\"");
  state.erase("steps_at_scale");
  is_refused("\"steps_at_scale\"");
  state["growth"] = Tensor::Scalar<double>(1);
  is_refused("\"growth\" is unknown");
}

// Each step is less than half a unit in the last place of the parameter.
TEST(MasterWeights, AddUpStepsThatTheParameterCannotHold) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Variable w = Leaf(1, dtype);
    const auto optimizer = MakeOptimizer({{"w", w}}, SgdOptions{1e-4});
    for (int step = 0; step < 1000; ++step) {
      w.SetGradient(Tensor::Ones({2}, dtype));
      ASSERT_THAT(optimizer->Step(), IsOk());
    }
    const Tensor master = optimizer->StateDict().at("w/master");
    EXPECT_NEAR(master.ToVector<float>()[0], 0.9, 1e-4);
    EXPECT_EQ(w.dtype(), dtype);
    EXPECT_EQ(w.value().To(DType::kF32).ToVector<float>(),
              master.To(dtype).To(DType::kF32).ToVector<float>());
    EXPECT_EQ(optimizer->StateDict().count("w/step"), 1u);
  }
}

TEST(MasterWeights, FollowWhatIsWrittenToTheParameter) {
  const Variable w = Leaf(1, DType::kBF16);
  const auto optimizer = MakeOptimizer({{"w", w}}, SgdOptions{1e-4});
  const auto step = [&] {
    w.SetGradient(Tensor::Ones({2}, DType::kBF16));
    ASSERT_THAT(optimizer->Step(), IsOk());
  };
  step();
  w.value().Fill(4);
  step();
  EXPECT_NEAR(optimizer->StateDict().at("w/master").ToVector<float>()[0], 4,
              2e-4);
  // The same value again, as a checkpoint or a broadcast writes it, takes
  // nothing of the master's.
  w.value().CopyFrom(w.value().Clone());
  const Tensor before = optimizer->StateDict().at("w/master");
  step();
  EXPECT_NEAR(before.ToVector<float>()[0] -
                  optimizer->StateDict().at("w/master").ToVector<float>()[0],
              1e-4, 1e-6);
}

TEST(MasterWeights, AreKeptForAGraphThatHasSavedTheParameter) {
  const Variable w = Leaf(3, DType::kBF16);
  const auto optimizer = MakeOptimizer({{"w", w}}, SgdOptions{1});
  const Variable loss = Sum(Square(w));
  w.SetGradient(Tensor::Ones({2}, DType::kBF16));
  ASSERT_THAT(optimizer->Step(), IsOk());
  w.ClearGradient();
  loss.Backward();
  EXPECT_EQ(w.grad().To(DType::kF32).ToVector<float>()[0], 6);
  EXPECT_THAT(Elements(w), ElementsAre(2, 2));
}

// A model with a product, norms, attention and an embedding.
class Net : public nn::Module {
 public:
  explicit Net(Generator& random)
      : table_(16, 8, random),
        attention_(8, 2, random),
        norm_({8}),
        output_(8, 16, random) {
    AddModule("table", table_);
    AddModule("attention", attention_);
    AddModule("norm", norm_);
    AddModule("output", output_);
  }
  Variable Forward(const Tensor& tokens) {
    const Variable x = table_.Forward(tokens);
    AttentionOptions causal;
    causal.is_causal = true;
    const Variable y = x + attention_.Forward(x, causal);
    return output_.Forward(Gelu(norm_.Forward(y)));
  }

 private:
  nn::Embedding table_;
  nn::MultiheadAttention attention_;
  nn::LayerNorm norm_;
  nn::Linear output_;
};

TEST(ModuleToDType, CastsParametersAndGradientsAndKeepsStatisticsInF32) {
  nn::BatchNorm norm(2);
  const std::vector<Variable> parameters = norm.Parameters();
  parameters[0].SetGradient(Tensor::Full({2}, 1 + 0x1p-10));
  norm.To(Device::Cpu(), DType::kBF16);
  EXPECT_EQ(parameters[0].dtype(), DType::kBF16);
  EXPECT_THAT(parameters[0].grad().To(DType::kF32).ToVector<float>(),
              ElementsAre(1, 1));
  EXPECT_EQ(norm.StateDict().at("running_mean").dtype(), DType::kF32);
  EXPECT_EQ(norm.StateDict().at("num_batches_tracked").dtype(), DType::kI64);
  Generator random(5);
  const Tensor x = Normal({8, 2}, 3, 1, random).To(DType::kBF16);
  const Variable y = norm.Forward(Variable(x));
  EXPECT_EQ(y.dtype(), DType::kBF16);
  EXPECT_NEAR(norm.StateDict().at("running_mean").ToVector<float>()[0], 0.3,
              0.15);
  Sum(y).Backward();
  EXPECT_EQ(parameters[1].gradient().dtype(), DType::kBF16);
  norm.Eval();
  EXPECT_EQ(norm.Forward(Variable(x)).dtype(), DType::kBF16);
  norm.To(Device::Cpu(), DType::kF64);
  EXPECT_EQ(norm.StateDict().at("running_mean").dtype(), DType::kF64);
  EXPECT_EQ(norm.Forward(Variable(x.To(DType::kF64))).dtype(), DType::kF64);
}

TEST(ModuleToDType, IsBeforeTheOptimizer) {
  nn::BatchNorm norm(2);
  const auto optimizer = MakeOptimizer(norm.NamedParameters());
  norm.To(Device::Cpu(), DType::kBF16);
  norm.Parameters()[0].SetGradient(Tensor::Ones({2}, DType::kBF16));
  EXPECT_THAT(optimizer->Step(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          "its state was made for f32"));
}

TEST(ModuleToDType, RefusesWhatIsNoRealNumber) {
  nn::BatchNorm norm(2);
  EXPECT_THROW(norm.To(Device::Cpu(), DType::kI64), Error);
  EXPECT_EQ(norm.Parameters()[0].dtype(), DType::kF32);
}

struct Recipe {
  std::optional<DType> autocast;
  std::optional<DType> parameters;
  bool is_scaled = false;
};

// Learns to say the next of numbers that go round; the losses of all steps.
std::vector<float> Train(const Recipe& recipe, Device device = {},
                         int steps = 60) {
  Generator random(11);
  Net net(random);
  net.To(device, recipe.parameters.value_or(DType::kF32));
  const auto optimizer =
      MakeOptimizer(net.NamedParameters(), AdamWOptions{0.02});
  const auto scaler = MakeScaler();
  std::vector<float> losses;
  for (int step = 0; step < steps; ++step) {
    Tensor tokens = Tensor::Empty({4, 6}, DType::kI64);
    Tensor next = Tensor::Empty({4, 6}, DType::kI64);
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t at = step * 5 + i / 6 * 3 + i % 6;
      tokens.data<int64_t>()[i] = at % 16;
      next.data<int64_t>()[i] = (at + 1) % 16;
    }
    tokens = tokens.To(device);
    next = next.To(device);
    Variable loss;
    {
      const AutocastScope scope(recipe.autocast);
      loss = CrossEntropy(net.Forward(tokens), next);
    }
    losses.push_back(loss.value().To(DType::kF32).item<float>());
    if (recipe.is_scaled) {
      scaler->Scale(loss).Backward();
      EXPECT_THAT(scaler->Step(*optimizer), IsOk());
      EXPECT_THAT(scaler->Update(), IsOk());
    } else {
      loss.Backward();
      EXPECT_THAT(optimizer->Step(), IsOk());
    }
    optimizer->ZeroGrad();
  }
  return losses;
}

// From ln 16 = 2.77 to below 0.3. f16 may skip a step at the start.
TEST(MixedPrecision, LearnsAsF32Does) {
  const float wanted = Train({}).back();
  EXPECT_LT(wanted, 0.2);
  const Recipe recipes[] = {
      {DType::kBF16, std::nullopt, false}, {DType::kF16, std::nullopt, true},
      {DType::kBF16, std::nullopt, true},  {std::nullopt, DType::kBF16, false},
      {std::nullopt, DType::kF16, false},  {DType::kBF16, DType::kBF16, true}};
  for (const Recipe& recipe : recipes) {
    EXPECT_NEAR(Train(recipe).back(), wanted, 0.1);
  }
}

TEST(MixedPrecision, HasTheSameBitsOnADevice) {
  const Recipe recipes[] = {{DType::kBF16, std::nullopt, false},
                            {DType::kF16, std::nullopt, true},
                            {std::nullopt, DType::kBF16, false}};
  for (const Recipe& recipe : recipes) {
    const std::vector<float> wanted = Train(recipe, Device::Cpu(), 8);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      device::testing::SimulatedDevices devices(seed);
      EXPECT_EQ(Train(recipe, Device(devices.context(), 0), 8), wanted);
    }
  }
}

}  // namespace
}  // namespace weft::optimizer
