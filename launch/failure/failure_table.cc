#include "weft/launch/failure/failure_table.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "weft/launch/failure/how_it_ended.h"
#include "weft/launch/failure/last_call.h"
#include "weft/launch/failure/memory_verdict.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using How = RankEnd::How;
using worker::ExitCode;

std::vector<const RankReport*> ByEnd(const FailureFacts& facts) {
  std::vector<const RankReport*> ranks;
  for (const RankReport& rank : facts.ranks) ranks.push_back(&rank);
  absl::c_stable_sort(ranks, [](const RankReport* a, const RankReport* b) {
    return a->after < b->after;
  });
  return ranks;
}

std::vector<RankEnd> EndsOf(const std::vector<const RankReport*>& ranks) {
  std::vector<RankEnd> ends;
  for (const RankReport* rank : ranks) {
    RankEnd& end = ends.emplace_back();
    end.name = rank->name;
    end.how = HowOf(*rank);
    end.order = static_cast<int>(ends.size());
    end.last_line = ErrorOf(rank->tail);
    end.after = rank->after;
  }
  return ends;
}

FailureClass ClassOfOwn(const RankReport& rank, const FailureFacts& facts) {
  if (IsOomKill(rank, facts) || SaysOutOfMemory(rank)) {
    return FailureClass::kOutOfMemory;
  }
  if (SignalOf(rank.exit) != 0) return FailureClass::kKilledBySignal;
  return IsRefusal(rank.exit) ? FailureClass::kRefusedInput
                              : FailureClass::kFailed;
}

FailureClass ClassOf(const RankReport& rank, const RankEnd& end,
                     const std::set<std::string>& victims, bool is_cause,
                     const FailureFacts& facts) {
  if (victims.count(end.name) > 0) {
    return Is(rank.exit, ExitCode::kTimeout) ? FailureClass::kTimeout
                                             : FailureClass::kLostPeer;
  }
  switch (end.how) {
    case How::kStopped:
      return FailureClass::kStopped;
    case How::kHung:
      return is_cause ? FailureClass::kHung : FailureClass::kEndedByLauncher;
    case How::kWell:
      return rank.was_asked ? FailureClass::kEndedByLauncher
                            : FailureClass::kEndedWell;
    default:
      return ClassOfOwn(rank, facts);
  }
}

// Whom a victim has lost: the root cause if it names that; else one that it
// names and that something speaks against, or that is a victim itself; else
// whom it names, or the root cause.
std::string WhomItLost(const RankEnd& victim, const FailureTable& table,
                       const std::vector<RankEnd>& ends,
                       const std::set<std::string>& victims,
                       const FailureFacts& facts) {
  const std::vector<std::string> named =
      RanksNamedIn(victim.last_line, victim.name, facts.roles);
  if (absl::c_linear_search(named, table.cause.rank)) return table.cause.rank;
  for (const bool is_evident : {true, false}) {
    for (const std::string& name : named) {
      const bool fits = absl::c_any_of(ends, [&](const RankEnd& end) {
        return end.name == name &&
               (is_evident ? IsEvident(end) : victims.count(name) > 0);
      });
      if (fits) return name;
    }
  }
  if (!named.empty()) return named.front();
  const bool is_cause = table.cause.rank == victim.name;
  return is_cause ? table.cause.suspect : table.cause.rank;
}

// What its own error says, else what those say that lost it.
std::string LastCallOf(const RankEnd& rank, const std::vector<RankEnd>& ends,
                       const std::vector<RoleSize>& roles) {
  if (const std::string own = CallIn(rank.last_line); !own.empty()) return own;
  for (const RankEnd& other : ends) {
    if (other.name == rank.name) continue;
    const std::string said = CallOfPeerIn(other.last_line, rank.name, roles);
    if (!said.empty()) return said;
  }
  return "";
}

int PlaceOf(const FailureRow& row, const RootCause& cause) {
  if (row.rank == cause.rank) return 0;
  switch (row.why) {
    case FailureClass::kLostPeer:
    case FailureClass::kTimeout:
      return 2;
    case FailureClass::kEndedByLauncher:
    case FailureClass::kEndedWell:
      return 3;
    default:
      return 1;
  }
}

std::string EndText(const RankReport& rank) {
  if (rank.was_killed) return "killed, as it did not end when asked";
  return rank.exit.ToString();
}

