#include "weft/autograd/graph_task.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/test_graph.h"
#include "weft/autograd/variable.h"
#include "weft/base/strand.h"
#include "weft/base/thread_pool.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::GradOf;
using ::weft::testing::IsOk;
using ::weft::testing::LeafOf;
using ::weft::testing::PassOn;
using ::weft::testing::Recorded;
using ::weft::testing::Retaining;
using ::weft::testing::Seed;
using ::weft::testing::StatusIs;
using ::weft::testing::TestNode;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

BackwardOptions ReleasingWhenTold() {
  BackwardOptions options;
  options.release_when_told = true;
  return options;
}

// Expects and feeds `root`, and runs.
absl::Status RunFrom(GraphTask& task, const Variable& root) {
  if (absl::Status s = task.Expect(root.edge()); !s.ok()) return s;
  if (absl::Status s = task.Feed(root.edge(), Seed({1})); !s.ok()) return s;
  return task.Run();
}

// A variable recorded by `node`, of one element.
Variable Of(TestNode* node, uint32_t output = 0) {
  return Variable(Tensor::Ones({1}), NodePtr(node), output);
}

// ---- a pass in pieces

TEST(GraphTask, WaitsForEachExpectedGradient) {
  const Variable x = LeafOf({1});
  const Variable a = x * 2, b = x * 3;
  GraphTask task;
  ASSERT_THAT(task.Expect(a.edge()), IsOk());
  ASSERT_THAT(task.Expect(b.edge()), IsOk());
  ASSERT_THAT(task.Feed(b.edge(), Seed({1})), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_FALSE(task.done());
  EXPECT_FALSE(x.has_grad());
  EXPECT_TRUE(task.Reaches(*x.edge().node));
  ASSERT_THAT(task.Feed(a.edge(), Seed({1})), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_TRUE(task.done());
  EXPECT_FALSE(task.Reaches(*x.edge().node));
  EXPECT_THAT(GradOf(x), ElementsAre(5));
}

TEST(GraphTask, RunsReadyNodesWhileOthersWait) {
  const Variable x = LeafOf({1}), z = LeafOf({1});
  const Variable a = x * 2, b = z * 3;
  GraphTask task;
  ASSERT_THAT(task.Expect(a.edge()), IsOk());
  ASSERT_THAT(task.Expect(b.edge()), IsOk());
  ASSERT_THAT(task.Feed(b.edge(), Seed({1})), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_THAT(GradOf(z), ElementsAre(3));
  ASSERT_THAT(task.Feed(a.edge(), Gradient()), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_TRUE(task.done());
  EXPECT_FALSE(x.has_grad());
}

TEST(GraphTask, ExpectsAndFeedsInTheMiddleOfAGraph) {
  const Variable x = LeafOf({1});
  const Variable a = x * 2;
  const Variable b = a * 3;
  GraphTask task;
  ASSERT_THAT(task.Expect(b.edge()), IsOk());
  ASSERT_THAT(task.Expect(a.edge()), IsOk());
  ASSERT_THAT(task.Feed(a.edge(), Seed({1})), IsOk());
  ASSERT_THAT(task.Feed(b.edge(), Seed({1})), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(8));
}

TEST(GraphTask, RefusesUnexpectedGradients) {
  const Variable x = LeafOf({1});
  const Variable a = x * 2, b = x * 3;
  GraphTask task;
  ASSERT_THAT(task.Expect(a.edge()), IsOk());
  EXPECT_THAT(task.Feed(b.edge(), Seed({1})),
              StatusIs(kFailedPrecondition, "expects no gradient"));
  EXPECT_THAT(task.Feed(a.edge(), Seed({1})), IsOk());
  EXPECT_THAT(task.Feed(a.edge(), Seed({1})),
              StatusIs(kFailedPrecondition, "expects no gradient"));
  EXPECT_THAT(task.Expect(b.edge()),
              StatusIs(kFailedPrecondition, "fed already"));
}

TEST(GraphTask, RunsBesideAnotherOverTheSameNodes) {
  const Variable x = LeafOf({1});
  const Variable a = x * 2;
  const Variable b = a * 3, c = a * 5;
  GraphTask one(Retaining()), two(Retaining());
  ASSERT_THAT(one.Expect(b.edge()), IsOk());
  ASSERT_THAT(two.Expect(b.edge()), IsOk());
  ASSERT_THAT(two.Expect(c.edge()), IsOk());
  ASSERT_THAT(one.Feed(b.edge(), Seed({1})), IsOk());
  ASSERT_THAT(two.Feed(b.edge(), Seed({1})), IsOk());
  ASSERT_THAT(one.Run(), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(6));
  ASSERT_THAT(two.Run(), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(6));
  ASSERT_THAT(two.Feed(c.edge(), Seed({1})), IsOk());
  ASSERT_THAT(two.Run(), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(22));
}

TEST(GraphTask, RunsOnManyThreadsThatShareALeaf) {
  const Variable w = LeafOf({0});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&w] {
      for (int i = 0; i < 200; ++i) (w * 2 + w).Backward();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(GradOf(w), ElementsAre(4 * 200 * 3));
}

// Data-parallel training sends a leaf's gradient while earlier layers run.
TEST(GraphTask, GivesLeavesTheirGradientsInTheReverseOfTheForwardPass) {
  std::vector<Variable> weights;
  std::vector<int> order;
  Variable y = Variable(Tensor::Ones({1}));
  for (int i = 0; i < 3; ++i) {
    weights.push_back(LeafOf({1}));
    weights[i].AddHook([&order, i](Gradient gradient) {
      order.push_back(i);
      return gradient;
    });
    y = y * weights[i];
    y = Recorded(y, [&order, i](BackwardCall& call) {
      order.push_back(10 + i);
      call.inputs[0] = call.output();
    });
  }
  y.Backward();
  EXPECT_THAT(order, ElementsAre(12, 2, 11, 1, 10, 0));
}

// ---- nodes that always run

TEST(AlwaysNode, RunsOnceOnUndefinedGradients) {
  const Variable x = LeafOf({1});
  std::vector<bool> defined;
  auto* node = new TestNode(
      [&](BackwardCall& call) {
        for (const Gradient& g : call.outputs) defined.push_back(g.defined());
      },
      {}, /*num_outputs=*/2, TestNode::Kind::kAlways);
  const Variable received = Of(node, 0), unused = Of(node, 1);
  const Variable skipped = Recorded(received, PassOn);
  GraphTask task;
  ASSERT_THAT(task.Expect(skipped.edge()), IsOk());
  ASSERT_THAT(task.Expect(unused.edge()), IsOk());
  ASSERT_THAT(task.Feed(skipped.edge(), Gradient()), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_EQ(node->runs, 0);
  ASSERT_THAT(task.Feed(unused.edge(), Gradient()), IsOk());
  ASSERT_THAT(task.Run(), IsOk());
  EXPECT_EQ(node->runs, 1);
  EXPECT_THAT(defined, ElementsAre(false, false));
  EXPECT_TRUE(task.done());
}

TEST(AlwaysNode, RunsBeforeOtherReadyNodes) {
  std::vector<std::string> order;
  const auto noting = [&order](std::string name) {
    return [&order, name](BackwardCall& call) {
      order.push_back(name);
      for (Gradient& input : call.inputs) input = call.outputs[0];
    };
  };
  const Variable x = LeafOf({1});
  const Variable received =
      Of(new TestNode(noting("receive"), {}, 1, TestNode::Kind::kAlways));
  const Variable low = Recorded(x, noting("low"));
  const Variable high = Recorded(low, noting("high"));
  const Variable top = Of(new TestNode(noting("top"), {&high, &received}));
  GraphTask task;
  ASSERT_THAT(RunFrom(task, top), IsOk());
  EXPECT_THAT(order, ElementsAre("top", "receive", "high", "low"));
}

TEST(AlwaysNode, KnowsThePassThatRunsIt) {
  uint64_t seen = 0;
  const Variable received =
      Of(new TestNode([&](BackwardCall& call) { seen = call.pass().id; }, {}, 1,
                      TestNode::Kind::kAlways));
  GraphTask task(Retaining()), other(Retaining());
  EXPECT_NE(task.pass().id, other.pass().id);
  ASSERT_THAT(RunFrom(task, received), IsOk());
  EXPECT_EQ(seen, task.pass().id);
}

// ---- cancelling

TEST(Cancel, WithinANodeEndsThePassAfterThatNode) {
  const Variable x = LeafOf({1});
  GraphTask task;
  const Variable below = Recorded(x, PassOn);
  const Variable y = Recorded(below, [&](BackwardCall& call) {
    task.Cancel(absl::UnavailableError("worker 3 is gone"));
    task.Cancel(absl::InternalError("the second reason"));
    PassOn(call);
  });
  const auto is_it =
      StatusIs(absl::StatusCode::kUnavailable, "worker 3 is gone");
  EXPECT_THAT(RunFrom(task, y), is_it);
  EXPECT_EQ(static_cast<TestNode&>(*below.edge().node).runs, 0);
  EXPECT_THAT(task.Run(), is_it);
  EXPECT_THAT(task.Feed(y.edge(), Seed({1})), is_it);
  EXPECT_FALSE(task.done());
  EXPECT_FALSE(x.has_grad());
}

TEST(Cancel, FromAnotherThreadEndsTheRunUnderWay) {
  const Variable x = LeafOf({1});
  GraphTask task;
  absl::Notification running, cancelled;
  const Variable below = Recorded(x, PassOn);
  const Variable y = Recorded(below, [&](BackwardCall& call) {
    running.Notify();
    cancelled.WaitForNotification();
    PassOn(call);
  });
  std::thread other([&] {
    running.WaitForNotification();
    task.Cancel(absl::DeadlineExceededError("too late"));
    cancelled.Notify();
  });
  EXPECT_THAT(RunFrom(task, y),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "too late"));
  other.join();
  EXPECT_FALSE(x.has_grad());
}

TEST(Cancel, AfterTheEndChangesNothing) {
  const Variable x = LeafOf({1});
  GraphTask task;
  ASSERT_THAT(RunFrom(task, x * 2), IsOk());
  task.Cancel(absl::CancelledError("late"));
  EXPECT_TRUE(task.done());
  EXPECT_THAT(task.Run(), IsOk());
}

// ---- what was saved

TEST(ReleaseWhenTold, FailedPassCanBeRepeated) {
  const Variable x = LeafOf({3});
  bool fails = true;
  const Variable square = x * x;
  const Variable low = Recorded(square, PassOn);
  const Variable bad = Recorded(LeafOf({1}) * 1.0, [&](BackwardCall& call) {
    if (fails) ThrowInvalidArgument("out of luck");
    PassOn(call);
  });
  const Variable y = low * 5 + bad;
  {
    GraphTask task(ReleasingWhenTold());
    EXPECT_THAT(RunFrom(task, y),
                StatusIs(absl::StatusCode::kInvalidArgument, "out of luck"));
  }
  fails = false;
  x.ClearGradient();
  GraphTask task(ReleasingWhenTold());
  ASSERT_THAT(RunFrom(task, y), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(30));
}

TEST(ReleaseWhenTold, FailedPassFreesItsNodesAtOnce) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  GraphTask failed(ReleasingWhenTold());
  ASSERT_THAT(failed.Expect(y.edge()), IsOk());
  failed.Cancel(absl::AbortedError("aborted"));
  EXPECT_THAT(failed.Run(), StatusIs(absl::StatusCode::kAborted, "aborted"));
  GraphTask task;
  EXPECT_THAT(RunFrom(task, y), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(6));
}

TEST(ReleaseWhenTold, ReleaseSavedFreesExecutedNodes) {
  const Variable w = LeafOf({3});
  Tensor saved = Tensor::Ones({1});
  const Variable y = w * Variable(saved);
  GraphTask task(ReleasingWhenTold());
  ASSERT_THAT(RunFrom(task, y), IsOk());
  EXPECT_FALSE(saved.is_sole_handle());
  ASSERT_THAT(task.ReleaseSaved(), IsOk());
  EXPECT_TRUE(saved.is_sole_handle());
  EXPECT_THAT(task.ReleaseSaved(), StatusIs(kFailedPrecondition, "wanted"));
  GraphTask again;
  EXPECT_THAT(RunFrom(again, y), StatusIs(kFailedPrecondition, "freed"));
}

TEST(ReleaseWhenTold, ReleasesNoNodeThatWasSkipped) {
  const Variable x = LeafOf({1});
  auto* skipped = new TestNode(PassOn, {&x});
  const Variable unused = Of(skipped);
  auto* used = new TestNode(PassOn, {&x, &unused});
  GraphTask task(ReleasingWhenTold());
  ASSERT_THAT(RunFrom(task, Of(used)), IsOk());
  EXPECT_EQ(used->releases, 0);
  ASSERT_THAT(task.ReleaseSaved(), IsOk());
  EXPECT_EQ(used->releases, 1);
  EXPECT_EQ(skipped->releases, 0);
}

TEST(ReleaseWhenTold, ReleaseSavedOfOtherPassesIsRefused) {
  const Variable x = LeafOf({1});
  const Variable y = x * 2;
  GraphTask retaining(Retaining());
  ASSERT_THAT(RunFrom(retaining, y), IsOk());
  EXPECT_THAT(retaining.ReleaseSaved(),
              StatusIs(kFailedPrecondition, "release_when_told"));
  const Variable z = x * 3;
  GraphTask unfinished(ReleasingWhenTold());
  ASSERT_THAT(unfinished.Expect(z.edge()), IsOk());
  EXPECT_THAT(unfinished.ReleaseSaved(), StatusIs(kFailedPrecondition, "done"));
}

// ---- several passes over the same nodes

TEST(ConcurrentPasses, NodeHeldByOneIsRefusedToAnother) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  GraphTask holder(ReleasingWhenTold());
  ASSERT_THAT(RunFrom(holder, y), IsOk());
  for (const bool retains : {false, true}) {
    BackwardOptions options;
    options.retain_graph = retains;
    GraphTask other(options);
    EXPECT_THAT(other.Expect(y.edge()),
                StatusIs(kFailedPrecondition, "another backward pass"));
    EXPECT_THAT(other.Run(), StatusIs(kFailedPrecondition, "uses Mul"));
  }
  EXPECT_THAT(holder.ReleaseSaved(), IsOk());
}

TEST(ConcurrentPasses, SharedNodeIsRefusedToAPassThatWouldFreeIt) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  auto first = std::make_unique<GraphTask>(Retaining());
  auto second = std::make_unique<GraphTask>(Retaining());
  ASSERT_THAT(first->Expect(y.edge()), IsOk());
  ASSERT_THAT(second->Expect(y.edge()), IsOk());
  EXPECT_THAT(GraphTask().Expect(y.edge()), StatusIs(kFailedPrecondition, ""));
  first.reset();
  EXPECT_THAT(GraphTask().Expect(y.edge()), StatusIs(kFailedPrecondition, ""));
  second.reset();
  EXPECT_THAT(GraphTask().Expect(y.edge()), IsOk());
}

TEST(ConcurrentPasses, LeavesAreAlwaysShared) {
  const Variable x = LeafOf({3});
  const Variable y = x * 2, z = x * 5;
  GraphTask one, two;
  ASSERT_THAT(one.Expect(y.edge()), IsOk());
  ASSERT_THAT(two.Expect(z.edge()), IsOk());
  ASSERT_THAT(two.Feed(z.edge(), Seed({1})), IsOk());
  ASSERT_THAT(two.Run(), IsOk());
  ASSERT_THAT(one.Feed(y.edge(), Seed({1})), IsOk());
  ASSERT_THAT(one.Run(), IsOk());
  EXPECT_THAT(GradOf(x), ElementsAre(7));
}

// Each pass either runs the whole graph or is refused; only one frees it.
TEST(ConcurrentPasses, OnManyThreadsOneRunsAndTheOthersAreRefused) {
  for (int round = 0; round < 50; ++round) {
    const Variable x = LeafOf({3});
    const Variable y = x * x * x;
    std::vector<absl::Status> outcomes(4);
    std::vector<std::thread> threads;
    for (absl::Status& outcome : outcomes) {
      threads.emplace_back([&] { outcome = Backward({y}, {Seed({1})}); });
    }
    for (std::thread& thread : threads) thread.join();
    int good = 0;
    for (const absl::Status& outcome : outcomes) {
      good += outcome.ok() ? 1 : 0;
      if (!outcome.ok()) {
        EXPECT_THAT(outcome, StatusIs(kFailedPrecondition, "backward"));
      }
    }
    // Two that start at once may each see the other's mark on a part.
    EXPECT_LE(good, 1);
    if (good == 1) {
      EXPECT_THAT(GradOf(x), ElementsAre(27));
    }
  }
}

TEST(ConcurrentPasses, OnManyThreadsRetainingAllRun) {
  const Variable x = LeafOf({3});
  const Variable y = x * x;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) y.Backward(Retaining());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(GradOf(x), ElementsAre(4 * 100 * 6));
  y.Backward();
  EXPECT_THAT(GradOf(x), ElementsAre(4 * 100 * 6 + 6));
}

