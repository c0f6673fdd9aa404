// IsWoken, Becomes: how a test waits for what must come: for a minute, and
// then it fails.
//
//   EXPECT_TRUE(IsWoken(gate.entered));
//   EXPECT_TRUE(Becomes([&] { return answered.load() > 20; }));

#ifndef WEFT_TESTS_SUPPORT_PATIENCE_H_
#define WEFT_TESTS_SUPPORT_PATIENCE_H_

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"

namespace weft::testing {

// Longer than any wait that ends well.
inline constexpr absl::Duration kPatience = absl::Minutes(1);

inline ::testing::AssertionResult GaveUp() {
  return ::testing::AssertionFailure()
         << "not within " << absl::FormatDuration(kPatience);
}

// Whether somebody unparks it.
inline ::testing::AssertionResult IsWoken(Parker& parker) {
  if (!parker.ParkUntil(SteadyClock().Now() + kPatience)) return GaveUp();
  return ::testing::AssertionSuccess();
}

// Whether `condition`, asked over and over, is ever true.
inline ::testing::AssertionResult Becomes(absl::FunctionRef<bool()> condition) {
  const Instant deadline = SteadyClock().Now() + kPatience;
  while (!condition()) {
    if (SteadyClock().Now() > deadline) return GaveUp();
    // Not a core's whole time, which those may need that it waits for.
    absl::SleepFor(absl::Microseconds(200));
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_PATIENCE_H_
