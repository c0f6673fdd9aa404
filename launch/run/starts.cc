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
  quick_ends_ = now - began_at_ < kQuickEnd ? quick_ends_ + 1 : 0;
  const bool has_joined = joined_at_ != Instant::Infinite();
  const bool was_futile =
      has_joined ? now - joined_at_ < kQuickEnd : now - began_at_ < kLife;
  futile_ = was_futile ? futile_ + 1 : 0;
}

absl::Duration Starts::Pause() const {
  if (futile_ < kMostQuickEnds) return absl::ZeroDuration();
  // Doubled so often that it is longer than the longest.
  const int doublings = std::min(futile_ - kMostQuickEnds, 10);
  return std::min(kFirstPause * (1 << doublings), kLongestPause);
}

}  // namespace weft::launch
