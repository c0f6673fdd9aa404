#include "weft/ps/replicated/replicated_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/cut.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/timed_lock.h"
#include "weft/ps/replicated/cell.h"

namespace weft::ps {
namespace {

// How long what a closed client has pushed may still come from the primary.
constexpr absl::Duration kClosedFor = absl::Seconds(10);

// Pieces of a copy under way: one travels while the next one waits.
constexpr uint32_t kMostPieces = 2;

// What goes to a server is kept until it is there (ServerLinks), and waits in
// line where a backup is slower than its primary: sent again too soon it would
// make the line longer.
constexpr absl::Duration kResendAfter = absl::Seconds(1);

// The time and the leases are read once for this many partitions.
constexpr int kPartitionsOfATime = 64;

}  // namespace

// --- Making ------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ReplicatedTable>> ReplicatedTable::Create(
    Options options, const PartitionMap& map, const TableShard::Image* image) {
  WEFT_CHECK(options.host != nullptr && map.epoch() > 0);
  WEFT_ASSIGN_OR_RETURN(auto layout, TableLayout::Create(options.spec));
  if (layout->spec().mode() == v1::TableSpec::SYNC &&
      layout->spec().durability() == v1::TableSpec::NONE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", layout->spec().name(),
        "': durability NONE is for ASYNC tables: a round of which a part is "
        "lost would never close"));
  }
  if (layout->spec().has_staleness() &&
      layout->spec().durability() == v1::TableSpec::NONE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", layout->spec().name(),
        "': durability NONE is for tables without a staleness: pulls would "
        "wait for ticks that a server's death has lost; wanted APPLIED or "
        "STABLE"));
  }
  options.replica.level = LevelOf(layout->spec());
  if (options.replica.level == Durability::kD3 && options.log == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", layout->spec().name(),
        "': durability LOGGED wants servers with a log of tables: start all "
        "with --table-log-dir=DIR (`weft run --table-log-dir=DIR`), or open "
        "the table with durability STABLE"));
  }
  options.replica.fills_when_told = true;
  options.replica.most_pieces = kMostPieces;
  options.replica.resend_after = kResendAfter;
  std::unique_ptr<ReplicatedTable> table(
      new ReplicatedTable(std::move(options), std::move(layout)));
  table->entries_ = map.entries();
  const v1::TableSpec& spec = table->spec();
  std::vector<bool> holds_rows(spec.partitions(), !table->layout_->is_dense());
  if (table->layout_->is_dense()) {
    const Placement one(spec.name(), spec.partitions(), 1);
    const std::vector<DensePart> cut = CutDense(*table->layout_, one);
    for (const DensePart::Group& group : cut[0].groups) {
      holds_rows[group.partition] = true;
    }
  }
  const int64_t version = image == nullptr ? 0 : image->version;
  Marks marks;
  if (version > 0) {
    // In ASYNC too: so it travels with copies, and outlives promotions.
    marks[kRounds].SkipTo(static_cast<uint64_t>(version));
  }
  table->cells_.resize(spec.partitions());
  for (int p = 0; p < spec.partitions(); ++p) {
    if (!holds_rows[p]) continue;
    Replica replica(table->options_.self, table->EntryOf(p),
                    table->options_.replica, marks);
    table->cells_[p] = std::make_unique<Cell>(
        p, std::move(replica), table->layout_.get(), table->options_.memory);
  }
  if (image != nullptr) {
    for (const auto& [p, rows] : image->partitions) {
      if (p < 0 || p >= spec.partitions()) {
        return absl::InvalidArgumentError(
            absl::StrCat("table '", spec.name(), "' has no partition ", p));
      }
      WEFT_RETURN_IF_ERROR(
          CheckImage(*table->layout_, table->placement_, p, rows));
      Cell* const cell = table->cells_[p].get();
      if (cell == nullptr) continue;
      MutexLock lock(cell->mu);
      cell->rows.Load(rows);
      cell->rates = image->rates;
      cell->rounds = version;
    }
  }
  TableLog* const log = table->options_.log;
  if (table->options_.logged != nullptr) {
    WEFT_RETURN_IF_ERROR(table->Recover(*table->options_.logged));
    table->log_number_ = table->options_.logged->number;
  } else if (log != nullptr) {
    table->log_number_ =
        log->AddTable(spec, table->generation(), table->is_logged(),
                      /*begins_void=*/image != nullptr);
  }
  table->OnMap(map);
  if (image != nullptr) table->CopyToLog();
  for (const auto& cell : table->cells_) {
    if (image == nullptr || cell == nullptr) continue;
    MutexLock lock(cell->mu);
    // Rows of partitions that other servers have are not kept.
    if (!cell->replica.has_role()) cell->rows.Load({{}, {}, {}, {}});
  }
  return table;
}