FailureRow RowOf(const RankReport& rank, const FailureFacts& facts) {
  FailureRow row;
  row.rank = rank.name;
  row.host = facts.host;
  row.end = EndText(rank);
  row.exit_code = rank.exit.shell_code();
  row.after = rank.after;
  row.memory = MemoryOf(rank, facts);
  if (!facts.log_dir.empty()) {
    row.log_file = absl::StrCat(facts.log_dir, "/", rank.name, ".log");
  }
  row.tail = rank.tail;
  return row;
}

}  // namespace

FailureTable MakeFailureTable(const FailureFacts& facts) {
  const std::vector<const RankReport*> ranks = ByEnd(facts);
  const std::vector<RankEnd> ends = EndsOf(ranks);
  const std::set<std::string> victims = VictimsIn(ends, facts.roles);
  FailureTable table;
  table.cause = FindRootCause(ends, facts.first, facts.roles);
  for (size_t i = 0; i < ends.size(); ++i) {
    FailureRow row = RowOf(*ranks[i], facts);
    row.why = ClassOf(*ranks[i], ends[i], victims, row.rank == table.cause.rank,
                      facts);
    if (victims.count(row.rank) > 0) {
      row.victim_of = WhomItLost(ends[i], table, ends, victims, facts);
    }
    row.last_call = LastCallOf(ends[i], ends, facts.roles);
    table.rows.push_back(std::move(row));
  }
  if (!table.cause.is_here) {
    FailureRow& row = table.rows.emplace_back();
    row.rank = table.cause.rank;
    row.why = FailureClass::kElsewhere;
    RankEnd end;
    end.name = row.rank;
    row.last_call = LastCallOf(end, ends, facts.roles);
  }
  absl::c_stable_sort(
      table.rows, [&](const FailureRow& a, const FailureRow& b) {
        return PlaceOf(a, table.cause) < PlaceOf(b, table.cause);
      });
  return table;
}

FailureTable MakeShrunkTable(const FailureFacts& facts,
                             const std::set<std::string>& now) {
  FailureTable table = MakeFailureTable(facts);
  const auto is_beside = [&](const FailureRow& row) {
    return row.rank != table.cause.rank && now.count(row.rank) == 0 &&
           now.count(row.victim_of) == 0;
  };
  table.rows.erase(
      std::remove_if(table.rows.begin(), table.rows.end(), is_beside),
      table.rows.end());
  return table;
}

std::string WhyText(const FailureRow& row) {
  switch (row.why) {
    case FailureClass::kKilledBySignal:
      return "killed by a signal";
    case FailureClass::kOutOfMemory:
      return "out of memory";
    case FailureClass::kRefusedInput:
      return "refused its input";
    case FailureClass::kLostPeer:
      return row.victim_of.empty() ? "lost a peer that it does not name"
                                   : absl::StrCat("victim of ", row.victim_of);
    case FailureClass::kTimeout:
      return row.victim_of.empty()
                 ? "time-out"
                 : absl::StrCat("time-out, victim of ", row.victim_of);
    case FailureClass::kFailed:
      return "failed by itself";
    case FailureClass::kStopped:
      return "stopped";
    case FailureClass::kHung:
      return "did not end when asked";
    case FailureClass::kEndedByLauncher:
      return "ended by weft run";
    case FailureClass::kEndedWell:
      return "ended well";
    case FailureClass::kElsewhere:
      return "runs on another node";
  }
  return "";
}

absl::string_view NameOf(FailureClass why) {
  switch (why) {
    case FailureClass::kKilledBySignal:
      return "killed-by-signal";
    case FailureClass::kOutOfMemory:
      return "out-of-memory";
    case FailureClass::kRefusedInput:
      return "refused-input";
    case FailureClass::kLostPeer:
      return "lost-peer";
    case FailureClass::kTimeout:
      return "time-out";
    case FailureClass::kFailed:
      return "failed";
    case FailureClass::kStopped:
      return "stopped";
    case FailureClass::kHung:
      return "hung";
    case FailureClass::kEndedByLauncher:
      return "ended-by-launcher";
    case FailureClass::kEndedWell:
      return "ended-well";
    case FailureClass::kElsewhere:
      return "elsewhere";
  }
  return "";
}

}  // namespace weft::launch
