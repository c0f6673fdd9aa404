// Stuck: see the header.

#include "weft/launch/stuck/stuck.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weft::launch {
namespace {

using Process = RankFacts::Process;

// The waits of a job as a graph: from who waits to whom it waits for.
class Waits {
 public:
  Waits(absl::Span<const RankFacts> ranks, absl::Duration after)
      : all_(ranks), after_(after) {
    for (const RankFacts& rank : ranks) ranks_[rank.name] = &rank;
  }

  std::vector<StuckCause> Find();

 private:
  const RankFacts* FactsOf(const std::string& name) const {
    const auto it = ranks_.find(name);
    return it == ranks_.end() ? nullptr : it->second;
  }
  void Add(StuckClass why, std::set<std::string> ranks) {
    causes_[{ranks.begin(), ranks.end()}] = why;
  }
  // What `awaited` is to `rank`, which waits for it: a cause; nothing: it waits
  // itself.
  std::optional<StuckClass> ClassOf(const RankFacts& rank, const RankWait& wait,
                                    const AwaitedRank& awaited) const;
  // Those for which others wait, directly or through others at a barrier.
  void FindAwaited();
  void AddCausesOf(const RankFacts& rank);
  // The waiting ranks that wait for each other round a circle.
  std::vector<std::set<std::string>> Circles() const;
  std::set<std::string> ReachableFrom(const std::string& name) const;
  // Whether one of them, or of those that it waits for, waits for a cause.
  bool IsExplained(const std::set<std::string>& circle) const;
  void AddCircle(const std::set<std::string>& circle);

