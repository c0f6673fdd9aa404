#include "weft/ps/export/served_exports.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/ps/export/checkpoint_table.h"

namespace weft::ps {

using checkpoint::MappedFile;

absl::StatusOr<std::unique_ptr<ServedExports>> ServedExports::Open(
    const std::vector<std::string>& paths,
    const std::vector<Followed>& followed,
    const ExportedTable::Options& options) {
  std::unique_ptr<ServedExports> served(new ServedExports(options));
  for (const std::string& path : paths) {
    WEFT_ASSIGN_OR_RETURN(auto table, ExportedTable::Open(path, options));
    served->watched_.push_back(
        {path, table->name(), table->file()->identity()});
    WEFT_RETURN_IF_ERROR(served->AddNew(path, std::move(table)));
  }
  for (const Followed& one : followed) {
    WEFT_RETURN_IF_ERROR(served->Follow(one));
  }
  return served;
}

absl::Status ServedExports::AddNew(const std::string& where, Table table) {
  const std::string name = table->name();
  {
    MutexLock lock(mu_);
    if (tables_.emplace(name, std::move(table)).second) return absl::OkStatus();
  }
  std::string place = where;  // of the first that has it
  for (auto it = directories_.rbegin(); it != directories_.rend(); ++it) {
    if (std::count(it->tables.begin(), it->tables.end(), name) > 0) {
      place = it->path;
    }
  }
  for (const Watched& watched : watched_) {
    if (watched.table != name) continue;
    place = watched.path;
    break;
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "table '", name, "' is in ", place, " and in ", where,
      ": wanted it from one place; leave out one of the two, or name the "
      "tables that are to be followed"));
}

absl::Status ServedExports::Follow(const Followed& followed) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        SavedCheckpoint::List(followed.directory));
  absl::Status damaged = absl::NotFoundError(
      absl::StrCat(followed.directory, " has no checkpoints to follow yet"));
  Directory& directory = directories_.emplace_back();
  directory.path = followed.directory;
  directory.tables = followed.tables;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    auto opened = OpenCheckpoint(directory, *name);
    if (!opened.ok()) {
      if (name == names.rbegin()) damaged = opened.status();
      directory.known.insert(*name);
      continue;
    }
    Settle(directory, names, *name);
    directory.tables.clear();
    for (Table& table : *opened) {
      directory.tables.push_back(table->name());
      WEFT_RETURN_IF_ERROR(AddNew(directory.path, std::move(table)));
    }
    return absl::OkStatus();
  }
  return damaged;
}

absl::StatusOr<std::vector<ServedExports::Table>> ServedExports::OpenCheckpoint(
    Directory& directory, const std::string& name) {
  SavedCheckpoint::Opened opened = directory.opened;
  SavedCheckpoint::Options options;
  options.check_digests = options_.check_content;
  options.opened = &opened;
  WEFT_ASSIGN_OR_RETURN(const auto saved,
                        SavedCheckpoint::Open(directory.path, name, options));
  std::vector<std::string> names = directory.tables;
  if (names.empty()) {
    for (const auto& [table, content] : saved->tables()) {
      names.push_back(table);
    }
  }
  std::vector<Table> tables;
  for (const std::string& table : names) {
    WEFT_ASSIGN_OR_RETURN(tables.emplace_back(),
                          CheckpointTable::Create(saved, table));
  }
  directory.opened.swap(opened);
  return tables;
}

void ServedExports::Settle(Directory& directory,
                           const std::vector<std::string>& names,
                           const std::string& name) {
  for (const std::string& known : names) {
    directory.known.insert(known);
    if (known == name) break;
  }
  SavedCheckpoint::Opened needed;
  for (auto at = directory.opened.at(name);;) {
    needed[at->name()] = at;
    if (at->parent() == nullptr) break;
    at = directory.opened.at(at->parent()->name());
  }
  directory.opened.swap(needed);
}

