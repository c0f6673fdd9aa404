// Leaf::MoveTo and the value that graphs see, as leaf.h and saved_tensor.h say.

#include "weft/autograd/leaf.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/saved_tensor.h"
#include "weft/autograd/variable.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

// d loss / dx = w^2 + ... : x's gradient shows which w the graph used.
struct Graph {
  explicit Graph(const Variable& w) : x(Tensor::Ones(w.shape()), true) {
    loss = Sum(x * w);
  }
  // What the pass used for w.
  Tensor Used() const {
    x.ClearGradient();
    loss.Backward(Retained());
    return x.grad();
  }
  static BackwardOptions Retained() {
    BackwardOptions options;
    options.retain_graph = true;
    return options;
  }
  Variable x, loss;
};

Variable Weights() {
  return Variable(Tensor::FromVector<float>({1, 2, 3}), true);
}
Tensor Three(float a, float b, float c) {
  return Tensor::FromVector<float>({a, b, c});
}

// Kept versions are what optimizers rely on.
void Update(const Variable& w, float first) {
  w.value().BeginUpdate();
  *w.value().data<float>() = first;
}

TEST(LeafMoveTo, RefusesWhatDoesNotFitAndChangesNothing) {
  const Variable w = Weights();
  const Tensor before = w.value();
  EXPECT_THAT(StatusOf([&] { w.leaf()->MoveTo(Tensor::Zeros({4})); }),
              StatusIs(kInvalidArgument));
  EXPECT_THAT(StatusOf([&] {
                w.leaf()->MoveTo(Tensor::Zeros({3, 1}));
              }),
              StatusIs(kInvalidArgument));
  EXPECT_THAT(
      StatusOf([&] { w.leaf()->MoveTo(Tensor::Zeros({3}, DType::kF64)); }),
      StatusIs(kInvalidArgument));
  const absl::Status undefined = StatusOf([&] { w.leaf()->MoveTo(Tensor()); });
  EXPECT_FALSE(undefined.ok());
  EXPECT_TRUE(w.value().IsSameAs(before));
  const Graph graph(w);
  EXPECT_TRUE(SameBits(graph.Used(), before));
}

TEST(LeafMoveTo, KeepsGradientHooksAndCopiesOfTheVariable) {
  const Variable w = Weights();
  const Variable copy = w;
  int hooks = 0;
  w.AddHook([&](Gradient g) {
    ++hooks;
    return g;
  });
  Sum(w * w).Backward();
  const Tensor gradient = w.grad().Clone();
  w.leaf()->MoveTo(w.value().Clone());
  EXPECT_TRUE(SameBits(w.grad(), gradient));
  EXPECT_TRUE(copy.value().IsSameAs(w.value()));
  EXPECT_TRUE(copy.requires_grad());
  Sum(copy * copy).Backward();
  EXPECT_EQ(hooks, 2);
}

