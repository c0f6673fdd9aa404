// Alarm: a thread's sleep until a time that others may change meanwhile, to a
// later time too, without waking it. A condition variable or futex has to wake
// the thread for that, which costs two switches of a core.

#ifndef WEFT_NET_LOOP_ALARM_H_
#define WEFT_NET_LOOP_ALARM_H_

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/net/edge/descriptor.h"

namespace weft::net {

// Thread-safety: thread-safe. One thread at a time waits.
class Alarm {
 public:
  // Not set: nothing ends a wait.
  Alarm();

  // kResourceExhausted: the process may open no more files. Set() then has no
  // effect, and Wait() returns after a few milliseconds.
  absl::Status status() const { return status_; }

  // In place of the time set before: it rings at `when` of the SteadyClock(),
  // at once if that has passed, never at Instant::Infinite(). A system call of
  // about a microsecond.
  void Set(Instant when);

  // Sleeps until it rings; returns at once if it has rung since it was last set
  // or waited for. It may also return earlier.
  void Wait();

 private:
  absl::Status status_;
  Descriptor timer_;
};

}  // namespace weft::net

#endif  // WEFT_NET_LOOP_ALARM_H_
