#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/grad_mode.h"
#include "weft/autograd/graph_task.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/record.h"
#include "weft/autograd/test_graph.h"
#include "weft/autograd/variable.h"
#include "weft/base/error.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::GradOf;
using ::weft::testing::IsOk;
using ::weft::testing::LeafOf;
using ::weft::testing::Recorded;
using ::weft::testing::Retaining;
using ::weft::testing::Seed;
using ::weft::testing::StatusIs;
using ::weft::testing::StatusOf;
using ::weft::testing::TestNode;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// ---- gradients

TEST(Backward, AddsUpOverAllUses) {
  const Variable x = LeafOf({3});
  const Variable y = x * x + x;
  y.Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(7));
}

TEST(Backward, AddsUpGradientsThatAreExpandedViews) {
  const Variable x = LeafOf({1, 2, 3});
  (Sum(x) + Mean(x) * 3).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(2, 2, 2));
  Sum(x).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(3, 3, 3));
}

TEST(Backward, AccumulatesUntilCleared) {
  const Variable x = LeafOf({1, 2});
  Sum(x * 2).Backward();
  Sum(x * 3).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(5, 5));
  x.ClearGradient();
  EXPECT_FALSE(x.has_grad());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, RunsEachNodeOnce) {
  const Variable x = LeafOf({1});
  int runs = 0;
  const Variable a = Recorded(x, [&](BackwardCall& call) {
    ++runs;
    call.inputs[0] = call.output();
  });
  Variable y = a + a;
  y = y + y;
  (y + a).Backward();
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(GradOf(x), ElementsAre(5));
}

TEST(Backward, StartsAtSeveralRoots) {
  const Variable x = LeafOf({1, 1});
  const Variable a = x * 2, b = a * 3;
  EXPECT_THAT(Backward({a, b}, {Seed({1, 0}), Seed({0, 1})}), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(2, 6));
}

TEST(Backward, StartsAtALeaf) {
  const Variable x = LeafOf({1});
  x.Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(1));
}

TEST(Backward, NeedsASeedForMoreThanOneElement) {
  const Variable x = LeafOf({1, 2});
  EXPECT_THAT(StatusOf([&] { x.Backward(); }),
              StatusIs(kInvalidArgument, "seed"));
}

TEST(Backward, RefusesASeedOfAnotherShape) {
  const Variable x = LeafOf({1, 2});
  EXPECT_THAT(Backward({x * 2}, {Seed({1, 2, 3})}),
              StatusIs(kInvalidArgument, "[3]"));
  EXPECT_THAT(Backward({x * 2}, {}), StatusIs(kInvalidArgument, "0 seeds"));
}

TEST(Backward, RefusesARootWithoutHistory) {
  const Variable x(Tensor::Ones({1}));
  EXPECT_THAT(StatusOf([&] { x.Backward(); }),
              StatusIs(kFailedPrecondition, "requires no gradient"));
}

TEST(Backward, GivesLeavesGradientsOfTheirOwn) {
  const Variable a = LeafOf({1}), b = LeafOf({2});
  (a + b).Backward();
  a.grad().Fill(9);
  EXPECT_THAT(GradOf(b), ElementsAre(1));
  EXPECT_THAT(GradOf(a), ElementsAre(9));
}

TEST(Backward, LeavesASeedAsItWas) {
  const Variable x = LeafOf({1});
  const Tensor seed = Tensor::FromVector<float>({1});
  Backward({x, x}, {seed, seed}).IgnoreError();
  x.grad().Fill(9);
  EXPECT_THAT(seed.ToVector<float>(), ElementsAre(1));
}

// ---- what is absent stays absent

TEST(Undefined, StaysUndefinedAtALeafThatWasNotUsed) {
  const Variable x = LeafOf({2}), w0 = LeafOf({3}), w1 = LeafOf({5});
  // One operation with two results, of which the loss uses the first.
  const auto product = [&](BackwardCall& call) {
    if (call.outputs[0].defined()) call.inputs[0] = call.outputs[0];
    if (call.outputs[1].defined()) call.inputs[1] = call.outputs[1];
  };
  const NodePtr both(new TestNode(product, {&w0, &w1}, 2));
  const Variable first(x.value(), both, 0);
  const Variable second(x.value(), both, 1);
  (first * 4).Backward();
  EXPECT_THAT(GradOf(w0), ElementsAre(4));
  EXPECT_FALSE(w1.has_grad());
}

