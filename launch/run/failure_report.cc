#include "weft/launch/run/failure_report.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/telemetry/field.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using How = RankEnd::How;

// Of a victim's error; all of it is in its output.
constexpr size_t kMostOfALine = 200;
constexpr size_t kMostOfATail = 2000;  // of each of the last lines

// By a signal with which the launcher asks.
bool IsAskedBySignal(const Exit& exit) {
  return exit.signal == SIGTERM || exit.signal == SIGINT ||
         exit.signal == SIGHUP || exit.signal == SIGQUIT;
}

How HowOf(const RankReport& rank) {
  if (rank.was_stopped) return How::kStopped;
  if (rank.was_killed) return How::kHung;
  if (!rank.exit.is_failure()) return How::kWell;
  if (HasLostPeer(rank.exit)) return How::kLostPeer;
  // Nobody here sends such a signal, whether it was asked to end or not.
  if (rank.exit.signal != 0 && !IsAskedBySignal(rank.exit)) {
    return How::kFailed;
  }
  return rank.was_asked ? How::kWell : How::kFailed;
}

std::string Seconds(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

std::string Bytes(int64_t bytes) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  if (bytes >= kGiB) return absl::StrFormat("%.1f GiB", bytes / kGiB);
  return absl::StrFormat("%.0f MiB", bytes / kMiB);
}

const RankReport* Find(const FailureFacts& facts, absl::string_view name) {
  const auto it =
      std::find_if(facts.ranks.begin(), facts.ranks.end(),
                   [&](const RankReport& rank) { return rank.name == name; });
  return it == facts.ranks.end() ? nullptr : &*it;
}

std::string Short(const std::string& line, size_t most) {
  std::string shown = telemetry::Printable(line);
  if (shown.size() <= most) return shown;
  // Not in the middle of a character of UTF-8.
  while (most > 0 && (shown[most] & 0xC0) == 0x80) --most;
  shown.resize(most);
  return shown + "...";
}

std::string LastLine(const RankReport& rank) {
  return rank.tail.empty() ? "" : Short(rank.tail.back(), kMostOfALine);
}

// What the kernel says of a rank that was killed by SIGKILL, which is how it
// frees memory.
std::string MemoryEvidence(const FailureFacts& facts, const RankReport& rank) {
  std::string text;
  if (rank.peak_bytes > 0) {
    text = absl::StrCat("  memory: ", Bytes(rank.peak_bytes), " at most");
  }
  if (rank.exit.signal != SIGKILL || rank.was_killed || facts.oom_kills < 0) {
    return text.empty() ? "" : text + "\n";
  }
  if (text.empty()) text = "  memory:";
  absl::StrAppend(&text, "; ",
                  facts.oom_kills == 0
                      ? "the kernel killed no process of this host for want of "
                        "memory meanwhile"
                      : absl::StrCat("the kernel killed ", facts.oom_kills,
                                     " of this host for want of memory "
                                     "meanwhile: most likely this one"),
                  "\n");
  return text;
}

void AppendTail(const RankReport& rank, std::string* text) {
  if (rank.tail.empty()) {
    absl::StrAppend(text, "  it wrote nothing\n");
    return;
  }
  absl::StrAppend(text, "  the last ",
                  rank.tail.size() == 1
                      ? std::string("line")
                      : absl::StrCat(rank.tail.size(), " lines"),
                  " of its output:\n");
  for (const std::string& line : rank.tail) {
    absl::StrAppend(text, "    | ", Short(line, kMostOfATail), "\n");
  }
}

// Where nothing but an error tells of a rank.
std::string Suspicion(const RootCause& cause) {
  if (!cause.is_here) {
    return "  it runs on another node: see what `weft run` says there, and "
           "whether the two hosts reach each other\n";
  }
  if (cause.suspect.empty()) return "";
  return absl::StrCat("  it lost ", cause.suspect,
                      ", which ended when it was asked to: that was busy or "
                      "stopped for a while, or the connection between the two "
                      "is cut\n");
}

}  // namespace

bool HasLostPeer(const Exit& exit) {
  return exit.code == static_cast<int>(worker::ExitCode::kPeerLost) ||
         exit.code == static_cast<int>(worker::ExitCode::kTimeout);
}

RootCause RootCauseOf(const FailureFacts& facts) {
  std::vector<const RankReport*> by_end;
  for (const RankReport& rank : facts.ranks) by_end.push_back(&rank);
  std::stable_sort(by_end.begin(), by_end.end(),
                   [](const RankReport* a, const RankReport* b) {
                     return a->after < b->after;
                   });
  std::vector<RankEnd> ends;
  for (const RankReport* rank : by_end) {
    RankEnd& end = ends.emplace_back();
    end.name = rank->name;
    end.how = HowOf(*rank);
    end.order = static_cast<int>(ends.size());
    if (!rank->tail.empty()) end.last_line = rank->tail.back();
  }
  return FindRootCause(ends, facts.first, facts.roles);
}

std::string HowItEnded(const RankReport& rank) {
  return absl::StrCat(
      rank.was_stopped ? "stopped by a signal (SIGSTOP, or a debugger); " : "",
      rank.was_killed ? "killed, as it did not end when asked"
                      : rank.exit.ToString(),
      ", after ", Seconds(rank.after));
}

std::string FailureReport(const FailureFacts& facts, const RootCause& cause) {
  std::string text = absl::StrCat("weft: ---- ", cause.rank, " failed first\n");
  const RankReport* const rank = Find(facts, cause.rank);
  if (rank != nullptr) {
    absl::StrAppend(&text, "  how: ", HowItEnded(*rank), " (pid ", rank->pid,
                    " on ", facts.host, ")\n", MemoryEvidence(facts, *rank));
  }
  if (const RankReport* const victim = Find(facts, cause.victim)) {
    absl::StrAppend(&text, "  ", cause.is_here ? "" : "only ", victim->name,
                    " names it: ", LastLine(*victim), "\n");
  }
  absl::StrAppend(&text, Suspicion(cause));
  if (rank != nullptr) {
    AppendTail(*rank, &text);
    if (!facts.log_dir.empty()) {
      absl::StrAppend(&text, "  all of its output: ", facts.log_dir, "/",
                      rank->name, ".log\n");
    }
  }
  std::string others;
  for (const RankReport& other : facts.ranks) {
    if (other.name == cause.rank) continue;
    absl::StrAppend(&others, "    ", other.name, " ", HowItEnded(other));
    const std::vector<std::string> named =
        HowOf(other) == How::kLostPeer && !other.tail.empty()
            ? RanksNamedIn(other.tail.back(), other.name, facts.roles)
            : std::vector<std::string>();
    for (size_t i = 0; i < named.size(); ++i) {
      absl::StrAppend(&others, i == 0 ? ": lost " : ", ", named[i]);
    }
    absl::StrAppend(&others, "\n");
  }
  if (!others.empty()) absl::StrAppend(&text, "  the others then:\n", others);
  absl::StrAppend(&text, "weft: ----\n");
  return text;
}

int64_t OomKills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return -1;
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
