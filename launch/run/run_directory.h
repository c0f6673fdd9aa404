// RunDirectory: the directory in which the ranks of a `weft run` have their
// sockets on this host.

#ifndef WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_
#define WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace weft::launch {

// Removes what ranks that have ended left in `directory`, and it, but for the
// flight recordings (*.flight) that their log names: their paths, of which the
// directory stays.
std::vector<std::string> SweepRunDirectory(const std::string& directory);

// How long recordings of an ended run are kept.
inline constexpr absl::Duration kKeepRecordings = absl::Hours(24);

// Removes, beside `directory`, the directories of ended runs ("run-...") that
// hold nothing but flight recordings, all older than kKeepRecordings at `now`.
// Others' files and directories stay.
void RemoveOldRecordings(const std::string& directory, absl::Time now);

// Removes from the `directory` of a job what no process uses any more: sockets
// of ranks that were killed, their count of shared memory and RunLocks; and the
// directory if nothing is left. Others on this host may be of the job, too:
// what they use stays, as do all other files.
void SweepJobDirectory(const std::string& directory);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_
