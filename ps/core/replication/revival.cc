#include "weft/ps/core/replication/revival.h"

#include <algorithm>

namespace weft::ps {

std::vector<MapChange> Revivals(const PartitionMap& map, WorkerKey self,
                                const std::set<WorkerKey>& owners,
                                absl::FunctionRef<bool(int entry)> is_whole,
                                bool is_patient) {
  std::vector<MapChange> changes;
  if (map.StateOf(self) != PartitionMap::State::kLive || map.is_restoring()) {
    return changes;
  }
  for (int i = 0; i < map.entries(); ++i) {
    const std::vector<WorkerKey>& heirs = map.entry(i).heirs;
    const auto heir =
        std::find_if(heirs.begin(), heirs.end(),
                     [&](WorkerKey key) { return key.id == self.id; });
    if (heir == heirs.end()) continue;
    MapChange change;
    change.entry = i;
    change.changed = map.entry(i).changed;
    change.server = self.id;
    if (owners.count(*heir) == 0 || !is_whole(i)) {
      change.kind = MapChange::Kind::kDisown;
    } else if (is_patient && heir != heirs.begin()) {
      continue;
    } else {
      change.kind = MapChange::Kind::kRevive;
    }
    changes.push_back(change);
  }
  return changes;
}

}  // namespace weft::ps
