// JobEvent: what a line of Weft's log, which a rank has written, tells of the
// job: a rank that takes part, leaves, or repeats a step since another was
// lost; a server that has its first partitions, or is promoted.

#ifndef WEFT_LAUNCH_RUN_JOB_EVENT_H_
#define WEFT_LAUNCH_RUN_JOB_EVENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace weft::launch {

struct JobEvent {
  // rank_joined, rank_left, step_repeated; of servers server_joined, promoted
  std::string event;
  // -1: of other events.
  int64_t step = -1;   // of trainers: that the rank has taken last
  int64_t ranks = -1;  // rank_joined: how many take part
  // server_joined: how many it serves, or would after a death; promoted: how
  // many it serves that it was the backup of
  int64_t partitions = -1;
};

// The event that `line`, a line of the log as text or as JSON, reports of its
// writer. Nothing for a line that reports none of these, or lacks its number.
std::optional<JobEvent> JobEventIn(absl::string_view line);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_JOB_EVENT_H_
