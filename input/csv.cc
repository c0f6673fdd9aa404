#include "weft/input/csv.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"

namespace weft::input {
namespace {

// Takes a text apart, record by record.
class CsvScanner {
 public:
  CsvScanner(absl::string_view text, char delimiter, absl::string_view where)
      : rest_(text), delimiter_(delimiter), where_(where) {}

  bool done() const { return rest_.empty(); }
  int64_t line() const { return line_; }  // of the record last read

  // The next record, in place of what `fields` held. REQUIRES: !done().
  absl::Status Next(std::vector<std::string>* fields) {
    line_ = next_line_;
    size_t count = 0;
    for (bool more = true; more; ++count) {
      if (count == fields->size()) fields->emplace_back();
      WEFT_RETURN_IF_ERROR(TakeField(&(*fields)[count], &more));
    }
    fields->resize(count);
    ++next_line_;
    return absl::OkStatus();
  }

 private:
  // Takes a field and what ends it; `more` says whether that was a delimiter.
  absl::Status TakeField(std::string* field, bool* more) {
    field->clear();
    if (!rest_.empty() && rest_[0] == '"') {
      WEFT_RETURN_IF_ERROR(TakeQuoted(field));
    } else {
      const size_t end = std::min(rest_.find(delimiter_), rest_.find('\n'));
      field->assign(rest_.data(), std::min(end, rest_.size()));
      rest_.remove_prefix(field->size());
      const bool ends_line = rest_.empty() || rest_[0] == '\n';
      if (ends_line && !field->empty() && field->back() == '\r') {
        field->pop_back();
      }
    }
    *more = !rest_.empty() && rest_[0] == delimiter_;
    if (!rest_.empty()) rest_.remove_prefix(1);
    return absl::OkStatus();
  }

  absl::Status TakeQuoted(std::string* field) {
    const int64_t opened = next_line_;
    rest_.remove_prefix(1);
    for (;;) {
      const size_t quote = rest_.find('"');
      if (quote == absl::string_view::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat(where_, ":", opened, ": a quoted field does not end"));
      }
      const absl::string_view part = rest_.substr(0, quote);
      next_line_ += std::count(part.begin(), part.end(), '\n');
      field->append(part.data(), part.size());
      rest_.remove_prefix(quote + 1);
      if (rest_.empty() || rest_[0] != '"') break;
      field->push_back('"');  // doubled: stands for one
      rest_.remove_prefix(1);
    }
    if (rest_.substr(0, 2) == "\r\n") rest_.remove_prefix(1);
    if (!rest_.empty() && rest_[0] != delimiter_ && rest_[0] != '\n') {
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ":", next_line_, ": wanted '", std::string(1, delimiter_),
          "' or the line's end after a quoted field"));
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
  const char delimiter_;
  const absl::string_view where_;
  int64_t line_ = 0;
  int64_t next_line_ = 1;
};

// Long fields are cut in messages.
std::string Shown(absl::string_view field) {
  constexpr size_t kMax = 40;
  return absl::StrCat("\"", absl::CHexEscape(field.substr(0, kMax)),
                      field.size() > kMax ? "...\"" : "\"");
}

absl::StatusOr<float> ParseField(const std::string& field,
                                 const CsvOptions& options) {
  const absl::string_view text = absl::StripAsciiWhitespace(field);
  if (text.empty() && options.missing.has_value()) return *options.missing;
  // Hexadecimal digits are a sign of other data.
  const bool is_decimal = text.find_first_of("xX") == absl::string_view::npos;
  float value = 0.0f;
  if (is_decimal && absl::SimpleAtof(text, &value) && std::isfinite(value))
    return value;
  return absl::InvalidArgumentError(
      absl::StrCat("wanted a finite number, found ", Shown(field)));
}

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(absl::string_view text,
                                  const CsvOptions& options,
                                  absl::string_view where) {
  if (text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": wanted at least one line, found an empty file"));
  }
  CsvTable table;
  CsvScanner scanner(text, options.delimiter, where);
  std::vector<std::string> fields;
  if (options.header && !scanner.done()) {
    WEFT_RETURN_IF_ERROR(scanner.Next(&fields));
    table.names = fields;
  }
  std::vector<float> values;
  int64_t rows = 0;
  size_t columns = table.names.size();
  for (; !scanner.done(); ++rows) {
    WEFT_RETURN_IF_ERROR(scanner.Next(&fields));
    if (rows == 0 && table.names.empty()) columns = fields.size();
    if (fields.size() != columns) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ":", scanner.line(), ": wanted ", columns,
                       " fields, found ", fields.size()));
    }
    for (size_t c = 0; c < columns; ++c) {
      const absl::StatusOr<float> value = ParseField(fields[c], options);
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ":", scanner.line(), ", column ", c + 1, ": ",
                         value.status().message()));
      }
      values.push_back(*value);
    }
  }
  table.values =
      Tensor::FromVector<float>(values, {rows, static_cast<int64_t>(columns)});
  return table;
}

absl::StatusOr<CsvDataset> CsvDataset::Open(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.path));
  WEFT_ASSIGN_OR_RETURN(const CsvTable table,
                        ParseCsv(text, options.csv, options.path));
  const int64_t columns = table.values.size(1);
  int64_t label = columns - 1;
  if (!options.label_column.empty()) {
    const auto found =
        std::find(table.names.begin(), table.names.end(), options.label_column);
    label = found == table.names.end() ? -1 : found - table.names.begin();
  }
  if (label < 0 || label >= columns) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.path, ": no column \"", options.label_column,
                     "\" for the ", "label among ", columns, " columns"));
  }
  const int64_t rows = table.values.size(0);
  const Tensor features = Tensor::Empty({rows, columns - 1});
  features.Slice(1, 0, label).CopyFrom(table.values.Slice(1, 0, label));
  features.Slice(1, label, columns - 1)
      .CopyFrom(table.values.Slice(1, label + 1, columns));
  return CsvDataset(features, table.values.Select(1, label).Contiguous());
}

CsvDataset::CsvDataset(Tensor features, Tensor labels)
    : features_(std::move(features)), labels_(std::move(labels)) {}

absl::StatusOr<Example> CsvDataset::Get(int64_t index) const {
  WEFT_RETURN_IF_ERROR(CheckIndex(index, "CsvDataset"));
  return Example{features_.Select(0, index), labels_.Select(0, index)};
}

}  // namespace weft::input
