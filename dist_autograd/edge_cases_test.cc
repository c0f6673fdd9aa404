// Programs at the edges of what passes do, one by one: what is used and what is
// not, shapes, hooks, calls that fail, bad input.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rpc/stream.h"
#include "weft/rref/rref.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Values = std::vector<Variable>;

Variable Vec(const std::vector<double>& values, bool requires_grad = true) {
  return Variable(Tensor::FromVector<double>(values), requires_grad);
}
std::vector<double> Numbers(const weft::Gradient& g) {
  return g.ToDense().Clone().ToVector<double>();
}

// The leaves of one worker, and what its functions and hooks do.
struct Shelf {
  Values leaves = {Scalar(3.0), Scalar(5.0), Scalar(7.0)};
  std::function<weft::Gradient(weft::Gradient)> on_gradient;
};

Variable Twice(const Variable& x) { return Add(x, x); }
WEFT_RPC(Twice);

// x by each of the leaves.
Values ByEachLeaf(rpc::CallContext& call, const Variable& x) {
  Values out;
  for (const Variable& w : call.Local<Shelf>()->leaves) {
    out.push_back(Mul(x, w));
  }
  return out;
}
WEFT_RPC(ByEachLeaf);

// x * x, whose gradient goes through on_gradient.
Variable Hooked(rpc::CallContext& call, const Variable& x) {
  Variable y = Mul(x, x);
  y.AddHook([shelf = call.agent().Local<Shelf>()](weft::Gradient g) {
    return shelf->on_gradient ? shelf->on_gradient(std::move(g)) : g;
  });
  return y;
}
WEFT_RPC(Hooked);

Future<Variable> SquareOnAnotherThread(const Variable& x) {
  auto promise = std::make_shared<Promise<Variable>>();
  Future<Variable> result = promise->future();
  std::thread([promise, x] { promise->Set(Mul(x, x)); }).detach();
  return result;
}
WEFT_RPC(SquareOnAnotherThread);

// A nested recorded call whose Future is the result.
Future<Variable> TwiceElsewhere(rpc::CallContext& call,
                                const std::string& where, const Variable& x) {
  return Scope::Within(call).value().CallAsync(call.To(where), Twice, x);
}
WEFT_RPC(TwiceElsewhere);

// Integers, and a result with a gradient.
Values CountAndTwice(const Variable& x) {
  return {Variable(Tensor::FromVector<int64_t>({x.numel()})), Add(x, x)};
}
WEFT_RPC(CountAndTwice);

Variable LookUp(const Variable& table, const Tensor& rows) {
  return Embedding(table, rows, TableGradient::kSparse);
}
WEFT_RPC(LookUp);

absl::StatusOr<Variable> Refuse(const Variable&) {
  return absl::InvalidArgumentError("not this one");
}
WEFT_RPC(Refuse);

struct Gate {
  absl::Notification entered;
  absl::Notification open;
};
Variable TwiceThroughGate(rpc::CallContext& call, const Variable& x) {
  const std::shared_ptr<Gate> gate = call.agent().Local<Gate>();
  gate->entered.Notify();
  gate->open.WaitForNotification();
  return Add(x, x);
}
WEFT_RPC(TwiceThroughGate);

absl::Status WriteSquare(rpc::Writer<Variable> out, double x) {
  const Variable leaf = Scalar(x);
  return out.Write(Mul(leaf, leaf));
}
WEFT_RPC_STREAM(WriteSquare);

class EdgeCaseTest : public PassFixture {
 protected:
  EdgeCaseTest() {
    for (int i = 0; i < 4; ++i) {
      shelves_.push_back(std::make_shared<Shelf>());
      ranks_[i].SetLocal(shelves_[i]);
    }
  }
  // What the leaf has in the context, at its worker; undefined: none.
  weft::Gradient At(int worker, const Scope& scope, int leaf) {
    const auto context = contexts_[worker]->Find(scope.id());
    if (!context.ok()) return weft::Gradient();
    const Variable& variable = shelves_[worker]->leaves[leaf];
    return (*context)->GradientOf(*variable.edge().node->leaf());
  }
  PassReport Pass(const Scope& scope, const Values& roots,
                  const PassOptions& options = {}) {
    const Result<PassReport> report =
        scope.BackwardAsync(roots, options).Wait(testing::kPatience);
    EXPECT_THAT(report.status(), IsOk());
    return report.ok() ? *report : PassReport();
  }

