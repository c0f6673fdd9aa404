// EndNotes: what the launcher notes of its processes while they run and as they
// end, for the table of a failure.

#ifndef WEFT_LAUNCH_RUN_END_NOTES_H_
#define WEFT_LAUNCH_RUN_END_NOTES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/launch/failure/failure_facts.h"
#include "weft/launch/failure/oom_kills.h"
#include "weft/launch/run/child.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class EndNotes {
 public:
  // The ranks are about to be started.
  void Begin(Instant now);

  // To be called when one or more have ended, before they are reaped. Those
  // that end between two looks share what the kernel's counter tells.
  void Look();
  // `child` has ended in this look, been reaped, and its output read.
  void End(const Child& child, Instant now);

  // `child` is about to be asked to end: whether it has already, and whether it
  // is stopped, only shows now.
  void Ask(const Child& child);
  // Whether `child`, which is not asked, is stopped.
  void NoteStopped(const Child& child);
  // `child` is killed, since it did not end when it was asked, or holds the
  // others up.
  void Kill(const Child& child);

  bool was_stopped(const std::string& name) const {
    return stopped_.count(name) > 0;
  }

  // The report of `child`, whether it has ended or not.
  RankReport ReportOf(const Child& child) const;

  // The reports of those that failed within the last 5 s; the newest one of
  // each name.
  std::vector<RankReport> FailedLately(Instant now) const;

 private:
  struct EndOf {
    absl::Duration after = absl::ZeroDuration();
    OomKills oom_kills;
    int look = 0;
  };

  Instant began_at_;
  OomKills oom_kills_;            // when it was looked last
  OomKills oom_kills_meanwhile_;  // and since the look before
  int look_ = 0;
  std::map<std::string, EndOf> ends_;  // by name
  std::set<std::string> asked_, stopped_;
  std::set<pid_t> killed_;  // another process may take the name
  std::map<std::string, RankReport> failed_;  // by name
};

// Whether the process has ended, if it was not reaped yet.
bool HasProcessEnded(const Child& child);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_END_NOTES_H_
