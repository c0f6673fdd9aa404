// OomKills: how many processes the kernel has killed for want of memory.

#ifndef WEFT_LAUNCH_FAILURE_OOM_KILLS_H_
#define WEFT_LAUNCH_FAILURE_OOM_KILLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::launch {

// Negative where the kernel does not say.
struct OomKills {
  // Kills in the control group of this process (a container, a unit of systemd)
  // and in those below it.
  int64_t cgroup = -1;
  int64_t host = -1;  // since it was booted
};

OomKills ReadOomKills();

// The kills between two times; a count that either lacks is unknown.
OomKills Between(const OomKills& before, const OomKills& now);

// The files that may have the counter of a control group, those of most weight
// first, as `groups`, the text of /proc/self/cgroup, names it: memory.events of
// version 2, memory.oom_control of version 1.
std::vector<std::string> CounterFiles(absl::string_view groups);

// The value in the line "oom_kill N" of such a file, or of /proc/vmstat;
// negative if there is none.
int64_t CounterIn(absl::string_view text);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_OOM_KILLS_H_
