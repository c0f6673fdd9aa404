#include "weft/ps/waits/wait_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::ps {
namespace {

constexpr absl::Duration kReportAfter = absl::Seconds(2);
constexpr absl::Duration kAskBefore = absl::Milliseconds(1500);
constexpr size_t kMostNames = 64;
constexpr size_t kMostNameBytes = 64;
constexpr size_t kMostWhyBytes = 200;

std::string Seconds(absl::Duration waited) {
  return absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)));
}

// What a server has sent may be anything, and the line is cut at these.
std::string Clean(absl::string_view text) {
  std::string clean(text.substr(0, kMostWhyBytes));
  for (char& c : clean) {
    const bool is_mark = c == ';' || c == '(' || c == ')' || c == '"';
    if (is_mark || !absl::ascii_isprint(static_cast<unsigned char>(c))) c = '.';
  }
  return clean;
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-';
         });
}

// `pushes`: `self` has sent a part. A server that waits for it has not taken
// it, and the others for whom it waits may have sent theirs.
std::string TextOf(const ServerAnswer& answer, absl::string_view self,
                   bool pushes) {
  if (!answer.has_answered) {
    return absl::StrCat(answer.server, " does not answer");
  }
  std::vector<std::string> names;
  std::string why;
  for (const auto& [table, reason, workers, waited_s] : answer.waits) {
    for (const std::string& name : workers) {
      if (name == self && pushes) {
        return absl::StrCat(answer.server, " has not done it");
      }
      if (name == self || !IsName(name)) continue;
      const bool is_new =
          std::find(names.begin(), names.end(), name) == names.end();
      if (is_new && names.size() < kMostNames) names.push_back(name);
    }
    if (why.empty()) why = Clean(reason);
  }
  if (answer.waits.empty()) {
    return absl::StrCat(answer.server, " has not done it");
  }
  return absl::StrCat(answer.server, " waits ", names.empty() ? "" : "for ",
                      absl::StrJoin(names, ", "), names.empty() ? "" : " ", "(",
                      why, ")");
}

}  // namespace

std::string WaitText(absl::string_view operation, absl::string_view table,
                     absl::Duration waited, absl::string_view self,
                     absl::Span<const ServerAnswer> answers) {
  std::vector<std::string> whom;
  for (const ServerAnswer& answer : answers) {
    whom.push_back(TextOf(answer, self, absl::StrContains(operation, "Push")));
  }
  if (whom.empty()) whom.push_back("no server has what is wanted");
  return absl::StrCat(operation, " on table ", table, " still waits after ",
                      Seconds(waited), ": ", absl::StrJoin(whom, "; "));
}

std::string EndOfWaitText(absl::string_view operation, absl::string_view table,
                          absl::Duration waited) {
  return absl::StrCat(operation, " on table ", table,
                      " no longer waits, after ", Seconds(waited));
}

WaitTimes::WaitTimes(Instant since)
    : since_(since),
      ask_at_(since + kReportAfter - kAskBefore),
      report_at_(since + kReportAfter) {}

WaitTimes::Due WaitTimes::OnTime(Instant now) {
  if (!has_asked_ && now >= ask_at_) {
    has_asked_ = true;
    // The thread may not have run for a while: those asked now need their time.
    report_at_ = std::max(report_at_, now + kAskBefore / 2);
    return Due::kQuestion;
  }
  if (!has_asked_ || now < report_at_) return Due::kNothing;
  has_asked_ = false;
  report_at_ = now + std::max(now - since_, kReportAfter);
  ask_at_ = report_at_ - kAskBefore;
  return Due::kReport;
}

}  // namespace weft::ps