ReplicatedTable::ReplicatedTable(Options options,
                                 std::unique_ptr<TableLayout> layout)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      placement_(spec().name(), spec().partitions(), 1),
      identity_(std::make_shared<const TableIdentity>(
          TableIdentity{spec(), options_.generation})),
      load_(spec().partitions()) {}

ReplicatedTable::~ReplicatedTable() {
  Shutdown(absl::CancelledError("the table was dropped"));
}

// --- What a replica asks for -------------------------------------------------

Now ReplicatedTable::NowOf(Work& work) const {
  if (work.given++ % kPartitionsOfATime == 0) {
    work.leases = options_.host->leases();
    work.time = SteadyClock().Now();
  }
  return {work.time, *work.leases};
}

void ReplicatedTable::On(
    int partition,
    absl::FunctionRef<void(Cell& cell, const Now& now, Work& work)> fn,
    Work& work) {
  Cell& cell = *cells_[partition];
  TimedLock lock(cell.mu,
                 work.given == work.measured ? &work.lock_wait : nullptr);
  const Now now = NowOf(work);
  fn(cell, now, work);
  Do(cell, work);
  if (is_sync()) {
    CloseRounds(cell, now);
    Do(cell, work);
  }
  if (!cell.reads.empty()) {
    AskParked(cell, now);
    Do(cell, work);
  }
  // The copy has arrived, or was for a backup that is another one by now.
  if (cell.copy != nullptr && !cell.replica.is_filling()) {
    SetCopy(cell, nullptr);
    work.fills_next = true;
  }
  if (cell.replica.waits_to_fill() && !cell.is_in_line) {
    cell.is_in_line = work.fills_next = true;
    MutexLock table_lock(mu_);
    fills_.emplace(EntryOf(partition), partition);
  }
}

void ReplicatedTable::OnAll(
    absl::FunctionRef<void(Cell& cell, const Now& now, Work& work)> fn) {
  Work work;
  for (const auto& cell : cells_) {
    if (cell != nullptr) On(cell->partition, fn, work);
  }
  Finish(std::move(work));
}

void ReplicatedTable::Finish(Work work) {
  // Answers go before messages to the backups, since callers wait for them.
  for (auto& answer : work.answers) answer();
  work.answers.clear();
  if (work.fills_next) BeginFills(work);
  for (auto& answer : work.answers) answer();
  options_.host->Flush();
  for (const MapChange& change : work.proposals) {
    options_.host->Propose(change);
  }
  if (work.learns_map) options_.host->LearnMap();
}

void ReplicatedTable::SetCopy(Cell& cell,
                              std::unique_ptr<const CopyInPieces> copy)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (cell.copy != nullptr) copied_bytes_ -= cell.copy->bytes();
  cell.copy = std::move(copy);
  if (cell.copy != nullptr) copied_bytes_ += cell.copy->bytes();
}

void ReplicatedTable::BeginFills(Work& work) {
  while (copied_bytes_ < options_.copy_bytes) {
    int partition = 0;
    {
      MutexLock lock(mu_);
      if (fills_.empty()) return;
      partition = fills_.begin()->second;
      fills_.erase(fills_.begin());
    }
    On(
        partition,
        [](Cell& cell, const Now& now, Work&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          cell.is_in_line = false;
          cell.replica.BeginFill(now);
        },
        work);
  }
}

void ReplicatedTable::Do(Cell& cell,
                         Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (cell.replica.has_actions()) {
    cell.replica.TakeActions(work.actions);
    for (Replica::Action& action : work.actions) DoOne(cell, action, work);
  }
}

