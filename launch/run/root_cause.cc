#include "weft/launch/run/root_cause.h"

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weft::launch {
namespace {

using How = RankEnd::How;

// A peer's name is part of a path, a key or another name where one of these
// stands beside it.
bool IsOfWord(char c) {
  return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '/';
}

// The words of `line`, in which "rank 2" is one.
std::vector<absl::string_view> WordsOf(absl::string_view line) {
  std::vector<absl::string_view> words;
  for (size_t begin = 0; begin < line.size();) {
    size_t end = begin;
    while (end < line.size() && IsOfWord(line[end])) ++end;
    if (end > begin) words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Whether the job has rank `number` of a role of so many.
bool IsRank(absl::string_view number, int count) {
  int rank = 0;
  const bool is_number = !number.empty() && absl::c_all_of(number, [](char c) {
    return absl::ascii_isdigit(c);
  });
  return is_number && absl::SimpleAtoi(number, &rank) && rank < count;
}

bool IsNameOfRank(absl::string_view word, absl::Span<const RoleSize> roles) {
  return absl::c_any_of(roles, [&](const RoleSize& role) {
    absl::string_view number = word;
    return absl::ConsumePrefix(&number, role.role) &&
           IsRank(number, role.count);
  });
}

const RankEnd* Find(absl::Span<const RankEnd> ranks, absl::string_view name) {
  const auto it =
      std::find_if(ranks.begin(), ranks.end(),
                   [&](const RankEnd& rank) { return rank.name == name; });
  return it == ranks.end() ? nullptr : &*it;
}

// What failed by itself, earlier ones first; then what stands still.
int WeightOf(const RankEnd& rank) {
  switch (rank.how) {
    case How::kFailed:
      return 3;
    case How::kStopped:
      return 2;
    case How::kHung:
      return 1;
    case How::kWell:
    case How::kLostPeer:
      return 0;
  }
  return 0;
}

bool IsHeavier(const RankEnd& a, const RankEnd& b) {
  if (WeightOf(a) != WeightOf(b)) return WeightOf(a) > WeightOf(b);
  return a.how == How::kFailed && a.order < b.order;
}

// Whom the errors of victims name, from `first` on through those that they name
// in turn.
struct Named {
  std::string rank;
  std::string by;
};
std::vector<Named> FollowNames(absl::Span<const RankEnd> ranks,
                               const RankEnd& first,
                               absl::Span<const RoleSize> roles) {
  std::vector<Named> found;
  std::set<std::string> seen = {first.name};
  std::vector<const RankEnd*> victims = {&first};
  for (size_t i = 0; i < victims.size(); ++i) {
    const RankEnd& victim = *victims[i];
    for (std::string& name :
         RanksNamedIn(victim.last_line, victim.name, roles)) {
      if (!seen.insert(name).second) continue;
      const RankEnd* const rank = Find(ranks, name);
      if (rank != nullptr && rank->how == How::kLostPeer) {
        victims.push_back(rank);
      } else {
        found.push_back({std::move(name), victim.name});
      }
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> RanksNamedIn(absl::string_view line,
                                      absl::string_view self,
                                      absl::Span<const RoleSize> roles) {
  std::vector<std::string> names;
  const auto add = [&](std::string name) {
    if (name == self) return;
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    names.push_back(std::move(name));
  };
  const std::vector<absl::string_view> words = WordsOf(line);
  RoleSize of_group;
  for (const absl::string_view word : words) {
    absl::string_view name = word;
    if (!absl::ConsumeSuffix(&name, "/world")) continue;
    for (const RoleSize& role : roles) {
      if (role.role == name) of_group = role;
    }
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (IsNameOfRank(words[i], roles)) {
      add(std::string(words[i]));
    } else if (words[i] == "rank" && i + 1 < words.size() &&
               IsRank(words[i + 1], of_group.count)) {
      add(absl::StrCat(of_group.role, words[i + 1]));
    }
  }
  return names;
}

RootCause FindRootCause(absl::Span<const RankEnd> ranks,
                        absl::string_view first,
                        absl::Span<const RoleSize> roles) {
  const RankEnd* const heard = Find(ranks, first);
  RootCause cause;
  cause.rank = std::string(first);
  if (heard == nullptr || heard->how == How::kFailed) return cause;
  const std::vector<Named> named = FollowNames(ranks, *heard, roles);
  // Evidence against one that is named counts before evidence against others,
  // and that before a name alone.
  const RankEnd* best = nullptr;
  for (const Named& name : named) {
    const RankEnd* const rank = Find(ranks, name.rank);
    if (rank == nullptr || WeightOf(*rank) == 0) continue;
    if (best != nullptr && !IsHeavier(*rank, *best)) continue;
    best = rank;
    cause.rank = name.rank;
    cause.victim = name.by;
  }
  if (best != nullptr) return cause;
  for (const RankEnd& rank : ranks) {
    // What did not end when asked may wait for the dead, as a victim does.
    if (rank.how != How::kFailed && rank.how != How::kStopped) continue;
    if (best == nullptr || IsHeavier(rank, *best)) best = &rank;
  }
  if (best != nullptr) {
    cause.rank = best->name;
    return cause;
  }
  if (named.empty()) return cause;
  if (Find(ranks, named.front().rank) != nullptr) {
    cause.suspect = named.front().rank;
    return cause;
  }
  cause.rank = named.front().rank;
  cause.victim = named.front().by;
  cause.is_here = false;
  return cause;
}

}  // namespace weft::launch
