// RateChanges: what a table's learning rate is multiplied by, by round.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_RATE_CHANGES_H_
#define WEFT_PS_CORE_RATE_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::ps {

class RateChanges {
 public:
  // The most changes of rounds to come that may be known.
  static constexpr size_t kMost = 4096;

  // Sets the scale of `round` and those after it, until the next change. `open`
  // is the round that is not closed yet. The same change may come again, from
  // any worker.
  //   kInvalidArgument     `scale` is not finite, or is negative
  //   kFailedPrecondition  `round` is closed, or has another change
  //   kResourceExhausted   kMost
  absl::Status Set(int64_t round, double scale, int64_t open);
  // Sets the scale from now on, whatever the round.
  absl::Status SetAlways(double scale);

  double At(int64_t round) const;  // 1 before the first change

  // Forgets what At(open) and later rounds do not need.
  void Trim(int64_t open);

  // "7:0.5 9:0.25", exact; empty without a change.
  std::string Format() const;
  // kInvalidArgument if it is nothing that Format() writes.
  static absl::StatusOr<RateChanges> Parse(absl::string_view text);
  // Adds those of another server's part of the table. kFailedPrecondition if
  // they differ in a round.
  absl::Status Merge(const RateChanges& other);

 private:
  std::map<int64_t, double> changes_;  // the scale, by its first round
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_RATE_CHANGES_H_
