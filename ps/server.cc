#include "weft/ps/server.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/replicated/load_report.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/shard/snapshot.h"

namespace weft::ps {
namespace {

// What the files of one checkpoint of `directory` have of tables.
absl::StatusOr<std::map<std::string, LoadedTable>> LoadFiles(
    const CheckpointRoot& root, checkpoint::CheckpointDirectory& checkpoints,
    const checkpoint::CheckpointDirectory::Link& link) {
  const std::string path = absl::StrCat(checkpoints.path(), "/", link.name);
  // A link in the file system may lead elsewhere.
  WEFT_RETURN_IF_ERROR(root.Resolve(path).status());
  std::map<std::string, LoadedTable> loaded;
  for (const checkpoint::FileRecord& file : link.manifest.files) {
    WEFT_ASSIGN_OR_RETURN(const checkpoint::Safetensors shard,
                          checkpoints.LoadShard(link.name, file));
    if (!IsTableShard(shard)) continue;  // a trainer's own
    WEFT_RETURN_IF_ERROR(
        AddShard(shard, absl::StrCat(path, "/", file.name), loaded));
  }
  return loaded;
}

// All tables of a checkpoint, read and checked while the present ones stay. If
// the checkpoint holds only what has changed, those that it needs are read
// first, one by one.
absl::StatusOr<std::map<std::string, LoadedTable>> LoadAll(
    const CheckpointRoot& root, const std::string& directory,
    const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(const std::string path, root.Resolve(directory));
  WEFT_RETURN_IF_ERROR(root.Resolve(absl::StrCat(path, "/", name)).status());
  WEFT_ASSIGN_OR_RETURN(const auto checkpoints,
                        checkpoint::CheckpointDirectory::Open({path}));
  WEFT_ASSIGN_OR_RETURN(const auto chain, checkpoints->Chain(name));
  std::map<std::string, LoadedTable> tables;
  std::string attempt;  // of `tables`
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    WEFT_ASSIGN_OR_RETURN(auto loaded, LoadFiles(root, *checkpoints, *link));
    WEFT_RETURN_IF_ERROR(ApplyTo(std::move(tables), attempt,
                                 absl::StrCat(path, "/", link->name), loaded));
    tables = std::move(loaded);
    attempt = link->manifest.attempt;
  }
  return tables;
}

// How much of a server a table takes by being there.
int64_t PartsOf(const v1::TableSpec& spec) {
  const bool is_dense = spec.kind() == v1::TableSpec::DENSE;
  return spec.partitions() + (is_dense ? SlicesOf(spec.elements()) : 0);
}

}  // namespace

absl::StatusOr<RebalanceMode> RebalanceModeOf(absl::string_view text) {
  if (text == "on") return RebalanceMode::kOn;
  if (text == "off") return RebalanceMode::kOff;
  if (text == "dry-run") return RebalanceMode::kDryRun;
  return absl::InvalidArgumentError("wanted on, off or dry-run");
}

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      checkpoint_root_(options_.checkpoint_dir),
      budget_(ByteBudget::Of(options_.round_budget)),
      memory_(options_.table_memory > 0 ? ByteBudget::Of(options_.table_memory)
                                        : nullptr),
      copies_(ByteBudget::Of(options_.snapshot_memory)) {
  WEFT_CHECK(options_.server >= 0 && options_.server < options_.servers);
}

Server::~Server() {
  Shutdown(absl::CancelledError("the parameter server shut down"));
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::CreateTable(
    const v1::TableSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(const v1::TableSpec wanted, CheckedSpec(spec));
  if (wanted.durability() == v1::TableSpec::LOGGED) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", wanted.name(),
        "': durability LOGGED wants --replicas=2 and --table-log-dir=DIR of "
        "all servers, found --replicas=1"));
  }
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  const auto it = tables_.find(wanted.name());
  if (it != tables_.end()) {
    const bool is_unused = unused_.count(wanted.name()) != 0;
    const std::string difference =
        DifferenceOf(is_unused ? WithChanges(it->second->spec(), wanted)
                               : it->second->spec(),
                     wanted);
    if (!difference.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", wanted.name(), "' is there with another spec: ",
          difference, "; use its spec, or another name",
          is_unused ? " (a restored table may change its rule's numbers, "
                      "shards, reduction, orphans, life and wire)"
                    : ""));
    }
    if (!DifferenceOf(it->second->spec(), wanted).empty()) {
      WEFT_ASSIGN_OR_RETURN(it->second, Changed(*it->second, wanted));
    }
    unused_.erase(wanted.name());
    return it->second;
  }
  WEFT_RETURN_IF_ERROR(CheckRoom(wanted));
  absl::StatusOr<std::unique_ptr<TableShard>> shard = TableShard::Create(
      wanted, options_.server, options_.servers, budget_, memory_);
  if (!shard.ok()) return shard.status();
  for (int rank : dead_) (*shard)->DeclareDead(rank);
  return tables_[wanted.name()] = *std::move(shard);
}

