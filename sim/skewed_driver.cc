#include "weft/sim/skewed_driver.h"

#include "weft/base/check.h"

namespace weft::sim {
namespace {

constexpr int64_t kMillion = 1000000;

// Rounded up. REQUIRES: d > 0.
int64_t MultiplyDivide(int64_t n, int64_t m, int64_t d) {
  const __int128 product = static_cast<__int128>(n) * m;
  return static_cast<int64_t>(product > 0 ? (product + d - 1) / d
                                          : product / d);
}

}  // namespace

SkewedDriver::SkewedDriver(Driver& inner, ClockSkew skew)
    : inner_(inner), skew_(skew), clock_(inner.clock(), skew) {
  WEFT_CHECK_GT(skew.millionths, -kMillion);
}

Instant SkewedDriver::SkewedClock::Now() const {
  const int64_t ns = inner_.Now().nanoseconds();
  // Rounded down, so that a timer set by ToInner is never early.
  const __int128 own =
      static_cast<__int128>(ns) * (kMillion + skew_.millionths) / kMillion;
  return Instant::FromNanoseconds(static_cast<int64_t>(own)) + skew_.offset;
}

Instant SkewedDriver::ToInner(Instant when) const {
  if (when.is_infinite()) return when;
  const absl::Duration own = when - skew_.offset - Instant();
  return Instant::FromNanoseconds(MultiplyDivide(
      absl::ToInt64Nanoseconds(own), kMillion, kMillion + skew_.millionths));
}

}  // namespace weft::sim
