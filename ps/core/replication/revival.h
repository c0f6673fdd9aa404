// Revivals: what a server that has come back with its log asks the map for.
//
// An entry that has lost all copies names its heirs. One that has in its log
// what it had as one of them becomes the primary of it; one that has not says
// so, so that nobody waits for it.
//
// Pure. Thread-safety: a pure function.

#ifndef WEFT_PS_CORE_REPLICATION_REVIVAL_H_
#define WEFT_PS_CORE_REPLICATION_REVIVAL_H_

#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {

// The changes that `self` wants. `owners`: the earlier incarnations of it that
// wrote the log which it has read. `is_whole(entry)`: whether that has all of
// the entry. `is_patient`: it asks only for what it was the primary of, since
// the others may come back as well.
std::vector<MapChange> Revivals(const PartitionMap& map, WorkerKey self,
                                const std::set<WorkerKey>& owners,
                                absl::FunctionRef<bool(int entry)> is_whole,
                                bool is_patient);

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REPLICATION_REVIVAL_H_
