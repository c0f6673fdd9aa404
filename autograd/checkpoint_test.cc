#include "weft/autograd/checkpoint.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/ops.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/memory/allocator.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Inputs = absl::Span<const Variable>;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

Variable Drawn(const Shape& shape, uint64_t seed, bool requires_grad = true,
               DType dtype = DType::kF32) {
  Generator random(seed);
  return Variable(Uniform(shape, -1, 1, random, dtype), requires_grad);
}

std::vector<double> Numbers(const Tensor& tensor) {
  return tensor.To(DType::kF64).ToVector<double>();
}

Variable Dropout(const Variable& x, Generator& random) {
  return x * Variable(Bernoulli(x.shape(), 0.5, random).To(x.dtype()));
}

// A function with weights, of operations that save inputs, results and masks.
struct Part {
  explicit Part(uint64_t seed, int64_t width = 16)
      : weight(Drawn({width, width}, seed)), scale(Drawn({width}, seed + 1)) {}

  Variable operator()(const Variable& x) const {
    Variable y = Gelu(MatMul(x, weight));
    y = LayerNorm(y, {y.size(-1)}, scale, Variable());
    return Dropout(Tanh(y), *random) * scale + x;
  }
  std::vector<Variable> Leaves() const { return {weight, scale}; }

  Variable weight, scale;
  std::shared_ptr<Generator> random = std::make_shared<Generator>(7);
};

// The gradients of x and of the parts' leaves after a pass through all parts.
std::vector<std::vector<double>> GradientsOf(bool is_checkpointed) {
  std::vector<Part> parts;
  for (uint64_t i = 0; i < 4; ++i) parts.emplace_back(10 * i);
  const Variable x = Drawn({5, 16}, 99);
  Variable y = x;
  for (const Part& part : parts) {
    y = is_checkpointed
            ? Checkpoint([&](Inputs in) { return part(in[0]); }, {y})
            : part(y);
  }
  Sum(y * y).Backward();
  std::vector<std::vector<double>> all = {Numbers(y.value()),
                                          Numbers(x.grad())};
  for (const Part& part : parts) {
    for (const Variable& leaf : part.Leaves()) {
      all.push_back(Numbers(leaf.grad()));
    }
    // What is drawn next.
    all.push_back({part.random->NextDouble()});
  }
  return all;
}

TEST(Checkpoint, GivesTheSameBits) {
  EXPECT_EQ(GradientsOf(true), GradientsOf(false));
}

TEST(Checkpoint, RunsAgainOnceAndOnlyWhenTheBackwardPassComesToIt) {
  const Variable x = Drawn({3}, 1);
  std::vector<int> order;
  const auto part = [&order](int i) {
    return [&order, i](Inputs in) {
      order.push_back(i);
      return Exp(in[0]) * in[0];
    };
  };
  const Variable y = Sum(Checkpoint(part(2), {Checkpoint(part(1), {Exp(x)})}));
  EXPECT_THAT(order, ElementsAre(1, 2));
  y.Backward();
  EXPECT_THAT(order, ElementsAre(1, 2, 2, 1));
}

TEST(Checkpoint, DoesNotRunAgainWhatNobodyDifferentiates) {
  int runs = 0;
  const auto part = [&runs](Inputs in) {
    ++runs;
    return Exp(in[0]);
  };
  const Variable x = Drawn({3}, 1);
  Checkpoint(part, {Drawn({3}, 1, /*requires_grad=*/false)});
  {
    const NoGradScope no_grad;
    EXPECT_FALSE(Checkpoint(part, {x}).requires_grad());
  }
  (void)Checkpoint(part, {x});  // is dropped
  Sum(x).Backward();
  EXPECT_EQ(runs, 3);
}

