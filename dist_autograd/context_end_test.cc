// The end of a context at all workers that have part in it, deaths included.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/pass_calls.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/rpc/call.h"

namespace weft::dist_autograd {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Variable SquareHere(const Variable& x) { return Mul(x, x); }
WEFT_RPC(SquareHere);

// Calls the first of `path` with the rest of it: a chain of nested calls.
Variable SquareAtTheEndOf(rpc::CallContext& call,
                          const std::vector<std::string>& path,
                          const Variable& x) {
  if (path.empty()) return Mul(x, x);
  const Scope scope = Scope::Within(call).value();
  return scope
      .Call(call.agent().To(path[0]), SquareAtTheEndOf,
            std::vector<std::string>(path.begin() + 1, path.end()), x)
      .value();
}
WEFT_RPC(SquareAtTheEndOf);

struct Gate {
  absl::Notification entered;
  absl::Notification open;
};

// A nested call that is made once the gate opens, whoever lives by then.
void CallThroughGate(rpc::CallContext& call, const std::string& where,
                     const Variable& x) {
  const Scope scope = Scope::Within(call).value();
  const std::shared_ptr<Gate> gate = call.agent().Local<Gate>();
  gate->entered.Notify();
  gate->open.WaitForNotification();
  scope.Call(call.agent().To(where), SquareHere, x).status().IgnoreError();
}
WEFT_RPC(CallThroughGate);

class ContextEndTest : public PassFixture {};

TEST_F(ContextEndTest, WorkerKnownOnlyToADeadWorkerEndsTheContext) {
  {
    const Scope scope(*contexts_[0]);
    ASSERT_THAT(scope.Call(To(1), SquareAtTheEndOf,
                           std::vector<std::string>{"w2", "w3"}, Scalar(2.0)),
                IsOk());
    EXPECT_EQ(OpenContexts(2), 1);
    EXPECT_EQ(OpenContexts(3), 1);
    Kill(1);
    // It goes on while its creator has it.
    EXPECT_EQ(OpenContexts(2), 1);
    EXPECT_EQ(OpenContexts(3), 1);
    EXPECT_EQ(OpenContexts(0), 1);
  }
  ExpectEmptyTables();
}

TEST_F(ContextEndTest, DeathOfAWorkerAfterTheReleaseEndsTheContext) {
  {
    const Scope scope(*contexts_[0]);
    ASSERT_THAT(scope.Call(To(1), SquareAtTheEndOf,
                           std::vector<std::string>{"w2"}, Scalar(2.0)),
                IsOk());
    // Worker 1, through which worker 2 came to it, can be reached no more.
    ranks_[0].PeerGone(KeyOf(1), "killed");
    ranks_[1].PeerGone(KeyOf(0), "killed");
  }
  EXPECT_TRUE(Becomes([&] { return OpenContexts(2) == 0; }));
  Kill(1);
  ExpectEmptyTables();
}

TEST_F(ContextEndTest, DeathsInAChainOfCallsEndTheContext) {
  {
    const Scope scope(*contexts_[0]);
    ASSERT_THAT(scope.Call(To(1), SquareAtTheEndOf,
                           std::vector<std::string>{"w2", "w3"}, Scalar(2.0)),
                IsOk());
    Kill(2);
    Kill(1);
  }
  ExpectEmptyTables();
}

TEST_F(ContextEndTest, DeathOfTheCreatorEndsTheContextEverywhere) {
  const auto scope = std::make_unique<Scope>(*contexts_[0]);
  ASSERT_THAT(scope->Call(To(1), SquareAtTheEndOf,
                          std::vector<std::string>{"w2", "w3"}, Scalar(2.0)),
              IsOk());
  Kill(0);
  for (const int worker : {1, 2, 3}) {
    EXPECT_TRUE(Becomes([&] { return OpenContexts(worker) == 0; })) << worker;
  }
}

TEST_F(ContextEndTest, NestedCallAfterTheReleaseIsRefused) {
  const auto gate = std::make_shared<Gate>();
  ranks_[1].SetLocal(gate);
  std::optional<Future<void>> call;
  {
    const Scope scope(*contexts_[0]);
    call =
        scope.CallAsync(To(1), CallThroughGate, std::string("w2"), Scalar(2.0));
    gate->entered.WaitForNotification();
  }
  ASSERT_TRUE(Becomes([&] { return OpenContexts(1) == 0; }));
  gate->open.Notify();
  EXPECT_THAT(call->Wait(testing::kPatience), IsOk());
  EXPECT_EQ(OpenContexts(2), 0);
}

TEST_F(ContextEndTest, CloseOfAWorkerLeavesTheContextsOfOthers) {
  const Variable x = Scalar(2.0);
  const Scope scope(*contexts_[0]);
  const auto y =
      scope.Call(To(1), SquareAtTheEndOf, std::vector<std::string>{"w2"}, x);
  ASSERT_THAT(y, IsOk());
  // It has part in the context, too, and is not needed for the pass.
  ASSERT_THAT(scope.Call(To(3), SquareAtTheEndOf,
                         std::vector<std::string>{"w1"}, Scalar(3.0)),
              IsOk());
  contexts_[3]->Close();
  EXPECT_EQ(OpenContexts(3), 0);
  EXPECT_THAT(rpc::Call(To(1), SquareHere, Scalar(1.0, false)), IsOk());
  EXPECT_EQ(OpenContexts(1), 1);
  EXPECT_EQ(OpenContexts(2), 1);
  EXPECT_EQ(OpenContexts(0), 1);
  ASSERT_THAT(scope.Backward(*y), IsOk());
  EXPECT_EQ(Value(scope.GradientOf(x)), 4.0);
}

TEST_F(ContextEndTest, OnlyTheCreatorReleasesAContext) {
  const Scope scope(*contexts_[0]);
  ASSERT_THAT(scope.Call(To(1), SquareHere, Scalar(2.0)), IsOk());
  for (const int other : {1, 2}) {
    for (const char* to : {"w0", "w1"}) {
      const absl::Status refused =
          rpc::Call(ranks_[other].To(to), internal::ReleaseContext, scope.id());
      EXPECT_THAT(refused, StatusIs(absl::StatusCode::kPermissionDenied,
                                    absl::StrCat("worker w", other, " (")));
      EXPECT_THAT(refused, StatusIs(absl::StatusCode::kPermissionDenied,
                                    "only its creator, worker w0"));
    }
  }
  EXPECT_EQ(OpenContexts(0), 1);
  EXPECT_EQ(OpenContexts(1), 1);
}

TEST_F(ContextEndTest, ContextIsJoinedAtItsCreatorOnly) {
  const Scope scope(*contexts_[0]);
  ASSERT_THAT(scope.Call(To(1), SquareHere, Scalar(2.0)), IsOk());
  EXPECT_THAT(
      rpc::Call(ranks_[2].To("w1"), internal::JoinContext, scope.id()),
      StatusIs(absl::StatusCode::kInvalidArgument, "has not created it"));
}

TEST_F(ContextEndTest, JoinOfAReleasedContextIsRefusedByItsCreator) {
  ContextId released;
  {
    const Scope scope(*contexts_[0]);
    released = scope.id();
    EXPECT_THAT(rpc::Call(ranks_[1].To("w0"), internal::JoinContext, released),
                IsOk());
  }
  EXPECT_THAT(rpc::Call(ranks_[1].To("w0"), internal::JoinContext, released),
              StatusIs(absl::StatusCode::kFailedPrecondition, "released"));
}

}  // namespace
}  // namespace weft::dist_autograd
