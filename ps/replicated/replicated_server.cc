#include "weft/ps/replicated/replicated_server.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/replicated/service.h"
#include "weft/rpc/call.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kTableTick = absl::Milliseconds(50);
constexpr absl::Duration kForgetEvery = absl::Seconds(1);
constexpr absl::Duration kPingTimeout = absl::Seconds(1);
constexpr absl::Duration kReadTimeout = absl::Seconds(1);

}  // namespace

ClientId ClientIdOf(WorkerKey worker, uint64_t client) {
  return Mix64(client ^ Mix64(worker.epoch ^ Mix64(worker.id))) | 1;
}

ReplicatedServer::ReplicatedServer(Options options)
    : options_(options),
      budget_(ByteBudget::Of(options.round_budget)),
      memory_(options.table_memory > 0 ? ByteBudget::Of(options.table_memory)
                                       : nullptr),
      leases_(options.leases),
      links_(options.agent) {
  WEFT_CHECK(options.agent != nullptr && options.store != nullptr);
  WEFT_CHECK(options.leases.lease < options.silence);
  {
    MutexLock lock(leases_mu_);
    leases_.Watch({Leases::kCoordinator}, SteadyClock().Now());
    Publish();
  }
  MapKeeper::Options keeping;
  keeping.store = options.store;
  keeping.self = options.self;
  keeping.host = options.host;
  keeping.entries = options.entries;
  keeping.replicas = 2;
  keeping.has_log = options.log != nullptr;
  keeping.on_map = [this](const PartitionMap& map) { OnMap(map); };
  keeping.on_contact = [this](Instant asked, uint64_t map_epoch) {
    OnContact(asked, map_epoch);
  };
  keeping.telemetry = &options.agent->telemetry();
  keeper_ = std::make_unique<MapKeeper>(std::move(keeping));
  RebalanceDriver::Options balancing;
  balancing.agent = options.agent;
  balancing.self = options.self;
  balancing.mode = options.rebalance;
  balancing.rebalance = options.rebalancing;
  balancing.map = [this] { return keeper_->map(); };
  balancing.loads = [this] { return Loads(); };
  balancing.propose = [this](const MapChange& change) { Propose(change); };
  balancing_ = std::make_unique<RebalanceDriver>(std::move(balancing));
  ticks_ = std::thread([this] { RunTicks(); });
}

ReplicatedServer::~ReplicatedServer() {
  Shutdown(absl::UnavailableError("the parameter server shut down"));
  links_.Shutdown();
  if (options_.log != nullptr) options_.log->Shutdown();
  {
    MutexLock lock(ticks_mu_);
    is_ending_ = true;
  }
  ticks_end_.NotifyAll();
  ticks_.join();
  {
    // They end by their time-outs.
    MutexLock lock(ticks_mu_);
    while (calls_ > 0) ticks_end_.Wait(ticks_mu_);
  }
  balancing_.reset();
  keeper_.reset();
}

bool ReplicatedServer::BeginCall() {
  MutexLock lock(ticks_mu_);
  if (is_ending_) return false;
  ++calls_;
  return true;
}

void ReplicatedServer::EndCall() {
  MutexLock lock(ticks_mu_);
  if (--calls_ == 0) ticks_end_.NotifyAll();
}

void ReplicatedServer::OnServers(std::vector<PartitionMap::Server> live,
                                 std::vector<WorkerKey> exited, int expected) {
  keeper_->OnServers(std::move(live), std::move(exited), expected);
}

// --- Time and leases ---------------------------------------------------------

void ReplicatedServer::Publish() {
  published_ = std::make_shared<const Leases>(leases_);
}

std::shared_ptr<const Leases> ReplicatedServer::leases() {
  MutexLock lock(leases_mu_);
  return published_;
}