  const absl::Span<const RankFacts> all_;
  const absl::Duration after_;
  std::map<std::string, const RankFacts*> ranks_;
  std::set<std::string> awaited_;
  // For each rank that waits: those that it waits for and that wait, too.
  std::map<std::string, std::set<std::string>> follows_;
  std::set<std::string> explained_;  // who waits for a cause
  std::map<std::vector<std::string>, StuckClass> causes_;
};

// "12" of "AllReduce #12"; -1: there is none.
int64_t NumberOf(absl::string_view operation) {
  const size_t at = operation.rfind('#');
  int64_t number = -1;
  if (at == absl::string_view::npos) return -1;
  return absl::SimpleAtoi(operation.substr(at + 1), &number) ? number : -1;
}

// Whether `name` is that of a member of `role`: "ps3".
bool IsOfRole(absl::string_view name, absl::string_view role) {
  return absl::ConsumePrefix(&name, role) && !name.empty() &&
         absl::c_all_of(name, absl::ascii_isdigit);
}

// Whether it is seen to compute, and waits for nobody: of one that waits where
// it says nothing of it, as until all have joined, there is next to no CPU
// time.
bool TrainsOn(const RankFacts& rank) {
  constexpr double kComputes = 0.05;  // of a core
  return rank.process == Process::kRuns && rank.waits.empty() &&
         !IsServer(rank.name) && !IsOfRole(rank.name, "coordinator") &&
         rank.over > absl::ZeroDuration() &&
         absl::FDivDuration(rank.cpu, rank.over) >= kComputes;
}

// Whether `rank` says that it was in that operation, or in a later one, a
// second before it was said of it that it was not: so long an answer may take.
bool WasIn(const RankFacts& rank, const RankWait& wait) {
  if (wait.of != RankWait::Of::kGroup) return false;
  return absl::c_any_of(rank.waits, [&](const RankWait& own) {
    return own.of == wait.of && own.group == wait.group &&
           own.waited > wait.said_ago + absl::Seconds(1) &&
           NumberOf(own.operation) >= NumberOf(wait.operation);
  });
}

// Where `rank` waits: who waits there for each other may end together. What two
// ranks want of servers does not.
std::string MeetingOf(const RankFacts& rank, const RankWait& wait) {
  if (wait.of == RankWait::Of::kTable) {
    return absl::StrCat("table ", wait.group, " of ", rank.name);
  }
  return wait.meeting.empty() ? wait.group : wait.meeting;
}

std::optional<StuckClass> Waits::ClassOf(const RankFacts& rank,
                                         const RankWait& wait,
                                         const AwaitedRank& awaited) const {
  const RankFacts* const other = FactsOf(awaited.name);
  if (other == nullptr) {
    return awaited.is_known_to_run ? StuckClass::kBusy : StuckClass::kUnknown;
  }
  switch (other->process) {
    case Process::kGone:
      return StuckClass::kGone;
    case Process::kStopped:
      return StuckClass::kStopped;
    case Process::kRuns:
    case Process::kUnknown:
      break;
  }
  // Both run: then one has not received what the other has sent.
  const bool is_unheard =
      !awaited.has_called && other->name != rank.name && WasIn(*other, wait);
  if (is_unheard) return StuckClass::kCutLink;
  if (other->process == Process::kUnknown && other->waits.empty()) {
    return awaited.is_known_to_run ? StuckClass::kBusy : StuckClass::kUnknown;
  }
  // A process that runs answers, whatever its own threads do.
  if (!awaited.has_answered) return StuckClass::kCutLink;
  if (!other->waits.empty()) {
    const bool is_at_store = absl::c_all_of(other->waits, IsForAKey);
    return is_at_store ? std::optional(StuckClass::kStoreKey) : std::nullopt;
  }
  return other->is_heard ? StuckClass::kBusy : StuckClass::kUnknown;
}

void Waits::FindAwaited() {
  std::vector<std::string> next;
  const auto add = [&](const RankFacts& rank, bool at_barriers) {
    for (const RankWait& wait : rank.waits) {
      const bool is_barrier = wait.of == RankWait::Of::kBarrier;
      if (wait.waited < after_ || is_barrier != at_barriers) continue;
      for (const AwaitedRank& awaited : wait.awaited) {
        if (awaited_.insert(awaited.name).second) next.push_back(awaited.name);
      }
    }
  };
  for (const auto& [name, rank] : ranks_) add(*rank, /*at_barriers=*/false);
  while (!next.empty()) {
    const RankFacts* const rank = FactsOf(next.back());
    next.pop_back();
    if (rank != nullptr) add(*rank, /*at_barriers=*/true);
  }
}

void Waits::AddCausesOf(const RankFacts& rank) {
  for (const RankWait& wait : rank.waits) {
    if (wait.waited < after_) continue;
    for (const AwaitedRank& awaited : wait.awaited) {
      const auto why = ClassOf(rank, wait, awaited);
      if (!why.has_value()) {
        follows_[rank.name].insert(awaited.name);
        continue;
      }
      if (MayLast(wait) && awaited_.count(rank.name) == 0) continue;
      explained_.insert(rank.name);
      if (*why == StuckClass::kBusy && wait.said_ago > kFresh) continue;
      if (*why == StuckClass::kCutLink) {
        Add(*why, {rank.name, awaited.name});
      } else {
        Add(*why, {awaited.name});
      }
    }
  }
}

std::set<std::string> Waits::ReachableFrom(const std::string& name) const {
  std::set<std::string> reached;
  std::vector<std::string> next = {name};
  while (!next.empty()) {
    const auto it = follows_.find(next.back());
    next.pop_back();
    if (it == follows_.end()) continue;
    for (const std::string& other : it->second) {
      if (reached.insert(other).second) next.push_back(other);
    }
  }
  return reached;
}

std::vector<std::set<std::string>> Waits::Circles() const {
  std::map<std::string, std::set<std::string>> reached;
  for (const auto& [name, others] : follows_) {
    reached[name] = ReachableFrom(name);
  }
  std::vector<std::set<std::string>> circles;
  std::set<std::string> seen;
  for (const auto& [name, others] : reached) {
    if (others.count(name) == 0 || seen.count(name) > 0) continue;
    std::set<std::string> circle = {name};
    for (const std::string& other : others) {
      const auto it = reached.find(other);
      if (it != reached.end() && it->second.count(name) > 0) {
        circle.insert(other);
      }
    }
    seen.insert(circle.begin(), circle.end());
    circles.push_back(std::move(circle));
  }
  return circles;
}

bool Waits::IsExplained(const std::set<std::string>& circle) const {
  return absl::c_any_of(circle, [&](const std::string& name) {
    return absl::c_any_of(ReachableFrom(name), [&](const std::string& other) {
      return explained_.count(other) > 0;
    });
  });
}

void Waits::AddCircle(const std::set<std::string>& circle) {
  // For each meeting: the ranks that wait in it for another rank of the circle,
  // which has not called that operation.
  std::map<std::string, std::set<std::string>> callers;
  std::set<std::string> groups;
  bool is_at_servers = false;
  for (const std::string& name : circle) {
    for (const RankWait& wait : FactsOf(name)->waits) {
      for (const AwaitedRank& awaited : wait.awaited) {
        if (circle.count(awaited.name) == 0) continue;
        const std::string meeting = MeetingOf(*FactsOf(name), wait);
        groups.insert(meeting);
        is_at_servers = is_at_servers || wait.of == RankWait::Of::kTable;
        if (!awaited.has_called) callers[meeting].insert(name);
      }
    }
  }
  // A circle that also waits for a cause outside goes on with that. Of ranks
  // that call different things none goes on, but what is missing at a server
  // may be on its way to it.
  const bool is_explained = IsExplained(circle);
  if (callers.size() > 1 && !(is_at_servers && is_explained)) {
    std::set<std::string> named;
    for (const auto& [group, names] : callers) {
      named.insert(names.begin(), names.end());
    }
    return Add(StuckClass::kDifferentCalls, std::move(named));
  }
  if (is_explained) return;
  // Each has called what the other waits in.
  Add(circle.size() == 2 && groups.size() == 1 ? StuckClass::kCutLink
                                               : StuckClass::kUnknown,
      circle);
}

std::vector<StuckCause> Waits::Find() {
  FindAwaited();
  for (const auto& [name, rank] : ranks_) {
    AddCausesOf(*rank);
    if (rank->stopped >= after_ && IsStoppedAndMissed(*rank, all_)) {
      Add(StuckClass::kStopped, {name});
    }
  }
  for (const std::set<std::string>& circle : Circles()) AddCircle(circle);
  std::vector<StuckCause> found;
  for (const auto& [ranks, why] : causes_) found.push_back({why, ranks});
  return found;
}

}  // namespace

