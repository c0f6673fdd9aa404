#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/cell.h"
#include "weft/ps/replicated/replicated_table.h"

// What a partition of a table of durability LOGGED writes to the server's log,
// and what it finds there.

namespace weft::ps {

absl::Status ReplicatedTable::Recover(LoggedTable& logged) {
  Work work;
  for (const auto& of_partition : cells_) {
    Cell* const cell = of_partition.get();
    if (cell == nullptr || logged.IsVoid(cell->partition)) continue;
    const auto it = logged.partitions.find(cell->partition);
    LoggedPartition none;
    LoggedPartition& found = it == logged.partitions.end() ? none : it->second;
    MutexLock lock(cell->mu);
    for (size_t i = 0; i < found.pieces.size(); ++i) {
      absl::StatusOr<PartitionCopy> copy =
          DecodeCopy(found.pieces[i], *layout_, placement_, cell->partition);
      if (!copy.ok()) return absl::DataLossError(copy.status().message());
      i == 0 ? cell->rows.Load(copy->image) : cell->rows.Add(copy->image);
      if (i == 0) cell->clocks.Load(copy->clocks);
      cell->rates = copy->rates;
      found.pieces[i] = Bytes();
    }
    for (const OpenClients::Opening& opening : found.openings) {
      // Else its clock would be dropped. One whose worker is gone is closed by
      // what this server hears of that, as of each that was here before.
      MutexLock table_lock(mu_);
      OpenLocked(opening);
    }
    cell->rounds = RoundsOf(found.marks);
    for (const LogEntry& entry : found.entries) {
      const absl::Status fits =
          DecodeFrame(entry.payload, *layout_, placement_, cell->partition)
              .status();
      if (!fits.ok()) return absl::DataLossError(fits.message());
    }
    cell->replica.Recover(found.n, found.marks, found.entries);
    Do(*cell, work);
    found.FreeRows();
  }
  return absl::OkStatus();
}

TableLog::Place ReplicatedTable::PlaceOf(const Cell& cell, uint64_t n) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  return {log_number_, cell.partition, cell.content, n};
}

void ReplicatedTable::LogCopy(Cell& cell, uint64_t n,
                              Marks marks) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!is_logged()) return;
  std::vector<OpenClients::Opening> openings;
  if (has_clocks()) {
    MutexLock lock(mu_);
    openings = clients_.All();
  }
  options_.log->AppendCopy(
      PlaceOf(cell, n), std::move(marks), std::move(openings),
      std::make_shared<const CopyInPieces>(*layout_, cell.rows.Image(),
                                           cell.rates, options_.piece_bytes,
                                           cell.clocks.Save()));
}

void ReplicatedTable::LogDrop(Cell& cell) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  ++cell.content;
  if (is_logged()) options_.log->AppendDrop(PlaceOf(cell, 0));
}

void ReplicatedTable::OnDisk(const std::vector<TableLog::Place>& places) {
  Work work;
  for (const TableLog::Place& place : places) {
    On(
        place.partition,
        [&](Cell& cell, const Now& now, Work&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          // What was on disk of another copy says nothing of this one.
          if (place.content == cell.content) {
            cell.replica.OnDurable(place.n, now);
          }
        },
        work);
  }
  Finish(std::move(work));
}

bool ReplicatedTable::CopyToLog() {
  if (!is_logged()) return true;
  for (const auto& of_partition : cells_) {
    Cell* const cell = of_partition.get();
    if (cell == nullptr) continue;
    {
      MutexLock lock(cell->mu);
      if (!cell->replica.has_content()) continue;
      LogCopy(*cell, cell->replica.end(), cell->replica.applied());
    }
    // One copy at a time is in memory.
    if (!options_.log->Await().ok()) return false;
  }
  return true;
}

absl::Status ReplicatedTable::LogStatus() const {
  const absl::Status log = options_.log->status();
  if (log.ok()) return log;
  return absl::Status(
      log.code(),
      absl::StrCat("table '", spec().name(), "' on ", options_.self.ToString(),
                   " cannot be logged: ", log.message()));
}

void ReplicatedTable::EndUnlogged(Cell& cell, const absl::Status& refused,
                                  Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (auto& [token, pushing] : cell.pushes) {
    if (pushing.call->Answer(pushing.span, Answer(), refused)) {
      work.End(pushing.call);
    }
  }
  cell.pushes.clear();
}

}  // namespace weft::ps
