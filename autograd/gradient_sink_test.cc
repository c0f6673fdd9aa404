#include "weft/autograd/gradient_sink.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/test_graph.h"
#include "weft/autograd/variable.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::GradOf;
using ::weft::testing::IsOk;
using ::weft::testing::LeafOf;
using ::weft::testing::Recorded;
using ::weft::testing::Seed;
using ::weft::testing::StatusIs;
using ::weft::testing::StatusOf;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// Notes what it hears, and offers one destination.
class RecordingSink : public GradientSink {
 public:
  void Begin(const BackwardPass& pass,
             absl::Span<Leaf* const> leaves) override {
    passes.push_back(pass.id);
    reached.assign(leaves.begin(), leaves.end());
    Heard("begin");
  }
  void Accept(const BackwardPass& pass, Leaf& leaf,
              Gradient gradient) override {
    EXPECT_EQ(pass.id, passes.back());
    this->leaves.push_back(&leaf);
    gradients.push_back(std::move(gradient));
    Heard("accept");
  }
  void NoGradient(const BackwardPass& pass, Leaf& leaf) override {
    EXPECT_EQ(pass.id, passes.back());
    without.push_back(&leaf);
    Heard("none");
  }
  GradientDestination Destination(const BackwardPass&, Leaf& leaf) override {
    Heard("destination");
    const bool fits =
        destination.defined() && destination.shape() == leaf.value().shape();
    return fits ? GradientDestination{destination, add} : GradientDestination();
  }
  absl::Status End(const BackwardPass& pass,
                   const absl::Status& outcome) override {
    EXPECT_EQ(pass.id, passes.back());
    outcomes.push_back(outcome);
    Heard("end");
    return end_status;
  }

  std::string name;
  std::vector<std::string>* log = nullptr;
  Tensor destination;
  bool add = false;
  absl::Status end_status;
  std::vector<uint64_t> passes;
  std::vector<Leaf*> reached, leaves, without;
  std::vector<Gradient> gradients;
  std::vector<absl::Status> outcomes;

 private:
  void Heard(const char* what) {
    if (log != nullptr) log->push_back(absl::StrCat(name, " ", what));
  }
};

Leaf* LeafAt(const Variable& x) { return x.edge().node->leaf(); }

BackwardOptions Into(GradientSink& store) {
  BackwardOptions options;
  options.sink = &store;
  return options;
}

TEST(GradientSink, TakesTheGradientOfItsLeaf) {
  const Variable x = LeafOf({1}), w = LeafOf({2});
  RecordingSink sink;
  w.SetGradientSink(&sink);
  (x * w + w).Backward();
  ASSERT_EQ(sink.gradients.size(), 1u);
  EXPECT_EQ(sink.leaves[0], w.edge().node.get());
  EXPECT_THAT(sink.gradients[0].ToDense().ToVector<float>(), ElementsAre(2));
  EXPECT_FALSE(w.has_grad());
  EXPECT_THAT(GradOf(x), ElementsAre(2));
}

TEST(GradientSink, StoreGetsTheGradientsOfLeavesWithoutASink) {
  const Variable x = LeafOf({1}), w = LeafOf({2});
  RecordingSink own, store;
  w.SetGradientSink(&own);
  (x * w).Backward(Into(store));
  EXPECT_THAT(own.leaves, ElementsAre(LeafAt(w)));
  EXPECT_THAT(store.leaves, ElementsAre(LeafAt(x)));
  EXPECT_FALSE(x.has_grad());
  EXPECT_FALSE(w.has_grad());
}

// What data-parallel training does inside a distributed pass.
class HandsOn : public RecordingSink {
 public:
  absl::Status End(const BackwardPass& pass,
                   const absl::Status& outcome) override {
    for (size_t i = 0; outcome.ok() && i < leaves.size(); ++i) {
      pass.store->Accept(pass, *leaves[i], Mul(gradients[i].dense(), 0.5));
    }
    return RecordingSink::End(pass, outcome);
  }
};

