// What a RetryingCaller does of itself; what it does with workers that die is
// in simulated_targets_test.cc.

#include "weft/rpc/agent/retry.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/rpc/session/failure.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/transport/local_transport.h"

namespace weft::rpc::internal {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

// Its first call ends at once, but returns only when the second has begun; the
// second returns when the test lets it, and ends when it is given up.
class Overtaken final : public Caller,
                        public Abandoner,
                        public std::enable_shared_from_this<Overtaken> {
 public:
  const Worker& peer() const override { return peer_; }

  Abandon Start(std::shared_ptr<Request>, Done done) override {
    const int number = ++calls_;
    if (number == 1) {
      std::move(done)(MarkFailure(absl::UnavailableError("the first is lost"),
                                  Phase::kQueue, Reason::kPeerGone),
                      nullptr);
      EXPECT_TRUE(IsWoken(second_began_));
    } else {
      {
        MutexLock lock(mu_);
        done_ = std::move(done);
      }
      second_began_.Unpark();
      EXPECT_TRUE(IsWoken(second_may_return));
    }
    return Abandon(weak_from_this(), number);
  }

  absl::Status AbandonCall(uint64_t number, const absl::Status& why) override {
    Done done = [](absl::Status, ReplyPtr) {};
    {
      MutexLock lock(mu_);
      abandoned_.push_back(number);
      if (number == 2) done_.swap(done);
    }
    std::move(done)(why, nullptr);
    return why;
  }

  std::vector<uint64_t> abandoned() {
    MutexLock lock(mu_);
    return abandoned_;
  }

  Parker second_may_return;

 private:
  const Worker peer_{"w1", {1, 1}, "w1"};
  std::atomic<int> calls_{0};
  Parker second_began_;
  Mutex mu_;
  Done done_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> abandoned_ ABSL_GUARDED_BY(mu_);
};

TEST(RetryingCaller, AnAttemptThatReturnsLateIsNotTakenForTheNext) {
  transport::LocalNetwork network;
  const auto transport = network.MakeTransport("w0").value();
  const auto overtaken = std::make_shared<Overtaken>();
  RetryingCaller::Options options;
  options.policy.first_pause = absl::ZeroDuration();
  options.transport = transport.get();
  options.calls = std::make_shared<RetriedCalls>(SteadyClock());
  options.find = [overtaken] {
    return absl::StatusOr<std::shared_ptr<Caller>>(overtaken);
  };
  RetryingCaller caller(overtaken->peer(), std::move(options));
  auto request = std::make_shared<Request>();
  request->deadline = Instant::Infinite();
  std::atomic<int> ends{0};
  absl::Status end;
  const Abandon abandon =
      caller.Start(request, [&](absl::Status status, ReplyPtr) {
        end = std::move(status);
        ++ends;
      });
  overtaken->second_may_return.Unpark();
  transport->AwaitTimers();  // the second is out
  (void)abandon(absl::CancelledError("enough"));
  EXPECT_THAT(overtaken->abandoned(), ElementsAre(2));
  EXPECT_EQ(ends, 1);
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kCancelled, "enough"));
}

}  // namespace
}  // namespace weft::rpc::internal
