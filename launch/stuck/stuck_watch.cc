// StuckWatch: see the header.

#include "weft/launch/stuck/stuck_watch.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "weft/launch/stuck/wait_line.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(10);
constexpr absl::Duration kLongestPause = absl::Minutes(10);
// The CPU time of a process is shown over at least this time.
constexpr absl::Duration kCpuTime = absl::Seconds(4);
// The most waits of a rank, one for each group. A rank that reports more is no
// rank of Weft.
constexpr size_t kMostWaits = 256;
// How late the next report of a wait for servers may be.
constexpr absl::Duration kReportsLate = absl::Seconds(4);

// What a rank says of a wait takes the place of what it said of it before.
std::string SlotOf(const RankWait& wait) {
  if (wait.of == RankWait::Of::kTable) {
    return absl::StrCat("table ", wait.group);
  }
  if (wait.of == RankWait::Of::kStore) return absl::StrCat("key ", wait.group);
  return wait.meeting.empty() ? wait.group : wait.meeting;
}

// A wait is reported again once it has lasted twice as long. A thread that has
// given up waiting for a server says nothing of it.
bool HasLapsed(const RankWait& wait, absl::Duration said_ago) {
  return wait.of == RankWait::Of::kTable &&
         said_ago > wait.waited + kReportsLate;
}

}  // namespace

void StuckWatch::Start(const std::string& name, pid_t pid, bool joins_others,
                       Instant now) {
  Rank& rank = ranks_[name];
  rank = {};
  rank.seen_pid = pid;
  rank.joins_until = joins_others ? now + kToJoin : now;
}

void StuckWatch::Joined(const std::string& name) {
  const auto it = ranks_.find(name);
  if (it != ranks_.end()) it->second.joins_until = Instant();
}

void StuckWatch::End(const std::string& name) {
  Rank& rank = ranks_[name];
  rank.is_gone = true;
  rank.stopped_since = Instant::Infinite();
  rank.waits.clear();
}

void StuckWatch::Line(const std::string& name, absl::string_view line,
                      Instant now) {
  std::optional<WaitLine> found = WaitLineIn(line);
  const auto it = ranks_.find(name);
  if (!found.has_value() || it == ranks_.end()) return;
  Rank& rank = it->second;
  if (found->is_over) {
    return EndWait(rank, found->wait, found->has_failed);
  }
  if (rank.waits.size() >= kMostWaits) rank.waits.clear();
  Said& said = rank.waits[SlotOf(found->wait)];
  said.wait = std::move(found->wait);
  said.at = now;
}

void StuckWatch::EndWait(Rank& rank, const RankWait& over, bool has_failed) {
  rank.waits.erase(SlotOf(over));
  if (!has_failed && stuck_since_.has_value() && is_only_busy_) {
    slow_ = std::max(slow_, over.waited);
  }
}

void StuckWatch::Look(const std::string& name, const ProcessLook& look,
                      Instant now) {
  const auto it = ranks_.find(name);
  if (it == ranks_.end()) return;
  Rank& rank = it->second;
  rank.state = look.state;
  if (look.pid != 0) rank.seen_pid = look.pid;
  if (!look.is_stopped()) {
    rank.stopped_since = Instant::Infinite();
  } else if (rank.stopped_since == Instant::Infinite()) {
    rank.stopped_since = now;
  }
  rank.cpu.emplace_back(now, look.cpu);
  while (rank.cpu.size() > 2 && now - rank.cpu[1].first >= kCpuTime) {
    rank.cpu.pop_front();
  }
}

std::vector<RankFacts> StuckWatch::Facts(
    Instant now, absl::Span<const RankFacts> elsewhere) const {
  std::vector<RankFacts> all;
  for (const auto& [name, rank] : ranks_) {
    RankFacts facts;
    facts.name = name;
    facts.pid = rank.seen_pid;
    facts.state = rank.state;
    facts.is_heard = true;
    facts.process = RankFacts::Process::kRuns;
    if (rank.is_gone) {
      facts.process = RankFacts::Process::kGone;
    } else if (rank.stopped_since != Instant::Infinite()) {
      facts.process = RankFacts::Process::kStopped;
      facts.stopped = now - rank.stopped_since;
    }
    if (!rank.cpu.empty()) {
      facts.over = rank.cpu.back().first - rank.cpu.front().first;
      facts.cpu = std::max(rank.cpu.back().second - rank.cpu.front().second,
                           absl::ZeroDuration());
    }
    for (const auto& [slot, said] : rank.waits) {
      RankWait wait = said.wait;
      wait.said_ago = now - said.at;
      wait.waited = now < rank.joins_until ? absl::ZeroDuration()
                                           : wait.waited + wait.said_ago;
      facts.waits.push_back(std::move(wait));
    }
    all.push_back(std::move(facts));
  }
  for (const RankFacts& rank : elsewhere) {
    if (ranks_.count(rank.name) == 0) all.push_back(rank);
  }
  return all;
}

