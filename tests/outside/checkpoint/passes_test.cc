// Checkpoint in distributed passes: at the caller, at the worker that is
// called, and around a recorded call.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/ops.h"
#include "weft/autograd/variable.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/dist_autograd/pass_fixture.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/tensor/random.h"
#include "weft/tests/outside/checkpoint/bits.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using outside::In;
using outside::Maybe;
using outside::Numbers;
using outside::SameBits;
using outside::Twist;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

Variable PlainTwist(const Variable& x) { return Twist(Twist(x)); }
WEFT_RPC(PlainTwist);

Variable CheckpointedTwist(const Variable& x) {
  const Variable h = Checkpoint([](In in) { return Twist(in[0]); }, {x});
  return Checkpoint([](In in) { return Twist(in[0]); }, {h});
}
WEFT_RPC(CheckpointedTwist);

Variable TwistThatFailsAgain(const Variable& x) {
  return Checkpoint(
      [](In in) {
        const Variable y = Twist(in[0]);
        if (IsRecomputing()) {
          throw Error(absl::DataLossError("gone the second time"));
        }
        return y;
      },
      {x});
}
WEFT_RPC(TwistThatFailsAgain);

class CheckpointedPasses : public PassFixture {
 protected:
  CheckpointedPasses() : PassFixture(2) {}
  rpc::Target There() { return ranks_[0].To("w1", kLong); }
};

TEST_F(CheckpointedPasses, LocalPartsPutTheSameBitsIntoTheContext) {
  Tensor found[2];
  for (const bool on : {false, true}) {
    const Scope scope(*contexts_[0]);
    const Variable x(Numbers({6}, 1), true);
    int calls = 0;
    const Variable y = Maybe(on,
                             [&](In in) {
                               ++calls;
                               return Twist(in[0]);
                             },
                             {x});
    WEFT_ASSERT_OK(scope.Backward(Sum(y)));
    EXPECT_EQ(calls, on ? 2 : 1);
    EXPECT_FALSE(x.has_grad());
    found[on] = scope.GradientOf(x).ToDense();
  }
  EXPECT_TRUE(SameBits(found[0], found[1]));
}

TEST_F(CheckpointedPasses, PartsAtTheWorkerThatIsCalledGiveTheSameBits) {
  Tensor found[2];
  for (const bool on : {false, true}) {
    const Scope scope(*contexts_[0]);
    const Variable x(Numbers({6}, 1), true);
    const auto y =
        scope.Call(There(), on ? CheckpointedTwist : PlainTwist, Exp(x));
    ASSERT_THAT(y, IsOk());
    WEFT_ASSERT_OK(scope.Backward(Sum(*y)));
    found[on] = scope.GradientOf(x).ToDense();
  }
  EXPECT_TRUE(SameBits(found[0], found[1]));
}

TEST_F(CheckpointedPasses, PartsAtBothEndsGiveTheSameBits) {
  Tensor found[2];
  uint64_t position[2] = {};
  for (const bool on : {false, true}) {
    const Scope scope(*contexts_[0]);
    Generator random(4);
    const Variable x(Numbers({6}, 1), true);
    const Variable h =
        Maybe(on,
              [&](In in) {
                return Twist(in[0] * Variable(Uniform({6}, 0, 1, random)));
              },
              {x});
    const auto y = scope.Call(There(), on ? CheckpointedTwist : PlainTwist, h);
    ASSERT_THAT(y, IsOk());
    const Variable z =
        Maybe(on,
              [&](In in) {
                return Twist(in[0] * Variable(Uniform({6}, 0, 1, random)));
              },
              {*y});
    WEFT_ASSERT_OK(scope.Backward(Sum(z)));
    found[on] = scope.GradientOf(x).ToDense();
    position[on] = random.position();
  }
  EXPECT_EQ(position[0], position[1]);
  EXPECT_TRUE(SameBits(found[0], found[1]));
}

TEST_F(CheckpointedPasses, WorkerWhosePartThrowsAgainEndsThePassWithThat) {
  const Scope scope(*contexts_[0]);
  const Variable x(Numbers({6}, 1), true);
  const auto y = scope.Call(There(), TwistThatFailsAgain, x);
  ASSERT_THAT(y, IsOk());
  PassOptions options;
  options.timeout = kLong;
  EXPECT_THAT(scope.Backward(Sum(*y), options),
              StatusIs(absl::StatusCode::kDataLoss, "gone the second time"));
  EXPECT_FALSE(scope.GradientOf(x).defined());
}

// docs/ddp.md: "refused ... a recorded remote call within the part
// (UNIMPLEMENTED)".
TEST_F(CheckpointedPasses, RecordedCallWithinAPartIsUnimplemented) {
  const Scope scope(*contexts_[0]);
  const Variable x(Numbers({6}, 1), true);
  absl::Status inside;
  const absl::Status outside = CatchToStatus([&] {
    Checkpoint(
        [&](In in) {
          const auto y = scope.Call(There(), PlainTwist, Exp(in[0]));
          inside = y.status();
          ThrowIfError(y.status());
          return *y;
        },
        {x});
  });
  EXPECT_THAT(inside, StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(outside, StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_FALSE(IsCheckpointing());
}

// A call that is not recorded is an effect like any other.
TEST_F(CheckpointedPasses, CallWithoutHistoryWithinAPartIsMadeOnceIfAskedFor) {
  int calls = 0;
  const Variable x(Numbers({6}, 1), true);
  const Variable loss = Sum(Checkpoint(
      [&](In in) {
        const Tensor scale = OnceInCheckpoint([&] {
          ++calls;
          return Numbers({6}, 2);
        });
        return Twist(in[0]) * Variable(scale);
      },
      {x}));
  const Scope scope(*contexts_[0]);
  WEFT_ASSERT_OK(scope.Backward(loss));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(scope.GradientOf(x).defined());
}

TEST_F(CheckpointedPasses, PassThatFailedMayBeRepeated) {
  const Scope scope(*contexts_[0]);
  const Variable x(Numbers({6}, 1), true);
  bool fails = true;
  const Variable y = Checkpoint(
      [&](In in) {
        const Variable h = Twist(in[0]);
        if (IsRecomputing() && fails) throw std::runtime_error("once");
        return h;
      },
      {x});
  const Variable loss = Sum(y);
  EXPECT_THAT(scope.Backward(loss),
              StatusIs(absl::StatusCode::kInternal, "once"));
  fails = false;
  WEFT_ASSERT_OK(scope.Backward(loss));
  const Variable same(Numbers({6}, 1), true);
  Sum(Twist(same)).Backward();
  EXPECT_TRUE(SameBits(scope.GradientOf(x).ToDense(), same.grad()));
}

}  // namespace
}  // namespace weft::dist_autograd