// ---- the order of sums

// A random graph with several roots, each of which is used in it too.
struct RandomGraph {
  explicit RandomGraph(uint32_t seed) : random(seed) {
    std::uniform_real_distribution<float> scale(-1e4f, 1e4f);
    leaves = {LeafOf({1}), LeafOf({2})};
    std::vector<Variable> made = leaves;
    for (int i = 0; i < 24; ++i) {
      // From few, so that many gradients meet at each.
      const Variable& a = made[random() % made.size()];
      const Variable& b = made[random() % std::min<size_t>(made.size(), 5)];
      made.push_back(a * scale(random) + b * scale(random));
    }
    for (int i = 0; i < 6; ++i) {
      roots.push_back(made[2 + random() % (made.size() - 2)]);
      seeds.push_back(Seed({scale(random)}));
    }
  }

  // The gradients of the leaves of a pass whose roots are fed in `order`, after
  // each of which it runs; all before it runs if `at_once`.
  std::vector<float> Gradients(const std::vector<int>& order, bool at_once) {
    for (const Variable& leaf : leaves) leaf.ClearGradient();
    GraphTask task(Retaining());
    for (const Variable& root : roots) {
      EXPECT_THAT(task.Expect(root.edge()), IsOk());
    }
    for (const int i : order) {
      EXPECT_THAT(task.Feed(roots[i].edge(), seeds[i]), IsOk());
      if (!at_once) {
        EXPECT_THAT(task.Run(), IsOk());
      }
    }
    EXPECT_THAT(task.Run(), IsOk());
    EXPECT_TRUE(task.done());
    std::vector<float> gradients;
    for (const Variable& leaf : leaves) {
      gradients.push_back(leaf.has_grad() ? GradOf(leaf)[0] : 0);
    }
    return gradients;
  }

