// Dataset: examples by index.

#ifndef WEFT_INPUT_DATASET_H_
#define WEFT_INPUT_DATASET_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/tensor/tensor.h"

namespace weft::input {

// The tensors of one example, or of a batch of them: which, in which order and
// of which shape is for each dataset to say.
using Example = std::vector<Tensor>;

// Thread-safety: thread-safe; loaders call it from many threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;

  // kInvalidArgument unless 0 <= index < size().
  virtual absl::StatusOr<Example> Get(int64_t index) const = 0;

  // The examples at `indices`, which may repeat, as one: each tensor with a new
  // first dimension [indices.size(), ...] unless the dataset says otherwise.
  // This one calls Get for each and then Collate.
  virtual absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const;

 protected:
  absl::Status CheckIndex(int64_t index, absl::string_view where) const;
};

// Stacks examples of equal dtypes and shapes. kInvalidArgument names the first
// tensor that differs, or an empty list.
absl::StatusOr<Example> Collate(absl::Span<const Example> examples);

}  // namespace weft::input

#endif  // WEFT_INPUT_DATASET_H_
