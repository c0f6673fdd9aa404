// Field: one named value of a log line, a span or a section of the status page.

#ifndef WEFT_TELEMETRY_FIELD_H_
#define WEFT_TELEMETRY_FIELD_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace weft::telemetry {

struct Field {
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string>;

  // T is arithmetic, a string, an absl::Duration or an absl::Status.
  template <typename T>
  Field(absl::string_view name, T&& held)
      : key(name), value(ToValue(std::forward<T>(held))) {}

  std::string key;
  Value value;

 private:
  template <typename T>
  static Value ToValue(T&& held) {
    using Plain = std::decay_t<T>;
    if constexpr (std::is_same_v<Plain, bool>) {
      return held;
    } else if constexpr (std::is_floating_point_v<Plain>) {
      return static_cast<double>(held);
    } else if constexpr (std::is_integral_v<Plain> &&
                         std::is_unsigned_v<Plain>) {
      return static_cast<uint64_t>(held);
    } else if constexpr (std::is_integral_v<Plain>) {
      return static_cast<int64_t>(held);
    } else if constexpr (std::is_same_v<Plain, absl::Duration>) {
      return absl::FormatDuration(held);
    } else if constexpr (std::is_same_v<Plain, absl::Status>) {
      return held.ToString();
    } else {
      return std::string(std::forward<T>(held));
    }
  }
};

using Fields = std::vector<Field>;

// `text` as it may be shown on a terminal: control characters and bytes that
// are not UTF-8 become \n, \t or \xNN, so that no peer can forge a line or
// move the cursor.
std::string Printable(absl::string_view text);

// "key=value", with quotes where a value would not read as one word.
std::string ToText(const Field& field);

}  // namespace weft::telemetry

#endif  // WEFT_TELEMETRY_FIELD_H_
