#include "weft/ps/core/timed_lock.h"

#include <atomic>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"

namespace weft::ps {
namespace {

TEST(TimedLock, TellsHowLongItWaited) {
  Mutex mu;
  constexpr absl::Duration kHeld = absl::Milliseconds(1);
  absl::Duration waited = -absl::Seconds(1);
  { TimedLock lock(mu, &waited); }
  EXPECT_GE(waited, absl::ZeroDuration());
  { TimedLock lock(mu, nullptr); }
  // Until this thread gets a core while the other one holds the mutex.
  absl::Duration all;
  while (waited < kHeld / 2) {
    std::atomic<bool> holds{false}, comes{false};
    std::thread holder([&] {
      MutexLock lock(mu);
      holds = true;
      while (!comes) std::this_thread::yield();
      const Instant came = SteadyClock().Now();
      while (SteadyClock().Now() - came < kHeld) std::this_thread::yield();
    });
    while (!holds) std::this_thread::yield();
    const Instant began = SteadyClock().Now();
    comes = true;
    { TimedLock lock(mu, &waited); }
    all = SteadyClock().Now() - began;
    holder.join();
  }
  EXPECT_LE(waited, all);
}

}  // namespace
}  // namespace weft::ps
