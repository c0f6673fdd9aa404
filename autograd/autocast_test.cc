#include "weft/autograd/autocast.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/device/testing/simulated_context.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/random.h"

namespace weft {
namespace {

using testing::BytesOf;

constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

Variable Leaf(const Shape& shape, uint64_t seed, Device device = {}) {
  Generator generator(seed);
  return Variable(Normal(shape, 0, 1, generator).To(device),
                  /*requires_grad=*/true);
}

TEST(Autocast, ComputesProductsInTheDtypeOfTheScope) {
  const Variable x = Leaf({3, 4}, 1), w = Leaf({5, 4}, 2), b = Leaf({5}, 3);
  const Variable image = Leaf({1, 2, 4, 4}, 4), kernel = Leaf({3, 2, 2, 2}, 5);
  for (const DType low : kHalves) {
    const AutocastScope scope(low);
    EXPECT_EQ(AutocastScope::Current(), low);
    EXPECT_EQ(Linear(x, w, b).dtype(), low);
    EXPECT_EQ(Linear(x, w, Variable()).dtype(), low);
    EXPECT_EQ(MatMul(x, Transpose(w, 0, 1)).dtype(), low);
    EXPECT_EQ(Einsum("ij,kj->ik", x, w).dtype(), low);
    EXPECT_EQ(Conv2d(image, kernel, Variable()).dtype(), low);
    EXPECT_EQ(ScaledDotProductAttention(x, w, w).dtype(), low);
    // As they are.
    EXPECT_EQ(Relu(Linear(x, w, b)).dtype(), low);
    EXPECT_EQ(Relu(x).dtype(), DType::kF32);
  }
  EXPECT_EQ(AutocastScope::Current(), std::nullopt);
  EXPECT_EQ(Linear(x, w, b).dtype(), DType::kF32);
}

TEST(Autocast, ComputesInF32WhatLosesInLowPrecision) {
  const Variable x = Cast(Leaf({3, 4}, 1), DType::kBF16);
  const Variable image = Cast(Leaf({2, 3, 2, 2}, 4), DType::kBF16);
  const Variable ones(Tensor::Ones({4})), channels(Tensor::Ones({3}));
  const Tensor targets = Tensor::Zeros({3}, DType::kI64);
  const AutocastScope scope(DType::kBF16);
  EXPECT_EQ(Exp(x).dtype(), DType::kF32);
  EXPECT_EQ(Pow(x, 2).dtype(), DType::kF32);
  EXPECT_EQ(Softplus(x).dtype(), DType::kF32);
  EXPECT_EQ(Softmax(x, 1).dtype(), DType::kF32);
  EXPECT_EQ(Sum(x).dtype(), DType::kF32);
  EXPECT_EQ(Var(x).dtype(), DType::kF32);
  EXPECT_EQ(Cumsum(x, 0).dtype(), DType::kF32);
  EXPECT_EQ(CrossEntropy(x, targets).dtype(), DType::kF32);
  // Targets, which are no variables, too.
  EXPECT_EQ(MseLoss(x, Tensor::Ones({3, 4})).dtype(), DType::kF32);
  EXPECT_EQ(MseLoss(x, x.value()).dtype(), DType::kF32);
  EXPECT_EQ(LayerNorm(x, {4}, ones, ones).dtype(), DType::kF32);
  EXPECT_EQ(RmsNorm(x, {4}, ones).dtype(), DType::kF32);
  const Tensor mean = Tensor::Zeros({3}), variance = Tensor::Ones({3});
  EXPECT_EQ(BatchNorm(image, channels, channels, mean, variance).dtype(),
            DType::kF32);
}

TEST(Autocast, TakesTheWidestOfTwoOperands) {
  const Variable f32 = Leaf({2, 2}, 1);
  const Variable f16 = Cast(f32, DType::kF16), bf16 = Cast(f32, DType::kBF16);
  EXPECT_THROW(Add(f32, f16), Error);
  const AutocastScope scope(DType::kF16);
  EXPECT_EQ(Add(f32, f16).dtype(), DType::kF32);
  EXPECT_EQ(Mul(bf16, f16).dtype(), DType::kF32);
  EXPECT_EQ(Div(f16, f16).dtype(), DType::kF16);
  const Tensor chosen = Greater(f32.value(), 0);
  EXPECT_EQ(Where(chosen, bf16, f32).dtype(), DType::kF32);
  EXPECT_EQ(Concat({f16, f32, bf16}, 0).dtype(), DType::kF32);
  EXPECT_EQ(Stack({f16, f16}, 0).dtype(), DType::kF16);
  const Tensor rows = Tensor::Zeros({2}, DType::kI64);
  EXPECT_EQ(IndexAdd(f32, 0, rows, f16).dtype(), DType::kF32);
}

TEST(Autocast, LeavesOtherDTypesAlone) {
  const Variable x(Tensor::Ones({2, 2}, DType::kF64), true);
  const AutocastScope scope(DType::kBF16);
  EXPECT_EQ(MatMul(x, x).dtype(), DType::kF64);
  EXPECT_EQ(Sum(x).dtype(), DType::kF64);
}

TEST(Autocast, NestsAndCanBeOff) {
  const Variable x = Leaf({2, 2}, 1);
  const AutocastScope outer(DType::kBF16);
  {
    const AutocastScope off(std::nullopt);
    EXPECT_EQ(MatMul(x, x).dtype(), DType::kF32);
    const AutocastScope inner(DType::kF16);
    EXPECT_EQ(MatMul(x, x).dtype(), DType::kF16);
  }
  EXPECT_EQ(MatMul(x, x).dtype(), DType::kBF16);
  // A scope holds for its own thread alone.
  std::thread([&] { EXPECT_EQ(MatMul(x, x).dtype(), DType::kF32); }).join();
}

TEST(Autocast, RefusesOtherDTypes) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
    EXPECT_THROW(AutocastScope{dtype}, Error);
    EXPECT_EQ(AutocastScope::Current(), std::nullopt);
  }
}

