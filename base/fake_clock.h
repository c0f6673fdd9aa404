// FakeClock: a Clock that stands still until a test moves it.

#ifndef WEFT_BASE_FAKE_CLOCK_H_
#define WEFT_BASE_FAKE_CLOCK_H_

#include <atomic>

#include "weft/base/clock.h"

namespace weft {

// Thread-safety: thread-safe.
class FakeClock final : public Clock {
 public:
  Instant Now() const override {
    return Instant::FromNanoseconds(ns_.load(std::memory_order_acquire));
  }
  void Advance(absl::Duration by) {
    ns_.fetch_add(absl::ToInt64Nanoseconds(by), std::memory_order_acq_rel);
  }

 private:
  std::atomic<int64_t> ns_{0};
};

}  // namespace weft

#endif  // WEFT_BASE_FAKE_CLOCK_H_
