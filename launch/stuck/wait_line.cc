#include "weft/launch/stuck/wait_line.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::launch {
namespace {

constexpr absl::string_view kWaits = " still waits after ";
constexpr absl::string_view kWaitsNoMore = " no longer waits, after ";
constexpr size_t kMostAwaited = 4096;

// The last "AllReduce #12" in `text`; empty: there is none.
std::string OperationIn(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, ' ', absl::SkipEmpty());
  for (size_t i = words.size(); i-- > 1;) {
    absl::string_view number = absl::StripSuffix(words[i], ":");
    absl::string_view verb = words[i - 1];
    // In JSON the verb follows a quote: "message":"AllReduce.
    const size_t quote = verb.rfind('"');
    if (quote != absl::string_view::npos) verb.remove_prefix(quote + 1);
    if (verb.empty() || !absl::c_all_of(verb, absl::ascii_isalpha) ||
        !absl::StartsWith(number, "#")) {
      continue;
    }
    const absl::string_view digits = number.substr(1);
    if (digits.empty() || !absl::c_all_of(digits, absl::ascii_isdigit))
      continue;
    return absl::StrCat(verb, " ", number);
  }
  return "";
}

// Takes "rank 1 (trainer1)" or "rank 1" off the front, and returns the name.
std::string TakeRank(absl::string_view* text) {
  absl::string_view rest = *text;
  if (!absl::ConsumePrefix(&rest, "rank ")) return "";
  size_t digits = 0;
  while (digits < rest.size() && absl::ascii_isdigit(rest[digits])) ++digits;
  if (digits == 0) return "";
  std::string name = absl::StrCat("rank ", rest.substr(0, digits));
  rest.remove_prefix(digits);
  const size_t close = rest.find(')');
  if (absl::StartsWith(rest, " (") && close != absl::string_view::npos) {
    name = std::string(rest.substr(2, close - 2));
    rest.remove_prefix(close + 1);
  }
  if (!absl::ConsumePrefix(&rest, " ")) return "";
  *text = rest;
  return name;
}

std::vector<AwaitedRank> AwaitedIn(absl::string_view text) {
  std::vector<AwaitedRank> awaited;
  for (absl::string_view item : absl::StrSplit(text, "; ")) {
    AwaitedRank rank;
    rank.name = TakeRank(&item);
    if (rank.name.empty()) continue;
    if (absl::StartsWith(item, "has not answered")) {
      for (AwaitedRank& other : awaited) {
        if (other.name == rank.name) other.has_answered = false;
      }
      continue;
    }
    rank.has_called = absl::StartsWith(item, "has not finished it") ||
                      absl::StartsWith(item, "has sent nothing");
    if (!rank.has_called && !absl::StartsWith(item, "has not called it")) {
      continue;
    }
    if (awaited.size() < kMostAwaited) awaited.push_back(std::move(rank));
  }
  return awaited;
}

}  // namespace

std::optional<WaitLine> WaitLineIn(absl::string_view line) {
  WaitLine found;
  absl::string_view mark = kWaits;
  size_t at = line.find(mark);
  if (at == absl::string_view::npos) {
    mark = kWaitsNoMore;
    at = line.find(mark);
    found.is_over = true;
  }
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view head = line.substr(0, at);
  absl::string_view rest = line.substr(at + mark.size());
  // "...: rank 0 of group NAME", of which the name may have spaces.
  const size_t rank = head.rfind(": rank ");
  if (rank == absl::string_view::npos) return std::nullopt;
  constexpr absl::string_view kGroup = " of group ";
  const size_t group = head.find(kGroup, rank);
  if (group == absl::string_view::npos) return std::nullopt;
  found.wait.group = std::string(head.substr(group + kGroup.size()));
  found.wait.operation = OperationIn(head.substr(0, rank));
  const size_t end = rest.find_first_of(": \"");
  if (found.wait.operation.empty() || found.wait.group.empty() ||
      !absl::ParseDuration(std::string(rest.substr(0, end)),
                           &found.wait.waited) ||
      found.wait.waited < absl::ZeroDuration() ||
      found.wait.waited == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  if (end != absl::string_view::npos) rest.remove_prefix(end);
  if (found.is_over) {
    found.has_failed = absl::StartsWith(rest, " (") && rest.size() > 2 &&
                       absl::ascii_isupper(rest[2]);
    return found;
  }
  if (!absl::ConsumePrefix(&rest, ": ")) return std::nullopt;
  found.wait.awaited = AwaitedIn(rest);
  return found;
}

}  // namespace weft::launch
