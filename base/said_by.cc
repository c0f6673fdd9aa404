#include "weft/base/said_by.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weft {

std::string SaidBy(absl::string_view who, absl::string_view message) {
  absl::string_view rest = message;
  const bool is_named = absl::ConsumePrefix(&rest, who) &&
                        (rest.empty() || rest[0] == ' ' || rest[0] == ':');
  return is_named ? std::string(message) : absl::StrCat(who, ": ", message);
}

}  // namespace weft