TEST(Checkpoint, TakesAndGivesSeveralVariables) {
  const Variable x = Drawn({3}, 1), c = Drawn({3}, 2, false), z = Drawn({3}, 3);
  const auto part = [](Inputs in) {
    return std::vector<Variable>{Exp(in[0]) * in[1], in[2] * in[2], in[0]};
  };
  const std::vector<Variable> y = Checkpoint(part, {x, c, z});
  const std::vector<Variable> plain = part({x, c, z});
  ASSERT_EQ(y.size(), 3);
  Sum(y[0] * y[1] + y[2]).Backward();
  const std::vector<double> dx = Numbers(x.grad()), dz = Numbers(z.grad());
  x.ClearGradient();
  z.ClearGradient();
  Sum(plain[0] * plain[1] + plain[2]).Backward();
  EXPECT_EQ(dx, Numbers(x.grad()));
  EXPECT_EQ(dz, Numbers(z.grad()));
}

// The first measures before the second raises the peak.
TEST(Checkpoint, KeepsTheActivationsOfOnePart) {
  constexpr int kParts = 32;
  constexpr int64_t kWidth = 64, kRows = 1024;
  const int64_t activation = kWidth * kRows * sizeof(float);
  std::vector<Part> parts;
  for (uint64_t i = 0; i < kParts; ++i) parts.emplace_back(10 * i, kWidth);
  const Variable x = Drawn({kRows, kWidth}, 99);
  // Bytes above what was there: after the forward pass, and at most.
  const auto measure = [&](bool is_checkpointed) {
    const int64_t before = memory::HostAllocator().stats().used_bytes;
    Variable y = x;
    for (const Part& part : parts) {
      y = is_checkpointed
              ? Checkpoint([&](Inputs in) { return part(in[0]); }, {y})
              : part(y);
    }
    const int64_t kept = memory::HostAllocator().stats().used_bytes - before;
    Sum(y).Backward();
    return std::make_pair(kept,
                          memory::HostAllocator().stats().peak_bytes - before);
  };
  const auto [kept, peak] = measure(true);
  const auto [plain_kept, plain_peak] = measure(false);
  RecordProperty("checkpointed_peak_mib", std::to_string(peak >> 20));
  RecordProperty("plain_peak_mib", std::to_string(plain_peak >> 20));
  EXPECT_LE(kept, (kParts + 2) * activation);
  EXPECT_LE(peak, (kParts + 24) * activation);
  EXPECT_GE(plain_kept, 5 * kParts * activation);
  EXPECT_GE(plain_peak, 3 * peak);
}

TEST(Checkpoint, Nests) {
  const auto pass = [](int depth) {
    const Part a(1), b(5);
    int runs = 0;
    const Variable x = Drawn({2, 16}, 9);
    const auto inner = [&](Inputs in) {
      ++runs;
      return b(a(in[0]));
    };
    const auto outer = [&](Inputs in) {
      const Variable y = Exp(in[0]);
      return (depth > 1 ? Checkpoint(inner, {y}) : inner({y})) * y;
    };
    Sum(depth > 0 ? Checkpoint(outer, {x}) : outer({x})).Backward();
    std::vector<std::vector<double>> all = {Numbers(x.grad())};
    for (const Part* part : {&a, &b}) {
      for (const Variable& leaf : part->Leaves()) {
        all.push_back(Numbers(leaf.grad()));
      }
      all.push_back({part->random->NextDouble()});
    }
    EXPECT_EQ(runs, depth + 1);
    return all;
  };
  EXPECT_EQ(pass(1), pass(0));
  EXPECT_EQ(pass(2), pass(0));
}

TEST(Checkpoint, GeneratorThatLivesInTheFunctionGivesTheSameNumbers) {
  Generator outside(3);
  const auto part = [&](Inputs in) {
    Generator own(5);
    (void)own.NextU32();
    const Variable y = Dropout(in[0] * in[0], own);
    return Dropout(y * in[0], outside);
  };
  const Variable x = Drawn({64}, 1), z = Drawn({64}, 1);
  Sum(Checkpoint(part, {x})).Backward();
  outside = Generator(3);
  Sum(part({z})).Backward();
  EXPECT_EQ(Numbers(x.grad()), Numbers(z.grad()));
}

