// Criteo: click logs as text. A line is a label, 13 integers and 26 categories
// of hexadecimal digits, with tabs between:
//
//   1\t5\t-1\t...\t68fd1e64\t\t...
//
// An integer or a category may be missing: its field is empty. This is the form
// of the Criteo Kaggle and Terabyte sets; the user brings the file.

#ifndef WEFT_INPUT_CRITEO_H_
#define WEFT_INPUT_CRITEO_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"

namespace weft::input {

namespace criteo {

inline constexpr int kDense = 13;
inline constexpr int kFields = 26;

// The table key of a field's category: the field in the upper 32 bits, as
// w_ctr::KeyOf has it. A field that is missing has a key of its own.
inline int64_t KeyOf(int field, uint32_t category) {
  return (int64_t{field} << 32) | category;
}
inline int64_t MissingKeyOf(int field) { return KeyOf(kFields, field); }

}  // namespace criteo

struct CriteoOptions {
  // Leaves out lines that are not of this form, and counts them. False: the
  // first one is an error.
  bool skip_bad_lines = false;
};

// Some 165 bytes a row.
struct CriteoRows {
  std::vector<uint8_t> labels;       // [n], 0 or 1
  std::vector<float> dense;          // [n * 13]: log(1 + x); 0 where x is
                                     // missing or negative
  std::vector<uint32_t> categories;  // [n * 26]
  std::vector<uint32_t> missing;     // [n]: bit f of a field without a category
  int64_t skipped = 0;               // bad lines
  std::string first_skipped;         // what was wrong with the first

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// Lines end with \n or \r\n; the last may lack it. kInvalidArgument, with line
// and column counted from 1, says what was wanted and found: 40 fields; a label
// of 0 or 1; an integer of 64 bits, or nothing; 1 to 8 hexadecimal digits, or
// nothing. Also if all lines were skipped, or there is none.
absl::StatusOr<CriteoRows> ParseCriteo(absl::string_view text,
                                       const CriteoOptions& options,
                                       absl::string_view where);

// An example is {keys i64 [26], dense f32 [13], label f32 []}, as WCtrDataset
// has it.
class CriteoDataset final : public Dataset {
 public:
  struct Options {
    std::string path;  // gzipped or not
    CriteoOptions criteo;
    // The largest size of the file, unpacked; the file and the rows are in
    // memory together while it is read.
    int64_t max_bytes = int64_t{16} << 30;
  };

  static absl::StatusOr<CriteoDataset> Open(const Options& options);

  int64_t size() const override { return rows_.size(); }
  int64_t skipped() const { return rows_.skipped; }
  const std::string& first_skipped() const { return rows_.first_skipped; }
  absl::StatusOr<Example> Get(int64_t index) const override;
  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override;

 private:
  explicit CriteoDataset(CriteoRows rows) : rows_(std::move(rows)) {}

  CriteoRows rows_;
};

}  // namespace weft::input

#endif  // WEFT_INPUT_CRITEO_H_
