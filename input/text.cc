#include "weft/input/text.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/input/read_file.h"

namespace weft::input {

absl::StatusOr<TextDataset> TextDataset::Open(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(options.path));
  return FromText(std::move(text), options.unit, options.window);
}

absl::StatusOr<TextDataset> TextDataset::FromText(std::string text, Unit unit,
                                                  int64_t window) {
  if (unit == Unit::kWindows && window < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("TextDataset: window is ", window, ", wanted at least 1"));
  }
  return TextDataset(std::move(text), unit, window);
}

TextDataset::TextDataset(std::string text, Unit unit, int64_t window)
    : text_(std::move(text)), unit_(unit), window_(window) {
  std::array<bool, 256> occurs = {};
  for (const char c : text_) occurs[static_cast<uint8_t>(c)] = true;
  if (unit_ == Unit::kLines) occurs['\n'] = false;
  for (int c = 0; c < 256; ++c) {
    if (!occurs[c]) continue;
    id_of_[c] = characters_.size();
    characters_.push_back(static_cast<char>(c));
  }
  if (unit_ != Unit::kLines) return;
  for (size_t at = 0; at < text_.size();) {
    line_begins_.push_back(at);
    at = std::min(text_.find('\n', at), text_.size() - 1) + 1;
  }
  // As if the last line had its end.
  if (!text_.empty() && text_.back() != '\n') text_.push_back('\n');
  line_begins_.push_back(text_.size());
}

int64_t TextDataset::size() const {
  if (unit_ == Unit::kLines) {
    return static_cast<int64_t>(line_begins_.size()) - 1;
  }
  // The last window needs one character more, which follows it.
  return text_.empty() ? 0 : (static_cast<int64_t>(text_.size()) - 1) / window_;
}

absl::string_view TextDataset::LineAt(int64_t index) const {
  const int64_t begin = line_begins_[index];
  return absl::string_view(text_).substr(begin,
                                         line_begins_[index + 1] - 1 - begin);
}

void TextDataset::WriteIds(absl::string_view text, int64_t* ids) const {
  for (const char c : text) *ids++ = id_of_[static_cast<uint8_t>(c)];
}

absl::StatusOr<Example> TextDataset::Get(int64_t index) const {
  WEFT_ASSIGN_OR_RETURN(const Example batch, GetBatch({index}));
  if (unit_ == Unit::kLines) return Example{batch[0].Select(0, 0)};
  return Example{batch[0].Select(0, 0), batch[1].Select(0, 0)};
}

absl::StatusOr<Example> TextDataset::GetBatch(
    absl::Span<const int64_t> indices) const {
  int64_t length = unit_ == Unit::kLines ? 0 : window_;
  for (const int64_t index : indices) {
    WEFT_RETURN_IF_ERROR(CheckIndex(index, "TextDataset"));
    if (unit_ == Unit::kLines) {
      length = std::max<int64_t>(length, LineAt(index).size());
    }
  }
  const int64_t n = static_cast<int64_t>(indices.size());
  const Tensor ids = Tensor::Full({n, length}, pad_id(), DType::kI64);
  const Tensor second = Tensor::Empty(
      unit_ == Unit::kLines ? Shape{n} : Shape{n, length}, DType::kI64);
  for (int64_t i = 0; i < n; ++i) {
    int64_t* row = ids.data<int64_t>() + i * length;
    if (unit_ == Unit::kLines) {
      const absl::string_view line = LineAt(indices[i]);
      WriteIds(line, row);
      second.data<int64_t>()[i] = line.size();
    } else {
      const absl::string_view window =
          absl::string_view(text_).substr(indices[i] * length, length + 1);
      WriteIds(window.substr(0, length), row);
      WriteIds(window.substr(1), second.data<int64_t>() + i * length);
    }
  }
  return Example{ids, second};
}

}  // namespace weft::input