void ReplicatedServer::TickTables(Instant now) {
  // What comes from other servers may name clients of workers whose end was
  // heard of here before: nobody is to wait for their clocks.
  const bool forgets = now >= forget_at_;
  std::map<uint32_t, rendezvous::Epoch> gone;
  if (forgets) {
    forget_at_ = now + kForgetEvery;
    MutexLock lock(mu_);
    gone = gone_;
  }
  for (const auto& [name, table] : tables()) {
    for (const auto& [id, epoch] : gone) table->Forget({id, epoch});
    table->Tick();
    table->load().Advance(now);
  }
  MarkEmptyEntries(now);
  Revive(now);
  balancing_->OnTick(now);
}

void ReplicatedServer::RunTicks() {
  Instant next_of_tables = SteadyClock().Now();
  for (;;) {
    {
      MutexLock lock(ticks_mu_);
      const auto until = SteadyDeadline(kTick);
      while (!is_ending_ && ticks_end_.WaitUntil(ticks_mu_, until)) {
      }
      if (is_ending_) return;
    }
    const Instant now = SteadyClock().Now();
    if (now >= next_of_tables) {
      TickTables(now);
      next_of_tables = now + kTableTick;
    }
    Tick();
  }
}

void ReplicatedServer::Tick() {
  std::vector<Leases::Out> pings;
  {
    MutexLock lock(leases_mu_);
    if (map_epoch_ == 0) return;
    const Instant now = SteadyClock().Now();
    for (const Leases::Out& out : leases_.OnTick(map_epoch_, now)) {
      if (out.to == Leases::kCoordinator) {
        // The keeper's next contact is the answer.
        asked_.emplace_back(out.ping.number, now);
        if (asked_.size() > 64) asked_.pop_front();
      } else {
        pings.push_back(out);
      }
    }
    Publish();
  }
  for (const Leases::Out& out : pings) {
    if (!BeginCall()) return;
    v1::LeasePing ping;
    ping.set_number(out.ping.number);
    ping.set_map_epoch(out.ping.map_epoch);
    rpc::CallAsync(options_.agent->To(out.to, kPingTimeout), &PingServer, ping)
        .OnReady([this,
                  to = out.to](const absl::StatusOr<v1::LeasePing>& answer) {
          bool counts = true;
          if (answer.ok()) {
            MutexLock lock(leases_mu_);
            counts =
                leases_.OnAnswer(to, {answer->number(), answer->map_epoch()},
                                 map_epoch_, SteadyClock().Now());
            Publish();
          }
          if (!counts) keeper_->Learn();
          EndCall();
        });
  }
  Flush();
}

void ReplicatedServer::MarkEmptyEntries(Instant now) {
  PartitionMap map;
  Tables all;
  {
    MutexLock lock(mu_);
    map = map_;
    all = tables_;
  }
  // What is there is not all yet.
  if (map.is_restoring()) return;
  const std::shared_ptr<const Leases> leases = this->leases();
  if (now >= leases->HeldUntil(Leases::kCoordinator)) return;
  const auto answers = [&](WorkerKey backup) {
    return !IsNone(backup) && now < leases->HeldUntil(backup);
  };
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& entry = map.entry(i);
    if (entry.primary != options_.self) continue;
    using Kind = MapChange::Kind;
    const bool is_empty =
        std::none_of(all.begin(), all.end(),
                     [&](const auto& table) { return table.second->Holds(i); });
    if (!is_empty) continue;
    if (!entry.in_sync && answers(entry.backup)) {
      Propose({Kind::kMarkInSync, i, entry.changed});
    } else if (answers(entry.next)) {
      Propose({Kind::kTakeNext, i, entry.changed});
    } else if (entry.is_handing_over && answers(entry.backup) &&
               leases->EpochOf(entry.backup) >= entry.epoch) {
      Propose({Kind::kHandOver, i, entry.changed});
    }
  }
}

v1::LeasePing ReplicatedServer::OnPing(WorkerKey from,
                                       const v1::LeasePing& ping) {
  Ping answer;
  bool is_behind = false;
  {
    MutexLock lock(leases_mu_);
    answer = leases_.OnPing(from, {ping.number(), ping.map_epoch()}, map_epoch_,
                            SteadyClock().Now());
    is_behind = ping.map_epoch() > map_epoch_;
    Publish();
  }
  if (is_behind) keeper_->Learn();
  v1::LeasePing out;
  out.set_number(answer.number);
  out.set_map_epoch(answer.map_epoch);
  return out;
}