void ReplicatedTable::DoOne(Cell& cell, Replica::Action& action,
                            Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  using Kind = Replica::Action::Kind;
  switch (action.kind) {
    case Kind::kServe: {
      cell.gate = RoundGate<RoundPayload>(
          is_sync() ? spec().shards() : 0,
          spec().orphans() == v1::TableSpec::WAIT ? Orphans::kWait
                                                  : Orphans::kRetire,
          cell.replica.NextRound());
      DropClosedClocks(cell);
      MutexLock lock(mu_);
      for (int rank : dead_) cell.gate.DeclareDead(rank);
      return;
    }
    case Kind::kApply:
      if (is_logged() && log_number_ != 0) {
        options_.log->AppendEntry(PlaceOf(cell, action.log_entry.lsn.n),
                                  action.log_entry);
      }
      return Apply(cell, action.log_entry);
    case Kind::kLoad:
      WEFT_CHECK(cell.loading != nullptr);
      if (action.message.piece == 0) LogDrop(cell);
      if (action.message.piece == 0) {
        cell.rows.Load(cell.loading->image);
        cell.clocks.Load(cell.loading->clocks);
      } else {
        cell.rows.Add(cell.loading->image);
      }
      cell.rates = cell.loading->rates;
      cell.rounds = RoundsOf(action.message.marks);  // they come last
      if (action.message.piece + 1 == action.message.pieces) {
        LogCopy(cell, action.message.n, action.message.marks);
      }
      return;
    case Kind::kCopy:
      SetCopy(cell, std::make_unique<CopyInPieces>(
                        *layout_, cell.rows.Image(), cell.rates,
                        options_.piece_bytes, cell.clocks.Save()));
      return cell.replica.OnCopied(cell.copy->pieces());
    case Kind::kDrop:
      cell.rows.Load(PartitionImage{{}, {}, {}, {}});
      cell.rates = RateChanges();
      cell.clocks = PartitionClocks(spec().staleness());
      cell.rounds = 0;
      return LogDrop(cell);
    case Kind::kSend:
      return Send(cell, action);
    case Kind::kAnswerPush:
      return AnswerPush(cell, action.answer, work);
    case Kind::kRead:
      return Read(cell, action.answer.token);
    case Kind::kAnswerRead:
      return AnswerRead(cell, action.answer, work);
    case Kind::kPropose:
      work.proposals.push_back(action.change);
      return;
    case Kind::kLearnMap:
      work.learns_map = true;
      return;
  }
}

void ReplicatedTable::Send(Cell& cell, Replica::Action& action)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Envelope envelope;
  envelope.table = identity_;
  envelope.partition = cell.partition;
  envelope.message = std::move(action.message);
  if (envelope.message.kind == ReplicaMessage::Kind::kFill) {
    WEFT_CHECK(cell.copy != nullptr);
    envelope.copy = cell.copy->Encode(envelope.message.piece);
    MutexLock lock(mu_);
    envelope.openings = clients_.All();
  }
  options_.host->Enqueue(action.to, std::move(envelope));
}

// --- Events ------------------------------------------------------------------

void ReplicatedTable::OnMap(const PartitionMap& map) {
  WEFT_CHECK_EQ(map.entries(), entries_);
  OnAll([&](Cell& cell, const Now& now, Work&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const bool had_role = cell.replica.is_primary();
    cell.replica.OnMap(map, now);
    // Clients send the parts of open rounds to the next primary.
    if (had_role && !cell.replica.is_primary()) {
      cell.gate = RoundGate<RoundPayload>(0);
    }
  });
}

void ReplicatedTable::Tick() {
  bool is_over = false;
  {
    MutexLock lock(mu_);
    is_over = has_closed_ ||
              (!closed_.empty() &&
               SteadyClock().Now() - closed_.front().first >= kClosedFor);
  }
  if (is_over) DropClosed();
  const absl::Status log = is_logged() ? LogStatus() : absl::OkStatus();
  OnAll([&](Cell& cell, const Now& now, Work& work)
            ABSL_NO_THREAD_SAFETY_ANALYSIS {
              cell.replica.OnTick(now);
              if (!log.ok()) EndUnlogged(cell, log, work);
              EndLateReads(cell, now, work);
            });
}

void ReplicatedTable::EndLateReads(Cell& cell, const Now& now,
                                   Work& work) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (auto it = cell.reads.begin(); it != cell.reads.end();) {
    Cell::Reading& reading = it->second;
    if (!reading.is_parked || now.time < reading.deadline) {
      ++it;
      continue;
    }
    const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "table '", spec().name(), "' partition ", cell.partition, " on ",
        options_.self.ToString(),
        reading.clock.has_value()
            ? absl::StrCat(": a pull at clock ", *reading.clock,
                           " waits: ", SlowestClock(cell))
            : absl::StrCat(" did not reach version ", reading.request.through,
                           ": round ", cell.gate.open(), " waits for ",
                           MissingParts(cell))));
    if (reading.call->Answer(reading.span, Answer(), late)) {
      work.End(reading.call);
    }
    it = cell.reads.erase(it);
  }
}

