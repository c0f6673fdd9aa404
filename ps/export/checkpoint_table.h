// CheckpointTable: the rows of a table of a checkpoint, looked up where they
// lie in its files; of one that has only what has changed, and in those that it
// needs.
//
// A row is looked for in its partition by halves: in the newest file first,
// then in the one before it, up to that which has all of the partition. A row
// that went is not found, whatever an older file has.
//
// The files are mapped, and stay so when the checkpoint is removed.
//
// Thread-safety: thread-safe; immutable.

#ifndef WEFT_PS_EXPORT_CHECKPOINT_TABLE_H_
#define WEFT_PS_EXPORT_CHECKPOINT_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/checkpoint/mapped_file.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/export/saved_checkpoint.h"
#include "weft/ps/export/served_table.h"

namespace weft::ps {

class CheckpointTable final : public ServedTable {
 public:
  // kNotFound names the tables that there are. REQUIRES: `from` was opened
  // with check_rows.
  static absl::StatusOr<std::shared_ptr<const CheckpointTable>> Create(
      std::shared_ptr<const SavedCheckpoint> from, const std::string& table);

  const v1::TableSpec& spec() const override { return table_.spec; }
  int64_t version() const override { return table_.version; }
  const std::string& checkpoint() const override { return from_->name(); }
  int64_t rows() const override;
  int64_t dim() const override;
  absl::StatusOr<int64_t> LookUp(absl::Span<const uint64_t> keys,
                                 absl::Span<float> values,
                                 absl::Span<uint8_t> found) const override;

 private:
  CheckpointTable(std::shared_ptr<const SavedCheckpoint> from,
                  const SavedTable& table,
                  std::unique_ptr<const TableLayout> layout);
  absl::Status CheckUnchanged() const;
  // Copies the row of a key, or an element, to `to`; false if there is none.
  bool Copy(uint64_t key, float* to) const;

  const std::shared_ptr<const SavedCheckpoint> from_;
  const SavedTable& table_;
  const std::unique_ptr<const TableLayout> layout_;
  const Placement placement_;
  std::vector<const SavedTable::Place*> places_;  // null: none
  std::vector<const checkpoint::MappedFile*> files_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_CHECKPOINT_TABLE_H_
