// CSV: numbers in rows and columns, as RFC 4180 writes them.

#ifndef WEFT_INPUT_CSV_H_
#define WEFT_INPUT_CSV_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"
#include "weft/tensor/tensor.h"

namespace weft::input {

struct CsvOptions {
  char delimiter = ',';
  bool header = true;  // the first record names the columns
  // The value of an empty field; unset: an empty field is an error.
  std::optional<float> missing;
};

struct CsvTable {
  std::vector<std::string> names;  // empty without a header
  Tensor values;                   // f32 [rows, columns]
};

// Fields may be quoted; lines end with \n or \r\n; the last may lack it.
// kInvalidArgument, with line and column counted from 1, for a field that is no
// finite number, a record of another length, or a quote that does not end.
absl::StatusOr<CsvTable> ParseCsv(absl::string_view text,
                                  const CsvOptions& options,
                                  absl::string_view where);

// An example is {features f32 [columns - 1], label f32 []}.
class CsvDataset final : public Dataset {
 public:
  struct Options {
    std::string path;  // gzipped or not
    CsvOptions csv;
    std::string label_column;  // by name; empty: the last
  };

  static absl::StatusOr<CsvDataset> Open(const Options& options);

  int64_t size() const override { return labels_.numel(); }
  int64_t features() const { return features_.size(1); }
  absl::StatusOr<Example> Get(int64_t index) const override;

 private:
  CsvDataset(Tensor features, Tensor labels);

  Tensor features_;  // f32 [n, columns - 1]
  Tensor labels_;    // f32 [n]
};

}  // namespace weft::input

#endif  // WEFT_INPUT_CSV_H_
