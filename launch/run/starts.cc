// Starts: see the header.

#include "weft/launch/run/starts.h"

#include <algorithm>

namespace weft::launch {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Minutes(1);
// A process that lives so long has not failed at its start, whatever it did.
constexpr absl::Duration kLife = absl::Minutes(1);

}  // namespace

void Starts::Begin(Instant now) {
  began_at_ = now;
  joined_at_ = Instant::Infinite();
}

void Starts::End(Instant now) {
  const bool has_joined = joined_at_ != Instant::Infinite();
  const bool was_quick = now - began_at_ < kQuickEnd;
  quick_ends_ = was_quick ? quick_ends_ + 1 : 0;
  idle_ends_ = was_quick && !has_joined ? idle_ends_ + 1 : 0;
  const bool was_futile =
      has_joined ? now - joined_at_ < kQuickEnd : now - began_at_ < kLife;
  futile_ = was_futile ? futile_ + 1 : 0;
}

absl::Duration Starts::PauseAfter(int ends) {
  if (ends < kMostQuickEnds) return absl::ZeroDuration();
  // Doubled so often that it is longer than the longest.
  const int doublings = std::min(ends - kMostQuickEnds, 10);
  return std::min(kFirstPause * (1 << doublings), kLongestPause);
}

}  // namespace weft::launch
