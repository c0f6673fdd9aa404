// StuckText: see the header.

#include "weft/launch/stuck/stuck_text.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::launch {
namespace {

std::string List(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  const auto last = names.end() - 1;
  return absl::StrCat(absl::StrJoin(names.begin(), last, ", "), " and ", *last);
}

std::string Seconds(absl::Duration time) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(time));
}

const RankFacts* Find(absl::Span<const RankFacts> ranks,
                      const std::string& name) {
  const auto it = absl::c_find_if(
      ranks, [&](const RankFacts& rank) { return rank.name == name; });
  return it == ranks.end() ? nullptr : &*it;
}

// "trainer1 (pid 4711 on node0)".
std::string Who(const std::string& name, absl::Span<const RankFacts> ranks,
                absl::string_view host) {
  const RankFacts* const rank = Find(ranks, name);
  if (rank == nullptr || rank->pid == 0) return name;
  return absl::StrCat(name, " (pid ", rank->pid, " on ",
                      rank->host.empty() ? host : rank->host, ")");
}

// What a process that runs does, as far as that is seen; null: nothing is.
std::string Does(const RankFacts* seen) {
  if (seen == nullptr) return "it answers, and what it does is not seen here";
  const RankFacts& rank = *seen;
  if (rank.over <= absl::ZeroDuration()) return "it runs";
  const double share = absl::FDivDuration(rank.cpu, rank.over);
  const std::string used = absl::StrCat(
      Seconds(rank.cpu), " of CPU in the last ", Seconds(rank.over));
  if (share >= 0.5) return absl::StrCat("it computes, ", used);
  if (rank.state == 'R') {
    return absl::StrCat("it wants to run and gets little of a core, ", used);
  }
  if (rank.state == 'D') {
    return absl::StrCat("its main thread waits for a disk or a device, ", used);
  }
  return absl::StrCat(share < 0.05 ? "it sleeps, " : "it mostly sleeps, ",
                      used);
}

// Null: `rank` waits for nothing.
const RankWait* LongestOf(const RankFacts& rank) {
  const auto it = absl::c_max_element(
      rank.waits,
      [](const RankWait& a, const RankWait& b) { return a.waited < b.waited; });
  return it == rank.waits.end() ? nullptr : &*it;
}

// Of the longest waits of all victims. Null: nobody waits.
const RankWait* LongestOf(const std::vector<std::string>& victims,
                          absl::Span<const RankFacts> ranks) {
  const RankWait* longest = nullptr;
  for (const std::string& name : victims) {
    const RankWait* const own = LongestOf(*Find(ranks, name));
    if (own == nullptr) continue;
    if (longest == nullptr || own->waited > longest->waited) longest = own;
  }
  return longest;
}

// The victims that wait longest in the same operation.
struct Waiting {
  std::vector<std::string> names;
  absl::Duration waited;  // the longest of them
};

// "trainer0 and trainer2 wait in AllReduce #12 of group G (4.2 s)"; of several
// operations the three that have waited longest, and how many wait in others:
// "trainer0 waits in Receive of tag 7 in group G (4.2 s), trainer2 in Barrier
// #3 of group G (4.1 s)". Empty: nobody waits.
std::string WhoWaits(const std::vector<std::string>& victims,
                     absl::Span<const RankFacts> ranks) {
  constexpr size_t kMostNamed = 3;
  std::map<std::string, Waiting> by_operation;
  for (const std::string& name : victims) {
    const RankWait* const own = LongestOf(*Find(ranks, name));
    if (own == nullptr) continue;
    Waiting& waiting = by_operation[TextOf(*own)];
    waiting.names.push_back(name);
    waiting.waited = std::max(waiting.waited, own->waited);
  }
  std::vector<std::pair<std::string, Waiting>> longest_first(
      by_operation.begin(), by_operation.end());
  absl::c_stable_sort(longest_first, [](const auto& a, const auto& b) {
    return a.second.waited > b.second.waited;
  });
  std::vector<std::string> parts;
  size_t others = 0;
  for (const auto& [operation, waiting] : longest_first) {
    if (parts.size() == kMostNamed) {
      others += waiting.names.size();
      continue;
    }
    const absl::string_view verb = !parts.empty()              ? ""
                                   : waiting.names.size() == 1 ? " waits"
                                                               : " wait";
    parts.push_back(absl::StrCat(List(waiting.names), verb, " in ", operation,
                                 " (", Seconds(waiting.waited), ")"));
  }
  if (others > 0) parts.push_back(absl::StrCat(others, " in other operations"));
  return absl::StrJoin(parts, ", ");
}

// "trainer0 is in AllReduce #4 of group A, trainer1 in AllReduce #2 of group
// B".
std::string Calls(const std::vector<std::string>& names,
                  absl::Span<const RankFacts> ranks) {
  std::map<std::string, std::vector<std::string>> callers;
  for (const std::string& name : names) {
    for (const RankWait& wait : Find(ranks, name)->waits) {
      callers[TextOf(wait)].push_back(name);
    }
  }
  std::vector<std::string> calls;
  for (const auto& [call, by] : callers) {
    calls.push_back(
        absl::StrCat(List(by), by.size() == 1 ? " is" : " are", " in ", call));
  }
  return absl::StrJoin(calls, "; ");
}