TEST(Undefined, SkipsNodesThatOnlyItReaches) {
  const Variable x = LeafOf({1}), w = LeafOf({1});
  int runs = 0;
  const Variable skipped = Recorded(w, [&](BackwardCall&) { ++runs; });
  const NodePtr drops_second(
      new TestNode([](BackwardCall& call) { call.inputs[0] = call.output(); },
                   {&x, &skipped}));
  Variable(x.value(), drops_second).Backward();
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(w.has_grad());
  EXPECT_TRUE(x.has_grad());
}

TEST(Undefined, SeedContributesNothing) {
  const Variable x = LeafOf({1});
  EXPECT_THAT(Backward({x * 2, x * 3}, {Gradient(), Seed({1})}), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(3));
}

// ---- deep graphs

constexpr int kDeep = 1000000;

TEST(DeepChain, RunsAndEndsWithoutRecursion) {
  const Variable x = LeafOf({1});
  const Variable zero(Tensor::Zeros({1}));
  {
    Variable y = x;
    for (int i = 0; i < kDeep; ++i) y = y + zero;
    y.Backward();
  }
  EXPECT_THAT(GradOf(x), ElementsAre(1));
}

TEST(DeepChain, EndsWithoutRecursionThroughGraphsKeptByHooks) {
  const Variable x = LeafOf({1});
  {
    Variable y = x;
    for (int i = 0; i < kDeep / 4; ++i) {
      Variable next =
          Variable(Tensor::Ones({1}), NodePtr(new TestNode({}, {})));
      next.AddHook([y](Gradient gradient) { return gradient; });
      y = std::move(next);
    }
  }
  EXPECT_FALSE(x.has_grad());
}

// ---- a graph is used once, unless retained

TEST(Retain, SecondBackwardWithoutItIsAnError) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  y.Backward();
  EXPECT_THAT(Backward({y}, {Seed({1})}),
              StatusIs(kFailedPrecondition, "backward of Mul"));
}

TEST(Retain, LetsAGraphRunAgain) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  y.Backward(Retaining());
  y.Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(12));
}

TEST(Retain, WithoutItSavedTensorsEndWithThePass) {
  const Variable w = LeafOf({3});
  Tensor x = Tensor::Ones({1});
  const Variable y = w * Variable(x);
  EXPECT_FALSE(x.is_sole_handle());
  y.Backward();
  EXPECT_TRUE(x.is_sole_handle());
}

TEST(SavedTensor, WrittenToSinceIsAnErrorNamingTheOperation) {
  const Variable x = LeafOf({3});
  const Variable w = LeafOf({2});
  const Variable y = x * w;
  w.value().Fill(5);
  EXPECT_THAT(Backward({y}, {Seed({1})}),
              StatusIs(kFailedPrecondition, "backward of Mul: a tensor saved"));
}

TEST(SavedTensor, MayBeWrittenToWhereItIsNotSaved) {
  const Variable x = LeafOf({3});
  const Variable y = x + x;
  x.value().Fill(5);
  EXPECT_THAT(Backward({y}, {Seed({1})}), IsOk());
}

// ---- errors

TEST(Error, OfANodeEndsThePassAndNamesTheNode) {
  const Variable x = LeafOf({1});
  const Variable y = Recorded(
      x, [](BackwardCall&) { throw std::runtime_error("out of luck"); });
  GraphTask task;
  ASSERT_THAT(task.Expect(y.edge()), IsOk());
  ASSERT_THAT(task.Feed(y.edge(), Seed({1})), IsOk());
  const auto is_it =
      StatusIs(absl::StatusCode::kInternal, "backward of Test: ");
  EXPECT_THAT(task.Run(), is_it);
  EXPECT_THAT(task.Run(), is_it);
  EXPECT_FALSE(x.has_grad());
}

