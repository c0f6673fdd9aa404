// FrozenRows: the rows of a partition as they were at one moment, while pushes
// go on.
//
// Freezing copies no row. A reader copies some rows at a time, under the
// partition's lock for some ten microseconds each; a push that is about to
// change a row that was not copied yet copies that row first
// (snapshot_cursor.h). So a push pays for the rows that it names, once each,
// and a pull for nothing.
//
// What pushes copy counts against a budget. Beyond it the copies are dropped
// and the reader gets an error: pushes never wait for a reader.
//
// Where the changes of a partition are known (changed_rows.h), FrozenRows may
// hold only the rows that have changed since a checkpoint.
//
// Thread-safety: where it says so under the partition's lock; once is_done(),
// the reader alone.

#ifndef WEFT_PS_CORE_FROZEN_ROWS_H_
#define WEFT_PS_CORE_FROZEN_ROWS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/ps/core/byte_budget.h"
#include "weft/ps/core/changed_rows.h"
#include "weft/ps/core/row_store.h"
#include "weft/ps/core/snapshot_cursor.h"

namespace weft::ps {

class FrozenRows {
 public:
  // Blocks of RowStore, one after another.
  struct Piece {
    std::unique_ptr<float[]> blocks;
    int64_t rows = 0;
    int64_t room = 0;
    ByteBudget::Hold hold;
  };

  // `life`: RowLife::Format, or empty. `copies` null: any number of bytes.
  // `since`: of these rows only; null: of all.
  FrozenRows(const RowStore& rows, std::string life,
             std::shared_ptr<ByteBudget> copies,
             std::optional<ChangedRows::Since> since = std::nullopt);

  // --- Under the partition's lock. -----------------------------------------

  // `row` is about to be changed, moved or removed; or all are.
  void BeforeChange(const RowStore& rows, RowStore::Row row);
  void BeforeAllChange(const RowStore& rows);

  // Copies rows into `to` as long as there is room, and says how many.
  void CopyTo(const RowStore& rows, Piece& to);

  // All rows were copied, or the copies of pushes are lost for want of memory.
  bool is_done() const { return is_lost_ || cursor_.left() == 0; }

  // --- The reader. ---------------------------------------------------------

  // Room for so many bytes, or one row.
  Piece MakePiece(int64_t bytes) const;
  // So that none of its pages is missing when it is written to.
  void TouchPages(Piece& piece) const;
  // Once is_done(). kResourceExhausted if the copies are lost.
  absl::Status status() const;
  const std::vector<Piece>& copies() const { return copies_; }
  const std::string& life() const { return life_; }
  bool is_delta() const { return is_delta_; }
  // For a delta: keys of rows that were removed, in no order. A row of such a
  // key may exist again.
  const std::vector<uint64_t>& removed() const { return removed_; }

  // Row `i` of `piece`.
  RowStore::Row RowOf(const Piece& piece, int64_t i) const {
    return {piece.blocks.get() + i * stride_};
  }
  const float* floats(RowStore::Row row) const { return row.block + header_; }
  int64_t touched(RowStore::Row row) const {
    return RowStore::touched(row, base_);
  }

 private:
  void Append(RowStore::Row row, Piece& to) const;
  void Copy(RowStore::Row row);

  const int64_t stride_;
  const int64_t header_;
  const int64_t base_;
  const std::string life_;
  const bool is_delta_;
  const std::vector<uint64_t> removed_;
  const std::shared_ptr<ByteBudget> budget_;
  SnapshotCursor cursor_;
  std::vector<Piece> copies_;  // by pushes
  bool is_lost_ = false;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_FROZEN_ROWS_H_
