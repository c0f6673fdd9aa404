#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/ps/replicated/cell.h"
#include "weft/ps/replicated/replicated_table.h"

// For whom what waits here waits.

namespace weft::ps {

absl::Duration ReplicatedTable::Waited(Cell& cell, Instant now) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  absl::Duration waited;
  // A client that waits until its pushes are stable has no pull here.
  if (!is_sync() || !cell.gate.HasParts()) {
    cell.begun_round = -1;
  } else if (cell.begun_round != cell.gate.open()) {
    cell.begun_round = cell.gate.open();
    cell.begun_at = now;
  } else {
    waited = now - cell.begun_at;
  }
  for (const auto& [token, reading] : cell.reads) {
    if (reading.is_parked) waited = std::max(waited, now - reading.since);
  }
  return waited;
}

void ReplicatedTable::AddWorkers(
    const Cell& cell, std::set<std::string>& workers,
    std::set<std::string>& expected) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (is_sync()) {
    for (const int shard : cell.gate.Missing()) {
      const int owner = cell.gate.OwnerOf(shard);
      if (owner < 0) continue;
      auto& names = cell.gate.IsOwned(shard) ? workers : expected;
      names.insert(NameOfTrainer(owner));
    }
    return;
  }
  const ClockGate& gate = cell.clocks.gate();
  for (const auto& [rank, clock] : gate.clocks()) {
    if (clock.at == gate.least()) workers.insert(clock.holder.name);
  }
}

std::optional<TableWait> ReplicatedTable::Waits(Instant now) {
  std::optional<TableWait> wait;
  std::set<std::string> workers, expected;
  for (const auto& of_partition : cells_) {
    Cell* const cell = of_partition.get();
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    if (!cell->replica.is_primary()) continue;
    const absl::Duration waited = Waited(*cell, now);
    if (waited < kLongWait) continue;
    AddWorkers(*cell, workers, expected);
    if (wait.has_value()) {
      wait->waited = std::max(wait->waited, waited);
      continue;
    }
    wait.emplace();
    wait->waited = waited;
    wait->table = spec().name();
    wait->why = absl::StrCat(
        "partition ", cell->partition, ": ",
        is_sync() ? absl::StrCat("round ", cell->gate.open(), " waits for ",
                                 MissingParts(*cell))
                  : SlowestClock(*cell));
  }
  if (!wait.has_value()) return wait;
  wait->workers.assign(workers.begin(), workers.end());
  wait->expected.assign(expected.begin(), expected.end());
  wait->shards = is_sync() ? spec().shards() : 0;
  return wait;
}

}  // namespace weft::ps
