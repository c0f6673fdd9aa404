// LibSVM: sparse rows as text: "label index:value index:value ... # comment".

#ifndef WEFT_INPUT_LIBSVM_H_
#define WEFT_INPUT_LIBSVM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"

namespace weft::input {

struct LibSvmRows {
  std::vector<float> labels;     // [n]
  std::vector<int64_t> offsets;  // [n + 1]: row i has entries
                                 // [offsets[i], offsets[i + 1])
  std::vector<int64_t> indices;  // strictly rising in a row
  std::vector<float> values;
  int64_t features = 0;  // one more than the largest index
};

// Indices are kept as written (by custom they start at 1). kInvalidArgument,
// with the line from 1, for what is no finite number, a negative or too large
// index, or indices that do not rise.
absl::StatusOr<LibSvmRows> ParseLibSvm(absl::string_view text,
                                       absl::string_view where);

// An example is {indices i64 [k], values f32 [k], label f32 []}. A batch is
// {indices i64 [k], values f32 [k], offsets i64 [n], label f32 [n]}: the rows
// one after the other, and where each begins, as EmbeddingBag takes them.
class LibSvmDataset final : public Dataset {
 public:
  // `path` may be gzipped.
  static absl::StatusOr<LibSvmDataset> Open(const std::string& path);

  int64_t size() const override { return rows_.labels.size(); }
  int64_t features() const { return rows_.features; }
  absl::StatusOr<Example> Get(int64_t index) const override;
  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override;

 private:
  explicit LibSvmDataset(LibSvmRows rows) : rows_(std::move(rows)) {}

  const LibSvmRows rows_;
};

}  // namespace weft::input

#endif  // WEFT_INPUT_LIBSVM_H_
