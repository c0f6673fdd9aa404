#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/safetensors_dtype.h"
#include "weft/checkpoint/safetensors_pieces.h"

namespace weft::checkpoint {
namespace {

using Json = nlohmann::json;

// Follows the JSON event by event through the few states that the format has,
// so that nothing else is ever built, however the input is nested or repeated.
class HeaderReader final : public Json::json_sax_t {
 public:
  const std::string& problem() const { return problem_; }
  SafetensorsHeader& header() { return header_; }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        return Go(State::kTop);
      case State::kTopValue:
        if (key_ == "__metadata__") return Go(State::kMetadata);
        return BeginEntry();
      default:
        return Fail("an object where none belongs");
    }
  }

  bool key(string_t& key) override {
    switch (state_) {
      case State::kTop:
        if (!top_keys_.insert(key).second) return FailAt("twice", key);
        key_ = key;
        return Go(State::kTopValue);
      case State::kMetadata:
        if (header_.metadata.count(key) > 0) return FailAt("twice", key);
        key_ = key;
        return Go(State::kMetadataValue);
      case State::kEntry:
        return BeginField(key);
      default:
        return Fail("a key where none belongs");
    }
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadataValue) {
      header_.metadata[key_] = value;
      return Go(State::kMetadata);
    }
    if (state_ != State::kDtype) return Fail("a string where none belongs");
    const std::optional<DType> dtype = DTypeFromSafetensors(value);
    if (!dtype.has_value()) return FailAt("as dtype", value);
    entry_.dtype = *dtype;
    return Go(State::kEntry);
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShape) return Go(State::kShapeItem);
    if (state_ == State::kOffsets) return Go(State::kOffsetItem);
    return Fail("an array where none belongs");
  }

  bool number_unsigned(number_unsigned_t value) override {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (value > kMax) return Fail("a number of 2^63 or more");
    if (state_ == State::kShapeItem) {
      if (entry_.shape.size() == kMaxDims)
        return Fail("more than 32 dimensions");
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ != State::kOffsetItem)
      return Fail("a number where none belongs");
    if (offsets_ == 2) return Fail("more than two data_offsets");
    (offsets_++ == 0 ? entry_.begin : entry_.end) = static_cast<int64_t>(value);
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsetItem && offsets_ != 2) {
      return Fail("fewer than two data_offsets");
    }
    return Go(State::kEntry);
  }

  bool end_object() override {
    switch (state_) {
      case State::kEntry:
        return EndEntry();
      case State::kMetadata:
        return Go(State::kTop);
      default:
        return Go(State::kEnd);
    }
  }

  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("a boolean"); }
  bool number_integer(number_integer_t) override {
    return Fail("a negative number");
  }
  bool number_float(number_float_t, const string_t&) override {
    return Fail("a fraction");
  }
  bool binary(binary_t&) override { return Fail("binary JSON"); }
  bool parse_error(std::size_t at, const std::string&,
                   const Json::exception&) override {
    return Fail(absl::StrCat("broken JSON at byte ", at));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kDtype,
    kShape,
    kShapeItem,
    kOffsets,
    kOffsetItem,
    kEnd,
  };

  bool Go(State next) {
    state_ = next;
    return true;
  }

  bool Fail(absl::string_view found) {
    if (problem_.empty()) {
      problem_ = absl::StrCat("the header has ", found);
      if (!entry_.name.empty()) {
        absl::StrAppend(&problem_, " in \"", absl::CHexEscape(entry_.name),
                        "\"");
      }
    }
    return false;
  }

  bool FailAt(absl::string_view how, absl::string_view text) {
    return Fail(absl::StrCat(
        "\"", absl::CHexEscape(text.substr(0, kMaxNameBytes)), "\" ", how));
  }

  bool BeginEntry() {
    if (key_.empty() || key_.size() > kMaxNameBytes) {
      return Fail(absl::StrCat("a name of ", key_.size(),
                               " bytes, allowed are 1 to 256"));
    }
    if (header_.entries.size() == static_cast<size_t>(kMaxTensors)) {
      return Fail("more than a million tensors");
    }
    entry_ = TensorEntry();
    entry_.name = key_;
    has_ = {};
    offsets_ = 0;
    return Go(State::kEntry);
  }

  bool BeginField(const std::string& key) {
    static constexpr absl::string_view kFields[] = {"dtype", "shape",
                                                    "data_offsets"};
    static constexpr State kStates[] = {State::kDtype, State::kShape,
                                        State::kOffsets};
    for (int i = 0; i < 3; ++i) {
      if (key != kFields[i]) continue;
      if (has_[i]) return FailAt("twice", key);
      has_[i] = true;
      return Go(kStates[i]);
    }
    return FailAt("as a field", key);
  }

  bool EndEntry() {
    if (!(has_[0] && has_[1] && has_[2])) {
      return Fail("no dtype, shape or data_offsets");
    }
    header_.entries.push_back(std::move(entry_));
    entry_ = TensorEntry();
    return Go(State::kTop);
  }

  State state_ = State::kStart;
  SafetensorsHeader header_;
  absl::flat_hash_set<std::string> top_keys_;
  std::string key_;
  TensorEntry entry_;
  std::array<bool, 3> has_ = {};
  int offsets_ = 0;
  std::string problem_;
};

