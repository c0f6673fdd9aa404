// TextDataset: a text as numbered characters, in lines or in windows.

#ifndef WEFT_INPUT_TEXT_H_
#define WEFT_INPUT_TEXT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/input/dataset.h"

namespace weft::input {

// A character is a byte; its id is its place among those that occur, sorted.
class TextDataset final : public Dataset {
 public:
  enum class Unit {
    // An example is {ids i64 [length]} of a line without its end. A batch is
    // {ids i64 [n, longest], lengths i64 [n]}, padded with pad_id().
    kLines,
    // An example is {ids i64 [window], next i64 [window]}: `next` is the text
    // one character on. Example i begins at character i * window.
    kWindows,
  };
  struct Options {
    std::string path;  // gzipped or not
    Unit unit = Unit::kWindows;
    int64_t window = 64;
  };

  static absl::StatusOr<TextDataset> Open(const Options& options);
  // kInvalidArgument for a window below 1.
  static absl::StatusOr<TextDataset> FromText(std::string text, Unit unit,
                                              int64_t window);

  int64_t size() const override;
  // The characters in order of id.
  const std::string& characters() const { return characters_; }
  int64_t pad_id() const { return characters_.size(); }

  absl::StatusOr<Example> Get(int64_t index) const override;
  absl::StatusOr<Example> GetBatch(
      absl::Span<const int64_t> indices) const override;

 private:
  TextDataset(std::string text, Unit unit, int64_t window);

  absl::string_view LineAt(int64_t index) const;
  void WriteIds(absl::string_view text, int64_t* ids) const;

  std::string text_;
  Unit unit_;
  int64_t window_;
  std::vector<int64_t> line_begins_;  // one more than lines: the text's size
  std::string characters_;
  std::array<int64_t, 256> id_of_ = {};
};

}  // namespace weft::input

#endif  // WEFT_INPUT_TEXT_H_
