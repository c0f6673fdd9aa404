#include "weft/launch/stuck/wait_line.h"

#include <cstddef>
#include <cstdint>
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

// Takes " of tag 7 from rank 1" off the end of `text` of a wait of rank `own`,
// and makes it the operation and the meeting of `wait`. False: it is no such
// text.
bool TakeTransfer(absl::string_view text, absl::string_view own,
                  RankWait* wait) {
  constexpr absl::string_view kTag = " of tag ";
  const size_t at = text.rfind(kTag);
  if (at == absl::string_view::npos) return false;
  const std::vector<absl::string_view> words =
      absl::StrSplit(text.substr(at + kTag.size()), ' ');
  uint64_t tag = 0;
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &tag)) return false;
  const bool is_send = words[1] == "to";
  if (!is_send && words[1] != "from") return false;
  const absl::string_view peer = words[2] == "rank" ? words[3] : "any";
  wait->of = RankWait::Of::kTransfer;
  wait->operation = absl::StrCat(is_send ? "Send" : "Receive", " of tag ", tag);
  wait->meeting = absl::StrCat(wait->group, " ", is_send ? own : peer, ">",
                               is_send ? peer : own, " #", tag);
  return true;
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
    if (!rank.has_called && !absl::StartsWith(item, "has not called it") &&
        !absl::StartsWith(item, "has not sent it") &&
        !absl::StartsWith(item, "has not received it")) {
      continue;
    }
    if (awaited.size() < kMostAwaited) awaited.push_back(std::move(rank));
  }
  return awaited;
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= 256 &&
         absl::c_all_of(name, [](char c) {
           return absl::ascii_isalnum(c) || absl::StrContains("._/-", c);
         });
}

// "ps0 waits for trainer1, trainer2 (why); ps1 does not answer; ps2 has not
// done it".
std::vector<AwaitedRank> AwaitedOfServers(absl::string_view text) {
  std::vector<AwaitedRank> awaited;
  const auto add = [&](absl::string_view name, bool has_answered, bool runs) {
    if (!IsName(name) || awaited.size() >= kMostAwaited) return;
    AwaitedRank rank;
    rank.name = std::string(name);
    rank.has_answered = has_answered;
    rank.is_known_to_run = runs;
    awaited.push_back(std::move(rank));
  };
  for (absl::string_view item : absl::StrSplit(text, "; ")) {
    const absl::string_view server = item.substr(0, item.find(' '));
    item.remove_prefix(server.size());
    if (absl::StartsWith(item, " does not answer")) {
      add(server, /*has_answered=*/false, /*runs=*/false);
    } else if (absl::StartsWith(item, " has not done it")) {
      add(server, /*has_answered=*/true, /*runs=*/true);
    } else if (absl::ConsumePrefix(&item, " waits for ")) {
      const absl::string_view names = item.substr(0, item.find(" ("));
      for (const absl::string_view name : absl::StrSplit(names, ", ")) {
        add(name, /*has_answered=*/true, /*runs=*/false);
      }
    }
  }
  return awaited;
}

// "missing trainer1, trainer2 and 5 more".
std::vector<AwaitedRank> AwaitedAtBarrier(absl::string_view text) {
  std::vector<AwaitedRank> awaited;
  if (!absl::ConsumePrefix(&text, "missing ")) return awaited;
  text = text.substr(0, text.find(" and "));
  for (absl::string_view name : absl::StrSplit(text, ", ")) {
    name = name.substr(0, name.find_first_of(" \""));
    if (!IsName(name) || awaited.size() >= kMostAwaited) continue;
    awaited.emplace_back();
    awaited.back().name = std::string(name);
  }
  return awaited;
}

// WORD, where `head` ends with "<before>WORD<after>"; else nothing.
std::string WordBetween(absl::string_view head, absl::string_view before,
                        absl::string_view after) {
  if (!absl::ConsumeSuffix(&head, after)) return "";
  const size_t at = head.rfind(before);
  if (at == absl::string_view::npos) return "";
  const absl::string_view word = head.substr(at + before.size());
  return absl::StrContains(word, ' ') ? "" : std::string(word);
}

// "Wait for key KEY of the store", "Barrier TAG of the coordinator".
bool ReadCoordinator(absl::string_view head, RankWait* wait) {
  wait->group = WordBetween(head, "Wait for key ", " of the store");
  if (!wait->group.empty()) {
    wait->of = RankWait::Of::kStore;
    wait->operation = "Wait";
    return true;
  }
  wait->group = WordBetween(head, "Barrier ", " of the coordinator");
  if (wait->group.empty()) return false;
  wait->of = RankWait::Of::kBarrier;
  wait->operation = "Barrier";
  wait->meeting = absl::StrCat("barrier ", wait->group);
  return true;
}

// Reads what comes before the mark. False: it is of no wait.
bool ReadHead(absl::string_view head, RankWait* wait) {
  // "...: rank 0 of group NAME", of which the name may have spaces.
  constexpr absl::string_view kRank = ": rank ";
  constexpr absl::string_view kGroup = " of group ";
  constexpr absl::string_view kTable = " on table ";
  const size_t rank = head.rfind(kRank);
  const size_t group =
      rank == absl::string_view::npos ? rank : head.find(kGroup, rank);
  if (group != absl::string_view::npos) {
    wait->group = std::string(head.substr(group + kGroup.size()));
    if (wait->group.empty()) return false;
    const size_t number = rank + kRank.size();
    if (TakeTransfer(head.substr(0, rank), head.substr(number, group - number),
                     wait)) {
      return true;
    }
    wait->operation = OperationIn(head.substr(0, rank));
    return !wait->operation.empty();
  }
  if (ReadCoordinator(head, wait)) return true;
  const size_t table = head.rfind(kTable);
  if (table == absl::string_view::npos) return false;
  wait->of = RankWait::Of::kTable;
  wait->group = std::string(head.substr(table + kTable.size()));
  absl::string_view operation = head.substr(0, table);
  operation.remove_prefix(operation.find_last_of(" \"") + 1);
  wait->operation = std::string(operation);
  return IsName(wait->group) && IsName(operation);
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
  absl::string_view rest = line.substr(at + mark.size());
  if (!ReadHead(line.substr(0, at), &found.wait)) return std::nullopt;
  const size_t end = rest.find_first_of(": \"");
  if (!absl::ParseDuration(std::string(rest.substr(0, end)),
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
  switch (found.wait.of) {
    case RankWait::Of::kGroup:
    case RankWait::Of::kTransfer:
      found.wait.awaited = AwaitedIn(rest);
      break;
    case RankWait::Of::kTable:
      found.wait.awaited = AwaitedOfServers(rest);
      break;
    case RankWait::Of::kBarrier:
      found.wait.awaited = AwaitedAtBarrier(rest);
      break;
    case RankWait::Of::kStore:
      break;
  }
  const bool is_of_coordinator = found.wait.of == RankWait::Of::kStore ||
                                 found.wait.of == RankWait::Of::kBarrier;
  if (is_of_coordinator &&
      absl::StartsWith(rest, "the coordinator does not answer")) {
    found.wait.awaited = {{"the coordinator", false, false}};
  }
  return found;
}

}  // namespace weft::launch
