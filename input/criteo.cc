#include "weft/input/criteo.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"

namespace weft::input {
namespace {

using criteo::kDense;
using criteo::kFields;

constexpr int kColumns = 1 + kDense + kFields;
constexpr size_t kHexDigits = 8;

// What was found in `column`, from 0, is not what was wanted.
absl::Status Wanted(int column, absl::string_view what,
                    absl::string_view found) {
  constexpr size_t kMax = 40;
  return absl::InvalidArgumentError(
      absl::StrCat(", column ", column + 1, ": wanted ", what, ", found \"",
                   absl::CHexEscape(found.substr(0, kMax)),
                   found.size() > kMax ? "...\"" : "\""));
}

// One line, taken apart.
struct Line {
  std::array<absl::string_view, kColumns> fields;
  uint8_t label = 0;
  std::array<float, kDense> dense = {};
  std::array<uint32_t, kFields> categories = {};
  uint32_t missing = 0;
};

absl::Status Split(absl::string_view text, Line* line) {
  const auto tabs = std::count(text.begin(), text.end(), '\t');
  if (tabs + 1 != kColumns) {
    return absl::InvalidArgumentError(absl::StrCat(
        ": wanted ", kColumns, " fields with tabs between (label, ", kDense,
        " integers, ", kFields, " categories), found ", tabs + 1));
  }
  for (absl::string_view& field : line->fields) {
    field = text.substr(0, text.find('\t'));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
  }
  return absl::OkStatus();
}

// SimpleAtoi takes blanks around a number, which this form does not have.
bool HasBlank(absl::string_view field) {
  return std::any_of(field.begin(), field.end(), absl::ascii_isspace);
}

absl::Status ReadInteger(int column, absl::string_view field, float* value) {
  if (field.empty()) return absl::OkStatus();
  int64_t integer = 0;
  if (HasBlank(field) || !absl::SimpleAtoi(field, &integer)) {
    return Wanted(column, "an integer of 64 bits, or nothing", field);
  }
  // Counts, which span many magnitudes; a negative one says that there is none.
  *value = static_cast<float>(
      std::log1p(static_cast<double>(std::max<int64_t>(integer, 0))));
  return absl::OkStatus();
}

absl::Status ReadCategory(int field_number, absl::string_view field,
                          Line* line) {
  if (field.empty()) {
    line->missing |= uint32_t{1} << field_number;
    return absl::OkStatus();
  }
  const bool is_hex =
      field.size() <= kHexDigits &&
      std::all_of(field.begin(), field.end(), absl::ascii_isxdigit);
  if (!is_hex || !absl::SimpleHexAtoi(field, &line->categories[field_number])) {
    return Wanted(1 + kDense + field_number,
                  "1 to 8 hexadecimal digits, or nothing", field);
  }
  return absl::OkStatus();
}

absl::Status ReadLine(absl::string_view text, Line* line) {
  WEFT_RETURN_IF_ERROR(Split(text, line));
  const absl::string_view label = line->fields[0];
  if (label != "0" && label != "1")
    return Wanted(0, "a label of 0 or 1", label);
  line->label = label == "1" ? 1 : 0;
  for (int j = 0; j < kDense; ++j) {
    WEFT_RETURN_IF_ERROR(
        ReadInteger(1 + j, line->fields[1 + j], &line->dense[j]));
  }
  for (int f = 0; f < kFields; ++f) {
    WEFT_RETURN_IF_ERROR(ReadCategory(f, line->fields[1 + kDense + f], line));
  }
  return absl::OkStatus();
}

void Append(const Line& line, CriteoRows* rows) {
  rows->labels.push_back(line.label);
  rows->dense.insert(rows->dense.end(), line.dense.begin(), line.dense.end());
  rows->categories.insert(rows->categories.end(), line.categories.begin(),
                          line.categories.end());
  rows->missing.push_back(line.missing);
}

}  // namespace

absl::StatusOr<CriteoRows> ParseCriteo(absl::string_view text,
                                       const CriteoOptions& options,
                                       absl::string_view where) {
  CriteoRows rows;
  for (int64_t number = 1; !text.empty(); ++number) {
    absl::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    Line read;
    const absl::Status is_good = ReadLine(line, &read);
    if (is_good.ok()) {
      Append(read, &rows);
      continue;
    }
    std::string why = absl::StrCat(where, ":", number, is_good.message());
    if (!options.skip_bad_lines) return absl::InvalidArgumentError(why);
    if (++rows.skipped == 1) rows.first_skipped = std::move(why);
  }
  if (rows.labels.empty()) {
    return absl::InvalidArgumentError(
        rows.skipped == 0
            ? absl::StrCat(where,
                           ": wanted at least one line, found an empty "
                           "file")
            : absl::StrCat(
                  "none of ", rows.skipped,
                  " lines could be read; the first: ", rows.first_skipped));
  }
  return rows;
}

absl::StatusOr<CriteoDataset> CriteoDataset::Open(const Options& options) {
  ReadFileOptions reading;
  reading.max_bytes = options.max_bytes;
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        ReadFile(options.path, reading));
  WEFT_ASSIGN_OR_RETURN(CriteoRows rows,
                        ParseCriteo(text, options.criteo, options.path));
  return CriteoDataset(std::move(rows));
}

absl::StatusOr<Example> CriteoDataset::Get(int64_t index) const {
  WEFT_ASSIGN_OR_RETURN(const Example batch, GetBatch({index}));
  return Example{batch[0].Select(0, 0), batch[1].Select(0, 0),
                 batch[2].Select(0, 0)};
}

absl::StatusOr<Example> CriteoDataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  const auto n = static_cast<int64_t>(indices.size());
  const Tensor keys = Tensor::Empty({n, kFields}, DType::kI64);
  const Tensor dense = Tensor::Empty({n, kDense});
  const Tensor labels = Tensor::Empty({n});
  int64_t* key = keys.data<int64_t>();
  float* x = dense.data<float>();
  float* label = labels.data<float>();
  for (const int64_t index : indices) {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "CriteoDataset"));
    for (int f = 0; f < kFields; ++f) {
      const bool is_missing = (rows_.missing[index] >> f & 1) != 0;
      *key++ = is_missing
                   ? criteo::MissingKeyOf(f)
                   : criteo::KeyOf(f, rows_.categories[index * kFields + f]);
    }
    x = std::copy_n(rows_.dense.begin() + index * kDense, kDense, x);
    *label++ = static_cast<float>(rows_.labels[index]);
  }
  return Example{keys, dense, labels};
}

}  // namespace weft::input
