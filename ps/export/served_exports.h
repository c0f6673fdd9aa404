// ServedExports: exported tables by name, each replaced once another file has
// been renamed onto its own.
//
// Thread-safety: thread-safe, but for Poll, which one thread calls.

#ifndef WEFT_PS_EXPORT_SERVED_EXPORTS_H_
#define WEFT_PS_EXPORT_SERVED_EXPORTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/mapped_file.h"
#include "weft/ps/export/exported_table.h"

namespace weft::ps {

class ServedExports {
 public:
  using Table = std::shared_ptr<const ExportedTable>;

  // Errors as ExportedTable::Open's; kInvalidArgument if a table is in two.
  static absl::StatusOr<std::unique_ptr<ServedExports>> Open(
      const std::vector<std::string>& paths,
      const ExportedTable::Options& options = ExportedTable::Options());

  // The table as it is now; who holds it keeps that file. kNotFound names the
  // tables that there are.
  absl::StatusOr<Table> Find(absl::string_view name) const
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Table> tables() const ABSL_LOCKS_EXCLUDED(mu_);

  // What became of a path whose file is another one.
  struct Change {
    std::string path;
    // Why the old one stays: the new one does not open, or is of another table,
    // kind or dim. Told once for each file.
    absl::Status status;
    Table table;  // the new one, else null
  };
  // Looks at each path, and opens what is new there, beside look-ups.
  std::vector<Change> Poll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Watched {
    std::string path;
    std::string table;
    // Of the file that was looked at last, and whether there was one.
    checkpoint::MappedFile::Identity seen;
    bool is_there = true;
  };

  explicit ServedExports(const ExportedTable::Options& options)
      : options_(options) {}
  absl::StatusOr<Table> Reopen(const Watched& watched) const;

  const ExportedTable::Options options_;
  std::vector<Watched> watched_;  // the thread's that polls
  mutable Mutex mu_;
  std::map<std::string, Table, std::less<>> tables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_SERVED_EXPORTS_H_
