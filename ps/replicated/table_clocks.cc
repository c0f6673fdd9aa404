#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/ps/replicated/cell.h"
#include "weft/ps/replicated/replicated_table.h"

// With a staleness: the clocks of the workers in each partition.

namespace weft::ps {

absl::Status ReplicatedTable::WhyNotClock(
    const Cell& cell, ClockGate::Answer answer, int rank,
    int64_t clock) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  return cell.clocks.gate().StatusOf(
      answer,
      absl::StrCat("table '", spec().name(), "' partition ", cell.partition,
                   " on ", options_.self.ToString()),
      rank, clock);
}

absl::Status ReplicatedTable::CheckClock(
    const Cell& cell, const Caller& caller, const v1::PushRequest& request,
    const PushRequest& push, const Frame& frame, const Now& now,
    Bytes& payload) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (frame.rank != request.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec().name(), "' partition ", cell.partition,
                     ": clock of rank ", frame.rank, " pushed as rank ",
                     request.rank(), ": wanted the same rank"));
  }
  // If not, the replica answers why; one that was applied is only answered
  // again.
  const Replica& replica = cell.replica;
  if (!replica.Accepts(push.entry, push.to, push.epoch, now) ||
      replica.AppliedThrough(push.mark.client) >= push.mark.sequence) {
    return absl::OkStatus();
  }
  if (frame.kind == Frame::Kind::kLeave) return absl::OkStatus();
  if (frame.kind == Frame::Kind::kTick) {
    return WhyNotClock(
        cell, cell.clocks.CheckTick(frame.rank, push.mark.client, frame.clock),
        frame.rank, frame.clock);
  }
  int64_t begins = 0;
  const ClockGate::Answer answer = cell.clocks.CheckJoin(
      frame.rank, {caller.key, push.mark.client, {}}, frame.clock, begins);
  payload = EncodeJoin(frame.rank, begins, caller.key, request.opened_at(),
                       caller.name);
  return WhyNotClock(cell, answer, frame.rank, frame.clock);
}

absl::Status ReplicatedTable::CheckPullClock(
    const Cell& cell, const v1::PullRequest& request, const ReadRequest& read,
    const Now& now) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!request.has_clock() ||
      !cell.replica.Accepts(read.entry, read.to, read.epoch, now)) {
    return absl::OkStatus();
  }
  return WhyNotClock(
      cell, cell.clocks.CheckPull(request.rank(), read.client, request.clock()),
      request.rank(), request.clock());
}

void ReplicatedTable::ApplyClock(Cell& cell, const LogEntry& entry,
                                 const Frame& frame)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const ClientId client = entry.mark.client;
  const uint64_t n = entry.mark.sequence;
  if (frame.kind == Frame::Kind::kTick) {
    return cell.clocks.Tick(frame.rank, client, frame.clock, n);
  }
  if (frame.kind == Frame::Kind::kLeave) {
    return cell.clocks.Leave(frame.rank, client, n);
  }
  {
    // The client may not have told this server, if that has come since. So
    // whoever has a clock is open here until it is heard to be closed.
    MutexLock lock(mu_);
    if (!OpenLocked({frame.worker, client, frame.opened_at})) return;
  }
  cell.clocks.Join(frame.rank, {frame.worker, client, std::string(frame.name)},
                   frame.clock);
}

void ReplicatedTable::DropClosedClocks(Cell& cell)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!has_clocks()) return;
  std::set<ClientId> open;
  {
    MutexLock lock(mu_);
    for (const OpenClients::Opening& opening : clients_.All()) {
      open.insert(opening.client);
    }
  }
  cell.clocks.CloseIf([&](ClientId client) { return open.count(client) == 0; });
}

std::string ReplicatedTable::SlowestClock(const Cell& cell) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const ClockGate& gate = cell.clocks.gate();
  const ClockGate::Clock* const slowest = gate.Find(gate.slowest());
  if (slowest == nullptr) return "no worker has a clock";
  return absl::StrCat("of ", gate.size(), " workers rank ", gate.slowest(),
                      ", ", absl::CHexEscape(slowest->holder.name), " (",
                      slowest->holder.worker.ToString(),
                      "), is the slowest, at clock ", slowest->at,
                      ", and staleness is ", gate.staleness());
}

void ReplicatedTable::AddClocks(v1::TableStats& stats) const {
  std::set<const void*> waiting;  // calls
  bool is_first = true;
  for (const auto& of_partition : cells_) {
    const Cell* const cell = of_partition.get();
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    for (const auto& [token, reading] : cell->reads) {
      if (reading.is_parked) waiting.insert(reading.call.get());
    }
    const ClockGate& gate = cell->clocks.gate();
    if (!cell->replica.is_primary() || gate.size() == 0) continue;
    stats.set_clocks(
        std::max(stats.clocks(), static_cast<int32_t>(gate.size())));
    stats.set_most_clock(std::max(stats.most_clock(), gate.most()));
    if (!is_first && gate.least() >= stats.least_clock()) continue;
    is_first = false;
    stats.set_least_clock(gate.least());
    stats.set_slowest_rank(gate.slowest());
    if (const ClockGate::Clock* slowest = gate.Find(gate.slowest())) {
      stats.set_slowest_worker(slowest->holder.name);
    }
  }
  stats.set_waiting_pulls(static_cast<int64_t>(waiting.size()));
}

}  // namespace weft::ps
