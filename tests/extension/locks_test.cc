#include "weft/tests/extension/locks.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rpc/session/directory.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"

namespace locks {
namespace {

using ::weft::Future;
using ::weft::rpc::extension::WeakAgent;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
namespace rpc = ::weft::rpc;

int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);

// Answers the third time that it is asked; an attempt ends it before.
std::atomic<int> asked{0};
Future<void> AnswerLate() {
  static std::vector<weft::Promise<void>>* const never =
      new std::vector<weft::Promise<void>>();
  if (++asked >= 3) return weft::MakeReady();
  never->emplace_back();
  return never->back().future();
}
WEFT_RPC_INLINE_IDEMPOTENT(AnswerLate);

// w0, w1 and w2, of which each can end.
class LocksTest : public ::testing::Test {
 protected:
  LocksTest() {
    for (int i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat("w", i);
      directory_.Put(rpc::Worker{name, Key(i), name});
      transports_.push_back(network_.MakeTransport(name).value());
      rpc::AgentOptions options;
      options.job = "job";
      options.name = name;
      options.key = Key(i);
      options.transport = transports_.back().get();
      options.directory = &directory_;
      options.threads = 2;
      agents_.push_back(rpc::Agent::Create(std::move(options)).value());
      if (i < 2) locks_.push_back(Locks::Open(*agents_.back()).value());
    }
  }
  static WorkerKey Key(int i) { return {static_cast<uint32_t>(i), 1}; }
  static absl::Status Wait(const Future<void>& future) {
    return future.Wait(absl::Seconds(60));
  }
  absl::Status AcquireFrom(int worker) {
    return Wait(locks_[worker]->Acquire(Key(1), "a"));
  }
  absl::Status ReleaseFrom(int worker) {
    return Wait(locks_[worker]->Release(Key(1), "a"));
  }

  weft::transport::LocalNetwork network_;
  rpc::FixedDirectory directory_;
  std::vector<std::unique_ptr<weft::transport::Transport>> transports_;
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
  std::vector<std::shared_ptr<Locks>> locks_;  // w2 has none
};

TEST_F(LocksTest, AreHeldByOneWorkerAtATime) {
  ASSERT_THAT(AcquireFrom(0), IsOk());
  const Future<void> second = locks_[1]->Acquire(Key(1), "a");
  ASSERT_TRUE(Becomes([&] { return locks_[1]->waiting() == 1; }));
  EXPECT_FALSE(second.IsReady());
  ASSERT_THAT(ReleaseFrom(0), IsOk());
  EXPECT_THAT(Wait(second), IsOk());
  EXPECT_THAT(ReleaseFrom(0), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReleaseFrom(1), IsOk());
}

TEST_F(LocksTest, AGuardedCallRunsOnlyWhileItsCallerHoldsTheLock) {
  const rpc::Target guarded = locks_[0]->Guarded(agents_[0]->To("w1"), "a");
  EXPECT_THAT(rpc::Call(guarded, Double, 2).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "does not hold lock 'a'"));
  EXPECT_TRUE(Becomes([&] { return locks_[0]->refused() == 1; }));
  ASSERT_THAT(AcquireFrom(0), IsOk());
  EXPECT_EQ(*rpc::Call(guarded, Double, 2), 4);
  EXPECT_TRUE(Becomes([&] { return locks_[0]->delivered() == 1; }));
}

TEST_F(LocksTest, AWorkerWithoutThemRefusesWhatTheySend) {
  const rpc::Target guarded = locks_[0]->Guarded(agents_[0]->To("w2"), "a");
  EXPECT_THAT(rpc::Call(guarded, Double, 2).status(),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(
      Wait(locks_[0]->Acquire(Key(2), "a")),
      StatusIs(absl::StatusCode::kFailedPrecondition, "w2 has no Locks"));
}

TEST_F(LocksTest, ASecondOneIsRefusedAndTheFirstGoesOn) {
  EXPECT_THAT(Locks::Open(*agents_[1]).status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(AcquireFrom(0), IsOk());
  EXPECT_THAT(ReleaseFrom(0), IsOk());
  EXPECT_THAT(AcquireFrom(1), IsOk());
}

TEST_F(LocksTest, ALockOfAWorkerThatIsGoneIsFree) {
  ASSERT_THAT(AcquireFrom(0), IsOk());
  const Future<void> second = locks_[1]->Acquire(Key(1), "a");
  ASSERT_TRUE(Becomes([&] { return locks_[1]->waiting() == 1; }));
  agents_[1]->PeerGone(Key(0), "it was killed");
  EXPECT_THAT(Wait(second), IsOk());
}

TEST_F(LocksTest, AShutDownEndsWhoWaits) {
  ASSERT_THAT(AcquireFrom(1), IsOk());
  const Future<void> waits = locks_[0]->Acquire(Key(1), "a");
  ASSERT_TRUE(Becomes([&] { return locks_[1]->waiting() == 1; }));
  EXPECT_THAT(agents_[1]->Shutdown(absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(Wait(waits).ok());
}

TEST_F(LocksTest, WhoWaitsWhenTheAgentEndsIsAnswered) {
  ASSERT_THAT(AcquireFrom(0), IsOk());
  const Future<void> served = locks_[1]->ServeAcquire(Key(2), "a");
  agents_[1] = nullptr;
  EXPECT_THAT(served.Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(LocksTest, ACallAfterTheAgentsEndIsCancelled) {
  ASSERT_THAT(AcquireFrom(0), IsOk());
  agents_[0] = nullptr;
  EXPECT_THAT(AcquireFrom(0), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(ReleaseFrom(0), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(locks_[0]->name(), "w0");
  transports_[0] = nullptr;
  locks_[0] = nullptr;
}

TEST_F(LocksTest, TheAgentsEndWaitsForAUse) {
  WeakAgent weak(*agents_[0]);
  std::atomic<bool> has_ended{false};
  std::optional<WeakAgent::Use> use(std::in_place, weak);
  ASSERT_TRUE(*use);
  std::thread end([&] {
    weak.End();
    has_ended = true;
  });
  ASSERT_TRUE(Becomes([&] { return weak.has_ended(); }));
  EXPECT_FALSE(has_ended);
  EXPECT_FALSE(WeakAgent::Use(weak));
  use.reset();
  end.join();
  EXPECT_TRUE(has_ended);
}

TEST_F(LocksTest, AControlCallIsRepeatedUntilItIsAnswered) {
  const auto weak = std::make_shared<WeakAgent>(*agents_[0]);
  const auto done = std::make_shared<weft::Promise<void>>();
  weak->CallUntilAnswered(
      Key(1), absl::Milliseconds(20), AnswerLate,
      [done](const absl::Status& status) { done->Set(status); });
  EXPECT_THAT(Wait(done->future()), IsOk());
  EXPECT_GE(asked, 3);
}

}  // namespace
}  // namespace locks
