// HowOf: what the end of a process, and its last words, say of the reason.

#ifndef WEFT_LAUNCH_FAILURE_HOW_IT_ENDED_H_
#define WEFT_LAUNCH_FAILURE_HOW_IT_ENDED_H_

#include <string>
#include <vector>

#include "weft/launch/failure/exit.h"
#include "weft/launch/failure/failure_facts.h"
#include "weft/launch/failure/root_cause.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {

RankEnd::How HowOf(const RankReport& rank);

// The signal that ended it; of a shell the one that ended its program. 0: none.
int SignalOf(const Exit& exit);

bool Is(const Exit& exit, worker::ExitCode code);

// Whether it ended since a peer is gone, or late (exit codes 10 and 11).
bool HasLostPeer(const Exit& exit);

// Whether it refused its command line, a file or a value (2, 3, 20).
bool IsRefusal(const Exit& exit);

// Whether its exit code says that the rank itself is the reason: those of
// IsRefusal, and 12, 13 and 14.
bool IsOwnCode(const Exit& exit);

// The lines from its last error on; else the last line.
std::string ErrorOf(const std::vector<std::string>& tail);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_HOW_IT_ENDED_H_