std::string ReplicatedTable::MissingParts(const Cell& cell) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const std::vector<int> missing = cell.gate.Missing();
  return missing.empty() ? std::string("room in its log")
                         : absl::StrCat("shards ", absl::StrJoin(missing, ", "),
                                        " of ", cell.gate.shards());
}

void ReplicatedTable::OnMessages(WorkerKey from, ReceivedRun run) {
  if (run.generation != options_.generation) return;
  Work work;
  // Each message begins where the one before it has ended.
  Instant began = SteadyClock().Now();
  for (Received& received : run.messages) {
    const int partition = received.partition;
    if (static_cast<size_t>(partition) >= cells_.size() ||
        cells_[partition] == nullptr) {
      continue;
    }
    ReplicaMessage& message = received.message;
    message.entry = EntryOf(partition);
    const bool fits = std::all_of(
        message.entries.begin(), message.entries.end(),
        [&](const LogEntry& entry) {
          return DecodeFrame(entry.payload, *layout_, placement_, partition)
              .ok();
        });
    if (!fits) continue;
    PartitionCopy copy;
    if (message.kind == ReplicaMessage::Kind::kFill) {
      absl::StatusOr<PartitionCopy> decoded =
          DecodeCopy(received.copy, *layout_, placement_, partition);
      if (!decoded.ok()) continue;
      copy = *std::move(decoded);
      for (const auto& opening : received.said->openings()) {
        // One that is closed here is closed there too.
        Open({KeyOf(opening.worker()), opening.client(), opening.opened_at()})
            .IgnoreError();
      }
    }
    On(
        partition,
        [&](Cell& cell, const Now& now, Work& to)
            ABSL_NO_THREAD_SAFETY_ANALYSIS {
              cell.loading = &copy;
              cell.replica.OnMessage(from, message, now);
              Do(cell, to);
              cell.loading = nullptr;
            },
        work);
    const Instant ended = SteadyClock().Now();
    const absl::Duration time = ended - std::exchange(began, ended);
    // Copies pass: they say nothing of what there will be to do.
    if (message.kind == ReplicaMessage::Kind::kAppend) {
      load_.BackupBusy(partition, time);
    } else if (message.kind == ReplicaMessage::Kind::kAck) {
      load_.Busy(partition, time);
    }
  }
  Finish(std::move(work));
}

// --- Ranks, clients, checkpoints ---------------------------------------------

void ReplicatedTable::DeclareDead(int rank) {
  {
    MutexLock lock(mu_);
    dead_.insert(rank);
  }
  OnAll([&](Cell& cell, const Now&, Work&)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { cell.gate.DeclareDead(rank); });
}

void ReplicatedTable::Admit(int rank) {
  {
    MutexLock lock(mu_);
    dead_.erase(rank);
  }
  OnAll([&](Cell& cell, const Now&, Work&)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { cell.gate.Admit(rank); });
}

absl::Status ReplicatedTable::Open(const OpenClients::Opening& opening) {
  bool is_open = false;
  bool has_closed = false;
  {
    MutexLock lock(mu_);
    is_open = OpenLocked(opening);
    has_closed = has_closed_;
  }
  if (has_closed) DropClosed();
  if (is_open) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", spec().name(), "': worker ", opening.worker.ToString(),
      " has opened it ", Openings::kMostOfAWorker,
      " times since, which closed this client; open it again"));
}

void ReplicatedTable::Forget(WorkerKey worker) {
  {
    MutexLock lock(mu_);
    clients_.Forget(worker);
    if (!NoteClosed()) return;
  }
  DropClosed();
}

bool ReplicatedTable::OpenLocked(const OpenClients::Opening& opening) {
  const bool is_open = clients_.Open(opening);
  NoteClosed();
  return is_open;
}

bool ReplicatedTable::NoteClosed() {
  const std::vector<ClientId> closed = clients_.TakeClosed();
  const Instant now = SteadyClock().Now();
  for (ClientId client : closed) closed_.emplace_back(now, client);
  has_closed_ = has_closed_ || !closed.empty();
  return !closed.empty();
}

void ReplicatedTable::DropClosed() {
  std::set<ClientId> closed;
  {
    MutexLock lock(mu_);
    has_closed_ = false;
    for (const auto& [when, client] : closed_) closed.insert(client);
    const Instant now = SteadyClock().Now();
    while (!closed_.empty() && now - closed_.front().first >= kClosedFor) {
      closed_.pop_front();
    }
  }
  if (closed.empty()) return;
  OnAll([&](Cell& cell, const Now&, Work&) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (ClientId client : closed) cell.replica.Forget(client);
    cell.clocks.CloseIf(
        [&](ClientId client) { return closed.count(client) != 0; });
  });
}