TEST(Error, OfAGradientThatDoesNotFitTheLeaf) {
  const Variable x = LeafOf({1});
  const Variable y = Recorded(
      x, [](BackwardCall& call) { call.inputs[0] = Tensor::Ones({7}); });
  EXPECT_THAT(Backward({y}, {Seed({1})}),
              StatusIs(kInvalidArgument, "shape [7]"));
}

TEST(Error, OfGradientsThatDoNotFitEachOther) {
  const Variable x = LeafOf({1});
  const Variable a = x * 2;
  const Variable bad = Recorded(
      a, [](BackwardCall& call) { call.inputs[0] = Tensor::Ones({7}); });
  EXPECT_THAT(Backward({a + bad}, {Seed({1})}),
              StatusIs(kInvalidArgument, "shape [7]"));
}

// ---- hooks, scopes, handles

TEST(Hook, ChangesTheGradientThatGoesOn) {
  const Variable x = LeafOf({1});
  const Variable y = x * 2;
  y.AddHook([](Gradient g) { return Gradient(Mul(g.dense(), 10)); });
  y.AddHook([](Gradient g) { return Gradient(Add(g.dense(), 1)); });
  (y * 3).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(62));
}

TEST(Hook, SeesTheWholeGradientOfALeafBeforeItAccumulates) {
  const Variable x = LeafOf({1});
  std::vector<float> seen;
  x.AddHook([&](Gradient g) {
    seen = g.ToDense().ToVector<float>();
    return g;
  });
  (x * 2 + x * 3).Backward();
  EXPECT_THAT(seen, ElementsAre(5));
}

TEST(Hook, ThatDropsTheGradientLeavesItUndefined) {
  const Variable x = LeafOf({1});
  x.AddHook([](Gradient) { return Gradient(); });
  (x * 2).Backward();
  EXPECT_FALSE(x.has_grad());
}

TEST(NoGradScope, NestsAndEnds) {
  const Variable x = LeafOf({1});
  {
    NoGradScope outer;
    { NoGradScope inner; }
    EXPECT_FALSE((x * 2).requires_grad());
  }
  EXPECT_TRUE((x * 2).requires_grad());
}

TEST(NoGradScope, HoldsOnlyOnItsThread) {
  const Variable x = LeafOf({1});
  NoGradScope no_grad;
  bool recorded = false;
  std::thread([&] { recorded = (x * 2).requires_grad(); }).join();
  EXPECT_TRUE(recorded);
}

TEST(Variable, DetachForgetsItsHistory) {
  const Variable x = LeafOf({3});
  (x * (x * 2).Detach()).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(6));
}

TEST(Variable, OnlyFloatsHaveGradients) {
  EXPECT_THAT(StatusOf([] { Variable(Tensor::Arange(3), true); }),
              StatusIs(kInvalidArgument, "i64"));
  EXPECT_THAT(StatusOf([] { Variable(Tensor(), true); }),
              StatusIs(kInvalidArgument, "undefined"));
}

TEST(Variable, OnlyLeavesTakeGradients) {
  const Variable x = LeafOf({3});
  EXPECT_THAT(StatusOf([&] { (x * 2).ClearGradient(); }),
              StatusIs(kFailedPrecondition, "leaf"));
  EXPECT_THAT(StatusOf([&] { x.SetGradient(Tensor::Ones({2})); }),
              StatusIs(kInvalidArgument, "shape [2]"));
}

// ---- gradients of some rows

Gradient Rows(std::vector<int64_t> indices, std::vector<float> values) {
  const int64_t n = static_cast<int64_t>(indices.size());
  return SparseRows{Tensor::FromVector(indices),
                    Tensor::FromVector(values, {n, 1}), 4};
}

TEST(Gradient, OfRowsStaysRowsAtALeaf) {
  const Variable table(Tensor::Ones({4, 1}), /*requires_grad=*/true);
  const Tensor ids = Tensor::FromVector<int64_t>({1, 3, 1});
  for (int i = 0; i < 2; ++i) {
    Sum(Embedding(table, ids, TableGradient::kSparse)).Backward();
  }
  ASSERT_TRUE(table.gradient().is_sparse());
  EXPECT_EQ(table.gradient().sparse().indices.numel(), 6);
  EXPECT_THAT(GradOf(table), ElementsAre(0, 4, 0, 2));
}

