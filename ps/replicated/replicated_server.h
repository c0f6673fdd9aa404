// ReplicatedServer: the tables of one parameter server of a job with two
// replicas, its leases, and what it says to the other servers.
//
//   ps::ReplicatedServer server(options);
//   server.OnServers(...);            // at each change of the membership
//   agent.SetLocal(&server);          // now it answers the functions of
//                                     // replicated/service.h
//
// A thread of its own keeps the time: pings, leases, silence.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_REPLICATED_REPLICATED_SERVER_H_
#define WEFT_PS_REPLICATED_REPLICATED_SERVER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/openings.h"
#include "weft/ps/core/replication/leases.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/rebalancer.h"
#include "weft/ps/replicated/map_keeper.h"
#include "weft/ps/replicated/rebalance_driver.h"
#include "weft/ps/replicated/replicated_table.h"
#include "weft/ps/replicated/server_links.h"
#include "weft/ps/replicated/table_log.h"
#include "weft/ps/table_access.h"
#include "weft/rendezvous/store.h"
#include "weft/rpc/agent.h"

namespace weft::ps {

class ReplicatedServer final : public ReplicaHost {
 public:
  struct Options {
    rpc::Agent* agent = nullptr;         // outlives the server
    rendezvous::Store* store = nullptr;  // of the job; outlives the server
    WorkerKey self;
    uint32_t host = 0;  // servers of equal numbers can be lost together
    // Entries of the first map: into so many groups the partitions are divided.
    int entries = 16;
    int max_tables = 1024;
    int64_t round_budget = int64_t{8} << 30;  // as ServerOptions
    int64_t table_memory = 0;                 // as ServerOptions
    // A server that says nothing for so long is taken for gone. Longer than the
    // lease, so that a backup that takes over need not wait for its end.
    absl::Duration silence = absl::Seconds(1);
    // A backup that is heard of, but takes nothing of what it lacks for so
    // long, is dropped: it may only be busy.
    absl::Duration stall = absl::Seconds(5);
    TableAccess access = {};  // as ServerOptions
    // For tables of durability LOGGED, which are refused without it.
    std::shared_ptr<TableLog> log = nullptr;
    RebalanceMode rebalance = RebalanceMode::kOff;
    RebalanceOptions rebalancing;
    LeaseOptions leases = {absl::Milliseconds(800), absl::Seconds(9), 0.01,
                           absl::Milliseconds(100)};
  };
  explicit ReplicatedServer(Options options);
  ~ReplicatedServer() override;

  // As MapKeeper::OnServers.
  void OnServers(std::vector<PartitionMap::Server> live,
                 std::vector<WorkerKey> exited, int expected);

