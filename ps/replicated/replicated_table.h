// ReplicatedTable: what one server of a job with two replicas has of one table:
// a replica of each partition (ps/core/replication/replica.h), whose part in it
// the map tells, with its rows.
//
// SYNC: each partition has a gate for its rounds and closes them by itself; a
// pull waits, as a parked Future, until the partition has closed the round that
// it names. ASYNC: pushes are applied as they come. With a staleness each
// partition has the clocks of the workers, and a pull waits for the slowest.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_REPLICATED_TABLE_H_
#define WEFT_PS_REPLICATED_REPLICATED_TABLE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/clock_gate.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/replication/open_clients.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replica.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/replicated/batch.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/logged_tables.h"
#include "weft/ps/replicated/table_log.h"
#include "weft/ps/shard/table_metrics.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/ps/shard/table_snapshot.h"
#include "weft/ps/waits/wait_board.h"

namespace weft::ps {

// What a table needs of its server, which has the tables: without it each of
// the two would need the other's header.
class ReplicaHost {
 public:
  virtual ~ReplicaHost() = default;
  // The server's leases, with each grant that it made by a map older than the
  // newest one that it has told its tables.
  virtual std::shared_ptr<const Leases> leases() = 0;
  // Puts `envelope` behind those that go to `to` already. Called under a
  // partition's lock: it takes no lock of a table, and sends nothing yet.
  virtual void Enqueue(WorkerKey to, Envelope envelope) = 0;
  // Sends what was enqueued. Called without locks, as those below are.
  virtual void Flush() = 0;
  virtual void Propose(const MapChange& change) = 0;
  virtual void LearnMap() = 0;
};

class ReplicatedTable {
 public:
  struct Options {
    v1::TableSpec spec;
    uint64_t generation = 0;  // grows when the table is restored
    WorkerKey self;
    // The limits of time; its level is the spec's.
    ReplicaOptions replica;
    TableLog* log = nullptr;        // outlives the table; null: none
    LoggedTable* logged = nullptr;  // what it has of the table, which Create
                                    // takes the rows of; or null
    std::shared_ptr<ByteBudget> budget;      // of parts of rounds; null: none
    std::shared_ptr<ByteBudget> memory;      // of rows; null: any number
    ReplicaHost* host = nullptr;             // outlives the table
    int64_t piece_bytes = int64_t{1} << 18;  // of a copy of rows
    // Bytes of copies that were made for backups and have not arrived yet:
    // beyond that the next partition waits.
    int64_t copy_bytes = int64_t{4} << 20;
  };
  // As TableLayout::Create. `image`: what a checkpoint holds of it, or null.
  // kFailedPrecondition: it is LOGGED, and there is no log. kDataLoss: what is
  // logged does not fit the table.
  static absl::StatusOr<std::unique_ptr<ReplicatedTable>> Create(
      Options options, const PartitionMap& map,
      const TableShard::Image* image = nullptr);
  ~ReplicatedTable();

  const v1::TableSpec& spec() const { return layout_->spec(); }
  uint64_t generation() const { return options_.generation; }

  void OnMap(const PartitionMap& map);
  // To be called about every 20 ms.
  void Tick();
  // Messages from primaries or backups; those that do not fit are dropped.
  void OnMessages(WorkerKey from, ReceivedRun run);

  // `caller` pushes, who has proved the request's rank if a span is of a clock.
  // Each span ends with a code, or a status if it is refused for good. The
  // Future has the error of a request of which nothing was changed:
  //   kInvalidArgument     it does not fit the table
  //   kFailedPrecondition  a checkpoint was restored since the table was opened
  Future<v1::PushReply> Push(const Caller& caller,
                             const v1::PushRequest& request,
                             const std::vector<Bytes>& payloads);
  struct Pulled {
    v1::PullReply reply;
    std::vector<Bytes> values;  // of the spans of code OK, in their order
  };
  // Waits until `deadline` for rounds, or for clocks, that are to be seen. With
  // a clock, the caller has proved its rank and the spans' client.
  Future<Pulled> Pull(const v1::PullRequest& request,
                      const std::vector<Bytes>& payloads, Instant deadline);

  // SYNC: as TableShard's.
  void DeclareDead(int rank);
  void Admit(int rank);
  // The client is open from now on, unless it is closed: kFailedPrecondition.
  absl::Status Open(const OpenClients::Opening& opening)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the clients of `worker`, and of earlier incarnations of it.
  void Forget(WorkerKey worker) ABSL_LOCKS_EXCLUDED(mu_);