std::set<std::string> StuckWatch::AwaitedElsewhere(
    absl::Span<const RankFacts> elsewhere) const {
  std::set<std::string> found;
  std::vector<std::string> next;
  const auto add = [&](const RankWait& wait) {
    for (const AwaitedRank& awaited : wait.awaited) {
      if (ranks_.count(awaited.name) > 0) continue;
      if (found.insert(awaited.name).second) next.push_back(awaited.name);
    }
  };
  for (const auto& [name, rank] : ranks_) {
    for (const auto& [slot, said] : rank.waits) add(said.wait);
  }
  while (!next.empty()) {
    const std::string name = std::move(next.back());
    next.pop_back();
    for (const RankFacts& rank : elsewhere) {
      if (rank.name != name) continue;
      for (const RankWait& wait : rank.waits) add(wait);
    }
  }
  return found;
}

bool StuckWatch::HasWaited(const std::vector<RankFacts>& facts,
                           absl::Duration time) const {
  return absl::c_any_of(facts, [&](const RankFacts& rank) {
    return ranks_.count(rank.name) > 0 &&
           absl::c_any_of(rank.waits, [&](const RankWait& wait) {
             return wait.waited >= time && !IsForAKey(wait);
           });
  });
}

bool StuckWatch::IsOfThisNode(const StuckCause& cause,
                              const std::vector<RankFacts>& facts) const {
  const auto is_own = [&](const std::string& name) {
    return ranks_.count(name) > 0;
  };
  return absl::c_any_of(cause.ranks, is_own) ||
         absl::c_any_of(VictimsOf(cause, facts), is_own);
}

std::vector<std::string> StuckWatch::HeldUpBy(
    const std::vector<RankFacts>& facts, Instant now) {
  std::vector<std::string> names;
  for (const StuckCause& cause : FindStuck(facts, kHoldsUp)) {
    if (cause.why != StuckClass::kBusy) continue;
    const auto it = ranks_.find(cause.ranks.front());
    if (it == ranks_.end() || it->second.holds_up ||
        now >= it->second.joins_until) {
      continue;
    }
    it->second.holds_up = true;
    names.push_back(it->first);
  }
  return names;
}

StuckWatch::News StuckWatch::Check(Instant now,
                                   absl::Span<const RankFacts> elsewhere,
                                   bool asks) {
  News news;
  for (auto& [name, rank] : ranks_) {
    for (auto it = rank.waits.begin(); it != rank.waits.end();) {
      const bool has_lapsed = HasLapsed(it->second.wait, now - it->second.at);
      it = has_lapsed ? rank.waits.erase(it) : std::next(it);
    }
  }
  const bool is_quiet = absl::c_all_of(ranks_, [](const auto& rank) {
    return rank.second.waits.empty() &&
           rank.second.stopped_since == Instant::Infinite();
  });
  if (is_quiet && !stuck_since_.has_value()) return news;
  const std::vector<RankFacts> own = Facts(now);
  const std::vector<RankFacts> facts = Facts(now, elsewhere);
  const bool lasts =
      HasWaited(own, kStuckAfter) ||
      absl::c_any_of(own, [&](const RankFacts& rank) {
        return rank.stopped >= kStuckAfter && IsStoppedAndMissed(rank, facts);
      });
  if (!lasts) {
    if (!stuck_since_.has_value()) return news;
    news.is_over = true;
    news.lasted = now - *stuck_since_;
    stuck_since_.reset();
    is_only_busy_ = true;
    return news;
  }
  news.held_up_by = HeldUpBy(own, now);
  const bool may_hear_more = asks && !HasWaited(own, kStuckAfter + kToHear);
  const absl::Duration patience = std::max(kStuckAfter, 2 * slow_);
  for (StuckCause& cause : FindStuck(facts, kStuckAfter)) {
    if (!IsOfThisNode(cause, facts)) continue;
    if (cause.why == StuckClass::kUnknown && may_hear_more) continue;
    const bool is_busy = cause.why == StuckClass::kBusy;
    if (is_busy && !HasWaited(own, patience)) continue;
    const auto it =
        told_.try_emplace({cause.why, cause.ranks}, Told{now, kFirstPause})
            .first;
    if (now - it->second.next > kLongestPause) it->second = {now, kFirstPause};
    if (now < it->second.next) continue;
    it->second.next = now + it->second.pause;
    it->second.pause = std::min(2 * it->second.pause, kLongestPause);
    if (!stuck_since_.has_value()) stuck_since_ = now;
    is_only_busy_ = is_only_busy_ && is_busy;
    news.causes.push_back(std::move(cause));
  }
  return news;
}

}  // namespace weft::launch
