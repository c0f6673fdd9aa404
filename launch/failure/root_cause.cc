#include "weft/launch/failure/root_cause.h"

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

// Ends so close to each other may have one reason.
constexpr absl::Duration kTogether = absl::Seconds(2);

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
    case How::kCrashed:
    case How::kFailed:
    case How::kUnclear:
      return 4;
    case How::kStopped:
      return 3;
    case How::kFailedLate:
      return 2;
    case How::kHung:
      return 1;
    case How::kWell:
    case How::kLostPeer:
      return 0;
  }
  return 0;
}

bool HasFailedByItself(const RankEnd& rank) { return WeightOf(rank) == 4; }

bool IsHeavier(const RankEnd& a, const RankEnd& b) {
  if (WeightOf(a) != WeightOf(b)) return WeightOf(a) > WeightOf(b);
  return HasFailedByItself(a) && a.order < b.order;
}

bool Names(const RankEnd& rank, absl::string_view other,
           absl::Span<const RoleSize> roles) {
  return absl::c_linear_search(RanksNamedIn(rank.last_line, rank.name, roles),
                               other);
}

// Whether a rank that `rank`, an unclear one, names is why it ended.
bool NamesItsReason(const RankEnd& rank, absl::Span<const RankEnd> ranks,
                    const std::set<std::string>& victims,
                    absl::Span<const RoleSize> roles) {
  for (const std::string& name :
       RanksNamedIn(rank.last_line, rank.name, roles)) {
    const RankEnd* const peer = Find(ranks, name);
    if (peer == nullptr) continue;
    const bool is_certain = peer->how == How::kCrashed ||
                            peer->how == How::kFailed ||
                            peer->how == How::kStopped;
    const bool may_be = peer->how == How::kUnclear || victims.count(name) > 0;
    // If two ranks name each other, neither is the reason of the other.
    if (is_certain || (may_be && !Names(*peer, rank.name, roles))) return true;
  }
  return false;
}

// Whether another crashed so close to it that it may be why `rank` ended.
bool IsBesideACrash(const RankEnd& rank, absl::Span<const RankEnd> ranks) {
  return absl::c_any_of(ranks, [&](const RankEnd& other) {
    return other.how == How::kCrashed &&
           absl::AbsDuration(other.after - rank.after) <= kTogether;
  });
}

// Whom the errors of victims name, from `first` on through those that they name
// in turn.
struct Named {
  std::string rank;
  std::string by;
};
std::vector<Named> FollowNames(absl::Span<const RankEnd> ranks,
                               const RankEnd& first,
                               const std::set<std::string>& all_victims,
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
      if (rank != nullptr && all_victims.count(name) > 0) {
        victims.push_back(rank);
      } else {
        found.push_back({std::move(name), victim.name});
      }
    }
  }
  return found;
}

// The heaviest of those that are no victims and `counts`; null: none does.
template <typename Counts>
const RankEnd* HeaviestOf(absl::Span<const RankEnd> ranks,
                          const std::set<std::string>& victims, Counts counts) {
  const RankEnd* best = nullptr;
  for (const RankEnd& rank : ranks) {
    if (victims.count(rank.name) > 0 || !counts(rank)) continue;
    if (best == nullptr || IsHeavier(rank, *best)) best = &rank;
  }
  return best;
}

// The heaviest of the ranks that the victims name and that IsEvident.
const Named* HeaviestNamed(absl::Span<const RankEnd> ranks,
                           const std::vector<Named>& named) {
  const RankEnd* best = nullptr;
  const Named* found = nullptr;
  for (const Named& name : named) {
    const RankEnd* const rank = Find(ranks, name.rank);
    if (rank == nullptr || !IsEvident(*rank)) continue;
    if (best != nullptr && !IsHeavier(*rank, *best)) continue;
    best = rank;
    found = &name;
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

bool IsEvident(const RankEnd& rank) { return WeightOf(rank) > 0; }

std::set<std::string> VictimsIn(absl::Span<const RankEnd> ranks,
                                absl::Span<const RoleSize> roles) {
  std::set<std::string> victims;
  for (const RankEnd& rank : ranks) {
    const bool is_victim =
        rank.how == How::kLostPeer ||
        (rank.how == How::kUnclear && IsBesideACrash(rank, ranks));
    if (is_victim) victims.insert(rank.name);
  }
  for (size_t before = victims.size() + 1; before != victims.size();) {
    before = victims.size();
    for (const RankEnd& rank : ranks) {
      if (rank.how == How::kUnclear &&
          NamesItsReason(rank, ranks, victims, roles)) {
        victims.insert(rank.name);
      }
    }
  }
  return victims;
}

RootCause FindRootCause(absl::Span<const RankEnd> ranks,
                        absl::string_view first,
                        absl::Span<const RoleSize> roles) {
  const RankEnd* const heard = Find(ranks, first);
  RootCause cause;
  cause.rank = std::string(first);
  if (heard == nullptr) return cause;
  const std::set<std::string> victims = VictimsIn(ranks, roles);
  if (HasFailedByItself(*heard) && victims.count(heard->name) == 0) {
    return cause;
  }
  const std::vector<Named> named = FollowNames(ranks, *heard, victims, roles);
  // Evidence against one that is named counts before evidence against others,
  // and that before a name alone.
  if (const Named* const best = HeaviestNamed(ranks, named)) {
    cause.rank = best->rank;
    cause.victim = best->by;
    return cause;
  }
  // What did not end when asked may wait for the dead, as a victim does. An
  // error of who was asked may be of its end: it counts where no victim says
  // whom it lost.
  const RankEnd* const best =
      HeaviestOf(ranks, victims, [&](const RankEnd& rank) {
        return HasFailedByItself(rank) || rank.how == How::kStopped ||
               (rank.how == How::kFailedLate && named.empty());
      });
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
