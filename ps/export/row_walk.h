// RowWalk: the rows of one partition of a checkpoint, in the order of their
// keys, as they lie in its files. Where these have only what has changed, those
// of the checkpoints that it needs are walked through at once.
//
// Time: a step for each file of the chain and row. Memory: 48 bytes a file.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_PS_EXPORT_ROW_WALK_H_
#define WEFT_PS_EXPORT_ROW_WALK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/table_file.h"

namespace weft::ps {

class RowWalk {
 public:
  // Null: the partition is not there, and has no rows. `place` must outlive it.
  explicit RowWalk(const SavedTable::Place* place);

  bool AtEnd() const { return current_ == links_.size(); }
  // REQUIRES: !AtEnd().
  uint64_t key() const { return key_; }
  int64_t length() const { return length_; }  // elements
  absl::string_view weights() const {
    return links_[current_].file->weights(links_[current_].element, length_);
  }
  // The row's bytes in the column that has the name of `like`; empty if there
  // is no such column.
  absl::string_view Of(const TableFile::Column& like) const;
  // The columns of the file that the row is in.
  const std::vector<TableFile::Column>& columns() const {
    return links_[current_].file->columns();
  }
  void Next();

 private:
  struct Link {
    const TableFile* file;
    const TableFile::Part* part;
    int64_t row;
    int64_t element;
    int64_t removed;
    bool AtEnd() const { return row == part->row + part->rows; }
    uint64_t key() const { return file->key(row); }
    // REQUIRES: `key` ascends.
    bool HasRemoved(uint64_t key);
    void Next();
  };

  void Add(const TableFile* file, const TableFile::Part* part);
  // Moves to the next row that exists.
  void Settle();
  void Skip(uint64_t key);

  std::vector<Link> links_;  // newest first
  size_t current_ = 0;       // the one whose row counts
  uint64_t key_ = 0;
  int64_t length_ = 0;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_ROW_WALK_H_
