#include "weft/ps/core/replication/dropped_servers.h"

#include <algorithm>

namespace weft::ps {
namespace {

using Entry = PartitionMap::Entry;

bool HasPart(const Entry& entry, WorkerKey server) {
  return entry.primary == server || entry.backup == server ||
         entry.next == server;
}

// A move ends with a copy that is in sync: the `next` that has taken the
// backup's place, or the primary that its old backup stands by for.
bool IsEndOfMove(const Entry& before, const Entry& after) {
  return after.in_sync && after.primary == before.primary &&
         !IsNone(before.next) && after.backup == before.next;
}

// Whether `server`, of `before`, was dropped; it may have been chosen again
// since, to be filled.
bool IsDropped(const Entry& before, const Entry& after, WorkerKey server) {
  if (IsNone(server)) return false;
  if (!HasPart(after, server)) return !IsEndOfMove(before, after);
  const bool had_all =
      server == before.primary || (server == before.backup && before.in_sync);
  return had_all && server == after.backup && !after.in_sync;
}

}  // namespace

void DroppedServers::OnChange(const PartitionMap& before,
                              const PartitionMap& after, Instant now) {
  const int entries = std::min(before.entries(), after.entries());
  for (int i = 0; i < entries; ++i) {
    const Entry& old = before.entry(i);
    const Entry& entry = after.entry(i);
    if (old.changed == entry.changed) continue;
    for (const WorkerKey server : {old.primary, old.backup, old.next}) {
      if (!IsDropped(old, entry, server)) continue;
      if (after.StateOf(server) != PartitionMap::State::kLive) continue;
      until_[server] = now + kAvoidFor;
    }
  }
}

std::set<WorkerKey> DroppedServers::At(Instant now) const {
  std::set<WorkerKey> dropped;
  for (const auto& [server, until] : until_) {
    if (now < until) dropped.insert(server);
  }
  return dropped;
}

}  // namespace weft::ps