// A loss through each kind of operation.
Variable Loss(const Variable& x, const Variable& w, const Variable& b) {
  const Variable hidden = Gelu(Linear(x, w, b));
  const Variable normed = LayerNorm(hidden + x, {4}, b, b);
  return Sum(Softmax(Linear(normed, w, Variable()), 1) * x);
}

std::vector<std::string> BytesOfGradients(const std::vector<Variable>& leaves) {
  std::vector<std::string> bytes;
  for (const Variable& leaf : leaves) {
    EXPECT_EQ(leaf.gradient().dtype(), leaf.dtype());
    bytes.push_back(BytesOf(leaf.grad()));
    leaf.ClearGradient();
  }
  return bytes;
}

TEST(Autocast, GivesLeavesGradientsOfTheirDtype) {
  const Variable w = Leaf({4, 4}, 2), b = Leaf({4}, 3);
  const Variable x(Leaf({3, 4}, 1).value());
  {
    const AutocastScope scope(DType::kBF16);
    Sum(Linear(x, w, b)).Backward();
  }
  // By hand.
  const std::vector<std::string> found = BytesOfGradients({w, b});
  Sum(Cast(Linear(Cast(x, DType::kBF16), Cast(w, DType::kBF16),
                  Cast(b, DType::kBF16)),
           DType::kF32))
      .Backward();
  EXPECT_EQ(BytesOfGradients({w, b}), found);
}

