// GroupOptions: what a ProcessGroup, and those made from it, have in common.

#ifndef WEFT_COLLECTIVES_GROUP_OPTIONS_H_
#define WEFT_COLLECTIVES_GROUP_OPTIONS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/collectives/abort_source.h"
#include "weft/telemetry/flight_recorder.h"

namespace weft::collectives {

struct GroupOptions {
  // Used in messages, and as the prefix of the names of groups made from it.
  std::string name = "world";
  // Timeout of an operation that has none of its own.
  absl::Duration timeout = absl::Minutes(5);
  // Gets "collective.start" and "collective.end" of each operation: the group
  // and the verb, the number of the operation, and its fingerprint (start) or
  // status code (end). `weft dump` compares those of all ranks. Null: none.
  // Must outlive the group.
  telemetry::FlightRecorder* recorder = nullptr;
  // Called once when a collective operation, of this group or of one made from
  // it, has ended in the kDeadlineExceeded or kFailedPrecondition that breaks
  // the group, on the thread of that operation: so that what all ranks have
  // recorded can be kept, and compared. May be null. Must not call the group.
  std::function<void(const absl::Status& why)> on_broken = nullptr;
  // Can end this group and those made from it from outside; null: nothing can.
  std::shared_ptr<AbortSource> abort_source = nullptr;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_OPTIONS_H_