TEST(Gradient, OfRowsAndATensorAddUpToATensor) {
  for (const bool rows_first : {false, true}) {
    const Gradient dense = Tensor::Ones({4, 1});
    const Gradient rows = Rows({2, 2}, {5, 6});
    Gradient sum = rows_first ? rows : dense;
    sum.Add(rows_first ? dense : rows);
    ASSERT_FALSE(sum.is_sparse());
    EXPECT_THAT(sum.dense().ToVector<float>(), ElementsAre(1, 1, 12, 1));
    EXPECT_THAT(dense.dense().ToVector<float>(), ElementsAre(1, 1, 1, 1));
  }
}

TEST(Gradient, OfRowsGoesThroughOtherOperations) {
  const Variable table(Tensor::Ones({4, 1}), /*requires_grad=*/true);
  const Tensor ids = Tensor::FromVector<int64_t>({1, 3, 1});
  Sum(Embedding(table * 3, ids, TableGradient::kSparse)).Backward();
  EXPECT_THAT(GradOf(table), ElementsAre(0, 6, 0, 3));
}

TEST(Linear, WithoutInputsOrOutputsHasEmptyGradients) {
  using Sizes = std::pair<int64_t, int64_t>;
  for (const auto& [in, out] : {Sizes(0, 3), Sizes(3, 0), Sizes(0, 0)}) {
    const Variable x(Tensor::Ones({2, in}), /*requires_grad=*/true);
    const Variable weight(Tensor::Ones({out, in}), /*requires_grad=*/true);
    const Variable bias(Tensor::Ones({out}), /*requires_grad=*/true);
    Sum(Linear(x, weight, bias)).Backward();
    EXPECT_EQ(x.grad().shape(), x.shape());
    EXPECT_EQ(weight.grad().shape(), weight.shape());
    EXPECT_THAT(GradOf(bias), ::testing::Each(2));
  }
}

TEST(Linear, OfAVectorHasTheGradientsOfOneRow) {
  const Variable x(Tensor::FromVector<float>({1, 2}), /*requires_grad=*/true);
  const Variable weight(Tensor::FromVector<float>({3, 4}, {1, 2}),
                        /*requires_grad=*/true);
  const Variable y = Linear(x, weight, Variable());
  EXPECT_EQ(y.shape(), Shape{1});
  Sum(y).Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(3, 4));
  EXPECT_THAT(GradOf(weight), ElementsAre(1, 2));
}

TEST(Relu, PassesTheGradientWhereItsResultIsNan) {
  const float nan = std::nanf("");
  const Variable x(Tensor::FromVector<float>({-1, nan, 2}),
                   /*requires_grad=*/true);
  Relu(x).Backward(Tensor::FromVector<float>({nan, 3, nan}));
  const std::vector<float> grad = GradOf(x);
  EXPECT_EQ(grad[0], 0);
  EXPECT_EQ(grad[1], 3);
  EXPECT_TRUE(std::isnan(grad[2]));
}

TEST(Gradient, RefusesRowsThatDoNotFitTheirValues) {
  EXPECT_THAT(StatusOf([] { Rows({1, 2, 3}, {1, 2, 3}); }), IsOk());
  EXPECT_THAT(
      StatusOf([] {
        Gradient(SparseRows{Tensor::Arange(2), Tensor::Ones({3, 1}), 4});
      }),
      StatusIs(kInvalidArgument, "do not fit"));
}

TEST(Gradient, AddsInPlaceOnlyToUnsharedTensors) {
  Gradient sum = Tensor::Ones({2});
  const void* memory = sum.dense().raw();
  sum.Add(Tensor::Ones({2}));
  EXPECT_EQ(sum.dense().raw(), memory);
  const Tensor held = sum.dense();
  sum.Add(Tensor::Ones({2}));
  EXPECT_THAT(held.ToVector<float>(), ElementsAre(2, 2));
  EXPECT_THAT(sum.dense().ToVector<float>(), ElementsAre(3, 3));
}

