// Clock: where time comes from, so that tests and simulations can own it.
//
// Every wait and time-out goes by a Clock. It is steady: the wall clock is for
// logs only.

#ifndef WEFT_BASE_CLOCK_H_
#define WEFT_BASE_CLOCK_H_

#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace weft {

// A point on one Clock. Instants of two clocks have nothing to do with one
// another. Sums saturate: Infinite() stays infinite.
class Instant {
 public:
  constexpr Instant() = default;
  static constexpr Instant FromNanoseconds(int64_t ns) { return Instant(ns); }
  static constexpr Instant Infinite() {
    return Instant(std::numeric_limits<int64_t>::max());
  }

  // Since the clock's own start.
  constexpr int64_t nanoseconds() const { return ns_; }
  constexpr bool is_infinite() const { return *this == Infinite(); }

  Instant& operator+=(absl::Duration d) { return *this = *this + d; }
  Instant& operator-=(absl::Duration d) { return *this = *this - d; }

  friend Instant operator+(Instant a, absl::Duration d) {
    if (a.is_infinite()) return a;
    int64_t sum;
    const int64_t ns = absl::ToInt64Nanoseconds(d);
    if (!__builtin_add_overflow(a.ns_, ns, &sum)) return Instant(sum);
    return ns > 0 ? Infinite() : Instant(std::numeric_limits<int64_t>::min());
  }
  friend Instant operator-(Instant a, absl::Duration d) { return a + -d; }
  friend absl::Duration operator-(Instant a, Instant b) {
    if (a.is_infinite() && !b.is_infinite()) return absl::InfiniteDuration();
    return absl::Nanoseconds(a.ns_) - absl::Nanoseconds(b.ns_);
  }

  friend constexpr bool operator==(Instant a, Instant b) {
    return a.ns_ == b.ns_;
  }
  friend constexpr bool operator!=(Instant a, Instant b) { return !(a == b); }
  friend constexpr bool operator<(Instant a, Instant b) {
    return a.ns_ < b.ns_;
  }
  friend constexpr bool operator>(Instant a, Instant b) { return b < a; }
  friend constexpr bool operator<=(Instant a, Instant b) { return !(b < a); }
  friend constexpr bool operator>=(Instant a, Instant b) { return !(a < b); }

 private:
  explicit constexpr Instant(int64_t ns) : ns_(ns) {}
  int64_t ns_ = 0;
};

// Thread-safety: thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
};

// CLOCK_MONOTONIC, which all processes of a host share.
Clock& SteadyClock();

}  // namespace weft

#endif  // WEFT_BASE_CLOCK_H_