void ReplicatedServer::OnContact(Instant asked, uint64_t map_epoch) {
  MutexLock lock(leases_mu_);
  // The newest ping that is not newer than the question.
  bool has_ping = false;
  uint64_t number = 0;
  while (!asked_.empty() && asked_.front().second <= asked) {
    number = asked_.front().first;
    has_ping = true;
    asked_.pop_front();
  }
  if (!has_ping) return;
  (void)leases_.OnAnswer(Leases::kCoordinator, {number, map_epoch}, map_epoch_,
                         SteadyClock().Now());
  Publish();
}

// --- The map -----------------------------------------------------------------

void ReplicatedServer::OnMap(const PartitionMap& map) {
  {
    // First: no ping is answered by an older map once tables know this one.
    MutexLock lock(leases_mu_);
    map_epoch_ = map.epoch();
    std::vector<WorkerKey> peers = map.PartnersOf(options_.self);
    peers.push_back(Leases::kCoordinator);
    leases_.Watch(peers, SteadyClock().Now());
    Publish();
  }
  Tables all;
  Tables voided;
  {
    MutexLock lock(mu_);
    const bool is_first = map_.epoch() == 0;
    map_ = map;
    if (is_first && options_.log != nullptr) BeginLog(map);
    for (auto it = tables_.begin(); it != tables_.end();) {
      if (it->second->generation() >= map.generation()) {
        ++it;
        continue;
      }
      unused_.erase(it->first);
      DropFromLog(*it->second);
      voided.insert(*it);
      it = tables_.erase(it);
    }
    generation_ = std::max(generation_, map.generation());
    all = tables_;
  }
  for (const auto& [name, table] : voided) {
    table->Shutdown(absl::CancelledError(
        absl::StrCat("table '", name,
                     "' is replaced by that of a checkpoint; open it again")));
  }
  links_.OnMap(map);
  for (const auto& [name, table] : all) table->OnMap(map);
  MutexLock lock(mu_);
  told_epoch_ = map.epoch();
}

void ReplicatedServer::Propose(const MapChange& change) {
  std::function<bool()> may_make;
  if (change.kind == MapChange::Kind::kMarkInSync ||
      change.kind == MapChange::Kind::kTakeNext ||
      change.kind == MapChange::Kind::kHandOver) {
    may_make = [this, kind = change.kind, entry = change.entry] {
      for (const auto& [name, table] : tables()) {
        if (!table->IsReadyFor(kind, entry)) return false;
      }
      return true;
    };
  }
  keeper_->Propose(change, std::move(may_make));
}

absl::StatusOr<uint64_t> ReplicatedServer::SetDrained(uint32_t server,
                                                      bool is_drained) {
  MapChange change;
  change.kind =
      is_drained ? MapChange::Kind::kDrain : MapChange::Kind::kUndrain;
  change.server = server;
  // The map that is known may be older than another server's change: of a
  // server that was drained before and takes part again it says that it has
  // nothing.
  WEFT_ASSIGN_OR_RETURN(PartitionMap map, keeper_->AwaitNewest(kReadTimeout));
  for (const PartitionMap::Server& one : map.servers()) {
    if (one.key.id == server && one.is_drained == is_drained) {
      return map.epoch();
    }
  }
  WEFT_RETURN_IF_ERROR(map.Apply(change));
  keeper_->Propose(change, nullptr);
  return absl::UnavailableError(
      "the map is being changed; ask again until it is");
}

std::vector<EntryLoad> ReplicatedServer::Loads() const {
  std::vector<EntryLoad> loads(map().entries());
  for (const auto& [name, table] : tables()) table->AddLoads(loads);
  return loads;
}

void ReplicatedServer::LearnMap() { keeper_->Learn(); }

// --- Between servers ---------------------------------------------------------

