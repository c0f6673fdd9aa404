// What docs/rpc.md shows of batches, Futures, retries and roles.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace demo {

struct Point {
  double x = 0, y = 0;
};

class Waiters {
 public:
  void Add(weft::Promise<int64_t> promise) {
    weft::MutexLock lock(mu_);
    promises_.push_back(std::move(promise));
  }
  // Whether anybody waited for it.
  bool Serve(int64_t ticket) {
    std::vector<weft::Promise<int64_t>> promises;
    {
      weft::MutexLock lock(mu_);
      promises.swap(promises_);
    }
    for (weft::Promise<int64_t>& promise : promises) promise.Set(ticket);
    return !promises.empty();
  }

 private:
  weft::Mutex mu_;
  std::vector<weft::Promise<int64_t>> promises_ ABSL_GUARDED_BY(mu_);
};
Waiters& Waiting() {
  static auto* const waiters = new Waiters();
  return *waiters;
}

}  // namespace demo

template <>
struct weft::rpc::Codec<demo::Point> {
  static std::string TypeName() { return "demo.Point"; }
  static void Encode(const demo::Point& p, Encoder& e) { e.Write(p.x, p.y); }
  static absl::Status Decode(Decoder& d, demo::Point& p) {
    return d.Read(p.x, p.y);
  }
};

namespace demo {

std::vector<double> ScoreAll(std::vector<Point> points) {
  std::vector<double> scores;
  for (const Point& p : points) scores.push_back(std::hypot(p.x, p.y));
  return scores;
}
WEFT_RPC_BATCHED(ScoreAll, 64, absl::Milliseconds(2));

weft::Future<int64_t> NextTicket() {
  auto [promise, future] = weft::MakePromise<int64_t>();
  Waiting().Add(std::move(promise));
  return future;
}
WEFT_RPC(NextTicket);

int64_t Version() { return 3; }
WEFT_RPC_IDEMPOTENT(Version);
WEFT_RPC_ROLES(Version, "client", "trainer");

namespace {

namespace rpc = weft::rpc;
using ::weft::testing::Becomes;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::kPatience;

TEST(Guide, EachCallerOfABatchGetsItsOwnResult) {
  rpc::Ranks ranks(2);
  const rpc::Target ps = ranks[0].To("w1", kPatience);
  const weft::Future<double> far = rpc::CallOneAsync(ps, ScoreAll, Point{3, 4});
  const weft::Future<double> near =
      rpc::CallOneAsync(ps, ScoreAll, Point{0, 1});
  EXPECT_THAT(far.Wait(kPatience), IsOkAndHolds(5));
  EXPECT_THAT(near.Wait(kPatience), IsOkAndHolds(1));
}

TEST(Guide, AFunctionMayReturnAFuture) {
  rpc::Ranks ranks(2);
  const weft::Future<int64_t> ticket =
      rpc::CallAsync(ranks[0].To("w1", kPatience), NextTicket);
  EXPECT_TRUE(Becomes([] { return Waiting().Serve(7); }));
  EXPECT_THAT(ticket.Wait(kPatience), IsOkAndHolds(7));
}

TEST(Guide, AnIdempotentFunctionWithRoles) {
  rpc::Ranks ranks(2);
  EXPECT_THAT(rpc::Call(ranks[0].To("w1", kPatience).WithRetry({}), Version),
              IsOkAndHolds(3));
  const rpc::Function* const version =
      rpc::Registry::Global().FindName("demo::Version");
  ASSERT_NE(version, nullptr);
  EXPECT_TRUE(version->is_idempotent);
  ASSERT_TRUE(version->roles.has_value());
  EXPECT_EQ(version->roles->ToString(), "client, trainer");
}

}  // namespace
}  // namespace demo
