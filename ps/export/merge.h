// Merge: a checkpoint of many servers as one with a file for each table, which
// servers restore like any other.
//
// Thread-safety: functions without state.

#ifndef WEFT_PS_EXPORT_MERGE_H_
#define WEFT_PS_EXPORT_MERGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "weft/ps/export/saved_checkpoint.h"

namespace weft::ps {

// Writes `from` into the directory `to`, which is made if it is not there, as a
// checkpoint of the same step and metadata; returns its name. Tables get the
// first numbers of files, those of trainers keep theirs. Bytes are copied as
// they lie in the files, and the result is read back: it needs no memory for
// tables. If `from` has only what has changed, the result has all, and equals
// byte for byte the merge of a checkpoint that had all. REQUIRES: `from` was
// opened with check_rows, and all tables.
//   kInvalidArgument   `to`, links followed, is the directory where `from` is,
//                      or lies in it: the servers write there. Nothing is made
//   kResourceExhausted the disk is full; what was written is removed
absl::StatusOr<std::string> Merge(const SavedCheckpoint& from,
                                  const std::string& to);

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_MERGE_H_
