// FakeTimers: timers and a driver whose time passes where somebody waits.

#ifndef WEFT_RENDEZVOUS_CLIENT_FAKE_TIMERS_H_
#define WEFT_RENDEZVOUS_CLIENT_FAKE_TIMERS_H_

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/fake_clock.h"
#include "weft/rendezvous/coordinator_link.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class FakeTimers final : public TimerSource, public Driver {
 public:
  Driver& driver() override { return *this; }
  Clock& clock() override { return clock_; }
  bool Wait(Waitable& what, Instant) override { return what.IsReady(); }
  void RunAfter(absl::Duration delay,
                absl::AnyInvocable<void() &&> fn) override {
    clock_.Advance(delay);
    std::move(fn)();
  }
  Instant now() const { return clock_.Now(); }
  void Pass(absl::Duration time) { clock_.Advance(time); }

 private:
  FakeClock clock_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_FAKE_TIMERS_H_