TEST(GradientSink, SinkOfALeafHandsItsResultToTheStore) {
  const Variable x = LeafOf({1}), w = LeafOf({2});
  std::vector<std::string> log;
  HandsOn own;
  RecordingSink store;
  own.log = store.log = &log;
  own.name = "own";
  store.name = "store";
  w.SetGradientSink(&own);
  (x * w).Backward(Into(store));
  EXPECT_THAT(
      log, ElementsAre("store begin", "own begin", "store accept", "own accept",
                       "store accept", "own end", "store end"));
  EXPECT_THAT(store.reached, ElementsAre(LeafAt(x), LeafAt(w)));
  EXPECT_THAT(own.reached, ElementsAre(LeafAt(w)));
  EXPECT_THAT(store.leaves, ElementsAre(LeafAt(x), LeafAt(w)));
  EXPECT_THAT(store.gradients[1].dense().ToVector<float>(), ElementsAre(0.5));
}

TEST(GradientSink, IsNotifiedOfEachReachedLeafWithoutAGradient) {
  const Variable used = LeafOf({2}), unused = LeafOf({2}),
                 dropped = LeafOf({2});
  RecordingSink sink;
  for (const Variable& leaf : {used, unused, dropped}) {
    leaf.SetGradientSink(&sink);
  }
  dropped.AddHook([](Gradient) { return Gradient(); });
  const Variable y = used * dropped;
  EXPECT_THAT(Backward({y, unused * 2}, {Seed({1}), Gradient()}), IsOk());
  EXPECT_THAT(sink.leaves, ElementsAre(LeafAt(used)));
  EXPECT_THAT(sink.without,
              ::testing::UnorderedElementsAre(LeafAt(unused), LeafAt(dropped)));
  EXPECT_EQ(sink.reached.size(), 3u);
  EXPECT_THAT(sink.outcomes, ElementsAre(IsOk()));
}

TEST(GradientSink, IsNotifiedOnceOfTheEndOfEachPass) {
  const Variable w = LeafOf({2});
  RecordingSink sink;
  w.SetGradientSink(&sink);
  const Variable bad =
      Recorded(w, [](BackwardCall&) { ThrowInvalidArgument("out of luck"); });
  EXPECT_THAT(Backward({bad}, {Seed({1})}),
              StatusIs(kInvalidArgument, "out of luck"));
  {
    const Variable y = w * 2;
    GraphTask given_up;
    ASSERT_THAT(given_up.Expect(y.edge()), IsOk());
    ASSERT_THAT(given_up.Feed(y.edge(), Seed({1})), IsOk());
  }
  ASSERT_EQ(sink.outcomes.size(), 2u);
  EXPECT_THAT(sink.outcomes[0], StatusIs(kInvalidArgument, "out of luck"));
  EXPECT_THAT(sink.outcomes[1],
              StatusIs(absl::StatusCode::kCancelled, "given up"));
  EXPECT_NE(sink.passes[0], sink.passes[1]);
  EXPECT_EQ(sink.leaves.size(), 0u);
}

TEST(GradientSink, ErrorAtTheEndFailsThePassAndReachesTheStore) {
  const Variable w = LeafOf({2});
  RecordingSink sink, store;
  sink.end_status = absl::UnavailableError("rank 1 is gone");
  w.SetGradientSink(&sink);
  const auto is_it = StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone");
  EXPECT_THAT(Backward({w * 2}, {Seed({1})}, Into(store)), is_it);
  EXPECT_THAT(store.outcomes, ElementsAre(is_it));
}

