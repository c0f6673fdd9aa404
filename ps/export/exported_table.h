// ExportedTable: the rows of a file of ExportTable, looked up where they lie on
// the disk.
//
// The file is mapped, not read into memory: a row costs the pages that it and
// its key are on, and several processes share them. Beside that a key of every
// 64 is kept, 1/8 byte a row.
//
// The file is replaced by renaming another onto it, as ExportTable does; who
// has the old one open keeps it. It must not be written to in place: a look-up
// meanwhile ends with kDataLoss, and one beyond a new, nearer end ends the
// process (SIGBUS): see checkpoint/mapped_file.h.
//
// Thread-safety: thread-safe.

#ifndef WEFT_PS_EXPORT_EXPORTED_TABLE_H_
#define WEFT_PS_EXPORT_EXPORTED_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/checkpoint/mapped_file.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/ps/core/table_layout.h"
#include "weft/ps/export/served_table.h"

namespace weft::ps {

class ExportedTable final : public ServedTable {
 public:
  struct Options {
    // Compares the elements with their hash, which reads all of the file once.
    // Without it a damaged weight is not found.
    bool check_content = true;
  };

  // kNotFound; kDataLoss or kInvalidArgument, with what was wanted and found,
  // for what is damaged or no export. All name the path.
  static absl::StatusOr<std::shared_ptr<const ExportedTable>> Open(
      const std::string& path, const Options& options);
  static absl::StatusOr<std::shared_ptr<const ExportedTable>> Open(
      const std::string& path) {
    return Open(path, Options());
  }
  // Reads `bytes`, which must outlive the table; `where` names them in errors.
  static absl::StatusOr<std::shared_ptr<const ExportedTable>> Parse(
      absl::string_view bytes, const std::string& where,
      const Options& options);

  const v1::TableSpec& spec() const override { return layout_->spec(); }
  int64_t version() const override { return version_; }
  const std::string& checkpoint() const override { return checkpoint_; }
  int64_t rows() const override { return rows_; }
  int64_t dim() const override { return dim_; }
  // Null: of Parse.
  const checkpoint::MappedFile* file() const { return file_.get(); }

  absl::StatusOr<int64_t> LookUp(absl::Span<const uint64_t> keys,
                                 absl::Span<float> values,
                                 absl::Span<uint8_t> found) const override;

 private:
  explicit ExportedTable(std::string where) : where_(std::move(where)) {}
  absl::Status Read(absl::string_view bytes, const Options& options);
  absl::Status ReadMetadata(const checkpoint::Metadata& metadata);
  absl::Status CheckContent(absl::string_view elements,
                            const checkpoint::Metadata& metadata) const;
  absl::Status IndexKeys();
  absl::Status Damaged(absl::string_view what) const;
  uint64_t Key(int64_t row) const;
  // -1 if there is none.
  int64_t Find(uint64_t key) const;

  const std::string where_;
  std::unique_ptr<const checkpoint::MappedFile> file_;
  std::unique_ptr<const TableLayout> layout_;
  std::string checkpoint_;
  int64_t version_ = 0;
  int64_t rows_ = 0;
  int64_t dim_ = 1;
  const char* keys_ = nullptr;     // not aligned
  const char* weights_ = nullptr;  // not aligned
  std::vector<uint64_t> sparse_;   // each 64th key
};

}  // namespace weft::ps

#endif  // WEFT_PS_EXPORT_EXPORTED_TABLE_H_
