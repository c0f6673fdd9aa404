#include "weft/telemetry/field.h"

#include <cmath>
#include <cstddef>
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
    if (c == '"') out.push_back('\\');
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
      out.append(text.data() + i, length);
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
    if (!IsOneWord(value)) value = Quoted(value);
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
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                   nlohmann::json::error_handler_t::replace);
}

}  // namespace weft::telemetry