  // Its number in the log; 0: there is no log.
  uint32_t log_number() const { return log_number_; }
  bool is_logged() const { return options_.replica.level == Durability::kD3; }
  // That is on disk, of this table.
  void OnDisk(const std::vector<TableLog::Place>& places);
  // Appends a copy of each partition to the log. False: the log has failed.
  bool CopyToLog();

  // A dense table may have fewer slices than partitions.
  bool HasRowsIn(int partition) const { return cells_[partition] != nullptr; }
  // Whether it has partitions of `entry`: a dense table may have fewer slices
  // than the map has entries.
  bool Holds(int entry) const;
  // Whether the map may make a change that replicas of `entry` want, as far as
  // those of this table go: kMarkInSync, kTakeNext, kHandOver. Others need not
  // be agreed on.
  bool IsReadyFor(MapChange::Kind change, int entry) const;

  // For tests and for those who look for a fault: Replica::Snapshot.
  std::string DebugString(int partition) const;

  // What this server has to do for its partitions. To be told the time about
  // each second.
  LoadMeter& load() { return load_; }
  TableMetrics& metrics() { return metrics_; }
  // Adds that of each entry to `loads`, which gets room for each.
  void AddLoads(std::vector<EntryLoad>& loads) const;
  // How many changes of a primary here are not stable, of the partition with
  // the most.
  uint64_t Lag() const;

  // For whom pulls, and rounds that have begun, of this server's primaries have
  // waited for longer than kLongWait; nothing: none has. To be called about
  // twice a second, by one thread.
  std::optional<TableWait> Waits(Instant now);

  // Rows of this server's primaries, and their lowest version.
  v1::TableStats Stats() const;
  // As TableShard::Freeze, of this server's primaries. The version is the
  // newest of any; kUnavailable, also when it is read, if in SYNC they are of
  // several, a round closes just now, or if one may be another server's by
  // then.
  absl::StatusOr<std::unique_ptr<TableSnapshot>> Freeze(
      std::shared_ptr<ByteBudget> copies, SavedAs as = SavedAs());
  // The rows of all copies here, to make a table of another spec in place of
  // this one.
  TableShard::Image ImageOfAll() const;

  // Ends what waits, with `reason`; so ends what comes later.
  void Shutdown(const absl::Status& reason);

 private:
  struct Cell;
  struct Work;
  template <typename Result>
  class SpanCall;
  using PushCall = SpanCall<v1::PushReply>;
  using PullCall = SpanCall<Pulled>;

  ReplicatedTable(Options options, std::unique_ptr<TableLayout> layout);