absl::Status ReplicatedServer::OnBatch(WorkerKey from,
                                       const v1::ReplicaBatch& batch,
                                       const std::vector<Bytes>& payloads) {
  WEFT_ASSIGN_OR_RETURN(std::vector<ReceivedRun> runs,
                        DecodeBatch(batch, payloads));
  uint64_t newest = 0;
  for (const ReceivedRun& run : runs) {
    for (const Received& received : run.messages) {
      newest = std::max(newest, received.message.map_epoch);
    }
  }
  {
    MutexLock lock(mu_);
    // What it is about is not known to all tables yet: the sender sends it
    // again.
    if (newest > told_epoch_) {
      keeper_->Learn();
      return absl::UnavailableError(
          absl::StrCat(options_.agent->name(), " knows map ", told_epoch_,
                       ", a message between replicas is of map ", newest));
    }
    const auto is_sender = [&](const PartitionMap::Server& server) {
      return server.key == from;
    };
    if (std::none_of(map_.servers().begin(), map_.servers().end(), is_sender)) {
      return absl::PermissionDeniedError(absl::StrCat(
          "messages between replicas are for servers of the job's map, and ",
          from.ToString(), " is none"));
    }
  }
  for (ReceivedRun& run : runs) {
    WEFT_ASSIGN_OR_RETURN(const auto table, TableOf(from, run));
    if (table == nullptr) continue;
    std::vector<WorkerKey> openers;
    for (const Received& received : run.messages) {
      if (received.said == nullptr) continue;
      for (const auto& opening : received.said->openings()) {
        openers.push_back({opening.worker().id(), opening.worker().epoch()});
      }
    }
    table->OnMessages(from, std::move(run));
    for (WorkerKey worker : openers) {
      // The sender may not know yet that it is gone.
      if (!CheckCaller({"", worker}).ok()) table->Forget(worker);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ReplicatedTable>> ReplicatedServer::TableOf(
    WorkerKey from, const ReceivedRun& run) {
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  const auto it = tables_.find(run.table);
  if (it != tables_.end()) {
    // What this server is the primary of would be lost with its own table: it
    // is to be restored here first.
    if (run.generation > it->second->generation()) {
      return absl::UnavailableError(absl::StrCat("table '", run.table,
                                                 "' is not yet restored on ",
                                                 options_.agent->name()));
    }
    return it->second;
  }
  // A server that came later gets its tables with the copies of their rows.
  const auto is_of_primary =
      [&](const Received& received) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return received.said != nullptr && map_.epoch() > 0 &&
               map_.entry(map_.EntryOf(received.partition)).primary == from;
      };
  const auto copy =
      std::find_if(run.messages.begin(), run.messages.end(), is_of_primary);
  if (copy == run.messages.end()) return std::shared_ptr<ReplicatedTable>();
  auto made = ReplicatedTable::Create(
      TableOptions(copy->said->spec(), run.generation), map_);
  if (!made.ok()) return std::shared_ptr<ReplicatedTable>();
  const std::shared_ptr<ReplicatedTable> table = *std::move(made);
  for (int rank : dead_) table->DeclareDead(rank);
  tables_[run.table] = table;
  FollowLog(table);
  generation_ = std::max(generation_, run.generation);
  return table;
}

// --- Tables ------------------------------------------------------------------

ReplicatedTable::Options ReplicatedServer::TableOptions(
    const v1::TableSpec& spec, uint64_t generation) {
  ReplicatedTable::Options made;
  made.spec = spec;
  made.generation = generation;
  made.self = options_.self;
  made.replica.silence = options_.silence;
  made.replica.stall = options_.stall;
  made.budget = budget_;
  made.memory = memory_;
  made.host = this;
  made.log = options_.log.get();
  return made;
}

ReplicatedServer::Tables ReplicatedServer::tables() const {
  MutexLock lock(mu_);
  return tables_;
}

absl::StatusOr<v1::TableStats> ReplicatedServer::OpenTable(
    const v1::TableSpec& spec, const Caller& caller, uint64_t client,
    uint64_t opened_at) {
  WEFT_ASSIGN_OR_RETURN(const v1::TableSpec wanted, CheckedSpec(spec));
  if (wanted.has_quorum()) {
    return absl::UnimplementedError(absl::StrCat(
        "table '", wanted.name(),
        "' wants a quorum, which tables with two replicas do not have; leave "
        "it out, or start the job with --replicas=1"));
  }
  WEFT_RETURN_IF_ERROR(CheckCaller(caller));
  std::shared_ptr<ReplicatedTable> table;
  std::shared_ptr<ReplicatedTable> replaced;
  bool is_new = false;
  {
    MutexLock lock(mu_);
    if (!shut_down_.ok()) return shut_down_;
    if (map_.epoch() == 0) {
      return absl::UnavailableError("the job's servers have not all joined");
    }
    WEFT_RETURN_IF_ERROR(CheckLogKnown(wanted));
    const auto it = tables_.find(wanted.name());
    WEFT_RETURN_IF_ERROR(
        CheckTableRestored(it == tables_.end() ? nullptr : it->second.get()));
    if (it == tables_.end()) {
      if (static_cast<int>(tables_.size()) >= options_.max_tables) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "table '", wanted.name(), "' would be one more than the ",
            options_.max_tables, " that a server may hold"));
      }
      WEFT_ASSIGN_OR_RETURN(
          table,
          ReplicatedTable::Create(TableOptions(wanted, generation_), map_));
      for (int rank : dead_) table->DeclareDead(rank);
      tables_[wanted.name()] = table;
      FollowLog(table);
      is_new = true;
    } else {
      table = it->second;
      const bool is_unused = unused_.count(wanted.name()) != 0;
      const std::string difference = DifferenceOf(
          is_unused ? WithChanges(table->spec(), wanted) : table->spec(),
          wanted);
      if (!difference.empty()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "table '", wanted.name(), "' is there with another spec: ",
            difference, "; use its spec, or another name",
            is_unused ? " (a restored table may change its rule's numbers, "
                        "shards, reduction, orphans, life and wire)"
                      : ""));
      }
      if (!DifferenceOf(table->spec(), wanted).empty()) {
        const TableShard::Image image = table->ImageOfAll();
        WEFT_ASSIGN_OR_RETURN(
            std::shared_ptr<ReplicatedTable> changed,
            ReplicatedTable::Create(TableOptions(wanted, table->generation()),
                                    map_, &image));
        for (int rank : dead_) changed->DeclareDead(rank);
        replaced = std::exchange(table, std::move(changed));
        it->second = table;
        FollowLog(table);
        DropFromLog(*replaced);
      }
      unused_.erase(wanted.name());
    }
  }
  // What has no rows in the log must be known by it before it has any.
  if (is_new && options_.log != nullptr && !table->is_logged()) {
    WEFT_RETURN_IF_ERROR(options_.log->Await());
  }
  if (replaced != nullptr) {
    replaced->Shutdown(absl::CancelledError(absl::StrCat(
        "table '", spec.name(), "' has another rule now; open it again")));
  }
  WEFT_RETURN_IF_ERROR(
      table->Open({caller.key, ClientIdOf(caller.key, client), opened_at}));
  const absl::Status is_there = CheckCaller(caller);
  if (!is_there.ok()) {  // it has gone meanwhile
    table->Forget(caller.key);
    return is_there;
  }
  return table->Stats();
}

