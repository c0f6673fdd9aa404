// Server: one parameter server's tables, and the calls that reach them.
//
//   ps::Server server({.server = 0, .servers = 2});   // must outlive the agent
//   agent.SetLocal(&server);      // now it answers the functions of service.h
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_SERVER_H_
#define WEFT_PS_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/proto/ps_load.pb.h"
#include "weft/ps/checkpoint_root.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/replication/rebalancer.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/ps/shard/table_snapshot.h"
#include "weft/ps/table_access.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/metrics.h"

namespace weft::ps {

struct ServerOptions {
  int server = 0;   // this one's index, in [0, servers)
  int servers = 1;  // all must agree on it
  int max_tables = 1024;
  // The limit of partitions, and slices of dense tables, of all tables
  // together.
  int64_t max_parts = int64_t{1} << 22;
  // Bytes of gradients that wait for the other parts of their round, and of
  // keys that wait for a version, of all tables: TableShard.
  int64_t round_budget = int64_t{8} << 30;
  // Bytes of rows of all tables, beyond which a push that could make a row is
  // refused. 0: any number.
  int64_t table_memory = 0;
  // Bytes of rows, of all tables, that pushes may copy because they are being
  // saved. Beyond it the checkpoint is given up; pushes go on.
  int64_t snapshot_memory = int64_t{4} << 30;
  // A table of more bytes is written in several files, and no more than this is
  // in memory beside it, twice to three times.
  int64_t checkpoint_file_bytes = int64_t{64} << 20;
  // Checkpoints are written and read here and below, and nowhere else. Empty:
  // Save and Restore are refused.
  std::string checkpoint_dir = {};
  // With two replicas: whether the servers even out what they have to do.
  RebalanceMode rebalance = RebalanceMode::kOff;
  // With two replicas: where the log of tables of durability LOGGED is, in a
  // directory of the server's name. Empty: such tables are refused.
  std::string table_log_dir = {};
  // Which roles may read and change which tables.
  TableAccess access = {};
};

// "on", "off" or "dry-run"; else kInvalidArgument.
absl::StatusOr<RebalanceMode> RebalanceModeOf(absl::string_view text);

class ReplicatedServer;

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();

  // Makes the table, or finds it if an equal one is there. The first to find a
  // table that was restored may change the numbers of its rule, its life, and
  // in SYNC its shards, reduction and orphans: a job goes on with another
  // learning rate, or on another number of workers.
  //   kInvalidArgument     as CheckedSpec
  //   kFailedPrecondition  another table has that name; says where they differ
  //   kResourceExhausted   max_tables or max_parts
  absl::StatusOr<std::shared_ptr<TableShard>> CreateTable(
      const v1::TableSpec& spec) ABSL_LOCKS_EXCLUDED(mu_);

  // The same, for the caller's `client`, which then may push and pull.
  // kUnavailable if the caller is gone.
  absl::StatusOr<std::shared_ptr<TableShard>> OpenTable(
      const v1::TableSpec& spec, const Caller& caller, uint64_t client)
      ABSL_LOCKS_EXCLUDED(mu_);

