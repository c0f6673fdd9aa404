#include <algorithm>

#include "weft/ps/shard/table_shard.h"

// For whom what waits here waits.

namespace weft::ps {

std::optional<TableWait> TableShard::Waits(Instant now) const {
  MutexLock lock(mu_);
  absl::Duration waited;
  for (const Parked& parked : parked_) {
    waited = std::max(waited, now - parked.since);
  }
  if (waited < kLongWait) return std::nullopt;
  TableWait wait;
  wait.table = spec().name();
  wait.why = WaitsFor();
  wait.waited = waited;
  if (is_sync()) {
    wait.shards = gate_.shards();
    for (const int shard : gate_.Missing()) {
      if (gate_.OwnerOf(shard) < 0) continue;
      auto& names = gate_.IsOwned(shard) ? wait.workers : wait.expected;
      names.push_back(NameOfTrainer(gate_.OwnerOf(shard)));
    }
    return wait;
  }
  for (const auto& [rank, clock] : clocks_.clocks()) {
    if (clock.at == clocks_.least()) wait.workers.push_back(clock.holder.name);
  }
  return wait;
}

}  // namespace weft::ps