  std::mt19937 random;
  std::vector<Variable> leaves, roots;
  std::vector<Gradient> seeds;
};

// Roots that are one node twice are added as they are fed: each is once here.
void KeepDistinct(RandomGraph& graph) {
  std::vector<Variable> roots;
  std::vector<Gradient> seeds;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const bool is_new =
        std::none_of(roots.begin(), roots.end(), [&](const Variable& root) {
          return root.edge().node == graph.roots[i].edge().node;
        });
    if (!is_new) continue;
    roots.push_back(graph.roots[i]);
    seeds.push_back(graph.seeds[i]);
  }
  graph.roots = roots;
  graph.seeds = seeds;
}

TEST(SumOrder, AnyOrderOfFeedGivesTheSameBits) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomGraph graph(seed);
    KeepDistinct(graph);
    std::vector<int> order(graph.roots.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    const std::vector<float> wanted = graph.Gradients(order, true);
    for (int round = 0; round < 4; ++round) {
      std::shuffle(order.begin(), order.end(), graph.random);
      ASSERT_EQ(graph.Gradients(order, false), wanted) << "seed " << seed;
      ASSERT_EQ(graph.Gradients(order, true), wanted) << "seed " << seed;
    }
  }
}

// ---- behind a strand

TEST(GraphTask, RunsBehindAStrandThatSeveralThreadsFeed) {
  auto pool = ThreadPool::Create({});
  ASSERT_THAT(pool.status(), IsOk());
  const Variable x = LeafOf({1});
  std::vector<Variable> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(x * (i + 1.0));
  GraphTask task;
  for (const Variable& part : parts) {
    ASSERT_THAT(task.Expect(part.edge()), IsOk());
  }
  absl::Notification done;
  Strand strand(**pool);
  std::vector<std::thread> threads;
  for (const Variable& part : parts) {
    threads.emplace_back([&] {
      strand.Schedule([&] {
        EXPECT_THAT(task.Feed(part.edge(), Seed({1})), IsOk());
        EXPECT_THAT(task.Run(), IsOk());
        if (task.done()) done.Notify();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_THAT(GradOf(x), ElementsAre(36));
}

// ---- notes

struct Note final : NodeNote {
  explicit Note(int v) : value(v) {}
  const int value;
};

TEST(NodeNote, FirstOneStays) {
  const Variable x = LeafOf({1});
  const Variable y = x * 2;
  EXPECT_EQ(y.edge().node->note(), nullptr);
  const NodeNote& kept = y.edge().node->SetNote(std::make_unique<Note>(1));
  EXPECT_EQ(&y.edge().node->SetNote(std::make_unique<Note>(2)), &kept);
  EXPECT_EQ(static_cast<const Note&>(*y.edge().node->note()).value, 1);
}

}  // namespace
}  // namespace weft
