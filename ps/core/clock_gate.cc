#include "weft/ps/core/clock_gate.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace weft::ps {

absl::Status ClockGate::StatusOf(Answer answer, absl::string_view where,
                                 int rank, int64_t clock) const {
  const Clock* const found = Find(rank);
  const std::string what =
      absl::StrCat(where, ": clock ", clock, " of rank ", rank);
  switch (answer) {
    case Answer::kOk:
      return absl::OkStatus();
    case Answer::kBack:
      return absl::FailedPreconditionError(absl::StrCat(
          what, " came after ", found == nullptr ? 0 : found->at,
          ": clocks do not go back; tick once a step, and give each client a "
          "rank of its own"));
    case Answer::kTooFar:
      if (found == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat(
            what, ": ", size(), " workers have a clock, and no more may"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          what, " is too far ahead of ", found->at, ": at most ", kMostAhead,
          " ticks may be under way; open the table again"));
    case Answer::kNotHolder:
      return absl::FailedPreconditionError(absl::StrCat(
          what,
          found == nullptr
              ? std::string(": the rank has no clock")
              : absl::StrCat(": another opening of the table has it, of ",
                             absl::CHexEscape(found->holder.name), " (",
                             found->holder.worker.ToString(), ")"),
          "; open the table again, and give each client a rank of its own"));
  }
  return absl::InternalError("unreachable");
}

}  // namespace weft::ps