absl::StatusOr<ServedExports::Table> ServedExports::Find(
    absl::string_view name) const {
  MutexLock lock(mu_);
  const auto it = tables_.find(name);
  if (it != tables_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat(
      "no table '", absl::CHexEscape(name.substr(0, 256)),
      "' is served here; there are ",
      absl::StrJoin(tables_, ", ", [](std::string* out, const auto& entry) {
        out->append(entry.first);
      })));
}

std::vector<ServedExports::Table> ServedExports::tables() const {
  std::vector<Table> all;
  MutexLock lock(mu_);
  for (const auto& [name, table] : tables_) all.push_back(table);
  return all;
}

absl::Status ServedExports::CheckFits(const std::string& where,
                                      const ServedTable& table,
                                      const ServedTable& old) {
  if (table.name() == old.name() && table.is_dense() == old.is_dense() &&
      table.dim() == old.dim()) {
    return absl::OkStatus();
  }
  const auto described = [](const ServedTable& t) {
    return absl::StrCat(t.is_dense() ? "dense" : "sparse", " table '", t.name(),
                        "' of dim ", t.dim());
  };
  return absl::FailedPreconditionError(
      absl::StrCat(where, " is an export of the ", described(table),
                   ", wanted the ", described(old)));
}

absl::StatusOr<std::shared_ptr<const ExportedTable>> ServedExports::Reopen(
    const Watched& watched) const {
  WEFT_ASSIGN_OR_RETURN(auto table,
                        ExportedTable::Open(watched.path, options_));
  WEFT_ASSIGN_OR_RETURN(const Table old, Find(watched.table));
  WEFT_RETURN_IF_ERROR(CheckFits(watched.path, *table, *old));
  return table;
}

std::vector<ServedExports::Change> ServedExports::Poll() {
  std::vector<Change> changes;
  PollFiles(changes);
  for (Directory& directory : directories_) PollDirectory(directory, changes);
  return changes;
}

void ServedExports::PollFiles(std::vector<Change>& changes) {
  for (Watched& watched : watched_) {
    const absl::StatusOr<MappedFile::Identity> now =
        MappedFile::IdentityOf(watched.path);
    if (now.ok() ? watched.is_there && *now == watched.seen
                 : !watched.is_there) {
      continue;
    }
    watched.is_there = now.ok();
    Change change{watched.path, now.status(), nullptr};
    if (now.ok()) {
      watched.seen = *now;
      const auto opened = Reopen(watched);
      change.status = opened.status();
      if (opened.ok()) {
        change.table = *opened;
        // What was opened may have come after the look.
        watched.seen = (*opened)->file()->identity();
        Table replaced = *opened;  // ends without the lock
        MutexLock lock(mu_);
        tables_[watched.table].swap(replaced);
      }
    }
    changes.push_back(std::move(change));
  }
}

void ServedExports::PollDirectory(Directory& directory,
                                  std::vector<Change>& changes) {
  const auto names = SavedCheckpoint::List(directory.path);
  const bool was_there = std::exchange(directory.is_there, names.ok());
  if (!names.ok()) {
    if (was_there) changes.push_back({directory.path, names.status(), nullptr});
    return;
  }
  for (auto name = names->rbegin(); name != names->rend(); ++name) {
    if (directory.known.count(*name) > 0) continue;
    const std::string path = absl::StrCat(directory.path, "/", *name);
    const auto opened = OpenCheckpoint(directory, *name);
    absl::Status status = opened.status();
    for (size_t i = 0; status.ok() && i < opened->size(); ++i) {
      const Table& table = (*opened)[i];
      const auto old = Find(table->name());
      status = old.ok() ? CheckFits(path, *table, **old) : old.status();
    }
    if (!status.ok()) {
      directory.known.insert(*name);
      changes.push_back({path, std::move(status), nullptr});
      continue;
    }
    Settle(directory, *names, *name);
    std::vector<Table> replaced = *opened;  // end without the lock
    {
      MutexLock lock(mu_);
      for (Table& table : replaced) tables_[table->name()].swap(table);
    }
    for (const Table& table : *opened) {
      changes.push_back({path, absl::OkStatus(), table});
    }
    return;
  }
}

}  // namespace weft::ps