  int EntryOf(int partition) const { return partition & (entries_ - 1); }
  // The time and the leases, which are read for some partitions at once.
  Now NowOf(Work& work) const;
  // Runs `fn` on the cell under its lock, then what its replica asks for.
  void On(int partition,
          absl::FunctionRef<void(Cell& cell, const Now& now, Work& work)> fn,
          Work& work);
  void OnAll(
      absl::FunctionRef<void(Cell& cell, const Now& now, Work& work)> fn);
  // Sends, answers and proposes what `work` has collected. To be called without
  // locks.
  void Finish(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  void Do(Cell& cell, Work& work);
  void DoOne(Cell& cell, Replica::Action& action, Work& work);
  void Send(Cell& cell, Replica::Action& action);
  void Apply(Cell& cell, const LogEntry& entry);
  void Read(Cell& cell, uint64_t token);
  void AnswerPush(Cell& cell, const Answer& answer, Work& work);
  void AnswerRead(Cell& cell, const Answer& answer, Work& work);
  void CloseRounds(Cell& cell, const Now& now);
  // --- LOGGED: what goes to the log, in the order in which it is done. ---
  // Frees each partition's rows there as soon as they are here.
  absl::Status Recover(LoggedTable& logged);
  TableLog::Place PlaceOf(const Cell& cell, uint64_t n) const;
  void LogCopy(Cell& cell, uint64_t n, Marks marks);
  void LogDrop(Cell& cell);
  // Why the log cannot have more.
  absl::Status LogStatus() const;
  // Ends pushes that wait for a disk which is full or broken.
  void EndUnlogged(Cell& cell, const absl::Status& refused, Work& work);
  void AskParked(Cell& cell, const Now& now);
  void EndLateReads(Cell& cell, const Now& now, Work& work);
  // The copy for the backup; null: it is used no longer.
  void SetCopy(Cell& cell, std::unique_ptr<const CopyInPieces> copy);
  // Copies the partitions that wait for it, as many as may be copied now.
  void BeginFills(Work& work) ABSL_LOCKS_EXCLUDED(mu_);

  // A request's payloads, Aligned, and for each span what it is.
  struct PushedSpans;
  absl::StatusOr<PushedSpans> CheckPush(
      const v1::PushRequest& request, const std::vector<Bytes>& payloads) const;
  absl::StatusOr<std::vector<Bytes>> CheckPull(
      const v1::PullRequest& request, const std::vector<Bytes>& payloads) const;
  // For the metrics: `work` has pushed gradients of so many bytes.
  void CountPush(const v1::PushRequest& request, int64_t bytes,
                 const Work& work);
  // Gives the replica a push that was checked, and counts what it is.
  void PushToReplica(Cell& cell, const PushRequest& push, const Bytes& payload,
                     bool is_gradient, const Now& now, Work& work);
  void PushSpan(Cell& cell, const Caller& caller,
                const v1::PushRequest& request, int span,
                const PushedSpans& pushed,
                const std::shared_ptr<PushCall>& call, const Now& now,
                Work& work);
  // Whether a change other than a part of a round may be made.
  absl::Status CheckChange(const Cell& cell, const v1::PushSpan& span,
                           const Frame& frame) const;
  // Of a frame of a clock; of a join `payload` becomes the entry for the log.
  absl::Status CheckClock(const Cell& cell, const Caller& caller,
                          const v1::PushRequest& request,
                          const PushRequest& push, const Frame& frame,
                          const Now& now, Bytes& payload) const;
  absl::Status CheckPullClock(const Cell& cell, const v1::PullRequest& request,
                              const ReadRequest& read, const Now& now) const;
  absl::Status WhyNotClock(const Cell& cell, ClockGate::Answer answer, int rank,
                           int64_t clock) const;
  void ApplyClock(Cell& cell, const LogEntry& entry, const Frame& frame)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Drops clocks of clients that do not have the table open.
  void DropClosedClocks(Cell& cell) ABSL_LOCKS_EXCLUDED(mu_);
  // What parked pulls wait for.
  std::string SlowestClock(const Cell& cell) const;
  void AddClocks(v1::TableStats& stats) const;
  void GivePart(Cell& cell, const v1::PushRequest& request,
                const PushRequest& push, const Bytes& payload, const Now& now,
                Work& work);
  absl::Status CheckFilled(const Cell& cell) const;
  // Memory for the rows that a gradient could make.
  absl::StatusOr<ByteBudget::Hold> HoldRows(const Cell& cell,
                                            const Frame& frame);
  // Drops what is known of clients that were closed.
  void DropClosed() ABSL_LOCKS_EXCLUDED(mu_);
  bool OpenLocked(const OpenClients::Opening& opening)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether some were closed.
  bool NoteClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string MissingParts(const Cell& cell) const;
  // For how long pulls, and a round that has begun, have waited.
  absl::Duration Waited(Cell& cell, Instant now) const;
  void AddWorkers(const Cell& cell, std::set<std::string>& workers,
                  std::set<std::string>& expected) const;
  absl::Status StatusNow() const;
  // kUnavailable unless it is a primary that may answer.
  absl::Status CheckServes(int partition, const Replica& replica) const;
  // Whether a request is for this table, as its client has opened it.
  absl::Status CheckGeneration(uint64_t generation) const;
  bool is_sync() const { return spec().mode() == v1::TableSpec::SYNC; }
  bool has_clocks() const { return spec().has_staleness(); }

  const Options options_;
  const std::unique_ptr<TableLayout> layout_;
  const Placement placement_;
  const std::shared_ptr<const TableIdentity> identity_;
  int entries_ = 1;
  uint32_t log_number_ = 0;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::atomic<int64_t> copied_bytes_{0};    // of all cells' copies
  std::atomic<int64_t> refused_pushes_{0};  // for want of memory
  LoadMeter load_;
  TableMetrics metrics_;
  // ASYNC: pushes of which this server has applied something.
  std::atomic<int64_t> pushes_{0};

  mutable Mutex mu_;
  std::set<int> dead_ ABSL_GUARDED_BY(mu_);
  OpenClients clients_ ABSL_GUARDED_BY(mu_);
  // Closed a moment ago: what they have pushed may still come from the primary.
  std::deque<std::pair<Instant, ClientId>> closed_ ABSL_GUARDED_BY(mu_);
  bool has_closed_ ABSL_GUARDED_BY(mu_) = false;  // and not dropped it yet
  // Partitions whose backups wait to be filled, by entry: the map counts a
  // backup once it has all partitions of one.
  std::set<std::pair<int, int>> fills_ ABSL_GUARDED_BY(mu_);
  absl::Status shut_down_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_REPLICATED_TABLE_H_