absl::StatusOr<std::shared_ptr<ReplicatedTable>> ReplicatedServer::Find(
    absl::string_view name) const {
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  const auto it = tables_.find(std::string(name));
  WEFT_RETURN_IF_ERROR(
      CheckTableRestored(it == tables_.end() ? nullptr : it->second.get()));
  if (it != tables_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat("no table '", absl::CHexEscape(name.substr(0, 256)), "' on ",
                   options_.agent->name(), "; open it first"));
}

absl::Status ReplicatedServer::CheckRestored() const {
  MutexLock lock(mu_);
  for (const auto& [name, table] : tables_) {
    WEFT_RETURN_IF_ERROR(CheckTableRestored(table.get()));
  }
  return CheckTableRestored(nullptr);
}

absl::Status ReplicatedServer::CheckTableRestored(
    const ReplicatedTable* table) const {
  if (!map_.is_restoring() &&
      (table == nullptr || table->generation() <= map_.generation())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(options_.agent->name(),
                   " has no tables yet: a checkpoint is being restored; wait "
                   "for its end, or restore one if whoever began it is gone"));
}

absl::Status ReplicatedServer::CheckCaller(const Caller& caller) const {
  MutexLock lock(mu_);
  const auto gone = gone_.find(caller.key.id);
  if (gone == gone_.end() || caller.key.epoch > gone->second) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      caller.name, " (", caller.key.ToString(), ") is gone from the job"));
}

