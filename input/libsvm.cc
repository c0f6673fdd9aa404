#include "weft/input/libsvm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"

namespace weft::input {
namespace {

// So that features, one more, and products of it by a row's size fit int64.
constexpr int64_t kMaxIndex = int64_t{1} << 40;

// Takes the next word off `rest`; empty at its end.
absl::string_view TakeWord(absl::string_view* rest) {
  constexpr absl::string_view kBlank = " \t\r";
  const size_t begin = std::min(rest->find_first_not_of(kBlank), rest->size());
  rest->remove_prefix(begin);
  const size_t size = std::min(rest->find_first_of(kBlank), rest->size());
  const absl::string_view word = rest->substr(0, size);
  rest->remove_prefix(size);
  return word;
}

absl::Status Wanted(absl::string_view what, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("wanted ", what, ", found \"",
                   absl::CHexEscape(found.substr(0, 40)), "\""));
}

absl::StatusOr<float> ParseNumber(absl::string_view word) {
  // Hexadecimal digits are a sign of other data.
  const bool is_decimal = word.find_first_of("xX") == absl::string_view::npos;
  float value = 0.0f;
  if (is_decimal && absl::SimpleAtof(word, &value) && std::isfinite(value))
    return value;
  return Wanted("a finite number", word);
}

// Appends the entry "index:value" to the row that began at `row_begin`.
absl::Status AddEntry(absl::string_view word, size_t row_begin,
                      LibSvmRows* rows) {
  const size_t colon = word.find(':');
  int64_t index = 0;
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(word.substr(0, colon), &index) || index < 0 ||
      index > kMaxIndex) {
    return Wanted("index:value with an index in [0, 2^40]", word);
  }
  if (rows->indices.size() > row_begin && index <= rows->indices.back()) {
    return Wanted(absl::StrCat("an index above ", rows->indices.back()), word);
  }
  WEFT_ASSIGN_OR_RETURN(const float value, ParseNumber(word.substr(colon + 1)));
  rows->indices.push_back(index);
  rows->values.push_back(value);
  rows->features = std::max(rows->features, index + 1);
  return absl::OkStatus();
}

absl::Status AddLine(absl::string_view line, LibSvmRows* rows) {
  line = line.substr(0, line.find('#'));
  const absl::string_view label = TakeWord(&line);
  if (label.empty()) return absl::OkStatus();  // blank, or all comment
  WEFT_ASSIGN_OR_RETURN(const float value, ParseNumber(label));
  const size_t row_begin = rows->indices.size();
  for (absl::string_view word = TakeWord(&line); !word.empty();
       word = TakeWord(&line)) {
    WEFT_RETURN_IF_ERROR(AddEntry(word, row_begin, rows));
  }
  rows->labels.push_back(value);
  rows->offsets.push_back(rows->indices.size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LibSvmRows> ParseLibSvm(absl::string_view text,
                                       absl::string_view where) {
  LibSvmRows rows;
  rows.offsets.push_back(0);
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t size = std::min(text.find('\n'), text.size());
    const absl::Status added = AddLine(text.substr(0, size), &rows);
    if (!added.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ":", line, ": ", added.message()));
    }
    text.remove_prefix(std::min(size + 1, text.size()));
  }
  return rows;
}

absl::StatusOr<LibSvmDataset> LibSvmDataset::Open(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  WEFT_ASSIGN_OR_RETURN(LibSvmRows rows, ParseLibSvm(text, path));
  return LibSvmDataset(std::move(rows));
}

absl::StatusOr<Example> LibSvmDataset::Get(int64_t index) const {
  WEFT_ASSIGN_OR_RETURN(const Example batch, GetBatch({index}));
  return Example{batch[0], batch[1], batch[3].Select(0, 0)};
}

absl::StatusOr<Example> LibSvmDataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  std::vector<int64_t> entries;
  std::vector<float> values;
  std::vector<int64_t> offsets;
  std::vector<float> labels;
  for (const int64_t index : indices) {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "LibSvmDataset"));
    const int64_t begin = rows_.offsets[index];
    const int64_t end = rows_.offsets[index + 1];
    offsets.push_back(entries.size());
    labels.push_back(rows_.labels[index]);
    entries.insert(entries.end(), rows_.indices.begin() + begin,
                   rows_.indices.begin() + end);
    values.insert(values.end(), rows_.values.begin() + begin,
                  rows_.values.begin() + end);
  }
  return Example{
      Tensor::FromVector<int64_t>(entries), Tensor::FromVector<float>(values),
      Tensor::FromVector<int64_t>(offsets), Tensor::FromVector<float>(labels)};
}

}  // namespace weft::input
