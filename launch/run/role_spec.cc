// RoleSpec: see the header.

#include "weft/launch/run/role_spec.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/net/tls/identity.h"
#include "weft/worker/options.h"

namespace weft::launch {
namespace {

absl::Status BadRole(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      why, "; wanted ROLE=COUNT:'PROGRAM ARGS', as in ps=2:bin/server"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool has_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      has_word = true;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      word += text[++i];
      has_word = true;
    } else if (quote == 0 && absl::ascii_isspace(c)) {
      if (has_word) words.push_back(std::exchange(word, ""));
      has_word = false;
    } else {
      word += c;
      has_word = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a quote (", std::string(1, quote), ") is not closed"));
  }
  if (has_word) words.push_back(std::move(word));
  return words;
}

absl::StatusOr<RoleSpec> ParseRole(absl::string_view text) {
  const size_t colon = text.find(':');
  const size_t equals = text.find('=');
  if (colon == absl::string_view::npos || equals == absl::string_view::npos ||
      equals > colon) {
    return BadRole("there is no '=' or no ':'");
  }
  RoleSpec role;
  role.role = std::string(text.substr(0, equals));
  if (!absl::SimpleAtoi(text.substr(equals + 1, colon - equals - 1),
                        &role.count) ||
      role.count < 1 || role.count > 1024) {
    return BadRole("the count is not a number from 1 to 1024");
  }
  absl::StatusOr<std::vector<std::string>> words =
      SplitWords(text.substr(colon + 1));
  if (!words.ok()) return BadRole(words.status().message());
  role.argv = *std::move(words);
  if (role.role.empty()) return BadRole("the role has no name");
  // The role becomes a part of workers' names, and of the paths of their logs.
  if (const absl::Status named = net::ValidateIdentity({"job", role.role, 0});
      !named.ok()) {
    return BadRole(named.message());
  }
  if (role.role == worker::kCoordinatorRole) {
    return BadRole(absl::StrCat("the role ", role.role,
                                " is that of the job's own coordinator"));
  }
  if (role.argv.empty()) return BadRole("there is no program");
  return role;
}

}  // namespace weft::launch
