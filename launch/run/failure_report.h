// FailureReport: what `weft run` writes of a job that has failed: the root
// cause first, and the other ranks behind it.

#ifndef WEFT_LAUNCH_RUN_FAILURE_REPORT_H_
#define WEFT_LAUNCH_RUN_FAILURE_REPORT_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/launch/run/child.h"
#include "weft/launch/run/root_cause.h"

namespace weft::launch {

// A rank of this node, once all have ended.
struct RankReport {
  std::string name;
  pid_t pid = 0;
  Exit exit;
  absl::Duration after;      // from the ranks' start to its end
  int64_t peak_bytes = 0;    // of memory that it had at a time; 0: unknown
  bool was_asked = false;    // to end, before it ended
  bool was_stopped = false;  // by SIGSTOP or a debugger, when the job failed
  bool was_killed = false;   // since it did not end when asked
  std::vector<std::string> tail;  // its last lines, of both streams
};

struct FailureFacts {
  std::vector<RankReport> ranks;
  std::string first;            // of `ranks`: by whose end it was heard of
  std::vector<RoleSize> roles;  // of all ranks of the job
  std::string host;
  std::string log_dir;  // empty: none
  // Processes that the kernel has killed for want of memory on this host since
  // the ranks began; negative: unknown.
  int64_t oom_kills = -1;
};

// Whether it ended since a peer is gone, or late (exit codes 10 and 11).
bool HasLostPeer(const Exit& exit);

RootCause RootCauseOf(const FailureFacts& facts);

// Lines, the last with its end too.
std::string FailureReport(const FailureFacts& facts, const RootCause& cause);

// How a rank ended, in words.
std::string HowItEnded(const RankReport& rank);

// Of the whole host since it was booted; negative where the kernel does not
// say.
int64_t OomKills();
// Whether process `pid` is stopped by a signal or traced.
bool IsStopped(pid_t pid);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_FAILURE_REPORT_H_
