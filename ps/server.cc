#include "weft/ps/server.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/message_differencer.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/ps/snapshot.h"

namespace weft::ps {
namespace {

absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>> OpenDirectory(
    const std::string& path) {
  checkpoint::CheckpointDirectory::Options options;
  options.path = path;
  return checkpoint::CheckpointDirectory::Open(options);
}

// Empty if they are equal.
std::string DifferenceOf(const v1::TableSpec& found,
                         const v1::TableSpec& wanted) {
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  (void)differencer.Compare(found, wanted);
  return difference;
}

// `restored` with what may change when a job goes on from a checkpoint.
v1::TableSpec WithChanges(v1::TableSpec restored, const v1::TableSpec& wanted) {
  if (restored.rule().rule_case() == wanted.rule().rule_case()) {
    *restored.mutable_rule() = wanted.rule();
  }
  restored.set_shards(wanted.shards());
  restored.set_reduction(wanted.reduction());
  restored.set_orphans(wanted.orphans());
  return restored;
}

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)), checkpoint_root_(options_.checkpoint_dir) {
  WEFT_CHECK(options_.server >= 0 && options_.server < options_.servers);
}

Server::~Server() {
  Shutdown(absl::CancelledError("the parameter server shut down"));
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::CreateTable(
    const v1::TableSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(const v1::TableSpec wanted, CheckedSpec(spec));
  MutexLock lock(mu_);
  if (!shut_down_.ok()) return shut_down_;
  const auto it = tables_.find(wanted.name());
  if (it != tables_.end()) {
    const bool is_unused = unused_.erase(wanted.name()) != 0;
    const std::string difference =
        DifferenceOf(is_unused ? WithChanges(it->second->spec(), wanted)
                               : it->second->spec(),
                     wanted);
    if (!difference.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", wanted.name(), "' is there with another spec: ",
          difference, "; use its spec, or another name",
          is_unused ? " (a restored table may change its rule's numbers, "
                      "shards, reduction and orphans)"
                    : ""));
    }
    if (DifferenceOf(it->second->spec(), wanted).empty()) return it->second;
    WEFT_ASSIGN_OR_RETURN(it->second, Changed(*it->second, wanted));
    return it->second;
  }
  if (static_cast<int>(tables_.size()) >= options_.max_tables) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table '", wanted.name(), "' would be one more than the ",
                     options_.max_tables, " that a server may hold"));
  }
  absl::StatusOr<std::unique_ptr<TableShard>> shard =
      TableShard::Create(wanted, options_.server, options_.servers);
  if (!shard.ok()) return shard.status();
  for (int rank : dead_) (*shard)->DeclareDead(rank);
  return tables_[wanted.name()] = *std::move(shard);
}

absl::StatusOr<std::shared_ptr<TableShard>> Server::Changed(
    TableShard& restored, const v1::TableSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<TableShard> shard,
      TableShard::Create(spec, options_.server, options_.servers));
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
  std::vector<std::string> names;
  for (const auto& [known, shard] : tables_) names.push_back(known);
  return absl::NotFoundError(absl::StrCat(
      "no table '", name, "' on server ", options_.server, "; it has ",
      names.empty() ? "none" : absl::StrJoin(names, ", ")));
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
  for (const auto& [name, shard] : Snapshot()) shard->DeclareDead(rank);
}

void Server::Admit(int rank) {
  {
    MutexLock lock(mu_);
    dead_.erase(rank);
  }
  for (const auto& [name, shard] : Snapshot()) shard->Admit(rank);
}

void Server::Expire(Instant now) {
  for (const auto& [name, shard] : Snapshot()) shard->Expire(now);
}

void Server::Shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mu_);
    if (shut_down_.ok()) shut_down_ = reason;
  }
  for (const auto& [name, shard] : Snapshot()) shard->Shutdown(reason);
}

absl::StatusOr<v1::SaveReply> Server::Save(
    const v1::SaveRequest& request) const {
  WEFT_ASSIGN_OR_RETURN(const std::string path,
                        checkpoint_root_.Resolve(request.directory()));
  // A link in place of the attempt's own directory may lead elsewhere.
  WEFT_RETURN_IF_ERROR(
      checkpoint_root_.Resolve(absl::StrCat(path, "/", request.attempt()))
          .status());
  WEFT_ASSIGN_OR_RETURN(const auto directory, OpenDirectory(path));
  v1::SaveReply saved;
  int shard_number = request.first_shard();
  for (const auto& [name, shard] : Snapshot()) {
    const TableShard::Image image = shard->Save();
    if (image.partitions.empty()) continue;  // all slices are elsewhere
    const bool is_sync = shard->spec().mode() == v1::TableSpec::SYNC;
    if (is_sync && request.version() >= 0 &&
        image.version != request.version()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", name, "' is at version ", image.version, ", wanted ",
          request.version(),
          ": save between two rounds, before pushing to the next"));
    }
    WEFT_ASSIGN_OR_RETURN(const checkpoint::Safetensors content,
                          ToShard(options_.server, shard->spec(), image));
    WEFT_ASSIGN_OR_RETURN(
        const checkpoint::FileRecord record,
        directory->AddShard(request.attempt(), shard_number++,
                            absl::StrCat("ps", options_.server), content));
    v1::SavedFile* file = saved.add_files();
    file->set_name(record.name);
    file->set_writer(record.writer);
    file->set_bytes(record.digest.bytes);
    file->set_sha256(record.digest.sha256);
    file->set_xxh3(record.digest.xxh3);
  }
  return saved;
}

absl::Status Server::Restore(const std::string& directory,
                             const std::string& name) {
  // Everything is read and checked beside what is there, then takes its place.
  WEFT_ASSIGN_OR_RETURN(const std::string path,
                        checkpoint_root_.Resolve(directory));
  WEFT_RETURN_IF_ERROR(
      checkpoint_root_.Resolve(absl::StrCat(path, "/", name)).status());
  WEFT_ASSIGN_OR_RETURN(const auto checkpoints, OpenDirectory(path));
  WEFT_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest,
                        checkpoints->ReadManifest(name));
  std::map<std::string, LoadedTable> loaded;
  for (const checkpoint::FileRecord& file : manifest.files) {
    WEFT_ASSIGN_OR_RETURN(const checkpoint::Safetensors shard,
                          checkpoints->LoadShard(name, file));
    if (!IsTableShard(shard)) continue;  // a trainer's own
    WEFT_RETURN_IF_ERROR(
        AddShard(shard, absl::StrCat(path, "/", name, "/", file.name), loaded));
  }
  Tables restored;
  for (auto& [name, table] : loaded) {
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<TableShard> shard,
        TableShard::Create(table.spec, options_.server, options_.servers));
    WEFT_RETURN_IF_ERROR(shard->Restore(std::move(table.image)));
    restored[name] = std::move(shard);
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

v1::ServerStats Server::Stats() const {
  v1::ServerStats stats;
  for (const auto& [name, shard] : Snapshot()) {
    *stats.add_tables() = shard->Stats();
  }
  return stats;
}

void Server::ExportMetrics(telemetry::Metrics& to) const {
  for (const auto& [name, shard] : Snapshot())
    shard->metrics().Export(to, name);
}

}  // namespace weft::ps
