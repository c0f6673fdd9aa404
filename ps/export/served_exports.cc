#include "weft/ps/export/served_exports.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"

namespace weft::ps {

using checkpoint::MappedFile;

absl::StatusOr<std::unique_ptr<ServedExports>> ServedExports::Open(
    const std::vector<std::string>& paths,
    const ExportedTable::Options& options) {
  std::unique_ptr<ServedExports> served(new ServedExports(options));
  MutexLock lock(served->mu_);
  for (const std::string& path : paths) {
    WEFT_ASSIGN_OR_RETURN(Table table, ExportedTable::Open(path, options));
    served->watched_.push_back(
        {path, table->name(), table->file()->identity()});
    const std::string name = table->name();
    if (!served->tables_.emplace(name, std::move(table)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": table '", name, "' is in an earlier file too"));
    }
  }
  return served;
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

absl::StatusOr<ServedExports::Table> ServedExports::Reopen(
    const Watched& watched) const {
  WEFT_ASSIGN_OR_RETURN(Table table,
                        ExportedTable::Open(watched.path, options_));
  WEFT_ASSIGN_OR_RETURN(const Table old, Find(watched.table));
  if (table->name() == old->name() && table->is_dense() == old->is_dense() &&
      table->dim() == old->dim()) {
    return table;
  }
  const auto described = [](const ExportedTable& t) {
    return absl::StrCat(t.is_dense() ? "dense" : "sparse", " table '", t.name(),
                        "' of dim ", t.dim());
  };
  return absl::FailedPreconditionError(
      absl::StrCat(watched.path, " is an export of the ", described(*table),
                   ", wanted the ", described(*old)));
}

std::vector<ServedExports::Change> ServedExports::Poll() {
  std::vector<Change> changes;
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
      absl::StatusOr<Table> opened = Reopen(watched);
      change.status = opened.status();
      if (opened.ok()) {
        change.table = *opened;
        // What was opened may have come after the look.
        watched.seen = (*opened)->file()->identity();
        MutexLock lock(mu_);
        tables_[watched.table].swap(*opened);
      }
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

}  // namespace weft::ps