TEST(FrozenLeaf, IsNotRecordedAndItsGradientCannotBeSet) {
  const Variable x(Tensor::Ones({2}), /*requires_grad=*/true);
  const Variable copy = x;
  x.SetGradient(Tensor::Ones({2}));
  copy.SetRequiresGrad(false);
  EXPECT_FALSE(x.requires_grad());
  EXPECT_FALSE(x.has_grad());
  EXPECT_TRUE(x.is_leaf());
  EXPECT_EQ(x.leaf(), copy.leaf());
  EXPECT_FALSE(static_cast<bool>(x.edge().node));
  EXPECT_FALSE((x * 2).requires_grad());
  EXPECT_THROW(x.SetGradient(Tensor::Ones({2})), Error);
  x.ClearGradient();
  Variable(Tensor::Ones({2})).ClearGradient();
  x.SetValue(Tensor::Full({2}, 3));
  EXPECT_EQ(copy.value().ToVector<float>()[0], 3);
  const Variable w(Tensor::Ones({2}), /*requires_grad=*/true);
  Sum(x * w).Backward();
  EXPECT_EQ(w.grad().ToVector<float>()[0], 3);
  x.SetRequiresGrad(true);
  Sum(copy * w).Backward();
  EXPECT_EQ(x.grad().ToVector<float>()[0], 1);
}

TEST(FrozenLeaf, MustBeALeafMadeWithAGradient) {
  const Variable x(Tensor::Ones({2}), /*requires_grad=*/true);
  EXPECT_THROW((x * 2).SetRequiresGrad(false), Error);
  EXPECT_THROW(Variable(Tensor::Ones({2})).SetRequiresGrad(true), Error);
}

TEST(Leaf, GraphUsesTheMemoryThatALeafWasMovedTo) {
  const Variable w(Tensor::FromVector<float>({2, 3}), /*requires_grad=*/true);
  const Variable x(Tensor::FromVector<float>({5, 7}));
  const Variable y = Sum(Mul(Mul(w, w), x));
  const IntrusivePtr<Storage> former = w.value().storage();
  // Without its elements, in little memory; nothing else keeps the former.
  w.leaf()->MoveTo(Tensor::Zeros({1}).Expand({2}));
  EXPECT_TRUE(former->is_unique());
  w.leaf()->MoveTo(Tensor::FromVector<float>({2, 3}));
  y.Backward();
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(20, 42));
}

TEST(Leaf, WriteAfterAMoveIsFoundAndOneBeforeIsNot) {
  const Variable w(Tensor::FromVector<float>({2, 3}), /*requires_grad=*/true);
  const Variable y = Sum(Mul(w, w));
  const Tensor other = Tensor::Zeros({2});
  other.CopyFrom(w.value());
  w.leaf()->MoveTo(other);
  BackwardOptions retain;
  retain.retain_graph = true;
  y.Backward(retain);
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(4, 6));
  other.Fill(1);
  EXPECT_THAT(
      StatusOf([&] { y.Backward(); }),
      StatusIs(absl::StatusCode::kFailedPrecondition, "was written to since"));
}

TEST(Leaf, ReplacedValueStaysInTheGraphAndMovesNeedTheSameShape) {
  const Variable w(Tensor::FromVector<float>({2, 3}), /*requires_grad=*/true);
  const Variable y = Sum(Mul(w, w));
  w.SetValue(Tensor::FromVector<float>({10, 10}));
  w.leaf()->MoveTo(Tensor::FromVector<float>({20, 20}));
  y.Backward();
  EXPECT_THAT(w.grad().ToVector<float>(), ElementsAre(4, 6));
  EXPECT_THAT(StatusOf([&] { w.leaf()->MoveTo(Tensor::Zeros({3})); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "Leaf::MoveTo"));
  EXPECT_THAT(StatusOf([&] { w.leaf()->MoveTo(Tensor()); }),
              StatusIs(absl::StatusCode::kInvalidArgument, "undefined"));
}

}  // namespace
}  // namespace weft