TEST(GradientSink, GetsALinearLayersGradientMadeInItsBucket) {
  const Variable x = Variable(Tensor::FromVector<float>({1, 2}, {1, 2}));
  const Variable w(Tensor::Ones({3, 2}), /*requires_grad=*/true);
  RecordingSink sink;
  const Tensor bucket = Tensor::Full({8}, 7);
  sink.destination = bucket.Slice(0, 1, 7).View({3, 2});
  w.SetGradientSink(&sink);
  Sum(Linear(x, w, Variable())).Backward();
  ASSERT_EQ(sink.gradients.size(), 1u);
  EXPECT_TRUE(sink.gradients[0].dense().IsSameAs(sink.destination));
  EXPECT_THAT(bucket.ToVector<float>(), ElementsAre(7, 1, 2, 1, 2, 1, 2, 7));
}

TEST(GradientSink, IsAskedForNoDestinationWhereSeveralOperationsContribute) {
  const Variable x = Variable(Tensor::FromVector<float>({1, 2}, {1, 2}));
  const Variable w(Tensor::Ones({3, 2}), /*requires_grad=*/true);
  RecordingSink sink;
  sink.destination = Tensor::Zeros({3, 2});
  w.SetGradientSink(&sink);
  const Variable y = Linear(x, w, Variable()) + Linear(x, w, Variable());
  Sum(y).Backward();
  ASSERT_EQ(sink.gradients.size(), 1u);
  EXPECT_THAT(sink.gradients[0].dense().ToVector<float>(),
              ElementsAre(2, 4, 2, 4, 2, 4));
}

// ---- destinations

Variable Weight(const Shape& shape) {
  return Variable(Tensor::Ones(shape), /*requires_grad=*/true);
}

// Runs `forward` on a leaf of `shape` without a sink, then with a destination
// that is overwritten and one that is added to, filled with `filling`.
template <typename Forward>
void ExpectMadeInDestination(const Shape& shape, Forward forward) {
  const Variable plain = Weight(shape);
  Sum(forward(plain)).Backward();
  const std::vector<float> wanted = plain.grad().ToVector<float>();
  for (const bool add : {false, true}) {
    const Variable w = Weight(shape);
    RecordingSink sink;
    const Tensor bucket = Tensor::Full({w.numel() + 2}, 7);
    sink.destination = bucket.Slice(0, 1, w.numel() + 1).View(shape);
    sink.add = add;
    w.SetGradientSink(&sink);
    Sum(forward(w)).Backward();
    ASSERT_EQ(sink.gradients.size(), 1u);
    EXPECT_TRUE(sink.gradients[0].dense().IsSameAs(sink.destination));
    const std::vector<float> found = bucket.ToVector<float>();
    EXPECT_EQ(found.front(), 7);
    EXPECT_EQ(found.back(), 7);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_FLOAT_EQ(found[i + 1], wanted[i] + (add ? 7 : 0)) << i;
    }
  }
}

Variable Values(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return Variable(Tensor::Arange(n, DType::kF32).View(shape));
}

TEST(Destination, LinearMakesItsGradientsThere) {
  const Variable x = Values({4, 2});
  ExpectMadeInDestination(
      {3, 2}, [&](const Variable& w) { return Linear(x, w, Variable()); });
  ExpectMadeInDestination({3}, [&](const Variable& b) {
    return Linear(x, Weight({3, 2}), b);
  });
}

TEST(Destination, ConvolutionMakesItsGradientsThere) {
  const Variable x = Values({2, 3, 6, 5});
  ExpectMadeInDestination({4, 3, 3, 3}, [&](const Variable& w) {
    return Conv2d(x, w, Variable());
  });
  ExpectMadeInDestination({4}, [&](const Variable& b) {
    return Conv2d(x, Weight({4, 3, 3, 3}), b);
  });
}

TEST(Destination, EmbeddingMakesItsDenseGradientThere) {
  const Tensor ids = Tensor::FromVector<int64_t>({1, 3, 1, 0});
  ExpectMadeInDestination({5, 2}, [&](const Variable& table) {
    return Embedding(table, ids, TableGradient::kDense);
  });
  ExpectMadeInDestination({5, 2}, [&](const Variable& table) {
    return EmbeddingBag(table, ids, Tensor::FromVector<int64_t>({0, 3}),
                        BagMode::kSum, TableGradient::kDense);
  });
}

