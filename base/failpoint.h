// WEFT_FAILPOINT: a named place where a test can make the world fail.
//
//   WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("checkpoint/before_rename"));
//
// A place does nothing, at the price of one relaxed load, until it is armed: by
// a test (ScopedFailpoint) or, for another process, by the environment:
//
//   WEFT_FAILPOINTS='ps/apply=2*off->crash;net/send=1*error(UNAVAILABLE)'
//
// An action is off, error(CODE) or error(CODE,message), delay(50ms), block
// (until the place is disarmed; a minute later the process ends), or crash
// (ends the process as kill -9 does). `N*` limits it to N hits; `->` says what
// comes after. Past the last one the place is off.

#ifndef WEFT_BASE_FAILPOINT_H_
#define WEFT_BASE_FAILPOINT_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#define WEFT_FAILPOINT(name)                                               \
  (::weft::internal::failpoints_armed.load(std::memory_order_relaxed) == 0 \
       ? ::absl::OkStatus()                                                \
       : ::weft::internal::HitFailpoint(name))

namespace weft {

namespace internal {
// Process-wide, as the places are: how many are armed. Meaningless in
// production, where it stays 0.
extern std::atomic<int> failpoints_armed;

absl::Status HitFailpoint(absl::string_view name);
}  // namespace internal

// kInvalidArgument, with what was expected, if `actions` cannot be read.
// Replaces what was armed under the name.
absl::Status ArmFailpoint(absl::string_view name, absl::string_view actions);
void DisarmFailpoint(absl::string_view name);

// Arms `name=actions;name=actions`.
absl::Status ArmFailpoints(absl::string_view list);

// Arms a place for a scope. REQUIRES: `actions` can be read.
class ScopedFailpoint {
 public:
  ScopedFailpoint(std::string name, absl::string_view actions);
  ~ScopedFailpoint();
  ScopedFailpoint(const ScopedFailpoint&) = delete;
  ScopedFailpoint& operator=(const ScopedFailpoint&) = delete;

  // How often the place was passed while armed.
  int64_t hits() const;

 private:
  const std::string name_;
};

}  // namespace weft

#endif  // WEFT_BASE_FAILPOINT_H_
