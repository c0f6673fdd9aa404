// RankMark: a variable in the environment of a rank, by which its processes are
// found that have left its process group.
//
// A process that begins a session of its own (setsid) is in no group that the
// launcher knows, and has another parent once its own has ended. It inherits
// the environment all the same. One that also clears its environment is not
// found.

#ifndef WEFT_LAUNCH_RUN_RANK_MARK_H_
#define WEFT_LAUNCH_RUN_RANK_MARK_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::launch {

inline constexpr char kRankMark[] = "LAUNCHED_BY_WEFT_RUN";

// Different for each launcher of this host.
std::string DrawLauncherId();

// The values of kRankMark: of one rank of a launcher, and what those of all its
// ranks begin with.
std::string MarkOf(absl::string_view launcher, int restart,
                   absl::string_view rank);
std::string MarkOfAll(absl::string_view launcher);

// Kills every process of this user, but this one, whose mark begins with one of
// `marks`, until none is left, for 2 s at most.
void KillMarked(const std::vector<std::string>& marks);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_RANK_MARK_H_
