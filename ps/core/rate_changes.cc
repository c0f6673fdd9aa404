#include "weft/ps/core/rate_changes.h"

#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"

namespace weft::ps {
namespace {

absl::Status CheckScale(double scale) {
  if (std::isfinite(scale) && scale >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the learning rate's scale is ", scale, ", allowed is [0, inf)"));
}

}  // namespace

absl::Status RateChanges::Set(int64_t round, double scale, int64_t open) {
  WEFT_RETURN_IF_ERROR(CheckScale(scale));
  const auto it = changes_.find(round);
  if (it != changes_.end() && it->second == scale) return absl::OkStatus();
  if (round < open) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the learning rate's scale of round ", round, " came when round ", open,
        " was open; set it before this worker's part of its round, which "
        "cannot close without"));
  }
  if (it != changes_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the learning rate's scale of round ", round, " is ", it->second,
        " already, wanted ", scale, "; all workers must set the same"));
  }
  if (changes_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMost,
                     " changes of the learning rate are to come; set "
                     "further ones later"));
  }
  changes_[round] = scale;
  return absl::OkStatus();
}

absl::Status RateChanges::SetAlways(double scale) {
  WEFT_RETURN_IF_ERROR(CheckScale(scale));
  changes_ = {{0, scale}};
  return absl::OkStatus();
}

double RateChanges::At(int64_t round) const {
  const auto next = changes_.upper_bound(round);
  return next == changes_.begin() ? 1.0 : std::prev(next)->second;
}

void RateChanges::Trim(int64_t open) {
  const auto next = changes_.upper_bound(open);
  if (next != changes_.begin())
    changes_.erase(changes_.begin(), std::prev(next));
}

std::string RateChanges::Format() const {
  std::string text;
  for (const auto& [round, scale] : changes_) {
    absl::StrAppendFormat(&text, "%s%d:%.17g", text.empty() ? "" : " ", round,
                          scale);
  }
  return text;
}

absl::StatusOr<RateChanges> RateChanges::Parse(absl::string_view text) {
  RateChanges changes;
  for (absl::string_view change :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(change, absl::MaxSplits(':', 1));
    int64_t round = 0;
    double scale = 0;
    if (!absl::SimpleAtoi(parts.first, &round) || round < 0 ||
        !absl::SimpleAtod(parts.second, &scale) ||
        changes.changes_.count(round) != 0 ||
        !changes.Set(round, scale, 0).ok()) {
      return absl::InvalidArgumentError(
          "changes of the learning rate cannot be read; wanted ROUND:SCALE "
          "...");
    }
  }
  return changes;
}

absl::Status RateChanges::Merge(const RateChanges& other) {
  for (const auto& [round, scale] : other.changes_) {
    WEFT_RETURN_IF_ERROR(Set(round, scale, 0));
  }
  return absl::OkStatus();
}

}  // namespace weft::ps
