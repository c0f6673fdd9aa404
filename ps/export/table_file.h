// TableFile: a shard of a table (snapshot.h) as it lies in a file, read row by
// row without a copy of it.
//
// Thread-safety: immutable.

#ifndef WEFT_PS_EXPORT_TABLE_FILE_H_
#define WEFT_PS_EXPORT_TABLE_FILE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/shard/snapshot.h"

namespace weft::ps {

class TableFile {
 public:
  // The rows of one partition, which lie one after another.
  struct Part {
    int partition = 0;
    int64_t index = 0;  // of the partitions of this file
    int64_t row = 0;    // the first
    int64_t rows = 0;
    int64_t element = 0;  // the first, of the weights and of each slot
    int64_t elements = 0;
    int64_t life = 0;  // the first byte, of a table with RowLife
    int64_t life_bytes = 0;
    bool is_delta = false;  // only what has changed since base()
    int64_t removed = 0;    // the first of the rows that went since
    int64_t removed_rows = 0;
  };
  // What a column has a value, or some values, of.
  enum class Of { kRow, kElement, kPartition, kLifeByte, kRemoved };
  // A tensor of the file, but for `partition`.
  struct Column {
    std::string name;
    DType dtype = DType::kF32;
    Of of = Of::kRow;
    bool is_matrix = false;  // of two dimensions, rows by values
    int64_t item_bytes = 0;  // of one row, element, partition or byte
    absl::string_view bytes;
  };

  // `header` is that of `file`, which must outlive this; `where` names it.
  // Reads what says how much there is, and the keys of a dense table; no other
  // rows. kDataLoss or kInvalidArgument, saying what and `where`.
  static absl::StatusOr<std::unique_ptr<const TableFile>> Create(
      absl::string_view file, const checkpoint::SafetensorsHeader& header,
      const std::string& where);

  const std::string& where() const { return where_; }
  const v1::TableSpec& spec() const { return layout_->spec(); }
  const TableLayout& layout() const { return *layout_; }
  int64_t version() const { return said_.image.version; }
  const RateChanges& rates() const { return said_.image.rates; }
  const checkpoint::Metadata& metadata() const { return metadata_; }
  // The attempt since which parts have what has changed; empty: none has.
  const std::string& base() const { return said_.image.base; }
  int64_t rows() const { return rows_; }
  int64_t removed() const { return removed_; }
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Column>& columns() const { return columns_; }

  // Null if there is none of this name.
  const Column* FindColumn(absl::string_view name) const;

  uint64_t key(int64_t row) const {
    return checkpoint::LoadLittleEndian64(keys_.data() + 8 * row);
  }
  // The key of a row that went: of those of a part, which ascend.
  uint64_t removed_key(int64_t i) const {
    return checkpoint::LoadLittleEndian64(removed_keys_.data() + 8 * i);
  }
  // Whether a column tells of what has changed, not of what there is.
  static bool IsOfDelta(absl::string_view column);
  // Weights [begin, begin + n), as bytes: they need not be aligned.
  absl::string_view weights(int64_t begin, int64_t n) const {
    return weights_.substr(4 * begin, 4 * n);
  }
  // The bytes of a column that `part` has.
  static absl::string_view BytesOf(const Column& column, const Part& part);

  // Whether the rows of `part` are those of its partition: kDataLoss for a key
  // that belongs elsewhere, keys that do not ascend, a step of 2^32 or more, or
  // what is known of rows that were removed (RowLife) cannot be read.
  absl::Status CheckRows(const Part& part) const;

 private:
  TableFile(const std::string& where, LoadedTable said)
      : where_(where), said_(std::move(said)) {}
  absl::Status Read(absl::string_view file,
                    const checkpoint::SafetensorsHeader& header);
  absl::Status AddColumn(absl::string_view file,
                         const checkpoint::SafetensorsHeader& header,
                         const checkpoint::TensorEntry& entry);
  absl::Status ReadParts(absl::string_view partitions);
  absl::Status ReadLife();
  absl::Status ReadRemoved();
  absl::Status CheckRemoved(const Part& part) const;
  absl::Status CheckLife(const Part& part) const;
  absl::StatusOr<int64_t> ElementsOf(const Part& part) const;
  // The unit of a column, as the table's layout has it; for an unknown name:
  // rows.
  Of UnitOf(absl::string_view name) const;
  int64_t CountOf(Of of) const;
  absl::Status Damaged(absl::string_view what) const;

  const std::string where_;
  const LoadedTable said_;  // without rows
  std::unique_ptr<const TableLayout> layout_;
  checkpoint::Metadata metadata_;
  int64_t rows_ = 0;
  int64_t elements_ = 0;
  absl::string_view keys_;
  absl::string_view steps_;
  absl::string_view weights_;
  int64_t partitions_ = 0;
  int64_t life_bytes_ = 0;
  int64_t removed_ = 0;
  absl::string_view removed_keys_;
  std::vector<Column> columns_;
  std::vector<Part> parts_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_TABLE_FILE_H_
