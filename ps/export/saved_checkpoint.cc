#include "weft/ps/export/saved_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/file_system.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/export/row_walk.h"
#include "weft/ps/shard/snapshot.h"

namespace weft::ps {
namespace {

using checkpoint::CheckpointDirectory;
using checkpoint::Digest;
using checkpoint::MappedFile;

// Open() of a directory that is not there would make it.
absl::StatusOr<std::unique_ptr<CheckpointDirectory>> OpenDirectory(
    const std::string& path) {
  WEFT_RETURN_IF_ERROR(checkpoint::LocalFiles().List(path).status());
  return CheckpointDirectory::Open({path});
}

absl::Status CheckDigest(const SavedCheckpoint::File& file) {
  const Digest& wanted = file.record.digest;
  const absl::string_view bytes = file.mapped->bytes();
  if (static_cast<int64_t>(bytes.size()) != wanted.bytes) {
    return absl::DataLossError(absl::StrCat(
        file.path, " of writer \"", absl::CHexEscape(file.record.writer),
        "\" has ", bytes.size(), " bytes, wanted ", wanted.bytes,
        "; it is cut or damaged"));
  }
  const Digest found = checkpoint::DigestOf(bytes);
  if (found == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      file.path, " of writer \"", absl::CHexEscape(file.record.writer),
      "\" has SHA-256 ", found.sha256, " and XXH3 ", found.xxh3, ", wanted ",
      wanted.sha256, " and ", wanted.xxh3, "; it is damaged"));
}

// "table" of a file's metadata, cheaply.
bool IsOfTable(const checkpoint::Metadata& metadata, const std::string& table) {
  const auto it = metadata.find("name");
  return it != metadata.end() && it->second == table;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SavedCheckpoint::List(
    const std::string& directory) {
  WEFT_ASSIGN_OR_RETURN(const auto opened, OpenDirectory(directory));
  return opened->List();
}

bool SavedCheckpoint::IsRemoved(const std::string& directory,
                                const std::string& name) {
  const auto names = List(directory);
  return names.ok() &&
         std::find(names->begin(), names->end(), name) == names->end();
}

absl::StatusOr<std::string> SavedCheckpoint::Resolve(
    const std::string& directory, const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(const auto opened, OpenDirectory(directory));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, opened->List());
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  if (name == "latest" && !names.empty()) return names.back();
  const bool may_be_label =
      !name.empty() &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") ==
          std::string::npos;
  if (may_be_label) {
    const auto labelled = opened->Named(name);
    if (labelled.ok() &&
        std::find(names.begin(), names.end(), *labelled) != names.end()) {
      return labelled;
    }
  }
  constexpr size_t kShown = 16;
  const size_t skipped = names.size() - std::min(names.size(), kShown);
  return absl::NotFoundError(absl::StrCat(
      directory, " has no checkpoint \"", absl::CHexEscape(name), "\"; it has ",
      names.empty() ? "none"
                    : absl::StrJoin(names.begin() + skipped, names.end(), ", "),
      skipped > 0 ? absl::StrCat(" and ", skipped, " older ones") : ""));
}

std::shared_ptr<const SavedCheckpoint> SavedCheckpoint::Examine(
    const std::string& directory, const std::string& name,
    const Options& options, std::vector<absl::Status>& problems) {
  std::shared_ptr<const SavedCheckpoint> examined;
  if (options.opened != nullptr) {
    const auto it = options.opened->find(name);
    if (it != options.opened->end()) examined = it->second;
  }
  if (examined == nullptr) {
    std::shared_ptr<SavedCheckpoint> opened(
        new SavedCheckpoint(directory, name));
    opened->ExamineAll(options, opened->problems_);
    examined = std::move(opened);
    if (options.opened != nullptr) (*options.opened)[name] = examined;
  }
  problems.insert(problems.end(), examined->problems_.begin(),
                  examined->problems_.end());
  return examined;
}

void SavedCheckpoint::ExamineAll(const Options& options,
                                 std::vector<absl::Status>& problems) {
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) problems.push_back(status);
    return status.ok();
  };
  if (!note(ReadManifest()) || !note(OpenParent(options))) return;
  const size_t before = problems.size();
  for (File& file : files_) {
    if (!note(OpenFile(file, options)) || file.table == nullptr) continue;
    note(AddToTable(*file.table));
  }
  // What a damaged file had is not told as missing once more.
  const bool is_complete = problems.size() == before;
  for (auto& [table_name, table] : tables_) {
    std::sort(table.places.begin(), table.places.end(),
              [](const SavedTable::Place& a, const SavedTable::Place& b) {
                return a.part.partition < b.part.partition;
              });
    if (is_complete && note(JoinParent(table))) {
      note(CheckTable(table, options.check_rows));
    }
  }
  if (options.table.empty() || !options.check_digests || !is_complete ||
      (problems.size() == before && tables_.count(options.table) > 0)) {
    return;
  }
  // What is missing may be in a file whose damaged metadata name no table, or
  // another.
  for (const File& file : files_) {
    const absl::Status checked = CheckDigest(file);
    if (!checked.ok()) problems.insert(problems.begin() + before, checked);
  }
}

