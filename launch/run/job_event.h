// JobEvent: what a line of Weft's log, which a rank has written, tells of the
// job: a rank that takes part, leaves, or repeats a step since another was
// lost.

#ifndef WEFT_LAUNCH_RUN_JOB_EVENT_H_
#define WEFT_LAUNCH_RUN_JOB_EVENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft::launch {

struct JobEvent {
  std::string event;   // rank_joined, rank_left, step_repeated
  int64_t step = 0;    // that the rank has taken last
  int64_t ranks = -1;  // of rank_joined: how many take part; else -1
};

// The event that `line`, of the log as text or as JSON, tells of who wrote it.
// Of a line that is none of these, or has no step: nothing.
std::optional<JobEvent> JobEventIn(absl::string_view line);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_JOB_EVENT_H_