  // kNotFound names some of the tables that there are.
  absl::StatusOr<std::shared_ptr<TableShard>> Find(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // That incarnation of a worker is gone: its clients, and those of earlier
  // incarnations, are closed.
  void Forget(WorkerKey worker) ABSL_LOCKS_EXCLUDED(mu_);

  // Membership reports that the worker of that rank has died, or is back:
  // synchronous rounds of all tables, also of tables made later, go on without
  // it, or wait for it again.
  void DeclareDead(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void Admit(int rank) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends waiting pulls whose deadline has passed. To be called about every 100
  // ms.
  void Expire(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends waiting pulls with `reason`; later requests get it too.
  void Shutdown(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // As CheckpointRoot::Resolve.
  absl::Status CheckCheckpointDirectory(const std::string& directory) const {
    return checkpoint_root_.Resolve(directory).status();
  }

  // Writes this server's part of every table as shards of a checkpoint that a
  // trainer has begun and will commit: its directory is there. The tables are
  // as they were when Freeze had the same request, or else are now; pushes,
  // pulls and rounds go on meanwhile. Errors as CheckpointRoot::Resolve and
  // CheckpointDirectory::AddShard; kFailedPrecondition if a synchronous table
  // is not at the version asked for; kResourceExhausted beyond
  // snapshot_memory.
  absl::StatusOr<v1::SaveReply> Save(const v1::SaveRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Freezes all tables for a Save that follows within kFrozenFor. Takes
  // milliseconds. Errors as Save; kResourceExhausted if kMostFrozen wait.
  static constexpr absl::Duration kFrozenFor = absl::Seconds(30);
  static constexpr size_t kMostFrozen = 4;
  absl::Status Freeze(const v1::SaveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces all tables by those of checkpoint `name` in `directory`, written
  // by any number of servers. On an error nothing has changed: as
  // CheckpointRoot::Resolve and CheckpointDirectory's, or kDataLoss.
  absl::Status Restore(const std::string& directory, const std::string& name)
      ABSL_LOCKS_EXCLUDED(mu_);
  // With two replicas: the part of it that this server has by the map.
  // ReplicatedServer::Replace.
  absl::StatusOr<uint64_t> RestoreReplicated(const std::string& directory,
                                             const std::string& name,
                                             uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there is such a checkpoint; what is in it may still be bad.
  absl::Status CheckCheckpoint(const std::string& directory,
                               const std::string& name) const;

  // For a job with two replicas: from now on the tables are those of `server`,
  // and requests to this object are about those.
  void SetReplicated(std::shared_ptr<ReplicatedServer> server)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<ReplicatedServer> replicated() const ABSL_LOCKS_EXCLUDED(mu_);

  // For whom operations on its tables wait, for WaitBoard::Set. To be called
  // about twice a second, by one thread.
  std::vector<TableWait> Waits(Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  v1::ServerStats Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // What it has to do for each table, and with two replicas for each entry.
  v1::ServerLoads Loads() const ABSL_LOCKS_EXCLUDED(mu_);
  // Adds what the tables have counted since the last call: table_metrics.h. One
  // thread at a time.
  void ExportMetrics(telemetry::Metrics& to) const ABSL_LOCKS_EXCLUDED(mu_);

  const ServerOptions& options() const { return options_; }

 private:
  using Tables = absl::btree_map<std::string, std::shared_ptr<TableShard>>;

  // All tables as they were at one moment.
  struct FrozenTable {
    std::shared_ptr<ReplicatedServer> server;  // of a table with two replicas
    std::shared_ptr<const void> table;         // whose rows they are
    std::unique_ptr<TableSnapshot> rows;       // ends first
  };
  struct Frozen {
    uint64_t map_epoch = 0;
    Instant until;
    std::vector<FrozenTable> tables;
  };
  absl::StatusOr<Frozen> FreezeTables(const v1::SaveRequest& request) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops frozen tables whose Save has not come by `now`.
  void DropFrozen(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

  Tables Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);
  // kResourceExhausted if there is no room for one more like it.
  absl::Status CheckRoom(const v1::TableSpec& spec) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A table of that spec with the rows of one that was restored and not used.
  absl::StatusOr<std::shared_ptr<TableShard>> Changed(TableShard& restored,
                                                      const v1::TableSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ServerOptions options_;
  const CheckpointRoot checkpoint_root_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<ByteBudget> memory_;  // null: any number
  const std::shared_ptr<ByteBudget> copies_;  // of rows that are being saved

  mutable Mutex mu_;
  Tables tables_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Frozen> frozen_ ABSL_GUARDED_BY(mu_);  // by attempt
  // Tables that were restored and that no client has opened since.
  std::set<std::string> unused_ ABSL_GUARDED_BY(mu_);
  std::set<int> dead_ ABSL_GUARDED_BY(mu_);
  // By id of a worker: the last epoch that is gone.
  std::map<uint32_t, rendezvous::Epoch> gone_ ABSL_GUARDED_BY(mu_);
  absl::Status shut_down_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ReplicatedServer> replicated_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_SERVER_H_