  std::vector<std::shared_ptr<Shelf>> shelves_;
};

// ------------------------------------------------------------ what is used

TEST_F(EdgeCaseTest, ResultUsedOnlyWithoutGradientIsNotLive) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  const PassReport report = Pass(scope, {Mul(y.Detach(), x)});
  EXPECT_EQ(report.live_messages, 0u);
  EXPECT_EQ(report.participants, 1);
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
}

TEST_F(EdgeCaseTest, OneOfThreeSlotsUsedLeavesTheOtherLeavesWithoutGradient) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const Values out = scope.Call(To(1), ByEachLeaf, x).value();
  Pass(scope, {out[1]});
  EXPECT_EQ(Value(scope.GradientOf(x)), 5.0);
  EXPECT_FALSE(At(1, scope, 0).defined());  // absent, not zero: PROBE-P23
  EXPECT_EQ(Value(At(1, scope, 1)), 2.0);
  EXPECT_FALSE(At(1, scope, 2).defined());
}

TEST_F(EdgeCaseTest, RootThatHasSentNothingGetsOnlyResults) {
  const Scope scope(*contexts_[0]);
  const Values out = scope.Call(To(1), ByEachLeaf, Scalar(2.0, false)).value();
  const PassReport report = Pass(scope, {Add(out[0], out[2])});
  EXPECT_EQ(report.participants, 2);
  EXPECT_EQ(report.live_messages, 1u);
  EXPECT_EQ(Value(At(1, scope, 0)), 2.0);
  EXPECT_EQ(Value(At(1, scope, 2)), 2.0);
}

TEST_F(EdgeCaseTest, ResultOfACallIsARootItself) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  Pass(scope, {scope.Call(To(1), Twice, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

TEST_F(EdgeCaseTest, LossWithoutRemoteValuesEndsAtItsWorker) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  ASSERT_THAT(scope.Call(To(1), Twice, x).status(), IsOk());
  const PassReport report = Pass(scope, {Mul(x, x)});
  EXPECT_EQ(report.participants, 1);
  EXPECT_EQ(Value(scope.GradientOf(x)), 4.0);
}

TEST_F(EdgeCaseTest, CallsOfAWorkerToItselfAreRecorded) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  Variable y = scope.Call(To(0), Twice, x).value();
  y = scope.Call(To(0), TwiceElsewhere, std::string("w0"), y).value();
  y = scope.Call(To(1), TwiceElsewhere, std::string("w1"), y).value();
  const PassReport report = Pass(scope, {y});
  EXPECT_EQ(report.participants, 2);
  EXPECT_EQ(report.live_messages, 10u);
  EXPECT_EQ(Value(scope.GradientOf(x)), 8.0);
}

TEST_F(EdgeCaseTest, TwoRootsThatShareAGraphAddUp) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  Pass(scope, {Mul(y, y), y, y});  // 8x + 2 + 2
  EXPECT_EQ(Value(scope.GradientOf(x)), 28.0);
}

TEST_F(EdgeCaseTest, ResultsOfOneMessageServeTwoLossesInTwoPasses) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const Values out = scope.Call(To(1), ByEachLeaf, x).value();
  // This works in one process too, where the two share nothing but the leaf.
  Pass(scope, {out[0]});
  Pass(scope, {out[1]});
  EXPECT_EQ(Value(scope.GradientOf(x)), 8.0);
  EXPECT_EQ(Value(At(1, scope, 0)), 2.0);
  EXPECT_EQ(Value(At(1, scope, 1)), 2.0);
}

TEST_F(EdgeCaseTest, SecondPassOverAConsumedMessageIsRefusedWithItsName) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  Pass(scope, {y});
  const absl::Status again = scope.Backward(y);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
  EXPECT_THAT(std::string(again.message()),
              HasSubstr("Twice) was consumed by"));
  EXPECT_THAT(std::string(again.message()), HasSubstr("retain_graph"));
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