bool ReplicatedTable::Holds(int entry) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const auto& cell) {
    return cell != nullptr && EntryOf(cell->partition) == entry;
  });
}

bool ReplicatedTable::IsReadyFor(MapChange::Kind change, int entry) const {
  const std::shared_ptr<const Leases> leases = options_.host->leases();
  const Now now = {SteadyClock().Now(), *leases};
  for (const auto& of_partition : cells_) {
    const Cell* const cell = of_partition.get();
    if (cell == nullptr || EntryOf(cell->partition) != entry) continue;
    MutexLock lock(cell->mu);
    const Replica& replica = cell->replica;
    if ((change == MapChange::Kind::kMarkInSync &&
         !replica.is_backup_ready()) ||
        (change == MapChange::Kind::kTakeNext && !replica.is_next_ready()) ||
        (change == MapChange::Kind::kHandOver &&
         !replica.IsReadyToHandOver(now))) {
      return false;
    }
  }
  return true;
}

std::string ReplicatedTable::DebugString(int partition) const {
  const Cell* const cell = cells_[partition].get();
  if (cell == nullptr) return "no rows";
  const std::shared_ptr<const Leases> leases = options_.host->leases();
  MutexLock lock(cell->mu);
  const Instant now = SteadyClock().Now();
  return absl::StrCat(
      cell->replica.MayAnswer({now, *leases}) ? "may answer " : "is silent ",
      cell->rounds, " rounds: ", cell->replica.Snapshot(now));
}

void ReplicatedTable::AddLoads(std::vector<EntryLoad>& loads) const {
  // The first map may have come since the caller asked for it.
  if (loads.size() < static_cast<size_t>(entries_)) loads.resize(entries_);
  for (const LoadMeter::OfPartition& one : load_.Loads()) {
    EntryLoad& entry = loads[EntryOf(one.partition)];
    entry.primary += one.load.busy;
    entry.backup += one.load.backup;
  }
}

uint64_t ReplicatedTable::Lag() const {
  uint64_t lag = 0;
  for (const auto& cell : cells_) {
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    if (!cell->replica.is_primary()) continue;
    lag = std::max(lag, cell->replica.end() - cell->replica.stable());
  }
  return lag;
}

v1::TableStats ReplicatedTable::Stats() const {
  v1::TableStats stats;
  *stats.mutable_spec() = spec();
  stats.set_initialized(true);
  stats.set_learning_rate_scale(1);
  stats.set_generation(options_.generation);
  *stats.mutable_wire() = spec().wire();
  stats.set_refused_pushes(refused_pushes_);
  for (const auto& cell : cells_) {
    if (cell == nullptr) continue;
    MutexLock lock(cell->mu);
    if (!cell->replica.is_primary()) continue;
    stats.set_rows(stats.rows() + cell->rows.rows());
    stats.set_memory_bytes(stats.memory_bytes() + cell->rows.memory_bytes());
    AddCounts(cell->rows.counts(), stats);
    stats.set_version(std::max(stats.version(), cell->version(is_sync())));
    if (layout_->is_dense() && cell->rows.rows() == 0) {
      stats.set_initialized(false);
    }
    stats.set_learning_rate_scale(cell->rates.At(is_sync() ? cell->rounds : 0));
  }
  AddClocks(stats);
  return stats;
}

absl::Status ReplicatedTable::CheckServes(int partition,
                                          const Replica& replica) const {
  const std::shared_ptr<const Leases> leases = options_.host->leases();
  if (replica.is_primary() &&
      replica.MayAnswer({SteadyClock().Now(), *leases})) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("table '", spec().name(), "': partition ", partition,
                   " may be another server's by now; save again"));
}

void ReplicatedTable::Shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mu_);
    if (shut_down_.ok()) shut_down_ = reason;
  }
  Work ended;
  for (const auto& cell : cells_) {
    if (cell == nullptr) continue;
    Cell& its = *cell;
    MutexLock lock(its.mu);
    for (auto& [token, pushing] : its.pushes) {
      if (pushing.call->Answer(pushing.span, Answer(), reason)) {
        ended.End(pushing.call);
      }
    }
    its.pushes.clear();
    for (auto& [token, reading] : its.reads) {
      if (reading.call->Answer(reading.span, Answer(), reason)) {
        ended.End(reading.call);
      }
    }
    its.reads.clear();
  }
  for (auto& end : ended.answers) end();
}

}  // namespace weft::ps
