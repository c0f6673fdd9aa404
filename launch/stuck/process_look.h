// ProcessLook: what /proc says of a process, to tell one that computes from one
// that sleeps or is stopped.

#ifndef WEFT_LAUNCH_STUCK_PROCESS_LOOK_H_
#define WEFT_LAUNCH_STUCK_PROCESS_LOOK_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace weft::launch {

struct ProcessLook {
  pid_t pid = 0;
  char state = '?';    // of its main thread: R, S, D, T, t, Z
  absl::Duration cpu;  // of all its threads, since its start

  bool is_stopped() const { return state == 'T' || state == 't'; }
};

// The state of process `pid`; nothing if there is none. If it waits for
// processes that it has started, as a shell does, their CPU time is counted
// too, and if one of them is stopped, `pid` and `state` are those of that one.
std::optional<ProcessLook> LookAt(pid_t pid);

// Reads the text of /proc/PID/stat, where a second has `ticks`. Nothing if it
// is no such text.
std::optional<ProcessLook> ParseProcessStat(absl::string_view text,
                                            int64_t ticks);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_PROCESS_LOOK_H_