// The bytes of a shape, or nothing if they pass the limit, also where a 0 makes
// the product 0.
std::optional<int64_t> BytesOf(const TensorEntry& entry) {
  int64_t bytes = ItemSize(entry.dtype);
  int64_t bound = bytes;
  for (const int64_t size : entry.shape) {
    if (bound > kMaxTensorBytes / std::max<int64_t>(size, 1)) {
      return std::nullopt;
    }
    bound *= std::max<int64_t>(size, 1);
    bytes *= size;
  }
  return bytes;
}

// Sorts entries by place and checks that they tile [0, data_bytes).
absl::Status CheckPlaces(std::vector<TensorEntry>& entries,
                         int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) <
                     std::tie(b.begin, b.end, b.name);
            });
  int64_t at = 0;
  for (const TensorEntry& entry : entries) {
    const std::optional<int64_t> bytes = BytesOf(entry);
    if (!bytes.has_value() || entry.end < entry.begin ||
        entry.end - entry.begin != *bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", absl::CHexEscape(entry.name), "\" of ", Name(entry.dtype),
          ShapeText(entry.shape), " has the bytes [", entry.begin, ", ",
          entry.end, "), wanted as many as its shape takes, at most 2^47"));
    }
    if (entry.begin != at) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", absl::CHexEscape(entry.name), "\" begins at byte ", entry.begin,
          ", wanted ", at, ", where the one before ends"));
    }
    at = entry.end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wanted ", at, " bytes of elements, found ", data_bytes,
                   at > data_bytes ? "; the file is cut" : ""));
}

absl::StatusOr<SafetensorsHeader> Parse(absl::string_view front,
                                        int64_t file_bytes) {
  if (file_bytes < 8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted at least 8 bytes, found ", file_bytes, "; the file is cut"));
  }
  const uint64_t length = LoadLittleEndian64(front.data());
  const auto left = static_cast<uint64_t>(file_bytes - 8);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) || length > left) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header length is ", length, ", allowed is at most 16 MiB and the ",
        left, " bytes that follow"));
  }
  WEFT_CHECK_GE(front.size(), 8 + length);
  const absl::string_view text = front.substr(8, length);
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError("the header does not begin with '{'");
  }
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(reader.problem());
  }
  SafetensorsHeader header = std::move(reader.header());
  header.bytes = 8 + static_cast<int64_t>(length);
  WEFT_RETURN_IF_ERROR(CheckPlaces(header.entries, file_bytes - header.bytes));
  return header;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view file, absl::string_view where) {
  return ParseSafetensorsFront(file, static_cast<int64_t>(file.size()), where);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsFront(
    absl::string_view front, int64_t file_bytes, absl::string_view where) {
  absl::StatusOr<SafetensorsHeader> header = Parse(front, file_bytes);
  if (header.ok()) return header;
  return absl::InvalidArgumentError(absl::StrCat(
      where, " is no safetensors file: ", header.status().message()));
}

}  // namespace weft::checkpoint
