// FailureFacts: what is known of a job, or of a part of it, that has failed.

#ifndef WEFT_LAUNCH_FAILURE_FAILURE_FACTS_H_
#define WEFT_LAUNCH_FAILURE_FAILURE_FACTS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/launch/failure/exit.h"
#include "weft/launch/failure/oom_kills.h"
#include "weft/launch/failure/root_cause.h"

namespace weft::launch {

// A rank of this node that has ended.
struct RankReport {
  std::string name;
  pid_t pid = 0;
  Exit exit;
  absl::Duration after;    // from the ranks' start to its end
  int64_t peak_bytes = 0;  // of memory that it had at a time; 0: unknown
  // Processes that the kernel killed for want of memory since the launcher had
  // heard of an end before: of this one, or of another that was heard of
  // together with it.
  OomKills oom_kills;
  // The number of the look at which its end was heard of: ranks with one number
  // share `oom_kills`.
  int look = 0;
  bool was_asked = false;    // to end, before it ended
  bool was_stopped = false;  // by SIGSTOP or a debugger, when the job failed
  bool was_killed = false;   // by the launcher, since it did not end when asked
  std::vector<std::string> tail;  // its last lines, of both streams
};

struct FailureFacts {
  std::vector<RankReport> ranks;
  std::string first;            // of `ranks`: by whose end it was heard of
  std::vector<RoleSize> roles;  // of all ranks of the job
  std::string host;
  std::string log_dir;  // empty: none
  // The job goes on without them, or with others in their place: it has shrunk.
  bool is_shrunk = false;
  int going_on = 0;  // then: how many ranks of this node have not ended
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_FAILURE_FACTS_H_
