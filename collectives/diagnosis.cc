#include "weft/collectives/diagnosis.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace weft::collectives {

void Report(const DiagnosisOptions& options, absl::string_view text) {
  if (options.report) return options.report(text);
  const std::string line = absl::StrCat("weft: ", text, "\n");
  fwrite(line.data(), 1, line.size(), stderr);
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
