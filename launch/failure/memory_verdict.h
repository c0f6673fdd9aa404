// MemoryVerdict: whether a process ended for want of memory.

#ifndef WEFT_LAUNCH_FAILURE_MEMORY_VERDICT_H_
#define WEFT_LAUNCH_FAILURE_MEMORY_VERDICT_H_

#include <string>

#include "weft/launch/failure/failure_facts.h"

namespace weft::launch {

// Whether the kernel killed `rank`, one of `facts`, for want of memory: it was
// killed by SIGKILL, and the kernel's counter has grown; of several that were
// killed at once, those that had the most memory.
bool IsOomKill(const RankReport& rank, const FailureFacts& facts);

// Whether it ended otherwise, and its error says that there was no memory.
bool SaysOutOfMemory(const RankReport& rank);

// "3.0 GiB at most; the kernel killed 1 of this control group ...": what is
// known of its memory; empty: nothing.
std::string MemoryOf(const RankReport& rank, const FailureFacts& facts);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_MEMORY_VERDICT_H_