TEST(Destination, NormLayersMakeTheirGradientsThere) {
  const Variable x = Values({4, 3});
  const Variable w = Weight({3}), b = Weight({3});
  ExpectMadeInDestination({3}, [&](const Variable& weight) {
    return LayerNorm(x, {3}, weight, b) * Values({4, 3});
  });
  ExpectMadeInDestination(
      {3}, [&](const Variable& bias) { return LayerNorm(x, {3}, w, bias); });
  ExpectMadeInDestination(
      {3}, [&](const Variable& weight) { return RmsNorm(x, {3}, weight); });
  ExpectMadeInDestination({3}, [&](const Variable& weight) {
    return BatchNorm(x, weight, b, Tensor(), Tensor()) * Values({4, 3});
  });
}

TEST(Destination, IsNotAskedForALeafWithAHook) {
  const Variable x = Values({4, 2});
  const Variable w = Weight({3, 2});
  RecordingSink sink;
  sink.destination = Tensor::Zeros({3, 2});
  w.SetGradientSink(&sink);
  w.AddHook([](Gradient g) { return g; });
  Sum(Linear(x, w, Variable())).Backward();
  ASSERT_EQ(sink.gradients.size(), 1u);
  EXPECT_FALSE(sink.gradients[0].dense().IsSameAs(sink.destination));
}

// ---- a view that holds the gradient

// Keeps each gradient in its view, as a reducer does.
class ViewSink : public GradientSink {
 public:
  explicit ViewSink(Tensor view) : view_(std::move(view)) {}
  GradientDestination Destination(const BackwardPass&, Leaf& leaf) override {
    return PrepareDestination(leaf, view_);
  }
  void Accept(const BackwardPass&, Leaf& leaf, Gradient gradient) override {
    AcceptInto(leaf, view_, gradient);
  }

 private:
  const Tensor view_;
};

// The gradient made in the view at once, or brought there afterwards.
class ViewTest : public ::testing::TestWithParam<bool> {
 protected:
  Variable Forward() const {
    const Variable y = Linear(x_, w_, Variable());
    return Sum(GetParam() ? y : y + Linear(x_, w_, Variable()) * 0.0);
  }
  std::vector<float> InBucket() const { return bucket_.ToVector<float>(); }

  const Variable x_{Tensor::FromVector<float>({1, 2}, {1, 2})};
  const Variable w_ = Weight({1, 2});
  const Tensor bucket_ = Tensor::Full({2}, 9);
  const Tensor view_ = bucket_.View({1, 2});
  ViewSink sink_{view_};
};

TEST_P(ViewTest, UndefinedGradientIsOverwritten) {
  w_.SetGradientSink(&sink_);
  Forward().Backward();
  EXPECT_THAT(InBucket(), ElementsAre(1, 2));
  EXPECT_EQ(w_.grad().raw(), bucket_.raw());
}

TEST_P(ViewTest, GradientThatIsTheViewIsAddedToInPlace) {
  w_.SetGradientSink(&sink_);
  for (int i = 0; i < 3; ++i) Forward().Backward();
  EXPECT_THAT(InBucket(), ElementsAre(3, 6));
  EXPECT_EQ(w_.grad().raw(), bucket_.raw());
  // Another handle on the same memory is the view too.
  w_.SetGradient(bucket_.View({1, 2}));
  Forward().Backward();
  EXPECT_THAT(InBucket(), ElementsAre(4, 8));
}

