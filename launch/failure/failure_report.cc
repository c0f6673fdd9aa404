#include "weft/launch/failure/failure_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/launch/failure/how_it_ended.h"

namespace weft::launch {
namespace {

// The most bytes of a line that the report shows; the rank's output has all of
// it.
constexpr size_t kMostOfALine = 200;
constexpr size_t kMostOfATail = 2000;  // of the root cause's
// The report shows the last line of so many other ranks.
constexpr int kMostOthers = 8;

std::string Seconds(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

std::string Short(absl::string_view line, size_t most) {
  std::string shown = telemetry::Printable(line);
  if (shown.size() <= most) return shown;
  // Do not cut in the middle of a UTF-8 character.
  while (most > 0 && (shown[most] & 0xC0) == 0x80) --most;
  shown.resize(most);
  return shown + "...";
}

std::string LastLine(const std::vector<std::string>& tail) {
  return tail.empty() ? "" : Short(tail.back(), kMostOfALine);
}

// The last `most` of them, each not too long, as one text.
std::string LinesOf(const std::vector<std::string>& tail, size_t most) {
  std::string text;
  for (size_t i = tail.size() - std::min(most, tail.size()); i < tail.size();
       ++i) {
    absl::StrAppend(&text, text.empty() ? "" : "\n",
                    absl::string_view(tail[i]).substr(0, kMostOfATail));
  }
  return text;
}

// The rows of the table, its head first.
std::vector<std::vector<std::string>> CellsOf(const FailureTable& table) {
  std::vector<std::vector<std::string>> cells = {
      {"rank", "host", "ended", "after", "why", "last call"}};
  for (const FailureRow& row : table.rows) {
    const bool is_here = row.why != FailureClass::kElsewhere;
    cells.push_back({row.rank, is_here ? row.host : "another",
                     is_here ? row.end : "-",
                     is_here ? Seconds(row.after) : "-", WhyText(row),
                     row.last_call.empty() ? "-" : row.last_call});
    for (std::string& cell : cells.back()) cell = Short(cell, kMostOfALine);
  }
  return cells;
}

void AppendTable(const FailureTable& table, std::string* text) {
  const std::vector<std::vector<std::string>> cells = CellsOf(table);
  std::vector<size_t> widths(cells.front().size(), 0);
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : cells) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_last = i + 1 == row.size();
      absl::StrAppend(
          &line, " ", row[i],
          is_last ? "" : std::string(widths[i] - row[i].size() + 1, ' '));
    }
    absl::StrAppend(text, line, "\n");
  }
}

void AppendTail(const std::vector<std::string>& tail, std::string* text) {
  if (tail.empty()) {
    absl::StrAppend(text, "  it wrote nothing\n");
    return;
  }
  absl::StrAppend(text, "  the last ",
                  tail.size() == 1 ? std::string("line")
                                   : absl::StrCat(tail.size(), " lines"),
                  " of its output:\n");
  for (const std::string& line : tail) {
    absl::StrAppend(text, "    | ", Short(line, kMostOfATail), "\n");
  }
}

// Where nothing but an error tells of a rank.
std::string Suspicion(const FailureFacts& facts, const RootCause& cause) {
  if (!cause.is_here) {
    return "  it runs on another node: see what `weft run` says there, and "
           "whether the two hosts reach each other\n";
  }
  if (cause.suspect.empty()) return "";
  const bool was_asked =
      absl::c_any_of(facts.ranks, [&](const RankReport& rank) {
        return rank.name == cause.suspect && rank.was_asked;
      });
  return absl::StrCat("  it lost ", cause.suspect, ", which ended ",
                      was_asked
                          ? "when it was asked to: that was busy or stopped "
                            "for a while, or the connection between the two "
                            "is cut\n"
                          : "with exit code 0 before\n");
}

