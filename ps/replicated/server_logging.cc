#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/ps/core/replication/revival.h"
#include "weft/ps/replicated/replicated_server.h"

// A server with a log of tables: what it finds there when it begins, and what
// it asks the map for by that.

namespace weft::ps {
namespace {

// For so long the server that was the primary is waited for.
constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

void ReplicatedServer::BeginLog(const PartitionMap& map) {
  TableLog::Callbacks callbacks;
  callbacks.on_disk = [this](const std::vector<TableLog::Place>& places) {
    OnDisk(places);
  };
  callbacks.copy_all = [this] { return CopyToLog(); };
  absl::Status begun =
      options_.log->Begin(options_.self, map.birth(), std::move(callbacks));
  if (begun.ok()) begun = RecoverTables(map);
  recovered_at_ = SteadyClock().Now();
  is_recovered_ = begun.ok();
  if (begun.ok()) return;
  // The map is told that this server has nothing.
  log_owners_.clear();
  WEFT_LOG(options_.agent->telemetry().logger(), Error,
           "the log of tables is not used: ")
      << begun.message();
}

absl::Status ReplicatedServer::RecoverTables(const PartitionMap& map) {
  LoggedTables found = options_.log->TakeFound();
  log_owners_ = found.owners();
  std::set<std::string> names;
  for (auto& [number, logged] : found.mutable_tables()) {
    if (logged.generation < map.generation() ||
        !names.insert(logged.spec.name()).second) {
      options_.log->DropTable(number);
      continue;
    }
    if (!logged.is_logged) {
      // Nothing of it is left, in any entry.
      for (int i = 0; i < map.entries(); ++i) unlogged_.insert(i);
      continue;
    }
    ReplicatedTable::Options options =
        TableOptions(logged.spec, logged.generation);
    options.logged = &logged;
    auto made = ReplicatedTable::Create(std::move(options), map);
    if (!made.ok()) return made.status();
    const std::shared_ptr<ReplicatedTable> table = *std::move(made);
    for (int rank : dead_) table->DeclareDead(rank);
    // The log may have clocks of workers whose end was heard of already.
    for (const auto& [id, epoch] : gone_) table->Forget({id, epoch});
    for (int p = 0; p < logged.spec.partitions(); ++p) {
      if (table->HasRowsIn(p) && logged.IsVoid(p)) {
        unlogged_.insert(map.EntryOf(p));
      }
    }
    generation_ = std::max(generation_, logged.generation);
    tables_[logged.spec.name()] = table;
    FollowLog(table);
  }
  WEFT_LOG(options_.agent->telemetry().logger(), Info, "read the log of tables")
      .With("directory", options_.log->directory())
      .With("tables", static_cast<int64_t>(tables_.size()));
  return absl::OkStatus();
}

absl::Status ReplicatedServer::CheckLogKnown(const v1::TableSpec& spec) const {
  if (options_.log == nullptr || spec.durability() != v1::TableSpec::LOGGED) {
    return absl::OkStatus();
  }
  for (const PartitionMap::Server& server : map_.servers()) {
    if (server.key == options_.self && server.has_log) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("table '", spec.name(),
                   "' is LOGGED, and the map does not "
                   "say yet that ",
                   options_.agent->name(), " has a log"));
}

void ReplicatedServer::FollowLog(
    const std::shared_ptr<ReplicatedTable>& table) {
  if (!table->is_logged()) return;
  MutexLock lock(logged_mu_);
  for (auto it = logged_.begin(); it != logged_.end();) {
    it = it->second.expired() ? logged_.erase(it) : std::next(it);
  }
  logged_[table->log_number()] = table;
}

void ReplicatedServer::OnDisk(const std::vector<TableLog::Place>& places) {
  std::map<uint32_t, std::vector<TableLog::Place>> by_table;
  for (const TableLog::Place& place : places) {
    by_table[place.table].push_back(place);
  }
  for (const auto& [number, its] : by_table) {
    std::shared_ptr<ReplicatedTable> table;
    {
      MutexLock lock(logged_mu_);
      const auto it = logged_.find(number);
      if (it != logged_.end()) table = it->second.lock();
    }
    if (table != nullptr) table->OnDisk(its);
  }
}

void ReplicatedServer::DropFromLog(const ReplicatedTable& table) {
  if (options_.log != nullptr) options_.log->DropTable(table.log_number());
}

bool ReplicatedServer::CopyToLog() {
  {
    MutexLock lock(mu_);
    if (!is_recovered_) return false;
  }
  for (const auto& [name, table] : tables()) {
    if (!table->CopyToLog()) return false;
  }
  return true;
}

void ReplicatedServer::Revive(Instant now) {
  std::vector<MapChange> changes;
  {
    MutexLock lock(mu_);
    if (options_.log == nullptr || map_.lost() == 0) return;
    changes = Revivals(
        map_, options_.self, log_owners_,
        [&](int entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return unlogged_.count(entry) == 0;
        },
        now - recovered_at_ < kPatience);
  }
  for (const MapChange& change : changes) Propose(change);
}

}  // namespace weft::ps