TEST_P(ViewTest, GradientThatIsAnotherTensorIsCopiedInFirst) {
  const Tensor other = Tensor::FromVector<float>({10, 20}, {1, 2});
  w_.SetGradient(other);
  w_.SetGradientSink(&sink_);
  Forward().Backward();
  EXPECT_THAT(InBucket(), ElementsAre(11, 22));
  EXPECT_THAT(other.ToVector<float>(), ElementsAre(10, 20));
  w_.SetGradient(SparseRows{Tensor::FromVector<int64_t>({0}),
                            Tensor::FromVector<float>({3, 4}, {1, 2}), 1});
  Forward().Backward();
  EXPECT_THAT(InBucket(), ElementsAre(4, 6));
}

INSTANTIATE_TEST_SUITE_P(MadeThere, ViewTest, ::testing::Bool());

TEST(AcceptInto, TakesRows) {
  const Variable table = Weight({4, 1});
  const Tensor bucket = Tensor::Full({4}, 9);
  const Gradient rows =
      SparseRows{Tensor::FromVector<int64_t>({2, 2}),
                 Tensor::FromVector<float>({5, 6}, {2, 1}), 4};
  AcceptInto(*LeafAt(table), bucket.View({4, 1}), rows);
  EXPECT_THAT(bucket.ToVector<float>(), ElementsAre(0, 0, 11, 0));
  AcceptInto(*LeafAt(table), bucket.View({4, 1}), rows);
  EXPECT_THAT(bucket.ToVector<float>(), ElementsAre(0, 0, 22, 0));
}

TEST(AcceptInto, RefusesAViewThatDoesNotFit) {
  const Variable w = Weight({4, 1});
  EXPECT_THAT(
      StatusOf([&] {
        AcceptInto(*LeafAt(w), Tensor::Zeros({4}), Tensor::Ones({4, 1}));
      }),
      StatusIs(kInvalidArgument, "[4, 1]"));
}

// ---- other memory for a leaf

TEST(SetValue, AllCopiesOfTheVariableSeeItAndStayTheSameLeaf) {
  const Variable w = LeafOf({1, 2});
  const Variable copy = w;
  w.SetGradient(Tensor::FromVector<float>({5, 6}));
  const Tensor arena = Tensor::FromVector<float>({7, 8, 9});
  w.SetValue(arena.Slice(0, 1, 3));
  EXPECT_THAT(copy.value().ToVector<float>(), ElementsAre(8, 9));
  EXPECT_EQ(copy.value().raw(), arena.data<float>() + 1);
  EXPECT_THAT(GradOf(copy), ElementsAre(5, 6));
  Sum(copy * copy).Backward();
  EXPECT_THAT(GradOf(w), ElementsAre(5 + 16, 6 + 18));
}

TEST(SetValue, GraphRecordedBeforeKeepsTheOldValue) {
  const Variable w = LeafOf({3});
  const Variable y = w * w;
  w.SetValue(Tensor::FromVector<float>({100}));
  y.Backward();
  EXPECT_THAT(GradOf(w), ElementsAre(6));
}

TEST(SetValue, FreesTheOldMemory) {
  Tensor old = Tensor::Ones({2});
  const Variable w(old, /*requires_grad=*/true);
  EXPECT_FALSE(old.is_sole_handle());
  w.SetValue(Tensor::Ones({2}));
  EXPECT_TRUE(old.is_sole_handle());
}

TEST(SetValue, RefusesAnotherShapeOrDType) {
  const Variable w = LeafOf({1, 2});
  EXPECT_THAT(StatusOf([&] { w.SetValue(Tensor::Ones({3})); }),
              StatusIs(kInvalidArgument, "wanted f32[2]"));
  EXPECT_THAT(StatusOf([&] { w.SetValue(Tensor::Ones({2}, DType::kF64)); }),
              StatusIs(kInvalidArgument, "f64[2]"));
  EXPECT_THAT(StatusOf([&] { w.SetValue(Tensor()); }),
              StatusIs(kInvalidArgument, "undefined"));
  EXPECT_THAT(StatusOf([&] { (w * 2).SetValue(Tensor::Ones({2})); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, "leaf"));
}

}  // namespace
}  // namespace weft
