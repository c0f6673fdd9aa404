#include "weft/ps/export/merge.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/ps/export/buffered.h"
#include "weft/ps/export/row_walk.h"
#include "weft/ps/shard/snapshot.h"

namespace weft::ps {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointDirectory;
using checkpoint::FileRecord;
using checkpoint::TensorEntry;
using checkpoint::WritableFile;

using Of = TableFile::Of;

// How many rows a place has, and elements of them.
struct Extent {
  int64_t rows = 0;
  int64_t elements = 0;
};
Extent ExtentOf(const SavedTable::Place& place) {
  if (place.older.empty()) return {place.part.rows, place.part.elements};
  Extent extent;
  for (RowWalk walk(&place); !walk.AtEnd(); walk.Next()) {
    ++extent.rows;
    extent.elements += walk.length();
  }
  return extent;
}

// "partition" of the one file.
std::string PartitionsOf(const SavedTable& table) {
  std::string bytes;
  for (const SavedTable::Place& place : table.places) {
    bytes += checkpoint::LittleEndian64(place.part.partition);
    bytes += checkpoint::LittleEndian64(ExtentOf(place).rows);
  }
  return bytes;
}

size_t ColumnsOf(const TableFile& file) {
  return static_cast<size_t>(std::count_if(
      file.columns().begin(), file.columns().end(),
      [](const auto& c) { return !TableFile::IsOfDelta(c.name); }));
}

int64_t ItemsOf(const SavedTable& table, Of of) {
  if (of == Of::kRow) return table.rows;
  if (of == Of::kElement) return table.elements;
  if (of == Of::kPartition) return static_cast<int64_t>(table.places.size());
  int64_t bytes = 0;
  for (const auto& place : table.places) bytes += place.part.life_bytes;
  return bytes;
}

// A column of the table, which all its files have in one form.
absl::StatusOr<TensorEntry> EntryOf(const SavedTable& table,
                                    const TableFile::Column& column) {
  std::set<const TableFile*> files(table.files.begin(), table.files.end());
  for (const SavedTable::Place& place : table.places) {
    for (const SavedTable::Link& link : place.older) files.insert(link.file);
  }
  const TableFile& first = *table.files.front();
  for (const TableFile* file : files) {
    const TableFile::Column* const here = file->FindColumn(column.name);
    if (here == nullptr || here->dtype != column.dtype ||
        here->item_bytes != column.item_bytes ||
        here->is_matrix != column.is_matrix ||
        ColumnsOf(*file) != ColumnsOf(first)) {
      return absl::DataLossError(absl::StrCat(
          "checkpoint shard ", file->where(), ": wanted the tensors of ",
          first.where(), ", with '", column.name, "'"));
    }
  }
  TensorEntry entry;
  entry.name = column.name;
  entry.dtype = column.dtype;
  entry.shape = {ItemsOf(table, column.of)};
  if (column.is_matrix) {
    entry.shape.push_back(column.item_bytes / ItemSize(column.dtype));
  }
  return entry;
}

absl::Status WriteColumn(const SavedTable& table, const std::string& name,
                         Buffered& file) {
  for (const SavedTable::Place& place : table.places) {
    const TableFile::Column& column = *place.file->FindColumn(name);
    const bool is_of_row = column.of == Of::kRow || column.of == Of::kElement;
    if (place.older.empty() || !is_of_row) {
      WEFT_RETURN_IF_ERROR(file.Append(TableFile::BytesOf(column, place.part)));
      continue;
    }
    for (RowWalk walk(&place); !walk.AtEnd(); walk.Next()) {
      WEFT_RETURN_IF_ERROR(file.Append(walk.Of(column)));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteTable(const SavedTable& table, WritableFile& file) {
  std::vector<TensorEntry> entries;
  for (const TableFile::Column& column : table.files.front()->columns()) {
    if (TableFile::IsOfDelta(column.name)) continue;
    WEFT_ASSIGN_OR_RETURN(entries.emplace_back(), EntryOf(table, column));
  }
  entries.push_back({"partition",
                     DType::kI64,
                     {static_cast<int64_t>(table.places.size()), 2}});
  checkpoint::Metadata metadata = table.files.front()->metadata();
  MakeWhole(metadata);
  metadata["server"] = "0";
  metadata["version"] = absl::StrCat(table.version);
  metadata.erase("learning_rate");
  const std::string rates = table.rates.Format();
  if (!rates.empty()) metadata["learning_rate"] = rates;
  WEFT_ASSIGN_OR_RETURN(const std::string front,
                        checkpoint::SafetensorsFront(entries, metadata));
  WEFT_RETURN_IF_ERROR(file.Append(front));
  Buffered buffered(file);
  for (const TensorEntry& entry : entries) {
    if (entry.name == "partition") {
      WEFT_RETURN_IF_ERROR(buffered.Append(PartitionsOf(table)));
    } else {
      WEFT_RETURN_IF_ERROR(WriteColumn(table, entry.name, buffered));
    }
  }
  return buffered.Flush();
}

// The manifest's names are shard-NNNNN.safetensors.
int NumberOf(const FileRecord& record) {
  return std::stoi(record.name.substr(6, 5));
}

absl::StatusOr<std::vector<FileRecord>> WriteFiles(
    const SavedCheckpoint& from, CheckpointDirectory& directory,
    const std::string& attempt) {
  std::vector<FileRecord> records;
  std::set<int> taken;
  for (const SavedCheckpoint::File& file : from.files()) {
    if (file.table != nullptr) continue;
    const int number = NumberOf(file.record);
    taken.insert(number);
    WEFT_ASSIGN_OR_RETURN(
        records.emplace_back(),
        directory.AddShard(attempt, number, file.record.writer,
                           [&](WritableFile& out) {
                             return out.Append(file.mapped->bytes());
                           }));
  }
  int next = 0;
  for (const auto& [name, table] : from.tables()) {
    while (taken.count(next) > 0) ++next;
    const SavedTable& whole = table;
    WEFT_ASSIGN_OR_RETURN(records.emplace_back(),
                          directory.AddShard(attempt, next++, "weft ckpt merge",
                                             [&](WritableFile& out) {
                                               return WriteTable(whole, out);
                                             }));
  }
  return records;
}

// Whether `path`, which has no links in it, is `folder` or lies in it. What
// does not exist is in no folder but those above it.
bool IsIn(fs::path path, const fs::path& folder) {
  std::error_code ignored;
  while (!fs::equivalent(path, folder, ignored)) {
    if (!path.has_relative_path()) return false;
    path = path.parent_path();
  }
  return true;
}

absl::Status CheckIsElsewhere(const SavedCheckpoint& from,
                              const std::string& to) {
  std::error_code error;
  fs::path target = fs::absolute(to, error);
  if (!error) target = fs::weakly_canonical(target, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a merged checkpoint cannot go to ", to, ": ", error.message()));
  }
  const fs::path directory = fs::path(from.path()).parent_path();
  // The checkpoint may be a link to one that lies in another directory.
  std::error_code ignored;
  const fs::path own = fs::canonical(from.path(), ignored);
  if (!IsIn(target, directory) && !IsIn(target, own) &&
      !fs::equivalent(target, own.parent_path(), ignored)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a merged checkpoint goes to another directory than ", to, " (",
      target.string(), "): ", from.path(),
      ", which is merged, lies there or above it, and its servers may be "
      "saving one now; give another --out"));
}

}  // namespace

absl::StatusOr<std::string> Merge(const SavedCheckpoint& from,
                                  const std::string& to) {
  WEFT_RETURN_IF_ERROR(CheckIsElsewhere(from, to));
  CheckpointDirectory::Options options;
  options.path = to;
  options.keep_last = CheckpointDirectory::Options::kKeepAll;
  WEFT_ASSIGN_OR_RETURN(const auto directory,
                        CheckpointDirectory::Open(options));
  WEFT_ASSIGN_OR_RETURN(const std::string attempt,
                        directory->Begin(from.manifest().step));
  absl::StatusOr<std::string> name = [&]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(std::vector<FileRecord> files,
                          WriteFiles(from, *directory, attempt));
    return directory->Commit(attempt, std::move(files),
                             from.manifest().metadata);
  }();
  if (!name.ok()) {
    directory->Abandon(attempt);
    return name;
  }
  WEFT_RETURN_IF_ERROR(SavedCheckpoint::Open(to, *name).status());
  return name;
}

}  // namespace weft::ps
