#include "weft/net/loop/alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace weft::net {
namespace {

constexpr absl::Duration kNapWithoutTimer = absl::Milliseconds(4);

// All zeros would stop the timer.
timespec TimeOf(Instant when) {
  const int64_t ns = when.is_infinite()
                         ? 0
                         : std::max<int64_t>(when.nanoseconds(), int64_t{1});
  timespec time{};
  time.tv_sec = ns / 1'000'000'000;
  time.tv_nsec = ns % 1'000'000'000;
  return time;
}

}  // namespace

// The SteadyClock() is CLOCK_MONOTONIC.
Alarm::Alarm() : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (timer_.get() < 0) {
    status_ = absl::ErrnoToStatus(errno, "a timer of the event loop");
  }
}

void Alarm::Set(Instant when) {
  itimerspec setting{};
  setting.it_value = TimeOf(when);
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

void Alarm::Wait() {
  if (!status_.ok()) {
    absl::SleepFor(kNapWithoutTimer);
    return;
  }
  uint64_t rung;
  (void)!read(timer_.get(), &rung, sizeof rung);
}

}  // namespace weft::net