  // Server's, of server.h.
  absl::StatusOr<v1::TableStats> OpenTable(const v1::TableSpec& spec,
                                           const Caller& caller,
                                           uint64_t client, uint64_t opened_at)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<ReplicatedTable>> Find(
      absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  const TableAccess& access() const { return options_.access; }
  // kUnavailable: the caller is gone, and comes late.
  absl::Status CheckCaller(const Caller& caller) const ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(WorkerKey worker) ABSL_LOCKS_EXCLUDED(mu_);
  void DeclareDead(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void Admit(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void Shutdown(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);
  v1::ServerStats Stats() const ABSL_LOCKS_EXCLUDED(mu_);

  using Tables = std::map<std::string, std::shared_ptr<ReplicatedTable>>;
  Tables tables() const ABSL_LOCKS_EXCLUDED(mu_);
  // kUnavailable, to ask again, unless that is the newest map here.
  absl::Status CheckMap(uint64_t epoch) const ABSL_LOCKS_EXCLUDED(mu_);

  // kUnavailable: a checkpoint is being restored, and not all is there yet.
  absl::Status CheckRestored() const ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces all tables; of each the spec and all rows. `generation` is above
  // that of any table before, and the same at all servers.
  struct Restored {
    v1::TableSpec spec;
    TableShard::Image image;
  };
  // Returns the epoch of the map by which that was done: if it is asked again
  // for the same generation, of that time. No table is served before the map is
  // of this generation.
  absl::StatusOr<uint64_t> Replace(
      const std::map<std::string, Restored>& tables, uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);

  // From other servers.
  v1::LeasePing OnPing(WorkerKey from, const v1::LeasePing& ping)
      ABSL_LOCKS_EXCLUDED(leases_mu_);
  // kInvalidArgument as DecodeBatch.
  absl::Status OnBatch(WorkerKey from, const v1::ReplicaBatch& batch,
                       const std::vector<Bytes>& payloads)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Moves all that the server of that WorkerKey::id has to others, or lets it
  // take part again. Returns the epoch of a map of the store that says so, read
  // after this was called; the moves go on after that, and whoever asked for
  // them need not be there. May wait a second for the store.
  //   kUnavailable         it is on the way: ask again
  //   kFailedPrecondition  as PartitionMap::Apply
  absl::StatusOr<uint64_t> SetDrained(uint32_t server, bool is_drained);

  // What it has to do for each entry of the map.
  std::vector<EntryLoad> Loads() const ABSL_LOCKS_EXCLUDED(mu_);
  // As RebalanceDriver::Balance.
  Future<v1::BalanceReply> Balance(bool dry_run) {
    return balancing_->Balance(dry_run);
  }

  // The newest map, encoded; empty: none yet.
  std::string encoded_map() const { return keeper_->encoded(); }
  PartitionMap map() const { return keeper_->map(); }

  // ReplicaHost.
  std::shared_ptr<const Leases> leases() override
      ABSL_LOCKS_EXCLUDED(leases_mu_);
  void Enqueue(WorkerKey to, Envelope envelope) override {
    links_.Enqueue(to, std::move(envelope));
  }
  void Flush() override { links_.Flush(); }
  void Propose(const MapChange& change) override;
  void LearnMap() override;

 private:
  void OnMap(const PartitionMap& map) ABSL_LOCKS_EXCLUDED(mu_, leases_mu_);
  // By the first map: makes the tables that the log has.
  void BeginLog(const PartitionMap& map) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RecoverTables(const PartitionMap& map)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // kUnavailable: the map does not say yet that this server has a log, which a
  // table of that spec wants.
  absl::Status CheckLogKnown(const v1::TableSpec& spec) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The table is told what is on disk of it.
  void FollowLog(const std::shared_ptr<ReplicatedTable>& table)
      ABSL_LOCKS_EXCLUDED(logged_mu_);
  void DropFromLog(const ReplicatedTable& table);
  void OnDisk(const std::vector<TableLog::Place>& places)
      ABSL_LOCKS_EXCLUDED(logged_mu_);
  bool CopyToLog() ABSL_LOCKS_EXCLUDED(mu_);
  // Proposes to serve what it has in its log, where no copy is left.
  void Revive(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  void OnContact(Instant asked, uint64_t map_epoch)
      ABSL_LOCKS_EXCLUDED(leases_mu_);
  // The table that messages of `from` are for; null: there is none.
  absl::StatusOr<std::shared_ptr<ReplicatedTable>> TableOf(
      WorkerKey from, const ReceivedRun& run) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts a call that uses this server to its end; false: it is ending.
  bool BeginCall() ABSL_LOCKS_EXCLUDED(ticks_mu_);
  void EndCall() ABSL_LOCKS_EXCLUDED(ticks_mu_);
  void Tick() ABSL_LOCKS_EXCLUDED(mu_, leases_mu_);
  void TickTables(Instant now) ABSL_LOCKS_EXCLUDED(mu_, leases_mu_);
  // Marks entries in sync that have no partitions here: no replica does it for
  // them.
  void MarkEmptyEntries(Instant now) ABSL_LOCKS_EXCLUDED(mu_, leases_mu_);
  void RunTicks();
  // The same of a table, or, if it is null, of one that is not there.
  absl::Status CheckTableRestored(const ReplicatedTable* table) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(leases_mu_);
  ReplicatedTable::Options TableOptions(const v1::TableSpec& spec,
                                        uint64_t generation);

  const Options options_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<ByteBudget> memory_;

  Mutex leases_mu_;
  Leases leases_ ABSL_GUARDED_BY(leases_mu_);
  // A copy of leases_, made anew with each change.
  std::shared_ptr<const Leases> published_ ABSL_GUARDED_BY(leases_mu_);
  uint64_t map_epoch_ ABSL_GUARDED_BY(leases_mu_) = 0;
  // Pings to the coordinator that were not answered: number and moment.
  std::deque<std::pair<uint64_t, Instant>> asked_ ABSL_GUARDED_BY(leases_mu_);

  mutable Mutex mu_;
  PartitionMap map_ ABSL_GUARDED_BY(mu_);
  // The epoch of the map that all tables know.
  uint64_t told_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  Tables tables_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;       // the newest of a table
  uint64_t restored_ ABSL_GUARDED_BY(mu_) = 0;         // by Replace...
  uint64_t restored_by_ ABSL_GUARDED_BY(mu_) = 0;      // ... and by which map
  std::set<std::string> unused_ ABSL_GUARDED_BY(mu_);  // restored, not opened
  std::set<int> dead_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, rendezvous::Epoch> gone_ ABSL_GUARDED_BY(mu_);
  absl::Status shut_down_ ABSL_GUARDED_BY(mu_);
  std::set<WorkerKey> log_owners_ ABSL_GUARDED_BY(mu_);  // earlier ones
  // Entries of which the log has not all of each table.
  std::set<int> unlogged_ ABSL_GUARDED_BY(mu_);
  bool is_recovered_ ABSL_GUARDED_BY(mu_) = false;  // what was in the log
  Instant recovered_at_ ABSL_GUARDED_BY(mu_);

  // By number; a lock of its own, for a table may be made under mu_ and wait
  // for the log.
  Mutex logged_mu_;
  std::map<uint32_t, std::weak_ptr<ReplicatedTable>> logged_
      ABSL_GUARDED_BY(logged_mu_);

  Mutex ticks_mu_;
  CondVar ticks_end_;
  bool is_ending_ ABSL_GUARDED_BY(ticks_mu_) = false;
  int calls_ ABSL_GUARDED_BY(ticks_mu_) = 0;  // pings under way

  ServerLinks links_;
  std::unique_ptr<MapKeeper> keeper_;
  std::unique_ptr<RebalanceDriver> balancing_;
  Instant forget_at_;  // of the thread that ticks
  std::thread ticks_;
};

// The client's number of pushes, by which all servers know it.
ClientId ClientIdOf(WorkerKey worker, uint64_t client);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_REPLICATED_SERVER_H_