absl::Status SavedCheckpoint::OpenParent(const Options& options) {
  if (!manifest_.parent.has_value()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto opened, OpenDirectory(directory_));
  WEFT_RETURN_IF_ERROR(opened->Chain(name_).status());
  std::vector<absl::Status> problems;
  parent_ = Examine(directory_, manifest_.parent->name, options, problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::Status(
      problems.front().code(),
      absl::StrCat(path_, " needs ", manifest_.parent->name,
                   ", which is damaged: ", problems.front().message()));
}

absl::Status SavedCheckpoint::JoinParent(SavedTable& table) {
  if (table.deltas == 0) return absl::OkStatus();
  const auto damaged = [&](const TableFile* file, absl::string_view what) {
    return absl::DataLossError(absl::StrCat("checkpoint shard ", file->where(),
                                            ": table '", table.spec.name(),
                                            "' ", what));
  };
  const SavedTable* before = nullptr;
  if (parent_ != nullptr) {
    const auto it = parent_->tables_.find(table.spec.name());
    if (it != parent_->tables_.end()) before = &it->second;
  }
  if (before == nullptr) {
    return damaged(table.files.front(),
                   "has what has changed, and its parent has no such table");
  }
  const std::string difference = DifferenceOf(table.spec, before->spec);
  if (!difference.empty()) {
    return damaged(table.files.front(),
                   absl::StrCat("has another spec than in its parent ",
                                parent_->name_, ": ", difference));
  }
  auto place_before = before->places.begin();
  for (SavedTable::Place& place : table.places) {
    if (!place.part.is_delta) continue;
    if (place.file->base() != parent_->manifest_.attempt) {
      return damaged(place.file,
                     absl::StrCat("has what has changed since ",
                                  absl::CHexEscape(place.file->base()),
                                  ", and its parent was written as ",
                                  parent_->manifest_.attempt));
    }
    while (place_before != before->places.end() &&
           place_before->part.partition < place.part.partition) {
      ++place_before;
    }
    if (place_before == before->places.end() ||
        place_before->part.partition != place.part.partition) {
      return damaged(
          place.file,
          absl::StrCat("has what has changed of partition ",
                       place.part.partition, ", which its parent has not"));
    }
    place.older.push_back(*place_before);
    place.older.insert(place.older.end(), place_before->older.begin(),
                       place_before->older.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SavedCheckpoint>> SavedCheckpoint::Open(
    const std::string& directory, const std::string& name,
    const Options& options) {
  std::vector<absl::Status> problems;
  auto opened = Examine(directory, name, options, problems);
  if (problems.empty()) return opened;
  return problems.front();
}

absl::StatusOr<const SavedTable*> SavedCheckpoint::Table(
    const std::string& table) const {
  const auto it = tables_.find(table);
  if (it != tables_.end()) return &it->second;
  std::vector<std::string> names;
  for (const File& file : files_) {
    const auto name = file.header.metadata.find("name");
    if (name != file.header.metadata.end() &&
        IsTableShard(file.header.metadata) &&
        std::find(names.begin(), names.end(), name->second) == names.end()) {
      names.push_back(absl::CHexEscape(name->second));
    }
  }
  return absl::NotFoundError(absl::StrCat(
      path_, " has no table \"", absl::CHexEscape(table), "\"; it has ",
      names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::Status SavedCheckpoint::ReadManifest() {
  WEFT_ASSIGN_OR_RETURN(const auto opened, OpenDirectory(directory_));
  WEFT_ASSIGN_OR_RETURN(manifest_, opened->ReadManifest(name_));
  has_manifest_ = true;
  for (const checkpoint::FileRecord& record : manifest_.files) {
    File& file = files_.emplace_back();
    file.record = record;
    file.path = absl::StrCat(path_, "/", record.name);
  }
  return absl::OkStatus();
}

absl::Status SavedCheckpoint::OpenFile(File& file, const Options& options) {
  WEFT_ASSIGN_OR_RETURN(file.mapped, MappedFile::Open(file.path));
  if (options.check_digests && options.table.empty()) {
    WEFT_RETURN_IF_ERROR(CheckDigest(file));
  }
  WEFT_ASSIGN_OR_RETURN(file.header, checkpoint::ParseSafetensorsHeader(
                                         file.mapped->bytes(), file.path));
  if (!IsTableShard(file.header.metadata)) return absl::OkStatus();
  if (!options.table.empty()) {
    if (!IsOfTable(file.header.metadata, options.table)) {
      return absl::OkStatus();
    }
    if (options.check_digests) WEFT_RETURN_IF_ERROR(CheckDigest(file));
  }
  WEFT_ASSIGN_OR_RETURN(file.table, TableFile::Create(file.mapped->bytes(),
                                                      file.header, file.path));
  return absl::OkStatus();
}

absl::Status SavedCheckpoint::AddToTable(const TableFile& file) {
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("checkpoint shard ", file.where(),
                                            ": table '", file.spec().name(),
                                            "' ", what));
  };
  const auto [it, is_first] = tables_.emplace(file.spec().name(), SavedTable());
  SavedTable& table = it->second;
  if (is_first) {
    table.spec = file.spec();
    table.version = file.version();
    table.rates = file.rates();
  } else {
    const std::string difference = DifferenceOf(file.spec(), table.spec);
    if (!difference.empty()) {
      return damaged(absl::StrCat("has another spec than in ",
                                  table.files.front()->where(), ": ",
                                  difference));
    }
    const bool is_sync = file.spec().mode() == v1::TableSpec::SYNC &&
                         !file.spec().has_quorum();  // of one version
    if (is_sync && file.version() != table.version) {
      return damaged(absl::StrCat("is at version ", file.version(), ", wanted ",
                                  table.version, " as in ",
                                  table.files.front()->where()));
    }
    table.version = std::max(table.version, file.version());
    const absl::Status merged = table.rates.Merge(file.rates());
    if (is_sync && !merged.ok()) return damaged(merged.message());
  }
  table.files.push_back(&file);
  for (const TableFile::Part& part : file.parts()) {
    table.places.push_back({{&file, part}, {}});
    table.deltas += part.is_delta ? 1 : 0;
    table.own_rows += part.rows;
    table.own_removed += part.removed_rows;
  }
  table.rows = table.deltas > 0 ? -1 : table.own_rows;
  return absl::OkStatus();
}

absl::Status SavedCheckpoint::CheckTable(SavedTable& table,
                                         bool check_rows) const {
  LoadedTable whole;
  whole.spec = table.spec;
  const SavedTable::Place* before = nullptr;
  for (const SavedTable::Place& place : table.places) {
    const int partition = place.part.partition;
    if (before != nullptr && before->part.partition == partition) {
      return absl::DataLossError(
          absl::StrCat("checkpoint shard ", place.file->where(), ": table '",
                       table.spec.name(), "' partition ", partition, " is in ",
                       before->file->where(), " too"));
    }
    before = &place;
    whole.image.partitions.emplace_back(partition, PartitionImage());
    if (check_rows) WEFT_RETURN_IF_ERROR(place.file->CheckRows(place.part));
  }
  table.elements = 0;
  if (check_rows) table.rows = 0;
  for (const SavedTable::Place& place : table.places) {
    if (place.older.empty()) {
      table.elements += place.part.elements;
      if (check_rows) table.rows += place.part.rows;
    } else if (check_rows) {
      for (RowWalk walk(&place); !walk.AtEnd(); walk.Next()) {
        ++table.rows;
        table.elements += walk.length();
      }
    }
  }
  return CheckWhole(whole, path_);
}

}  // namespace weft::ps