TEST_F(EdgeCaseTest, RemoteResultThatIsNeverFetchedBlocksNoWorker) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const auto kept = rref::Remote(scope.Recorded(To(1)), Twice, x);
  ASSERT_THAT(kept.status(), IsOk());
  Pass(scope, {scope.Call(To(1), Twice, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

// ------------------------------------------------------------ how it is made

TEST_F(EdgeCaseTest, ResultOfAFutureCompletedOnAnotherThreadIsRecorded) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  Pass(scope, {scope.Call(To(1), SquareOnAnotherThread, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 6.0);
}

TEST_F(EdgeCaseTest, NestedCallWhoseFutureIsTheResultIsRecorded) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y =
      scope.Call(To(1), TwiceElsewhere, std::string("w2"), x).value();
  EXPECT_EQ(Pass(scope, {y}).participants, 3);
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

TEST_F(EdgeCaseTest, WriteInPlaceBeforeTheUseCountsAfterItIsRefused) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  Add_(y.value(), 1.0);  // 7
  const Variable z = Mul(y, y);
  EXPECT_EQ(z.value().item<double>(), 49.0);
  PassOptions retain;
  retain.retain_graph = true;
  Pass(scope, {z}, retain);
  EXPECT_EQ(Value(scope.GradientOf(x)), 28.0);  // 2 * 7 * 2
  Add_(y.value(), 1.0);                         // saved by Mul
  EXPECT_THAT(scope.Backward(z),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Mul"));
  EXPECT_EQ(Value(scope.GradientOf(x)), 28.0);
}

TEST_F(EdgeCaseTest, ViewOfAReceivedValueGetsItsPartOfTheGradient) {
  const Variable x = Vec({1, 2, 3, 4});
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  Pass(scope, {Sum(Reshape(Slice(y, 0, 1, 3), Shape({2, 1})))});
  EXPECT_THAT(Numbers(scope.GradientOf(x)), ElementsAre(0, 2, 2, 0));
}

TEST_F(EdgeCaseTest, ExpandedGradientTravelsInFull) {
  const Variable x = Vec({1, 2, 3});
  const Scope scope(*contexts_[0]);
  // The gradient of a sum is one number, expanded.
  Pass(scope, {Sum(scope.Call(To(1), Twice, x).value())});
  EXPECT_THAT(Numbers(scope.GradientOf(x)), ElementsAre(2, 2, 2));
}

TEST_F(EdgeCaseTest, GradientsOfRowsTravelAsRows) {
  const Variable table(Tensor::Ones({6, 2}, DType::kF64), true);
  const Scope scope(*contexts_[0]);
  const Variable rows =
      scope.Call(To(1), LookUp, table, Tensor::FromVector<int64_t>({4, 1, 4}))
          .value();
  Pass(scope, {Sum(rows)});
  const weft::Gradient g = scope.GradientOf(table);
  ASSERT_TRUE(g.is_sparse());
  EXPECT_EQ(g.sparse().rows, 6);
  EXPECT_THAT(Numbers(g), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0, 2, 2, 0, 0));
}

TEST_F(EdgeCaseTest, IntegerResultsHaveNoSlots) {
  const Variable x = Vec({1, 2, 3});
  const Scope scope(*contexts_[0]);
  const Values out = scope.Call(To(1), CountAndTwice, x).value();
  EXPECT_EQ(out[0].value().ToVector<int64_t>()[0], 3);
  EXPECT_FALSE(out[0].requires_grad());
  EXPECT_EQ(Pass(scope, {Sum(out[1])}).live_messages, 2u);
  EXPECT_THAT(Numbers(scope.GradientOf(x)), Each(2.0));
}

TEST_F(EdgeCaseTest, TensorWithoutElementsHasAGradientWithoutElements) {
  const Variable x(Tensor::Ones({0, 3}, DType::kF64), true);
  const Scope scope(*contexts_[0]);
  Pass(scope, {Sum(scope.Call(To(1), Twice, x).value())});
  const weft::Gradient g = scope.GradientOf(x);
  ASSERT_TRUE(g.defined());
  EXPECT_EQ(g.shape(), Shape({0, 3}));
}

// ------------------------------------------------------------ hooks

TEST_F(EdgeCaseTest, HookThatMakesACallDoesNotBlockThePass) {
  shelves_[1]->on_gradient = [this](weft::Gradient g) {
    // Back to the worker that began the pass, too.
    for (const char* name : {"w2", "w0"}) {
      const Variable twice =
          rpc::Call(ranks_[1].To(name), Twice, Variable(g.ToDense())).value();
      g = weft::Gradient(twice.value());
    }
    return g;
  };
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  Pass(scope, {scope.Call(To(1), Hooked, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 24.0);  // 4 * 2x
}

TEST_F(EdgeCaseTest, GradientThatAHookDropsStaysAbsentAcrossWorkers) {
  shelves_[1]->on_gradient = [](const weft::Gradient&) {
    return weft::Gradient();
  };
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const PassReport report = Pass(scope, {scope.Call(To(1), Hooked, x).value()});
  EXPECT_EQ(report.live_messages, 2u);
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

TEST_F(EdgeCaseTest, ErrorInAHookNamesWorkerAndNode) {
  shelves_[1]->on_gradient = [](const weft::Gradient&) -> weft::Gradient {
    throw Error(absl::DataLossError("a bad sensor"));
  };
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const absl::Status status =
      scope.Backward(scope.Call(To(1), Hooked, x).value());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  for (const char* part : {"w1", "Mul", "a bad sensor", "pass 1 of"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_FALSE(scope.GradientOf(x).defined());
  shelves_[1]->on_gradient = nullptr;
}

// ------------------------------------------------------------ calls that fail

TEST_F(EdgeCaseTest, MessageOfARefusedCallIsNotWaitedFor) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  EXPECT_THAT(scope.Call(To(1), Refuse, x).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "not this one"));
  Pass(scope, {scope.Call(To(1), Twice, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
}

TEST_F(EdgeCaseTest, CancelledCallBlocksNoPass) {
  const auto gate = std::make_shared<Gate>();
  ranks_[1].SetLocal(gate);
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Future<Variable> call = scope.CallAsync(To(1), TwiceThroughGate, x);
  gate->entered.WaitForNotification();
  call.Cancel();
  EXPECT_THAT(call.Wait(testing::kPatience).status(),
              StatusIs(absl::StatusCode::kCancelled));
  Pass(scope, {scope.Call(To(2), Twice, x).value()});
  EXPECT_EQ(Value(scope.GradientOf(x)), 2.0);
  gate->open.Notify();
}

TEST_F(EdgeCaseTest, StreamsAndRetriesAreRefusedWithTheReason) {
  const Scope scope(*contexts_[0]);
  auto plain = rpc::OpenStream(To(1), WriteSquare, 3.0);
  EXPECT_THAT(plain.Next().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "stream"));
  auto recorded = rpc::OpenStream(scope.Recorded(To(1)), WriteSquare, 3.0);
  EXPECT_THAT(recorded.Next().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(
      scope.Call(To(1).WithRetry(rpc::RetryPolicy()), Twice, Scalar(3.0))
          .status(),
      StatusIs(absl::StatusCode::kFailedPrecondition));
}

// ------------------------------------------------------------ ends

TEST_F(EdgeCaseTest, CallsAndPassesAfterTheReleaseAreRefused) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  const Variable y = scope.Call(To(1), Twice, x).value();
  contexts_[0]->Release(scope.id());
  EXPECT_THAT(scope.Call(To(1), Twice, x).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
  EXPECT_THAT(scope.Backward(y),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
}

TEST_F(EdgeCaseTest, ReleaseInTheMiddleOfAPassEndsThePass) {
  const Variable x = Scalar(3.0);
  const Scope scope(*contexts_[0]);
  absl::Notification began, go_on;
  shelves_[1]->on_gradient = [&](weft::Gradient g) {
    began.Notify();
    go_on.WaitForNotification();
    return g;
  };
  const Future<PassReport> pass =
      scope.BackwardAsync({scope.Call(To(1), Hooked, x).value()});
  began.WaitForNotification();
  contexts_[0]->Release(scope.id());
  EXPECT_TRUE(Becomes([&] { return contexts_[0]->counts().contexts == 0; }));
  go_on.Notify();
  EXPECT_THAT(pass.Wait(testing::kPatience).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
  ExpectEmptyTables();
}

TEST_F(EdgeCaseTest, ContextsOfManyThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i] {
      for (int step = 0; step < 10; ++step) {
        const double value = 1.0 + i * 10 + step;
        const Variable x = Scalar(value);
        const Scope scope(*contexts_[0]);
        const Values out = scope.Call(To(1 + i % 3), ByEachLeaf, x).value();
        ASSERT_THAT(scope.Backward(out[2]), IsOk());
        EXPECT_EQ(Value(scope.GradientOf(x)), 7.0);
        EXPECT_EQ(Value(At(1 + i % 3, scope, 2)), value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weft::dist_autograd