void ReplicatedServer::Forget(WorkerKey worker) {
  {
    MutexLock lock(mu_);
    rendezvous::Epoch& last = gone_[worker.id];
    last = std::max(last, worker.epoch);
  }
  for (const auto& [name, table] : tables()) table->Forget(worker);
}

void ReplicatedServer::DeclareDead(int rank) {
  {
    MutexLock lock(mu_);
    if (!dead_.insert(rank).second) return;
  }
  for (const auto& [name, table] : tables()) table->DeclareDead(rank);
}

void ReplicatedServer::Admit(int rank) {
  {
    MutexLock lock(mu_);
    if (dead_.erase(rank) == 0) return;
  }
  for (const auto& [name, table] : tables()) table->Admit(rank);
}

void ReplicatedServer::Shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mu_);
    if (shut_down_.ok()) shut_down_ = reason;
  }
  for (const auto& [name, table] : tables()) table->Shutdown(reason);
}

v1::ServerStats ReplicatedServer::Stats() const {
  v1::ServerStats stats;
  for (const auto& [name, table] : tables()) {
    *stats.add_tables() = table->Stats();
  }
  MutexLock lock(mu_);
  stats.set_entries(map_.entries());
  stats.set_lost(map_.lost());
  stats.set_is_restoring(map_.is_restoring());
  return stats;
}

absl::Status ReplicatedServer::CheckMap(uint64_t epoch) const {
  MutexLock lock(mu_);
  // A table that has not been told yet would save less than it has the role of.
  if (epoch == map_.epoch() && epoch == told_epoch_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("wanted map ", epoch, ", found ",
                                             told_epoch_, " on ",
                                             options_.agent->name()));
}

absl::StatusOr<uint64_t> ReplicatedServer::Replace(
    const std::map<std::string, Restored>& tables, uint64_t generation) {
  Tables made;
  Tables replaced;
  uint64_t by_map = 0;
  {
    MutexLock lock(mu_);
    if (!shut_down_.ok()) return shut_down_;
    if (map_.epoch() == 0) {
      return absl::UnavailableError("the job's servers have not all joined");
    }
    if (generation == restored_) return restored_by_;  // asked again
    if (generation < generation_) {
      return absl::FailedPreconditionError(
          "a newer checkpoint was restored meanwhile");
    }
    for (const auto& [name, restored] : tables) {
      auto one = ReplicatedTable::Create(
          TableOptions(restored.spec, generation), map_, &restored.image);
      if (!one.ok()) {
        for (const auto& [its, table] : made) DropFromLog(*table);
        return one.status();
      }
      made[name] = *std::move(one);
      FollowLog(made[name]);
      for (int rank : dead_) made[name]->DeclareDead(rank);
    }
    generation_ = restored_ = generation;
    restored_by_ = by_map = map_.epoch();
    replaced = std::exchange(tables_, made);
    for (const auto& [name, table] : replaced) DropFromLog(*table);
    unused_.clear();
    for (const auto& [name, table] : made) unused_.insert(name);
  }
  for (const auto& [name, table] : replaced) {
    table->Shutdown(absl::CancelledError(
        absl::StrCat("table '", name,
                     "' was replaced by that of a checkpoint; open it again")));
  }
  if (options_.log != nullptr) WEFT_RETURN_IF_ERROR(options_.log->Await());
  return by_map;
}

}  // namespace weft::ps
