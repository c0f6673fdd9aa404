#include "weft/base/parker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace weft {
namespace {

constexpr uint32_t kEmpty = 0;
constexpr uint32_t kPermit = 1;
constexpr uint32_t kParked = 2;

// Sleeps while *word is kParked, at most until `deadline` of CLOCK_MONOTONIC.
// May also return without cause.
void FutexWait(std::atomic<uint32_t>* word, Instant deadline) {
  timespec until;
  const int64_t ns = std::max<int64_t>(deadline.nanoseconds(), 0);
  until.tv_sec = ns / 1'000'000'000;
  until.tv_nsec = ns % 1'000'000'000;
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, kParked,
          deadline.is_infinite() ? nullptr : &until, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

bool Parker::TakePermit() {
  uint32_t expected = kPermit;
  return state_.compare_exchange_strong(
      expected, kEmpty, std::memory_order_acquire, std::memory_order_relaxed);
}

bool Parker::ParkUntil(Instant deadline) {
  uint32_t expected = kEmpty;
  if (!state_.compare_exchange_strong(expected, kParked,
                                      std::memory_order_acquire)) {
    return TakePermit();
  }
  while (true) {
    FutexWait(&state_, deadline);
    if (TakePermit()) return true;
    if (deadline.is_infinite() || SteadyClock().Now() < deadline) continue;
    // A permit given between the two lines above still counts.
    return state_.exchange(kEmpty, std::memory_order_acquire) == kPermit;
  }
}

void Parker::Unpark() {
  if (state_.exchange(kPermit, std::memory_order_release) == kParked) {
    syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

}  // namespace weft