TEST(LeafMoveTo, GraphFromBeforeUsesWhatIsThereThen) {
  const Variable w = Weights();
  const Graph graph(w);
  w.leaf()->MoveTo(Tensor::Zeros({1}).Expand({3}));
  w.leaf()->MoveTo(Three(1, 2, 3));
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

TEST(LeafMoveTo, ToItselfAndBackChangesNothing) {
  const Variable w = Weights();
  const Tensor home = w.value();
  const Graph graph(w);
  w.leaf()->MoveTo(home);
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
  w.leaf()->MoveTo(home.Clone());
  w.leaf()->MoveTo(home);
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

TEST(LeafMoveTo, FormerMemoryIsFree) {
  auto owner = std::make_shared<std::vector<float>>(3, 2.0f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  const Variable w(Tensor::FromBlob(owner->data(), {3}, DType::kF32, owner),
                   true);
  owner.reset();
  const Graph graph(w);
  const Variable y = Checkpoint([w](In in) { return Tanh(in[0] * w) * w; },
                                {Variable(Three(1, 1, 1))});
  EXPECT_FALSE(watch.expired());
  w.leaf()->MoveTo(w.value().Clone());
  EXPECT_TRUE(watch.expired());
  EXPECT_TRUE(SameBits(graph.Used(), Three(2, 2, 2)));
}

// A transposed weight is a view of the leaf, as in MatMul(x, w^T).
// "... and keeps nothing of the former memory but what operations saved as
// views of it."
TEST(LeafMoveTo, ViewThatTheGraphSavedKeepsTheFormerMemory) {
  const Variable w(Tensor::Full({2, 3}, 2), true);
  const Variable x(Tensor::Ones({4, 3}), true);
  const Variable loss = Sum(MatMul(x, Transpose(w, 0, 1)));
  w.leaf()->MoveTo(w.value().Clone());
  loss.Backward();
  EXPECT_TRUE(SameBits(x.grad(), Tensor::Full({4, 3}, 4)));
}

// "Fill `value` before: a write to the leaf after this is a write, as ever."
TEST(LeafMoveTo, CopyIntoTheMemoryAfterTheMoveIsAWrite) {
  const Variable w = Weights();
  const Graph graph(w);
  const Tensor kept = w.value().Clone();
  w.leaf()->MoveTo(Tensor::Zeros({1}).Expand({3}));
  const Tensor memory = Tensor::Zeros({3});
  w.leaf()->MoveTo(memory);
  memory.CopyFrom(kept);
  EXPECT_THAT(StatusOf([&] { (void)graph.Used(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "written to"));
}

TEST(LeafMoveTo, MemoryMayBeFilledByHandAfterTheMove) {
  const Variable w = Weights();
  const Graph graph(w);
  const Tensor memory = Tensor::Zeros({3});
  w.leaf()->MoveTo(memory);
  memory.data<float>()[0] = 1;
  memory.data<float>()[1] = 2;
  memory.data<float>()[2] = 3;
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

TEST(LeafMoveTo, WriteAfterTheMoveIsSeen) {
  const Variable w = Weights();
  const Graph graph(w);
  w.leaf()->MoveTo(Three(1, 2, 3));
  w.value().Fill(9);
  EXPECT_THAT(StatusOf([&] { graph.Used(); }), StatusIs(kFailedPrecondition));
}

TEST(LeafMoveTo, WriteBeforeTheMoveIsSeen) {
  const Variable w = Weights();
  const Graph graph(w);
  w.value().Fill(9);
  EXPECT_THAT(StatusOf([&] { graph.Used(); }), StatusIs(kFailedPrecondition));
  w.leaf()->MoveTo(w.value().Clone());
  EXPECT_THAT(StatusOf([&] { graph.Used(); }), StatusIs(kFailedPrecondition));
}

TEST(LeafMoveTo, WriteBetweenTwoMovesIsSeen) {
  const Variable w = Weights();
  const Graph graph(w);
  w.leaf()->MoveTo(w.value().Clone());
  w.value().Fill(9);
  w.leaf()->MoveTo(w.value().Clone());
  EXPECT_THAT(StatusOf([&] { graph.Used(); }), StatusIs(kFailedPrecondition));
}

// "The elements as they were, also if an optimizer has updated them since".
TEST(LeafMoveTo, UpdateWithoutAMoveLeavesAGraphItsElements) {
  const Variable w = Weights();
  w.value().storage()->KeepVersions();
  const Graph graph(w);
  Update(w, 7);
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

void ExpectRightOrRefused(const Graph& graph, const Tensor& wanted) {
  Tensor used;
  const absl::Status status = StatusOf([&] { used = graph.Used(); });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(kFailedPrecondition));
    return;
  }
  EXPECT_TRUE(SameBits(used, wanted));
}

TEST(LeafMoveTo, UpdateBeforeTheMoveGivesNoGraphOtherElements) {
  const Variable w = Weights();
  w.value().storage()->KeepVersions();
  const Graph graph(w);
  Update(w, 7);
  w.leaf()->MoveTo(w.value().Clone());
  ExpectRightOrRefused(graph, Three(1, 2, 3));
  const Graph later(w);
  EXPECT_TRUE(SameBits(later.Used(), Three(7, 2, 3)));
}

TEST(LeafMoveTo, UpdateAfterTheMoveGivesNoGraphOtherElements) {
  const Variable w = Weights();
  w.value().storage()->KeepVersions();
  const Graph graph(w);
  w.leaf()->MoveTo(w.value().Clone());
  w.value().storage()->KeepVersions();
  Update(w, 7);
  ExpectRightOrRefused(graph, Three(1, 2, 3));
}

TEST(LeafMoveTo, UpdateBetweenMovesGivesNoGraphOtherElements) {
  const Variable w = Weights();
  w.value().storage()->KeepVersions();
  const Graph first(w);
  w.leaf()->MoveTo(w.value().Clone());
  const Graph second(w);
  w.value().storage()->KeepVersions();
  Update(w, 7);
  const Graph third(w);
  w.leaf()->MoveTo(w.value().Clone());
  const Graph fourth(w);
  ExpectRightOrRefused(first, Three(1, 2, 3));
  ExpectRightOrRefused(second, Three(1, 2, 3));
  EXPECT_TRUE(SameBits(third.Used(), Three(7, 2, 3)));
  EXPECT_TRUE(SameBits(fourth.Used(), Three(7, 2, 3)));
}

// The same by the optimizer that users have: one trainer's pass comes after
// another's step, and the weights are then moved into an arena.
TEST(LeafMoveTo, StepOfAnOptimizerThenAMoveGivesNoGraphOtherElements) {
  const Variable w = Weights();
  auto made =
      optimizer::Optimizer::Create({{optimizer::SgdOptions{1.0}, {{"w", w}}}});
  ASSERT_THAT(made, IsOk());
  w.SetGradient(Gradient(Three(0, 0, 0)));
  ASSERT_THAT((*made)->Step(), IsOk());
  const Graph graph(w);
  w.SetGradient(Gradient(Three(1, 1, 1)));
  ASSERT_THAT((*made)->Step(), IsOk());
  ExpectRightOrRefused(graph, Three(1, 2, 3));
  w.leaf()->MoveTo(w.value().Clone());
  ExpectRightOrRefused(graph, Three(1, 2, 3));
}

TEST(LeafMoveTo, GraphFromAfterTheMoveIsAsEver) {
  const Variable w = Weights();
  w.leaf()->MoveTo(Three(4, 5, 6));
  const Graph graph(w);
  EXPECT_TRUE(SameBits(graph.Used(), Three(4, 5, 6)));
  w.value().Fill(1);
  EXPECT_THAT(StatusOf([&] { graph.Used(); }), StatusIs(kFailedPrecondition));
}

// "A graph recorded before keeps the old value" (SetValue), and is not led
// astray by moves of the new one.
TEST(LeafSetValue, GraphFromBeforeKeepsTheOldValueThroughLaterMoves) {
  const Variable w = Weights();
  const Graph graph(w);
  w.SetValue(Three(7, 8, 9));
  const Graph second(w);
  w.leaf()->MoveTo(Three(7, 8, 9));
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
  EXPECT_TRUE(SameBits(second.Used(), Three(7, 8, 9)));
  w.SetValue(Three(0, 0, 0));
  w.value().Fill(5);
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
  EXPECT_TRUE(SameBits(second.Used(), Three(7, 8, 9)));
}

TEST(LeafSetValue, AfterAMoveLeavesGraphsTheMemoryThatTheyHad) {
  const Variable w = Weights();
  const Graph graph(w);
  w.leaf()->MoveTo(Three(1, 2, 3));
  w.SetValue(Three(7, 8, 9));
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

TEST(LeafMoveTo, ThousandMovesWithGraphsOfEachStage) {
  const Variable w = Weights();
  std::vector<std::unique_ptr<Graph>> graphs;
  for (int i = 0; i < 1000; ++i) {
    graphs.push_back(std::make_unique<Graph>(w));
    w.leaf()->MoveTo(w.value().Clone());
  }
  for (const auto& graph : graphs) {
    ASSERT_TRUE(SameBits(graph->Used(), Three(1, 2, 3)));
  }
}

TEST(LeafMoveTo, IntoAPartOfAnArenaWhoseOtherPartsAreWritten) {
  // The version is of the storage: what is written beside the leaf counts as
  // written to it, whether it was moved there or made there.
  const Tensor arena = Tensor::Zeros({6});
  const Variable w = Weights();
  const Graph graph(w);
  arena.Slice(0, 0, 3).CopyFrom(w.value());
  w.leaf()->MoveTo(arena.Slice(0, 0, 3));
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
  arena.Slice(0, 3, 6).Fill(1);
  ExpectRightOrRefused(graph, Three(1, 2, 3));
}

TEST(LeafMoveTo, FrozenLeafMovesToo) {
  const Variable w = Weights();
  w.SetRequiresGrad(false);
  const Graph graph(w);
  w.leaf()->MoveTo(Three(1, 2, 3));
  EXPECT_TRUE(SameBits(graph.Used(), Three(1, 2, 3)));
}

}  // namespace
}  // namespace weft::outside
