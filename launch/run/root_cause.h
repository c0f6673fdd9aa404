// RootCause: which rank a job failed by, of all that have ended.
//
// The rank that is heard of first is often a victim: it ends because a peer of
// it stands still, is dead, or has failed itself. FindRootCause goes by
// evidence: how each rank ended before it was asked to, which did not end when
// they were asked, and whom the victims' errors name.

#ifndef WEFT_LAUNCH_RUN_ROOT_CAUSE_H_
#define WEFT_LAUNCH_RUN_ROOT_CAUSE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::launch {

// The ranks of a role are ROLE0 to ROLE<count - 1>, on all nodes.
struct RoleSize {
  std::string role;
  int count = 0;
};

struct RankEnd {
  enum class How {
    kWell,      // with 0, or after it was asked to end
    kFailed,    // by itself: an exit code of its own, or killed by a signal
    kLostPeer,  // with exit code 10 or 11: a peer is gone or late
    kStopped,   // by SIGSTOP or a debugger, while the others failed
    kHung,      // it did not end when it was asked to
  };

  std::string name;  // ps1
  How how = How::kWell;
  // Of those that failed or lost a peer: the order in which they ended.
  int order = 0;
  // The last line that it wrote: of a failure, its error.
  std::string last_line;
};

struct RootCause {
  std::string rank;
  // Whether it is one of the ranks that were given. If not, it runs elsewhere.
  bool is_here = true;
  // Whose error names it; empty: nobody's, or it was found by itself. Of one
  // that runs elsewhere nothing else is known.
  std::string victim;
  // A rank that is here, which the error of `rank`, or of one that it lost,
  // names, though it ended when it was asked to and nothing shows that it
  // failed; empty: none.
  std::string suspect;
};

// The root cause of the failure that was heard of by the end of `first`, one of
// `ranks`. `roles`: of the job's ranks, also those that run elsewhere.
RootCause FindRootCause(absl::Span<const RankEnd> ranks,
                        absl::string_view first,
                        absl::Span<const RoleSize> roles);

// The ranks that `line`, which `self` has written, names: words such as ps1, of
// ranks that the job has, and "rank 2" where it tells of the group of all ranks
// of a role (ROLE/world); without `self`, each once, in this order.
std::vector<std::string> RanksNamedIn(absl::string_view line,
                                      absl::string_view self,
                                      absl::Span<const RoleSize> roles);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_ROOT_CAUSE_H_