TEST(Checkpoint, RetainedGraphRunsTwiceAndComputesAgainOnce) {
  int runs = 0;
  const Variable x = Drawn({3}, 1);
  const Variable y = Sum(Checkpoint(
      [&](Inputs in) {
        ++runs;
        return Exp(in[0]) * in[0];
      },
      {x}));
  BackwardOptions retain;
  retain.retain_graph = true;
  y.Backward(retain);
  const std::vector<double> once = Numbers(x.grad());
  x.ClearGradient();
  y.Backward();
  EXPECT_EQ(Numbers(x.grad()), once);
  EXPECT_EQ(runs, 2);
}

TEST(Checkpoint, BackwardPassMayRunOnAnotherThreadAndUnderNoGrad) {
  const Variable x = Drawn({3}, 1), z = Drawn({3}, 1);
  const auto part = [](Inputs in) { return Exp(in[0]) * in[0]; };
  const Variable y = Sum(Checkpoint(part, {x}));
  std::thread([&y] {
    const NoGradScope no_grad;
    y.Backward();
    EXPECT_TRUE(NoGradScope::IsOpen());
  }).join();
  Sum(part({z})).Backward();
  EXPECT_EQ(Numbers(x.grad()), Numbers(z.grad()));
}

TEST(Checkpoint, SparseGradientsAndFrozenLeavesAreAsWithout) {
  const auto pass = [](bool is_checkpointed) {
    const Variable table = Drawn({6, 2}, 1), frozen = Drawn({2}, 2);
    frozen.SetRequiresGrad(false);
    const Tensor indices = Tensor::FromVector<int64_t>({4, 1, 4});
    const auto part = [&](Inputs in) {
      return Embedding(table, in[0].value(), TableGradient::kSparse) * frozen;
    };
    const Variable i(indices);
    Sum(is_checkpointed ? Checkpoint(part, {i}) : part({i})).Backward();
    EXPECT_FALSE(frozen.has_grad());
    EXPECT_TRUE(table.gradient().is_sparse());
    return Numbers(table.grad());
  };
  EXPECT_EQ(pass(true), pass(false));
}

TEST(Checkpoint, DeepChainNeedsNoDeepStack) {
  Variable y = Drawn({1}, 1);
  const Variable x = y;
  for (int i = 0; i < 20000; ++i) {
    y = Checkpoint([](Inputs in) { return Tanh(in[0]) + 0.5; }, {y});
  }
  Sum(y).Backward();
  EXPECT_TRUE(x.has_grad());
}

// ------------------------------------------------------------------ refusals

absl::Status StatusOf(const Variable& root) {
  return CatchToStatus([&] { root.Backward(); });
}

TEST(Checkpoint, InputThatWasWrittenToIsRefused) {
  const Variable x = Drawn({3}, 1);
  const Variable y = Exp(x);
  const Variable z =
      Sum(Checkpoint([](Inputs in) { return in[0] * in[0]; }, {y}));
  Add_(y.value(), 1);
  EXPECT_THAT(StatusOf(z), StatusIs(kFailed, "was written to since"));
}

TEST(Checkpoint, LeafThatWasUpdatedOrReplacedIsRefused) {
  for (const bool is_replaced : {false, true}) {
    const Variable x = Drawn({3}, 1), weight = Drawn({3}, 2);
    // No operation saves the value of `weight`.
    const Variable y =
        Sum(Checkpoint([&](Inputs in) { return Exp(in[0] + weight); }, {x}));
    if (is_replaced) {
      weight.SetValue(weight.value().Clone());
    } else {
      Axpy_(weight.value(), 1, x.value());
    }
    EXPECT_THAT(StatusOf(y),
                StatusIs(kFailed, is_replaced ? "was replaced between"
                                              : "was written to between"));
    EXPECT_FALSE(weight.has_grad());
  }
}

