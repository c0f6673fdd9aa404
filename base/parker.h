// Parker: a binary semaphore on which one thread sleeps until another wakes it.

#ifndef WEFT_BASE_PARKER_H_
#define WEFT_BASE_PARKER_H_

#include <atomic>
#include <cstdint>

#include "weft/base/clock.h"

namespace weft {

// An Unpark() before the Park() makes that Park() return at once; several
// count as one. What happened before Unpark() is seen after Park().
//
// Thread-safety: one thread parks; any may unpark.
class Parker {
 public:
  Parker() = default;
  Parker(const Parker&) = delete;
  Parker& operator=(const Parker&) = delete;
  virtual ~Parker() = default;

  // For threads that somebody is sure to wake, such as idle workers.
  void Park() { ParkUntil(Instant::Infinite()); }

  // Returns false if `deadline`, on the SteadyClock(), came first.
  bool ParkUntil(Instant deadline);

  // Overridden by a waiter that sleeps elsewhere than in Park(), such as in a
  // completion queue. It may be called under the lock of a Waitable: it must
  // not block, nor call one.
  virtual void Unpark();

 private:
  bool TakePermit();

  // A futex word: 0 empty, 1 permit given, 2 parked.
  std::atomic<uint32_t> state_{0};
};

}  // namespace weft

#endif  // WEFT_BASE_PARKER_H_
