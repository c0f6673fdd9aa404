#include "weft/input/dataset.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::input {
namespace {

absl::Status CheckAlike(absl::Span<const Example> examples) {
  for (size_t i = 1; i < examples.size(); ++i) {
    if (examples[i].size() != examples[0].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Collate: example ", i, " has ", examples[i].size(),
                       " tensors, example 0 has ", examples[0].size()));
    }
    for (size_t t = 0; t < examples[0].size(); ++t) {
      const Tensor& a = examples[0][t];
      const Tensor& b = examples[i][t];
      if (a.dtype() != b.dtype() || a.shape() != b.shape()) {
        return absl::InvalidArgumentError(
            absl::StrCat("Collate: tensor ", t, " of example ", i, " is ",
                         b.Describe(), ", of example 0 ", a.Describe()));
      }
    }
  }
  return absl::OkStatus();
}

Tensor Stack(absl::Span<const Example> examples, size_t t) {
  Shape shape = examples[0][t].shape();
  shape.insert(shape.begin(), static_cast<int64_t>(examples.size()));
  const Tensor out = Tensor::Empty(shape, examples[0][t].dtype());
  char* to = static_cast<char*>(out.raw());
  for (const Example& example : examples) {
    const Tensor flat = example[t].Contiguous();
    if (flat.bytes() > 0) std::memcpy(to, flat.raw(), flat.bytes());
    to += flat.bytes();
  }
  return out;
}

}  // namespace

absl::StatusOr<Example> Dataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  std::vector<Example> examples;
  examples.reserve(indices.size());
  for (const int64_t index : indices) {
    WEFT_ASSIGN_OR_RETURN(Example example, Get(index));
    examples.push_back(std::move(example));
  }
  return Collate(examples);
}

absl::Status Dataset::CheckIndex(int64_t index, absl::string_view where) const {
  if (index >= 0 && index < size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": index ", index, " is not in [0, ", size(), ")"));
}

absl::StatusOr<Example> Collate(absl::Span<const Example> examples) {
  if (examples.empty()) {
    return absl::InvalidArgumentError("Collate: no examples");
  }
  WEFT_RETURN_IF_ERROR(CheckAlike(examples));
  Example batch;
  for (size_t t = 0; t < examples[0].size(); ++t) {
    batch.push_back(Stack(examples, t));
  }
  return batch;
}

}  // namespace weft::input
