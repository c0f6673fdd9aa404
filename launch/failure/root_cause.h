// RootCause: which rank a job failed by, of all that have ended.
//
// The rank that is heard of first is often a victim: it ends because a peer of
// it stands still, is dead, or has failed itself. FindRootCause goes by
// evidence: how each rank ended before it was asked to, which did not end when
// they were asked, and whom the victims' errors name.

#ifndef WEFT_LAUNCH_FAILURE_ROOT_CAUSE_H_
#define WEFT_LAUNCH_FAILURE_ROOT_CAUSE_H_

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace weft::launch {

// The ranks of a role are ROLE0 to ROLE<count - 1>, on all nodes.
struct RoleSize {
  std::string role;
  int count = 0;
};

struct RankEnd {
  enum class How {
    kWell,        // with 0, or as one ends that was asked to
    kCrashed,     // by a signal that no end of a peer is the reason of, and
                  // that the launcher has not sent
    kFailed,      // with an exit code that says what is wrong here
    kUnclear,     // with one that says nothing of the reason (1), or aborted:
                  // a peer that is lost may be the reason
    kLostPeer,    // with exit code 10 or 11: a peer is gone or late
    kStopped,     // by SIGSTOP or a debugger, while the others failed
    kFailedLate,  // with an error of its own, or by a signal as above, after it
                  // was asked to end
    kHung,        // it did not end when it was asked to
  };

  std::string name;  // ps1
  How how = How::kWell;
  // The order in which they ended.
  int order = 0;
  // The last line that it wrote: the error, if it failed.
  std::string last_line;
  absl::Duration after = absl::ZeroDuration();  // from the start to its end
};

struct RootCause {
  std::string rank;
  // Whether it is one of the ranks that were given. If not, it runs elsewhere.
  bool is_here = true;
  // The rank whose error names it; empty: no error does, or the cause was found
  // without one. If it runs elsewhere, nothing else is known of it.
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

// Those of `ranks` that failed since a peer is gone or late: by their exit
// codes; or unclear ones whose error names a rank that has failed or stands
// still, or beside which another crashed.
std::set<std::string> VictimsIn(absl::Span<const RankEnd> ranks,
                                absl::Span<const RoleSize> roles);

// Whether something but the words of others speaks against it.
bool IsEvident(const RankEnd& rank);

// The ranks that `line`, which `self` has written, names: words such as ps1, of
// ranks that the job has, and "rank 2" where it tells of the group of all ranks
// of a role (ROLE/world); without `self`, each once, in this order.
std::vector<std::string> RanksNamedIn(absl::string_view line,
                                      absl::string_view self,
                                      absl::Span<const RoleSize> roles);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_ROOT_CAUSE_H_