absl::Status Server::CheckRoom(const v1::TableSpec& spec) const {
  if (static_cast<int>(tables_.size()) >= options_.max_tables) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table '", spec.name(), "' would be one more than the ",
                     options_.max_tables, " that a server may hold"));
  }
  const int64_t wanted = PartsOf(spec);
  int64_t parts = 0;
  for (const auto& [name, shard] : tables_) parts += PartsOf(shard->spec());
  if (wanted <= options_.max_parts - parts) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("table '", spec.name(), "' has ", wanted,
                   " partitions and slices, those on server ", options_.server,
                   " have ", parts, ", and ", options_.max_parts,
                   " are the most; use fewer partitions, or fewer elements"));
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::OpenTable(
    const v1::TableSpec& spec, const Caller& caller, uint64_t client) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<TableShard> shard, CreateTable(spec));
  MutexLock lock(mu_);  // Forget() sees the table, or is seen here
  const auto gone = gone_.find(caller.key.id);
  if (gone != gone_.end() && caller.key.epoch <= gone->second) {
    return absl::UnavailableError(
        absl::StrCat("table '", spec.name(), "' was not opened: ", caller.name,
                     " (", caller.key.ToString(), ") is gone"));
  }
  shard->Open(caller, client);
  return shard;
}

void Server::SetReplicated(std::shared_ptr<ReplicatedServer> server) {
  DropFrozen(Instant::Infinite());  // of the one before
  MutexLock lock(mu_);
  for (int rank : dead_) {
    if (server != nullptr) server->DeclareDead(rank);
  }
  replicated_ = std::move(server);
}

std::shared_ptr<ReplicatedServer> Server::replicated() const {
  MutexLock lock(mu_);
  return replicated_;
}

void Server::Forget(WorkerKey worker) {
  if (const auto tables = replicated()) tables->Forget(worker);
  {
    MutexLock lock(mu_);
    rendezvous::Epoch& last = gone_[worker.id];
    last = std::max(last, worker.epoch);
  }
  for (const auto& [name, shard] : Snapshot()) shard->Forget(worker);
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::Changed(
    TableShard& restored, const v1::TableSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<TableShard> shard,
                        TableShard::Create(spec, options_.server,
                                           options_.servers, budget_, memory_));
  WEFT_RETURN_IF_ERROR(shard->Restore(restored.Save()));
  for (int rank : dead_) shard->DeclareDead(rank);
  return std::shared_ptr<TableShard>(std::move(shard));
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::Find(
    absl::string_view name) const {
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  const auto it = tables_.find(name);
  if (it != tables_.end()) return it->second;
  constexpr size_t kShown = 16;
  std::vector<absl::string_view> names;
  for (const auto& [known, shard] : tables_) {
    if (names.size() < kShown) names.push_back(known);
  }
  const size_t more = tables_.size() - names.size();
  return absl::NotFoundError(absl::StrCat(
      "no table '", absl::CHexEscape(name.substr(0, 256)), "' on server ",
      options_.server, "; it has ",
      names.empty() ? "none" : absl::StrJoin(names, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", "; open it first"));
}

Server::Tables Server::Snapshot() const {
  MutexLock lock(mu_);
  return tables_;
}

void Server::DeclareDead(int rank) {
  {
    MutexLock lock(mu_);
    dead_.insert(rank);
  }
  if (const auto tables = replicated()) tables->DeclareDead(rank);
  for (const auto& [name, shard] : Snapshot()) shard->DeclareDead(rank);
}

void Server::Admit(int rank) {
  {
    MutexLock lock(mu_);
    dead_.erase(rank);
  }
  if (const auto tables = replicated()) tables->Admit(rank);
  for (const auto& [name, shard] : Snapshot()) shard->Admit(rank);
}

void Server::Expire(Instant now) {
  DropFrozen(now);
  for (const auto& [name, shard] : Snapshot()) shard->Expire(now);
}

void Server::Shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mu_);
    if (shut_down_.ok()) shut_down_ = reason;
  }
  DropFrozen(Instant::Infinite());
  if (const auto tables = replicated()) tables->Shutdown(reason);
  for (const auto& [name, shard] : Snapshot()) shard->Shutdown(reason);
}

absl::Status Server::CheckCheckpoint(const std::string& directory,
                                     const std::string& name) const {
  WEFT_ASSIGN_OR_RETURN(const std::string path,
                        checkpoint_root_.Resolve(directory));
  WEFT_RETURN_IF_ERROR(
      checkpoint_root_.Resolve(absl::StrCat(path, "/", name)).status());
  WEFT_ASSIGN_OR_RETURN(const auto checkpoints,
                        checkpoint::CheckpointDirectory::Open({path}));
  return checkpoints->Chain(name).status();
}

absl::StatusOr<uint64_t> Server::RestoreReplicated(const std::string& directory,
                                                   const std::string& name,
                                                   uint64_t generation) {
  const auto tables = replicated();
  if (tables == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "server ", options_.server, " serves no tables with two replicas now"));
  }
  WEFT_ASSIGN_OR_RETURN(auto loaded,
                        LoadAll(checkpoint_root_, directory, name));
  std::map<std::string, ReplicatedServer::Restored> replaced;
  for (auto& [table_name, table] : loaded) {
    replaced[table_name] = {table.spec, std::move(table.image)};
  }
  return tables->Replace(replaced, generation);
}