std::string TextOf(const RankWait& wait) {
  switch (wait.of) {
    case RankWait::Of::kGroup:
      break;
    case RankWait::Of::kTransfer:
      return absl::StrCat(wait.operation, " in group ", wait.group);
    case RankWait::Of::kTable:
      return absl::StrCat(wait.operation, " on table ", wait.group);
    case RankWait::Of::kStore:
      return absl::StrCat(wait.operation, " for key ", wait.group,
                          " of the store");
    case RankWait::Of::kBarrier:
      return absl::StrCat(wait.operation, " ", wait.group,
                          " of the coordinator");
  }
  return absl::StrCat(wait.operation, " of group ", wait.group);
}

bool IsForAKey(const RankWait& wait) {
  return wait.of == RankWait::Of::kStore && wait.awaited.empty();
}

bool MayLast(const RankWait& wait) {
  if (wait.of != RankWait::Of::kBarrier) return IsForAKey(wait);
  // The coordinator has to answer there, too.
  return absl::c_all_of(wait.awaited, [](const AwaitedRank& awaited) {
    return awaited.has_answered;
  });
}

bool IsServer(absl::string_view name) { return IsOfRole(name, "ps"); }

bool IsStoppedAndMissed(const RankFacts& rank,
                        absl::Span<const RankFacts> ranks) {
  return rank.process == Process::kStopped && !IsServer(rank.name) &&
         absl::c_none_of(ranks, TrainsOn);
}

std::vector<StuckCause> FindStuck(absl::Span<const RankFacts> ranks,
                                  absl::Duration after) {
  return Waits(ranks, after).Find();
}

absl::string_view NameOf(StuckClass why) {
  switch (why) {
    case StuckClass::kGone:
      return "gone";
    case StuckClass::kStopped:
      return "stopped";
    case StuckClass::kBusy:
      return "busy";
    case StuckClass::kDifferentCalls:
      return "different-calls";
    case StuckClass::kCutLink:
      return "cut-link";
    case StuckClass::kStoreKey:
      return "store-key";
    case StuckClass::kUnknown:
      return "not-known";
  }
  return "not-known";
}

std::vector<std::string> VictimsOf(const StuckCause& cause,
                                   absl::Span<const RankFacts> ranks) {
  std::set<std::string> reached(cause.ranks.begin(), cause.ranks.end());
  std::set<std::string> victims;
  for (bool has_grown = true; has_grown;) {
    has_grown = false;
    for (const RankFacts& rank : ranks) {
      if (victims.count(rank.name) > 0) continue;
      for (const RankWait& wait : rank.waits) {
        const bool waits_for =
            absl::c_any_of(wait.awaited, [&](const AwaitedRank& awaited) {
              return reached.count(awaited.name) > 0;
            });
        if (!waits_for) continue;
        victims.insert(rank.name);
        reached.insert(rank.name);
        has_grown = true;
        break;
      }
    }
  }
  // One that is stopped in its wait is a cause, and no victim of itself.
  if (cause.ranks.size() == 1) victims.erase(cause.ranks.front());
  return {victims.begin(), victims.end()};
}

}  // namespace weft::launch
