// ServedExports: tables by name that are only read: exports, each replaced once
// another file has been renamed onto its own; and tables of a directory of
// checkpoints, each replaced once a newer checkpoint is there. One that has
// only what has changed is read itself, and nothing of those before it again.
//
// Thread-safety: thread-safe, but for Poll, which one thread calls.

#ifndef WEFT_PS_EXPORT_SERVED_EXPORTS_H_
#define WEFT_PS_EXPORT_SERVED_EXPORTS_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/mapped_file.h"
#include "weft/ps/export/exported_table.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/served_table.h"

namespace weft::ps {

class ServedExports {
 public:
  using Table = std::shared_ptr<const ServedTable>;

  // Tables to follow.
  struct Followed {
    std::string directory;
    std::vector<std::string> tables;  // none: all of the newest checkpoint
  };

  // Errors as ExportedTable::Open's; kAlreadyExists, with both places, if a
  // table is in two.
  static absl::StatusOr<std::unique_ptr<ServedExports>> Open(
      const std::vector<std::string>& paths,
      const ExportedTable::Options& options = ExportedTable::Options()) {
    return Open(paths, {}, options);
  }
  // The same, and the newest checkpoint of each directory that is whole.
  static absl::StatusOr<std::unique_ptr<ServedExports>> Open(
      const std::vector<std::string>& paths,
      const std::vector<Followed>& followed,
      const ExportedTable::Options& options = ExportedTable::Options());

  // The table as it is now; who holds it keeps that file. kNotFound names the
  // tables that there are.
  absl::StatusOr<Table> Find(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Table> tables() const ABSL_LOCKS_EXCLUDED(mu_);

  // What became of a path whose file is another one, or of a newer checkpoint.
  struct Change {
    std::string path;
    // Why the old one stays: the new one does not open, or is of another table,
    // kind or dim. Told once for each file, or checkpoint.
    absl::Status status;
    Table table;  // the new one, else null
  };
  // Looks at each path and directory, and opens what is new there, beside
  // look-ups.
  std::vector<Change> Poll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Watched {
    std::string path;
    std::string table;
    // The identity of the file that was looked at last, and whether there was
    // one.
    checkpoint::MappedFile::Identity seen;
    bool is_there = true;
  };

  struct Directory {
    std::string path;
    std::vector<std::string> tables;
    // Checkpoints that need not be looked at any more: what is served, those
    // before it, and newer ones that were refused.
    std::set<std::string> known;
    bool is_there = true;
    SavedCheckpoint::Opened opened;  // what is served, and what that needs
  };

  explicit ServedExports(const ExportedTable::Options& options)
      : options_(options) {}
  absl::Status AddNew(const std::string& where, Table table)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `table` may take the place of `old`.
  static absl::Status CheckFits(const std::string& where,
                                const ServedTable& table,
                                const ServedTable& old);
  absl::StatusOr<std::shared_ptr<const ExportedTable>> Reopen(
      const Watched& watched) const;
  void PollFiles(std::vector<Change>& changes) ABSL_LOCKS_EXCLUDED(mu_);
  void PollDirectory(Directory& directory, std::vector<Change>& changes)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Follow(const Followed& followed) ABSL_LOCKS_EXCLUDED(mu_);
  // `name` of `names` is served from now on.
  static void Settle(Directory& directory,
                     const std::vector<std::string>& names,
                     const std::string& name);
  // The tables of a checkpoint, and keeps what is open of it.
  absl::StatusOr<std::vector<Table>> OpenCheckpoint(Directory& directory,
                                                    const std::string& name);

  const ExportedTable::Options options_;
  std::vector<Watched> watched_;        // the thread's that polls
  std::vector<Directory> directories_;  // the same
  mutable Mutex mu_;
  std::map<std::string, Table, std::less<>> tables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_SERVED_EXPORTS_H_