TEST(Checkpoint, LeafThatIsAnInputAndWasWrittenToIsRefused) {
  const Variable x = Drawn({3}, 1);
  const Variable y =
      Sum(Checkpoint([](Inputs in) { return Exp(in[0] * 2); }, {x}));
  Mul_(x.value(), 2);
  EXPECT_THAT(StatusOf(y), StatusIs(kFailed, "was written to between"));
}

TEST(Checkpoint, FunctionThatComputesOtherTensorsIsRefused) {
  int runs = 0;
  const Variable x = Drawn({3}, 1);
  const std::vector<std::function<Variable(Inputs)>> parts = {
      [&](Inputs in) {  // more
        return ++runs == 1 ? Exp(in[0]) : Exp(Exp(in[0]));
      },
      [&](Inputs in) {  // fewer
        return ++runs == 1 ? Exp(Exp(in[0])) : Exp(in[0]);
      },
      [&](Inputs in) {  // another shape
        return Exp(++runs == 1 ? in[0] : Reshape(in[0], {1, 3}));
      },
      [&](Inputs in) {  // another dtype
        return Exp(++runs == 1 ? in[0] : Cast(in[0], DType::kF64));
      }};
  for (const auto& part : parts) {
    runs = 0;
    EXPECT_THAT(StatusOf(Sum(Checkpoint(part, {x}))),
                StatusIs(kFailed, "must be a function of its inputs"));
    EXPECT_EQ(runs, 2);
  }
}

TEST(Checkpoint, FunctionThatThrowsEndsThePassAndTheGraphCanBeRunAgain) {
  int runs = 0;
  const Variable x = Drawn({3}, 1);
  const auto part = [&](Inputs in) {
    const Variable y = Exp(in[0]);
    if (++runs == 2) ThrowInvalidArgument("no luck");
    return y * y;
  };
  const Variable y = Sum(Checkpoint(part, {x}));
  BackwardOptions retain;
  retain.retain_graph = true;
  EXPECT_THAT(CatchToStatus([&] { y.Backward(retain); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "no luck"));
  EXPECT_FALSE(IsCheckpointing());
  EXPECT_THAT(CatchToStatus([&] { y.Backward(retain); }), IsOk());
  EXPECT_TRUE(x.has_grad());
  runs = 1;
  EXPECT_THAT(CatchToStatus([&] { Checkpoint(part, {x}); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "no luck"));
  EXPECT_FALSE(IsCheckpointing());
}

TEST(Checkpoint, BackwardPassWithinTheFunctionIsRefused) {
  const Variable x = Drawn({3}, 1);
  EXPECT_THAT(CatchToStatus([&] {
                Checkpoint(
                    [](Inputs in) {
                      Sum(Exp(in[0])).Backward();
                      return in[0];
                    },
                    {x});
              }),
              StatusIs(kFailed, "must not run a backward pass"));
}

TEST(Checkpoint, WhatIsDoneOnceIsNotDoneAgain) {
  int made = 0, effects = 0;
  const auto inner = [&](Inputs in) {
    const Tensor c =
        OnceInCheckpoint([&] { return Tensor::Full({3}, ++made); });
    if (!IsRecomputing()) ++effects;
    EXPECT_TRUE(IsCheckpointing());
    return Exp(in[0]) * Variable(c) + Variable(OnceInCheckpoint([&] {
             return Tensor::Full({3}, 10 * ++made);
           }));
  };
  const auto outer = [&](Inputs in) {
    return Checkpoint(inner, {in[0] * in[0]});
  };
  const Variable x = Drawn({3}, 1), z = Drawn({3}, 1);
  Sum(Checkpoint(outer, {x})).Backward();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(effects, 1);
  Sum(Exp(z * z)).Backward();
  EXPECT_EQ(Numbers(x.grad()), Numbers(z.grad()));
  EXPECT_FALSE(IsCheckpointing());
  EXPECT_EQ(OnceInCheckpoint([] { return Tensor::Ones({2}); }).numel(), 2);
}

}  // namespace
}  // namespace weft
