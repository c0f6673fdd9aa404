#include "weft/ps/export/export_table.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <queue>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/file_system.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/ps/export/buffered.h"
#include "weft/ps/export/row_walk.h"

namespace weft::ps {
namespace {

using checkpoint::TensorEntry;
using checkpoint::WritableFile;

class Nowhere final : public WritableFile {
 public:
  absl::Status Append(absl::string_view) override { return absl::OkStatus(); }
  absl::Status Sync() override { return absl::OkStatus(); }
};

using Visit =
    absl::FunctionRef<absl::Status(uint64_t key, absl::string_view weights)>;

// Visits the rows of all partitions in the order of their keys. Those of one
// partition ascend.
absl::Status InKeyOrder(const SavedTable& table, Visit visit) {
  std::vector<RowWalk> walks;
  using Cursor = std::pair<uint64_t, size_t>;  // key, and of which walk
  std::priority_queue<Cursor, std::vector<Cursor>, std::greater<>> next;
  for (const SavedTable::Place& place : table.places) {
    walks.emplace_back(&place);
    if (!walks.back().AtEnd())
      next.emplace(walks.back().key(), walks.size() - 1);
  }
  while (!next.empty()) {
    const auto [key, at] = next.top();
    next.pop();
    RowWalk& walk = walks[at];
    WEFT_RETURN_IF_ERROR(visit(key, walk.weights()));
    walk.Next();
    if (!walk.AtEnd()) next.emplace(walk.key(), at);
  }
  return absl::OkStatus();
}

absl::Status WriteElements(const SavedTable& table, WritableFile& file) {
  Buffered out(file);
  if (table.spec.kind() == v1::TableSpec::SPARSE) {
    WEFT_RETURN_IF_ERROR(
        InKeyOrder(table, [&](uint64_t key, absl::string_view) {
          return out.Append(checkpoint::LittleEndian64(key));
        }));
  }
  WEFT_RETURN_IF_ERROR(
      InKeyOrder(table, [&](uint64_t, absl::string_view weights) {
        return out.Append(weights);
      }));
  return out.Flush();
}

checkpoint::Metadata MetadataOf(const SavedCheckpoint& from,
                                const SavedTable& table) {
  const bool is_dense = table.spec.kind() == v1::TableSpec::DENSE;
  checkpoint::Metadata metadata;
  metadata["format"] = std::string(kExportFormat);
  metadata["name"] = table.spec.name();
  metadata["kind"] = is_dense ? "dense" : "sparse";
  metadata["dim"] = absl::StrCat(is_dense ? 1 : table.spec.dim());
  metadata["rows"] =
      absl::StrCat(is_dense ? table.spec.elements() : table.rows);
  metadata["version"] = absl::StrCat(table.version);
  metadata["step"] = absl::StrCat(from.manifest().step);
  metadata["checkpoint"] = from.name();
  metadata["initializer"] = InitializerText(table.spec.initializer());
  if (!is_dense) metadata["key_order"] = "unsigned";
  metadata["table"] = absl::Base64Escape(table.spec.SerializeAsString());
  return metadata;
}

absl::StatusOr<std::string> ContentHash(const SavedTable& table) {
  checkpoint::DigestingFile digesting(std::make_unique<Nowhere>());
  WEFT_RETURN_IF_ERROR(WriteElements(table, digesting));
  return digesting.Finish().xxh3;
}

absl::Status WriteExport(const SavedCheckpoint& from, const SavedTable& table,
                         WritableFile& file) {
  checkpoint::Metadata metadata = MetadataOf(from, table);
  WEFT_ASSIGN_OR_RETURN(metadata["content_xxh3"], ContentHash(table));
  metadata["checksum"] = ExportChecksum(metadata);
  // The keys come first, for they are of the larger dtype.
  std::vector<TensorEntry> entries;
  if (table.spec.kind() == v1::TableSpec::DENSE) {
    entries.push_back({kExportWeight, DType::kF32, {table.spec.elements()}});
  } else {
    entries.push_back({kExportKeys, DType::kI64, {table.rows}});
    entries.push_back(
        {kExportWeight, DType::kF32, {table.rows, table.spec.dim()}});
  }
  WEFT_ASSIGN_OR_RETURN(const std::string front,
                        checkpoint::SafetensorsFront(entries, metadata));
  WEFT_RETURN_IF_ERROR(file.Append(front));
  WEFT_RETURN_IF_ERROR(WriteElements(table, file));
  return file.Sync();
}

// Whether an export may take the place of `path`.
absl::Status CheckPlace(const SavedCheckpoint& from, const std::string& path) {
  std::error_code ignored;
  const auto found = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(found) &&
      !std::filesystem::is_regular_file(found)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is no regular file, and would be replaced by one; give "
                     "another file"));
  }
  const std::filesystem::path folder =
      std::filesystem::absolute(path, ignored).parent_path();
  if (!std::filesystem::equivalent(folder, from.path(), ignored)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      " is in the checkpoint that is exported, and would damage it; give "
      "another file"));
}

}  // namespace

std::string InitializerText(const v1::Initializer& initializer) {
  const std::string kind = v1::Initializer::Kind_Name(initializer.kind());
  if (initializer.kind() == v1::Initializer::ZERO) return kind;
  return absl::StrCat(kind, " scale=", initializer.scale(),
                      " seed=", initializer.seed());
}

std::string ExportChecksum(const checkpoint::Metadata& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    if (key == "checksum") continue;
    // Lengths, so that no two metadata have one text.
    absl::StrAppend(&text, key.size(), ":", key, value.size(), ":", value);
  }
  return checkpoint::DigestOf(text).xxh3;
}

absl::Status ExportTable(const SavedCheckpoint& from, const std::string& table,
                         const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const SavedTable* const saved, from.Table(table));
  WEFT_RETURN_IF_ERROR(CheckPlace(from, path));
  checkpoint::FileSystem& files = checkpoint::LocalFiles();
  const std::string written = absl::StrCat(path, ".new.", getpid());
  const absl::Status status = [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(files.Remove(written));
    {
      WEFT_ASSIGN_OR_RETURN(const auto file, files.Create(written));
      WEFT_RETURN_IF_ERROR(WriteExport(from, *saved, *file));
    }
    WEFT_RETURN_IF_ERROR(files.Rename(written, path));
    const size_t slash = path.rfind('/');
    return files.SyncDirectory(slash == std::string::npos ? "."
                               : slash == 0               ? "/"
                                            : path.substr(0, slash));
  }();
  if (!status.ok()) files.Remove(written).IgnoreError();
  return status;
}

}  // namespace weft::ps