// What the root cause's row has no room for.
void AppendCause(const FailureFacts& facts, const FailureTable& table,
                 std::string* text) {
  const RootCause& cause = table.cause;
  const FailureRow& row = table.rows.front();
  const auto report = absl::c_find_if(facts.ranks, [&](const RankReport& rank) {
    return rank.name == cause.rank;
  });
  if (report != facts.ranks.end()) {
    absl::StrAppend(text, "  how: ", HowItEnded(*report), " (pid ", report->pid,
                    " on ", facts.host, ")\n");
  }
  if (!row.memory.empty()) {
    absl::StrAppend(text, "  memory: ", row.memory, "\n");
  }
  for (const FailureRow& victim : table.rows) {
    if (victim.rank != cause.victim) continue;
    absl::StrAppend(text, "  ", cause.is_here ? "" : "only ", victim.rank,
                    " names it: ", Short(ErrorOf(victim.tail), kMostOfALine),
                    "\n");
  }
  absl::StrAppend(text, Suspicion(facts, cause));
  if (!cause.is_here) return;
  AppendTail(row.tail, text);
  if (!row.log_file.empty()) {
    absl::StrAppend(text, "  all of its output: ", row.log_file, "\n");
  }
}

// The last line and the log of those behind the root cause that failed, too.
void AppendOthers(const FailureTable& table, std::string* text) {
  int shown = 0;
  int failed = 0;
  for (size_t i = 1; i < table.rows.size(); ++i) {
    const FailureRow& row = table.rows[i];
    if (row.why == FailureClass::kEndedByLauncher ||
        row.why == FailureClass::kEndedWell || ++failed > kMostOthers) {
      continue;
    }
    ++shown;
    absl::StrAppend(text, "  ", row.rank, ": ",
                    row.tail.empty() ? "wrote nothing" : LastLine(row.tail),
                    row.memory.empty() ? "" : "; memory: ", row.memory,
                    row.log_file.empty() ? "" : "; all of its output: ",
                    row.log_file, "\n");
  }
  if (failed > shown) {
    absl::StrAppend(text, "  and ", failed - shown, " more that failed\n");
  }
}

}  // namespace

std::string HowItEnded(const RankReport& rank) {
  return absl::StrCat(
      rank.was_stopped ? "stopped by a signal (SIGSTOP, or a debugger); " : "",
      rank.was_killed ? "killed, as it did not end when asked"
                      : rank.exit.ToString(),
      ", after ", Seconds(rank.after));
}

std::string FailureReport(const FailureFacts& facts,
                          const FailureTable& table) {
  std::string text = absl::StrCat("weft: ---- ", table.cause.rank);
  if (facts.is_shrunk) {
    absl::StrAppend(&text, " failed; ", facts.going_on,
                    " of this node go on\n");
  } else {
    absl::StrAppend(&text, " failed first\n");
  }
  AppendTable(table, &text);
  AppendCause(facts, table, &text);
  AppendOthers(table, &text);
  absl::StrAppend(&text, "weft: ----\n");
  return text;
}

std::vector<telemetry::Fields> FailureFields(const FailureFacts& facts,
                                             const FailureTable& table) {
  std::vector<telemetry::Fields> all;
  for (const FailureRow& row : table.rows) {
    const auto report = absl::c_find_if(
        facts.ranks,
        [&](const RankReport& rank) { return rank.name == row.rank; });
    const bool is_here = report != facts.ranks.end();
    all.push_back({{"rank", row.rank},
                   {"place", static_cast<int64_t>(all.size())},
                   {"of", static_cast<int64_t>(table.rows.size())},
                   {"host", row.host},
                   {"pid", is_here ? int64_t{report->pid} : 0},
                   {"how", row.end},
                   {"exit_code", row.exit_code},
                   {"after_s", absl::ToDoubleSeconds(row.after)},
                   {"class", NameOf(row.why)},
                   {"victim_of", row.victim_of},
                   {"memory", row.memory},
                   {"last_call", row.last_call},
                   {"log_file", row.log_file},
                   {"last_lines", LinesOf(row.tail, all.empty() ? 20 : 3)},
                   {"shrunk", facts.is_shrunk}});
  }
  return all;
}

bool IsStopped(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // pid (name) state: the name may have anything in it.
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 2 >= line.size()) return false;
  const char state = line[end + 2];
  return state == 'T' || state == 't';
}

}  // namespace weft::launch
