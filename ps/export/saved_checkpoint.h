// SavedCheckpoint: a checkpoint of a directory, read where it lies: its files
// are mapped, and no table is ever in memory.
//
// One that has only what has changed since another is opened with those that it
// needs, and shows what the tables were then (row_walk.h).
//
// Memory: the manifest, the headers, and 80 bytes for each partition of each
// table, in each file that it needs.
//
// Thread-safety: immutable once it is open.

#ifndef WEFT_PS_EXPORT_SAVED_CHECKPOINT_H_
#define WEFT_PS_EXPORT_SAVED_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/mapped_file.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/core/rate_changes.h"
#include "weft/ps/export/table_file.h"

namespace weft::ps {

// A table of all its files.
struct SavedTable {
  struct Link {
    const TableFile* file = nullptr;
    TableFile::Part part;
  };
  struct Place : Link {
    // Where the part is a delta: what it is one of, and so on, up to one that
    // has all.
    std::vector<Link> older;
  };
  v1::TableSpec spec;
  // SYNC: rounds. ASYNC: pushes, of the server that had applied the most.
  int64_t version = 0;
  RateChanges rates;
  std::vector<const TableFile*> files;
  std::vector<Place> places;  // by partition
  // Negative: not counted, where files have only what has changed
  // (SavedCheckpoint::Options::check_rows).
  int64_t rows = 0;
  int64_t elements = 0;  // the same, of their weights
  // What the files of this checkpoint alone hold.
  int64_t own_rows = 0;
  int64_t own_removed = 0;
  int64_t deltas = 0;  // partitions
};

class SavedCheckpoint {
 public:
  using Opened = std::map<std::string, std::shared_ptr<const SavedCheckpoint>>;

  struct File {
    checkpoint::FileRecord record;
    std::string path;
    std::unique_ptr<const checkpoint::MappedFile> mapped;  // null: not there
    checkpoint::SafetensorsHeader header;
    std::unique_ptr<const TableFile> table;  // null: a trainer's own

    // The bytes of a tensor of `header`.
    absl::string_view BytesOf(const checkpoint::TensorEntry& entry) const {
      return mapped->bytes().substr(header.bytes + entry.begin,
                                    entry.end - entry.begin);
    }
  };
  struct Options {
    // Compares each file with its size and hashes in the manifest.
    bool check_digests = true;
    // And each row of a table with its partition.
    bool check_rows = true;
    // Only this table's files; empty: all.
    std::string table;
    // By name, those of the directory that were opened already, with the same
    // options, and that others may need; gets those that are opened. Null: none
    // are kept.
    Opened* opened = nullptr;
  };

  // The names of the checkpoints of `directory`, oldest first. kNotFound if it
  // is not there; nothing is made.
  static absl::StatusOr<std::vector<std::string>> List(
      const std::string& directory);
  // The name of a checkpoint: `name` itself, "latest", or the checkpoint that
  // has this label (CheckpointDirectory::SetName). kNotFound.
  static absl::StatusOr<std::string> Resolve(const std::string& directory,
                                             const std::string& name);

  // Whether the directory has it no longer. Of one that was found there and is
  // removed, by a job that saves meanwhile, what could not be read is no
  // damage.
  static bool IsRemoved(const std::string& directory, const std::string& name);

  // Opens all that can be opened. `problems` gets what is wrong, each with the
  // path: of the manifest, then of each file, then of each table.
  static std::shared_ptr<const SavedCheckpoint> Examine(
      const std::string& directory, const std::string& name,
      const Options& options, std::vector<absl::Status>& problems);
  // The same; fails with the first problem.
  static absl::StatusOr<std::shared_ptr<const SavedCheckpoint>> Open(
      const std::string& directory, const std::string& name,
      const Options& options);
  static absl::StatusOr<std::shared_ptr<const SavedCheckpoint>> Open(
      const std::string& directory, const std::string& name) {
    return Open(directory, name, Options());
  }

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }  // of its directory
  // False: it could not be read, as the first of the problems says, and nothing
  // is known of the checkpoint but its name.
  bool has_manifest() const { return has_manifest_; }
  const checkpoint::Manifest& manifest() const { return manifest_; }
  const std::vector<File>& files() const { return files_; }
  // Since which it has what has changed; null: it has all, or that could not be
  // found.
  const SavedCheckpoint* parent() const { return parent_.get(); }
  const std::map<std::string, SavedTable>& tables() const { return tables_; }
  // kNotFound names the tables that there are.
  absl::StatusOr<const SavedTable*> Table(const std::string& table) const;

 private:
  SavedCheckpoint(const std::string& directory, const std::string& name)
      : directory_(directory), name_(name), path_(directory + "/" + name) {}
  absl::Status ReadManifest();
  void ExamineAll(const Options& options, std::vector<absl::Status>& problems);
  absl::Status OpenParent(const Options& options);
  // Finds what the deltas of a table are of.
  absl::Status JoinParent(SavedTable& table);
  absl::Status OpenFile(File& file, const Options& options);
  absl::Status AddToTable(const TableFile& file);
  absl::Status CheckTable(SavedTable& table, bool check_rows) const;

  const std::string directory_;
  const std::string name_;
  const std::string path_;
  bool has_manifest_ = false;
  checkpoint::Manifest manifest_;
  std::shared_ptr<const SavedCheckpoint> parent_;
  std::vector<absl::Status> problems_;  // as Examine gave them
  std::vector<File> files_;
  std::map<std::string, SavedTable> tables_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_SAVED_CHECKPOINT_H_
