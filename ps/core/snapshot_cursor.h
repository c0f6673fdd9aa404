// SnapshotCursor: which rows of a partition are still to be copied for a
// snapshot of it.
//
// Rows are numbered as in RowStore: the snapshot has those that were there when
// it began. A reader copies them in the order of their numbers, while pushes go
// on: before a push changes, moves or removes a row, it asks Take and copies
// the row itself if it is still to be copied (copy on write). So each row is
// copied once, as it was when the snapshot began.
//
// When a row is removed, the last one takes its number (RowStore::Remove): Take
// both before. A row that is added later has a number beyond the snapshot's, or
// one that was taken.
//
// Thread-safety: one thread at a time; the partition's lock guards it.

#ifndef WEFT_PS_CORE_SNAPSHOT_CURSOR_H_
#define WEFT_PS_CORE_SNAPSHOT_CURSOR_H_

#include <cstdint>
#include <optional>

#include "weft/ps/core/row_set.h"

namespace weft::ps {

class SnapshotCursor {
 public:
  // A snapshot of rows 0 to `rows` - 1. Takes a time that hardly depends on
  // their number.
  explicit SnapshotCursor(int64_t rows);
  // A snapshot of these rows.
  explicit SnapshotCursor(RowSet rows);

  // Whether the caller must copy row `number` now, before it changes it. The
  // row counts as copied then.
  bool Take(int64_t number);

  // The number of the next row that the reader is to copy, which counts as
  // copied then; negative if none is left.
  static constexpr int64_t kNone = -1;
  int64_t Next();

  // Rows that are still to be copied.
  int64_t left() const { return left_; }

 private:
  const int64_t rows_;
  int64_t next_ = 0;  // those before were copied
  int64_t left_;
  RowSet taken_;                  // out of turn
  std::optional<RowSet> wanted_;  // of named rows: those that are left
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_SNAPSHOT_CURSOR_H_