TEST(Autocast, KeepsCastsOfLeavesInTheOutermostScope) {
  const Variable w = Leaf({4, 4}, 2);
  const AutocastScope outer(std::nullopt);
  Tensor cast;
  {
    const AutocastScope inner(DType::kBF16);
    cast = AutocastScope::Cast(w, DType::kBF16);
  }
  const auto again = [&] { return AutocastScope::Cast(w, DType::kBF16); };
  EXPECT_TRUE(again().IsSameAs(cast));
  EXPECT_EQ(AutocastScope::Cast(w, DType::kF16).dtype(), DType::kF16);
  EXPECT_TRUE(again().IsSameAs(cast));
  // A write is seen, be it an update of an optimizer or another.
  w.value().Fill(3);
  EXPECT_EQ(again().To(DType::kF32).ToVector<float>()[0], 3);
  w.value().BeginUpdate();
  w.value().data<float>()[0] = 5;
  EXPECT_EQ(again().To(DType::kF32).ToVector<float>()[0], 5);
  w.SetValue(Tensor::Full({4, 4}, 7));
  EXPECT_EQ(again().To(DType::kF32).ToVector<float>()[0], 7);
  // The cast of a variable that is no leaf is not kept.
  const Variable y = Relu(w);
  EXPECT_FALSE(AutocastScope::Cast(y, DType::kBF16)
                   .IsSameAs(AutocastScope::Cast(y, DType::kBF16)));
}

// The kept cast has no history of its own: each pass has its graph, also after
// one under a NoGradScope.
TEST(Autocast, SeveralPassesInOneScope) {
  const Variable x(Leaf({3, 4}, 1).value()), w = Leaf({4, 4}, 2),
                                             b = Leaf({4}, 3);
  const AutocastScope scope(DType::kF16);
  {
    const NoGradScope no_grad;
    EXPECT_FALSE(Loss(x, w, b).requires_grad());
  }
  Loss(x, w, b).Backward();
  const std::vector<std::string> once = BytesOfGradients({w, b});
  const Variable first = Loss(x, w, b), second = Loss(x, w, b);
  first.Backward();
  EXPECT_EQ(BytesOfGradients({w, b}), once);
  second.Backward();
  EXPECT_EQ(BytesOfGradients({w, b}), once);
}

TEST(Autocast, CheckpointRunsAgainUnderTheSameScope) {
  const Variable x = Leaf({3, 4}, 1), w = Leaf({4, 4}, 2), b = Leaf({4}, 3);
  const auto part = [&](absl::Span<const Variable> in) {
    return Loss(in[0], w, b);
  };
  for (const DType low : kHalves) {
    Variable loss;
    {
      const AutocastScope scope(low);
      loss = part({x});
    }
    loss.Backward();
    const std::vector<std::string> wanted = BytesOfGradients({x, w, b});
    {
      const AutocastScope scope(low);
      loss = Checkpoint(part, {x});
    }
    loss.Backward();
    EXPECT_EQ(BytesOfGradients({x, w, b}), wanted);
    // And under no other that is open then.
    {
      const AutocastScope scope(low);
      loss = Checkpoint(part, {x});
    }
    const AutocastScope other(low == DType::kF16 ? DType::kBF16 : DType::kF16);
    loss.Backward();
    EXPECT_EQ(BytesOfGradients({x, w, b}), wanted);
  }
  // None, at first.
  part({x}).Backward();
  const std::vector<std::string> wanted = BytesOfGradients({x, w, b});
  const Variable loss = Checkpoint(part, {x});
  const AutocastScope scope(DType::kF16);
  loss.Backward();
  EXPECT_EQ(BytesOfGradients({x, w, b}), wanted);
}

TEST(Autocast, HasTheSameBitsOnADevice) {
  for (const DType low : kHalves) {
    const auto gradients = [low](Device device) {
      const Variable x = Leaf({3, 4}, 1, device), w = Leaf({4, 4}, 2, device),
                     b = Leaf({4}, 3, device);
      const AutocastScope scope(low);
      Loss(x, w, b).Backward();
      return BytesOfGradients({x, w, b});
    };
    const std::vector<std::string> wanted = gradients(Device::Cpu());
    for (uint64_t seed = 0; seed < 5; ++seed) {
      device::testing::SimulatedDevices devices(seed);
      EXPECT_EQ(gradients(Device(devices.context(), 0)), wanted);
    }
  }
}

}  // namespace
}  // namespace weft
