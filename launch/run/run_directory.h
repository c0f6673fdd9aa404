// RunDirectory: the directory in which the ranks of one `weft run` meet.

#ifndef WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_
#define WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_

#include <string>
#include <vector>

namespace weft::launch {

// Removes what ranks that have ended left in `directory`, and it, but for the
// flight recordings (*.flight) that their log names: their paths, of which the
// directory stays.
std::vector<std::string> SweepRunDirectory(const std::string& directory);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_RUN_DIRECTORY_H_
