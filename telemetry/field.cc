#include "weft/telemetry/field.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

unsigned char At(absl::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

bool IsContinuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// The length of the printable UTF-8 sequence of more than one byte at `i`, or
// 0. Overlong forms, surrogates and the control characters U+0080 to U+009F
// are not printable.
// Source: RFC 3629, section 4.
size_t SequenceLength(absl::string_view text, size_t i) {
  const unsigned char c0 = At(text, i);
  const unsigned char c1 = At(text, i + 1);
  if (c0 < 0xC2 || c0 > 0xF4 || !IsContinuation(c1)) return 0;
  if (c0 < 0xE0) return c0 == 0xC2 && c1 < 0xA0 ? 0 : 2;
  if (!IsContinuation(At(text, i + 2))) return 0;
  if (c0 < 0xF0) {
    const bool overlong = c0 == 0xE0 && c1 < 0xA0;
    const bool surrogate = c0 == 0xED && c1 >= 0xA0;
    return overlong || surrogate ? 0 : 3;
  }
  if (!IsContinuation(At(text, i + 3))) return 0;
  const bool overlong = c0 == 0xF0 && c1 < 0x90;
  const bool too_large = c0 == 0xF4 && c1 >= 0x90;
  return overlong || too_large ? 0 : 4;
}

// Characters that change the direction or the order of what is shown, or end a
// line for some readers: U+061C, U+200E to U+200F, U+2028 to U+202E, U+2066 to
// U+2069, U+FEFF. Text with them can look like other text.
bool IsFormatControl(uint32_t c) {
  return c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) ||
         c == 0xFEFF;
}

// The character of the sequence of `length` bytes, 2 to 4, at `i`.
uint32_t CharacterAt(absl::string_view text, size_t i, size_t length) {
  uint32_t c = At(text, i) & (0xFF >> (length + 1));
  for (size_t k = 1; k < length; ++k) c = c << 6 | (At(text, i + k) & 0x3F);
  return c;
}

void AppendEscaped(unsigned char c, std::string* out) {
  if (c == '\n') {
    out->append("\\n");
  } else if (c == '\t') {
    out->append("\\t");
  } else if (c == '\r') {
    out->append("\\r");
  } else {
    absl::StrAppendFormat(out, "\\x%02x", c);
  }
}

bool IsOneWord(absl::string_view text) {
  for (const char c : text) {
    if (c == ' ' || c == '"' || c == '=' || c == '\\') return false;
  }
  return !text.empty();
}

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  out.push_back('"');
  return out;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = At(text, i);
    if (c >= 0x20 && c < 0x7F) {
      out.push_back(static_cast<char>(c));
      ++i;
    } else if (const size_t length = SequenceLength(text, i); length > 0) {
      const uint32_t character = CharacterAt(text, i, length);
      if (IsFormatControl(character)) {
        absl::StrAppendFormat(&out, "\\u%04x", character);
      } else {
        out.append(text.data() + i, length);
      }
      i += length;
    } else {
      AppendEscaped(c, &out);
      ++i;
    }
  }
  return out;
}

std::string ToText(const Field& field) {
  std::string value;
  if (const auto* text = std::get_if<std::string>(&field.value)) {
    value = Printable(*text);
    // Escaped before what Printable adds, so that a reader finds each end.
    if (!IsOneWord(value)) value = Printable(Quoted(*text));
  } else if (const auto* number = std::get_if<double>(&field.value)) {
    value = absl::StrCat(*number);
  } else {
    value = ToJson(field.value).dump();
  }
  return absl::StrCat(Printable(field.key), "=", value);
}

nlohmann::ordered_json ToJson(const Field::Value& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    // JSON has no word for these; null would hide which it was.
    if (!std::isfinite(*number)) return absl::StrCat(*number);
  }
  return std::visit(
      [](const auto& held) { return nlohmann::ordered_json(held); }, value);
}

nlohmann::ordered_json ToJson(const Fields& fields) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const Field& field : fields) object[field.key] = ToJson(field.value);
  return object;
}

std::string DumpLine(const nlohmann::ordered_json& json) {
  const std::string dumped =
      json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                nlohmann::json::error_handler_t::replace);
  // Those below U+0020 are escaped already. What is left is within strings.
  std::string out;
  out.reserve(dumped.size());
  for (size_t i = 0; i < dumped.size();) {
    const unsigned char c = At(dumped, i);
    if (c < 0x7F) {
      out.push_back(dumped[i++]);
      continue;
    }
    // DEL, and U+0080 to U+009F, of which SequenceLength says that they are not
    // printable.
    const bool is_c1 = c == 0xC2 && At(dumped, i + 1) < 0xA0;
    const size_t length = c == 0x7F ? 1 : is_c1 ? 2 : SequenceLength(dumped, i);
    const uint32_t character =
        length == 1 ? c : CharacterAt(dumped, i, std::max<size_t>(length, 1));
    if (length == 1 || is_c1 || IsFormatControl(character)) {
      absl::StrAppendFormat(&out, "\\u%04x", character);
    } else {
      out.append(dumped, i, std::max<size_t>(length, 1));
    }
    i += std::max<size_t>(length, 1);
  }
  return out;
}

}  // namespace weft::telemetry
