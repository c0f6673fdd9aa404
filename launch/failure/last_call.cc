#include "weft/launch/failure/last_call.h"

#include <cstddef>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::launch {
namespace {

constexpr absl::string_view kPunctuation = ",;:()\"";

absl::string_view Bare(absl::string_view word) {
  while (!word.empty() && absl::StrContains(kPunctuation, word.back())) {
    word.remove_suffix(1);
  }
  while (!word.empty() && absl::StrContains(kPunctuation, word.front())) {
    word.remove_prefix(1);
  }
  return word;
}

std::vector<absl::string_view> WordsOf(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
}

// "AllReduce" before "#656".
bool IsOperation(absl::string_view verb, absl::string_view number) {
  return !verb.empty() && absl::ascii_isupper(verb.front()) &&
         absl::c_all_of(verb, absl::ascii_isalpha) &&
         absl::ConsumePrefix(&number, "#") && !number.empty() &&
         absl::c_all_of(number, absl::ascii_isdigit);
}

// weft::ps::Exchange
bool IsFunction(absl::string_view word) {
  return absl::StrContains(word, "::") && !absl::StartsWith(word, ":") &&
         !absl::StartsWith(word, "std::") && absl::c_all_of(word, [](char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == ':';
         });
}

// The first operation from word `at` on; empty if there is none before `end`.
std::string OperationIn(const std::vector<absl::string_view>& words, size_t at,
                        size_t end) {
  for (size_t i = at; i + 1 < end; ++i) {
    if (!IsOperation(words[i], Bare(words[i + 1]))) continue;
    return absl::StrCat(words[i], " ", Bare(words[i + 1]));
  }
  return "";
}

}  // namespace

std::string CallIn(absl::string_view error) {
  const std::vector<absl::string_view> words = WordsOf(error);
  std::string call = OperationIn(words, 0, words.size());
  if (call.empty()) {
    for (const absl::string_view word : words) {
      if (IsFunction(Bare(word))) return std::string(Bare(word));
    }
    return "";
  }
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i] == "of" && words[i + 1] == "group") {
      return absl::StrCat(call, " of group ", Bare(words[i + 2]));
    }
  }
  return call;
}

std::string CallOfPeerIn(absl::string_view error, absl::string_view rank,
                         absl::Span<const RoleSize> roles) {
  const std::vector<absl::string_view> words = WordsOf(error);
  absl::string_view role;  // whose ranks are those of the group
  for (const absl::string_view word : words) {
    absl::string_view name = Bare(word);
    if (!absl::ConsumeSuffix(&name, "/world")) continue;
    for (const RoleSize& one : roles) {
      if (one.role == name) role = name;
    }
  }
  const auto is_rank = [&](size_t i) {
    return words[i] == "rank" && i + 1 < words.size();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_of_group = !role.empty() && is_rank(i) &&
                             absl::StrCat(role, Bare(words[i + 1])) == rank;
    if (!is_of_group && Bare(words[i]) != rank) continue;
    // What is said of it ends where the next rank begins.
    size_t end = i + (is_of_group ? 2 : 1);
    while (end < words.size() && !is_rank(end)) ++end;
    for (size_t j = i; j + 2 < end; ++j) {
      if (words[j] != "last" || words[j + 1] != "called") continue;
      return OperationIn(words, j + 2, end);
    }
  }
  return "";
}

}  // namespace weft::launch
