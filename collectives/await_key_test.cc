#include "weft/collectives/await_key.h"

#include <atomic>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

Instant In(absl::Duration time) { return SteadyClock().Now() + time; }

TEST(AwaitKey, KeyThatComesBetweenTwoLooksIsTaken) {
  rendezvous::MemoryStore store;
  std::atomic<int> looks{0};
  std::thread sets([&] {
    testing::Becomes([&] { return looks >= 3; });
    store.Set("key", "value", absl::Seconds(10)).IgnoreError();
  });
  EXPECT_THAT(AwaitKey(store, "key", In(absl::Minutes(5)),
                       [&] {
                         ++looks;
                         return absl::OkStatus();
                       }),
              IsOkAndHolds("value"));
  sets.join();
}

TEST(AwaitKey, CheckEndsTheWait) {
  rendezvous::MemoryStore store;
  int looks = 0;
  const absl::Time began = absl::Now();
  EXPECT_THAT(AwaitKey(store, "key", In(absl::Minutes(5)),
                       [&] {
                         return ++looks < 3 ? absl::OkStatus()
                                            : absl::CancelledError("enough");
                       })
                  .status(),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_LT(absl::Now() - began, absl::Seconds(60));
}

TEST(AwaitKey, DeadlineEndsTheWaitWithAndWithoutACheck) {
  rendezvous::MemoryStore store;
  for (const absl::Duration time :
       {absl::ZeroDuration(), absl::Milliseconds(150)}) {
    EXPECT_THAT(AwaitKey(store, "key", In(time), nullptr).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, "key"));
    EXPECT_THAT(
        AwaitKey(store, "key", In(time), [] { return absl::OkStatus(); })
            .status(),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "key"));
  }
}

}  // namespace
}  // namespace weft::collectives