absl::Status Server::Restore(const std::string& directory,
                             const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(auto loaded,
                        LoadAll(checkpoint_root_, directory, name));
  Tables restored;
  for (auto& [table_name, table] : loaded) {
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<TableShard> shard,
        TableShard::Create(table.spec, options_.server, options_.servers,
                           budget_, memory_));
    WEFT_RETURN_IF_ERROR(shard->Restore(std::move(table.image)));
    restored[table_name] = std::move(shard);
  }
  Tables replaced;
  {
    MutexLock lock(mu_);
    if (!shut_down_.ok()) return shut_down_;
    for (auto& [name, shard] : restored) {
      for (int rank : dead_) shard->DeclareDead(rank);
    }
    replaced = std::exchange(tables_, std::move(restored));
    unused_.clear();
    for (const auto& [name, shard] : tables_) unused_.insert(name);
  }
  for (const auto& [name, shard] : replaced) {
    shard->Shutdown(absl::CancelledError(
        absl::StrCat("table '", name,
                     "' was replaced by that of a checkpoint; open it "
                     "again")));
  }
  return absl::OkStatus();
}

std::vector<TableWait> Server::Waits(Instant now) const {
  std::vector<TableWait> waits;
  const auto add = [&](std::optional<TableWait> wait) {
    if (wait.has_value()) waits.push_back(*std::move(wait));
  };
  if (const auto replicated = this->replicated()) {
    for (const auto& [name, table] : replicated->tables()) {
      add(table->Waits(now));
    }
  }
  for (const auto& [name, shard] : Snapshot()) add(shard->Waits(now));
  return waits;
}

v1::ServerStats Server::Stats() const {
  v1::ServerStats stats;
  if (const auto tables = replicated()) stats = tables->Stats();
  for (const auto& [name, shard] : Snapshot()) {
    *stats.add_tables() = shard->Stats();
  }
  return stats;
}

v1::ServerLoads Server::Loads() const {
  v1::ServerLoads loads;
  if (const auto replicated = this->replicated()) {
    AddEntries(replicated->Loads(), loads);
    for (const auto& [name, table] : replicated->tables()) {
      v1::TableLoad& its = *loads.add_tables();
      its = LoadReport(name, table->load());
      its.set_lag(table->Lag());
    }
  }
  for (const auto& [name, shard] : Snapshot()) {
    *loads.add_tables() = LoadReport(name, shard->load());
  }
  return loads;
}

void Server::ExportMetrics(telemetry::Metrics& to) const {
  if (const auto replicated = this->replicated()) {
    for (const auto& [name, table] : replicated->tables()) {
      table->metrics().Export(to, name);
    }
  }
  for (const auto& [name, shard] : Snapshot())
    shard->metrics().Export(to, name);
}

}  // namespace weft::ps