// Whether those who wait for `name` want something of it as a server.
bool IsServerOf(const std::string& name,
                const std::vector<std::string>& victims,
                absl::Span<const RankFacts> ranks) {
  if (IsServer(name)) return true;
  for (const std::string& victim : victims) {
    for (const RankWait& wait : Find(ranks, victim)->waits) {
      for (const AwaitedRank& awaited : wait.awaited) {
        if (awaited.name == name && awaited.is_known_to_run) return true;
      }
    }
  }
  return false;
}

std::string UnknownText(const StuckCause& cause,
                        absl::Span<const RankFacts> ranks) {
  if (cause.ranks.size() > 1) {
    return absl::StrCat(
        "; all of them have called it, and who keeps them is "
        "not known");
  }
  bool has_answered = true;
  for (const RankFacts& rank : ranks) {
    for (const RankWait& wait : rank.waits) {
      for (const AwaitedRank& awaited : wait.awaited) {
        if (awaited.name == cause.ranks.front()) {
          has_answered = has_answered && awaited.has_answered;
        }
      }
    }
  }
  return absl::StrCat(
      " for ", cause.ranks.front(), ", of which nothing is seen here",
      has_answered
          ? ""
          : ", and which does not answer: its host or its process is gone or "
            "stopped, or the link to it is cut");
}

}  // namespace

telemetry::Fields StuckFields(const StuckCause& cause,
                              absl::Span<const RankFacts> ranks,
                              absl::string_view host) {
  const std::vector<std::string> victims = VictimsOf(cause, ranks);
  const RankWait* const longest = LongestOf(victims, ranks);
  const RankFacts* const facts = Find(ranks, cause.ranks.front());
  const auto is_of = [&](RankWait::Of of) {
    return longest != nullptr && longest->of == of;
  };
  const bool is_of_table = is_of(RankWait::Of::kTable);
  const bool is_of_store = is_of(RankWait::Of::kStore);
  const bool is_of_barrier = is_of(RankWait::Of::kBarrier);
  telemetry::Fields fields = {
      {"class", NameOf(cause.why)},
      {"ranks", absl::StrJoin(cause.ranks, ",")},
      {"waiting", absl::StrJoin(victims, ",")},
      {"operation", longest == nullptr ? "" : longest->operation},
      {"group",
       longest == nullptr || is_of_table || is_of_store || is_of_barrier
           ? ""
           : longest->group},
      {"waited_s",
       longest == nullptr ? 0.0 : absl::ToDoubleSeconds(longest->waited)}};
  if (is_of_table) fields.push_back({"table", longest->group});
  if (is_of_store) fields.push_back({"key", longest->group});
  if (is_of_barrier) fields.push_back({"barrier", longest->group});
  if (facts != nullptr && facts->pid != 0) {
    fields.push_back({"host", facts->host.empty() ? host : facts->host});
    fields.push_back({"pid", facts->pid});
    fields.push_back({"state", absl::string_view(&facts->state, 1)});
    fields.push_back({"cpu_s", absl::ToDoubleSeconds(facts->cpu)});
    fields.push_back({"of_s", absl::ToDoubleSeconds(facts->over)});
  }
  return fields;
}

std::string StuckText(const StuckCause& cause,
                      absl::Span<const RankFacts> ranks, absl::string_view host,
                      absl::string_view job) {
  const std::vector<std::string> victims = VictimsOf(cause, ranks);
  const std::string waits = WhoWaits(victims, ranks);
  const std::string& first = cause.ranks.front();
  const RankFacts* const facts = Find(ranks, first);
  const std::string whose =
      absl::StrCat(waits, waits.empty() ? "" : " for ", Who(first, ranks, host),
                   waits.empty() ? "" : ", which");
  switch (cause.why) {
    case StuckClass::kGone:
      return absl::StrCat(whose, " has ended");
    case StuckClass::kStopped:
      return absl::StrCat(whose,
                          " is stopped by a signal or a debugger; `kill -CONT ",
                          facts->pid, "` lets it go on");
    case StuckClass::kBusy:
      return absl::StrCat(
          whose,
          IsServerOf(first, victims, ranks) ? " runs and has not done it: "
                                            : " runs and is not in that call: ",
          Does(facts), "; it may only be slow: `weft status --job=", job,
          " --page=", first, "` says what it does");
    case StuckClass::kDifferentCalls:
      return absl::StrCat(
          "the ranks called different things and wait for each other: ",
          Calls(cause.ranks, ranks),
          "; all ranks must call the operations of their groups in one order, "
          "and send what others receive: `weft dump --job=",
          job, "` shows what each has called");
    case StuckClass::kCutLink: {
      std::vector<std::string> who;
      for (const std::string& name : cause.ranks) {
        who.push_back(Who(name, ranks, host));
      }
      return absl::StrCat(waits, "; ", List(who),
                          " run, and do not hear each other: look at the "
                          "network between their hosts");
    }
    case StuckClass::kStoreKey:
      return absl::StrCat(whose, " is in ", TextOf(*LongestOf(*facts)), " (",
                          Seconds(LongestOf(*facts)->waited),
                          "), which nobody sets: look for the rank that is to");
    case StuckClass::kUnknown:
      return absl::StrCat(waits, UnknownText(cause, ranks),
                          "; `weft dump --job=", job,
                          "` asks all ranks what they do");
  }
  return waits;
}

}  // namespace weft::launch
