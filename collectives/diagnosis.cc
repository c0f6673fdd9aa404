#include "weft/collectives/diagnosis.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace weft::collectives {

void Report(const DiagnosisOptions& options, absl::string_view text) {
  if (options.report) return options.report(text);
  const std::string line = absl::StrCat("weft: ", text, "\n");
  fwrite(line.data(), 1, line.size(), stderr);
}

bool WaitReports::IsDue(Instant now) {
  if (now < due_) return false;
  // If the thread did not run for a while, one report is due, not several.
  while (due_ <= now) {
    due_ = since_ + std::max(2 * (due_ - since_), absl::Milliseconds(1));
  }
  has_reported_ = true;
  return true;
}

namespace {

std::string Seconds(absl::Duration waited) {
  return absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)));
}

}  // namespace

std::string WaitText(const Operation& operation, int rank,
                     absl::string_view group, absl::Duration waited,
                     absl::string_view whom) {
  return WaitText(Describe(operation), rank, group, waited, whom);
}

std::string WaitText(absl::string_view operation, int rank,
                     absl::string_view group, absl::Duration waited,
                     absl::string_view whom) {
  return absl::StrCat(operation, ": rank ", rank, " of group ", group,
                      " still waits after ", Seconds(waited), ": ", whom);
}

std::string EndOfWaitText(const Operation& operation, int rank,
                          absl::string_view group, absl::Duration waited,
                          const absl::Status& status) {
  return EndOfWaitText(Describe(operation), rank, group, waited, status);
}

std::string EndOfWaitText(absl::string_view operation, int rank,
                          absl::string_view group, absl::Duration waited,
                          const absl::Status& status) {
  return absl::StrCat(
      operation, ": rank ", rank, " of group ", group,
      " no longer waits, after ", Seconds(waited),
      status.ok()
          ? ""
          : absl::StrCat(" (", absl::StatusCodeToString(status.code()), ")"));
}

std::string RankText(int rank, absl::string_view name) {
  return name.empty() ? absl::StrCat("rank ", rank)
                      : absl::StrCat("rank ", rank, " (", name, ")");
}

Announcement Announce(const Operation& operation) {
  return {operation.sequence, Fingerprint(operation), false,
          Describe(operation)};
}

Announcement AnnounceRefusal(const Operation& operation,
                             const absl::Status& why) {
  return {operation.sequence, 0, true,
          absl::StrCat(Describe(operation), ": ", why.message())};
}

absl::Status Mismatch(int rank, absl::string_view text, int other_rank,
                      absl::string_view other_text) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks called different operations: rank ", rank, " called ", text,
      ", rank ", other_rank, " called ", other_text));
}

absl::Status Refused(int rank, absl::string_view why) {
  return absl::AbortedError(
      absl::StrCat("rank ", rank, " refused its part: ", why));
}

absl::Status TooMuchUnasked(int from, int64_t kept_bytes, uint64_t tag) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "messages of rank ", from, " with ", kept_bytes,
      " bytes in all have arrived that nobody has asked for, and no more are ",
      "taken; receive them (the oldest has tag ", tag,
      "), or raise max_unasked_bytes"));
}

std::string RankList(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_last = i + 1 == ranks.size();
    absl::StrAppend(&text, i == 0 ? "" : is_last ? " and " : ", ", ranks[i]);
  }
  return text;
}

}  // namespace weft::collectives
