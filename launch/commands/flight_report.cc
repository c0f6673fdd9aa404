#include "weft/launch/commands/flight_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/launch/commands/stragglers.h"

namespace weft::launch {
namespace {

struct Call {
  std::string verb;
  int64_t fingerprint = 0;
  double age_s = 0;  // before the newest entry of its file
};

// What one worker did in one group.
struct Member {
  std::map<int64_t, Call> calls;  // by number
  std::map<int64_t, TimedCall> finished_calls;
  int64_t finished = -1;
  int64_t finished_code = 0;
  int64_t failed = -1;  // the first that did; later ones may be refused for it
  int64_t failed_code = 0;
  double age_s = 0;  // of what it did last in this group

  int64_t called() const {
    return calls.empty() ? finished : calls.rbegin()->first;
  }
  std::string VerbOf(int64_t number) const {
    const auto it = calls.find(number);
    return it == calls.end() ? "an operation" : it->second.verb;
  }
};

using Group = std::map<std::string, Member>;  // by worker

struct Line {
  double age_s = 0;
  std::string what;
  int64_t a = 0;
  int64_t b = 0;
  std::string detail;
};

// "  12 -0.000001s collective.start a=3 b=77 trainer/world AllReduce"
bool ParseLine(absl::string_view text, Line* line) {
  std::vector<absl::string_view> words = absl::StrSplit(
      absl::StripLeadingAsciiWhitespace(text), absl::MaxSplits(' ', 5));
  if (words.size() < 5) return false;
  absl::string_view age = words[1];
  line->what = std::string(words[2]);
  line->detail = words.size() > 5 ? std::string(words[5]) : "";
  return absl::ConsumePrefix(&age, "-") && absl::ConsumeSuffix(&age, "s") &&
         absl::SimpleAtod(age, &line->age_s) && std::isfinite(line->age_s) &&
         absl::ConsumePrefix(&words[3], "a=") &&
         absl::SimpleAtoi(words[3], &line->a) &&
         absl::ConsumePrefix(&words[4], "b=") &&
         absl::SimpleAtoi(words[4], &line->b);
}

void Take(const std::string& worker, const Line& line,
          std::map<std::string, Group>* groups) {
  const bool is_start = line.what == "collective.start";
  if (!is_start && line.what != "collective.end") return;
  // The verb is the last word; a group's name may have several.
  const size_t space = line.detail.rfind(' ');
  if (space == std::string::npos) return;
  Member& member = (*groups)[line.detail.substr(0, space)][worker];
  member.age_s = line.age_s;
  if (is_start) {
    member.calls[line.a] = {line.detail.substr(space + 1), line.b, line.age_s};
  } else {
    member.finished = line.a;
    member.finished_code = line.b;
    const auto call = member.calls.find(line.a);
    if (line.b == 0 && call != member.calls.end()) {
      member.finished_calls[line.a] = {call->second.verb,
                                       call->second.fingerprint,
                                       call->second.age_s - line.age_s};
    }
    if (line.b != 0 && member.failed < 0) {
      member.failed = line.a;
      member.failed_code = line.b;
    }
  }
}

std::string CodeText(int64_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// The state of a worker, relative to the one that is furthest.
std::string Describe(const std::string& worker, const Member& member,
                     int64_t front) {
  const int64_t called = member.called();
  std::string text = absl::StrCat("  ", worker, ": ");
  if (called > member.finished) {
    absl::StrAppendFormat(&text,
                          "in %s #%d, called %.3f s before its newest "
                          "entry",
                          member.VerbOf(called), called,
                          member.calls.at(called).age_s);
  } else {
    absl::StrAppend(&text, "has finished ", member.VerbOf(member.finished),
                    " #", member.finished);
    if (member.finished_code != 0) {
      absl::StrAppend(&text, " with status ", CodeText(member.finished_code));
    }
  }
  if (member.failed >= 0 && member.failed < member.finished) {
    absl::StrAppend(&text, "; the first to fail was ",
                    member.VerbOf(member.failed), " #", member.failed,
                    " with status ", CodeText(member.failed_code));
  }
  if (called < front)
    absl::StrAppend(&text, "; BEHIND: has not called #", called + 1);
  return absl::StrCat(text, "\n");
}

// The time since any member last did something in the group.
double AgeOf(const Group& group) {
  double age_s = std::numeric_limits<double>::infinity();
  for (const auto& [worker, member] : group) {
    age_s = std::min(age_s, member.age_s);
  }
  return age_s;
}

std::string NameOf(const FlightFile& file) {
  return file.worker.empty() ? WorkerOfFile(file.path) : file.worker;
}

// The first number under which calls differ, if any is left to compare.
std::string Differences(const Group& group) {
  std::map<int64_t, std::map<int64_t, std::vector<std::string>>> found;
  for (const auto& [worker, member] : group) {
    for (const auto& [number, call] : member.calls) {
      found[number][call.fingerprint].push_back(
          absl::StrCat(worker, " (", call.verb, ")"));
    }
  }
  for (const auto& [number, calls] : found) {
    if (calls.size() < 2) continue;
    std::vector<std::string> sides;
    for (const auto& [fingerprint, workers] : calls) {
      sides.push_back(absl::StrJoin(workers, ", "));
    }
    return absl::StrCat("  #", number,
                        " differs (operation, dtype, count, "
                        "root or label): ",
                        absl::StrJoin(sides, " against "), "\n");
  }
  return "";
}

std::string WaitedFor(const Group& group) {
  TimedCalls calls;
  for (const auto& [worker, member] : group) {
    calls[worker] = member.finished_calls;
  }
  return StragglerText(calls);
}

std::string ReportOf(const std::string& name, const Group& group) {
  int64_t front = -1;
  for (const auto& [worker, member] : group) {
    front = std::max(front, member.called());
  }
  std::string text = absl::StrCat("group ", name, ", ", group.size(),
                                  group.size() == 1 ? " worker" : " workers",
                                  " in these files:\n");
  std::vector<std::string> behind;
  bool is_waiting = false;
  for (const auto& [worker, member] : group) {
    absl::StrAppend(&text, Describe(worker, member, front));
    if (member.called() < front) behind.push_back(worker);
    is_waiting = is_waiting || member.called() > member.finished;
  }
  absl::StrAppend(&text, Differences(group));
  if (!behind.empty()) {
    absl::StrAppend(&text, "  the others wait for ",
                    absl::StrJoin(behind, ", "), "\n");
  } else if (is_waiting) {
    absl::StrAppend(&text, "  all of them have called #", front,
                    ": whoever has no file here, or the network, is awaited\n");
  } else {
    absl::StrAppend(&text, "  nobody waits\n");
  }
  std::map<int64_t, std::vector<std::string>> failed;
  for (const auto& [worker, member] : group) {
    if (member.failed >= 0) failed[member.failed].push_back(worker);
  }
  if (!failed.empty()) {
    absl::StrAppend(&text, "  the group has failed: first #",
                    failed.begin()->first, ", on ",
                    absl::StrJoin(failed.begin()->second, ", "), "\n");
  }
  absl::StrAppend(&text, WaitedFor(group));
  return text;
}

}  // namespace

bool IsRecording(absl::string_view text) {
  return absl::StartsWith(text, "flight recorder: ");
}

absl::StatusOr<std::string> FlightReport(const std::vector<FlightFile>& files) {
  std::map<std::string, Group> groups;
  for (const FlightFile& file : files) {
    if (!IsRecording(file.text)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path,
                       " is no flight recorder's: it does not begin "
                       "with \"flight recorder\""));
    }
    const std::string worker = NameOf(file);
    for (const absl::string_view text : absl::StrSplit(file.text, '\n')) {
      Line line;
      if (ParseLine(text, &line)) Take(worker, line, &groups);
    }
  }
  if (groups.empty()) return "no collective operations in these files\n";
  std::vector<std::pair<double, std::string>> newest_first;
  for (const auto& [name, group] : groups) {
    newest_first.emplace_back(AgeOf(group), name);
  }
  std::sort(newest_first.begin(), newest_first.end());
  std::string text;
  for (const auto& [age_s, name] : newest_first) {
    absl::StrAppend(&text, ReportOf(name, groups[name]));
  }
  return text;
}

std::string NewestEvents(const FlightFile& file, int count) {
  std::vector<absl::string_view> lines =
      absl::StrSplit(file.text, '\n', absl::SkipEmpty());
  if (lines.empty()) return "";
  std::string text = absl::StrCat(
      NameOf(file), ", ", absl::StripPrefix(lines[0], "flight recorder: "),
      ", newest first:\n");
  const size_t shown = std::min<size_t>(std::max(count, 0), lines.size() - 1);
  for (size_t i = 1; i <= shown; ++i) {
    absl::StrAppend(&text, "  ", lines[lines.size() - i], "\n");
  }
  return text;
}

std::string WorkerOfFile(const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  std::vector<std::string> parts =
      absl::StrSplit(absl::StripSuffix(name, ".flight"), '-');
  if (parts.size() < 4) return name;
  return parts[parts.size() - 3];
}

}  // namespace weft::launch
