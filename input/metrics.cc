#include "weft/input/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"

namespace weft::input {
namespace {

absl::Status CheckSizes(absl::string_view where, size_t values, size_t labels) {
  if (values == labels && labels > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", values, " values for ", labels,
                   " labels; wanted as many, at least one"));
}

}  // namespace

absl::StatusOr<double> Auc(absl::Span<const double> scores,
                           absl::Span<const float> labels) {
  WEFT_RETURN_IF_ERROR(CheckSizes("Auc", scores.size(), labels.size()));
  if (std::any_of(scores.begin(), scores.end(),
                  [](double s) { return std::isnan(s); })) {
    return absl::InvalidArgumentError("Auc: a score is not a number");
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  // Each group of equal scores: its positives win against all negatives below,
  // and half against those beside them.
  double wins = 0.0, positives = 0.0, negatives = 0.0;
  for (size_t i = 0; i < order.size();) {
    double up = 0.0, down = 0.0;
    const double score = scores[order[i]];
    for (; i < order.size() && scores[order[i]] == score; ++i) {
      (labels[order[i]] > 0.5f ? up : down) += 1.0;
    }
    wins += up * (negatives + 0.5 * down);
    positives += up;
    negatives += down;
  }
  if (positives == 0.0 || negatives == 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Auc: ", positives, " positives and ", negatives,
                     " negatives; wanted some of each"));
  }
  return wins / (positives * negatives);
}

absl::StatusOr<double> LogLoss(absl::Span<const double> logits,
                               absl::Span<const float> labels) {
  WEFT_RETURN_IF_ERROR(CheckSizes("LogLoss", logits.size(), labels.size()));
  double sum = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    // -log sigmoid(x) = log(1 + exp(-x)), without overflow for large |x|.
    const double x = labels[i] > 0.5f ? logits[i] : -logits[i];
    sum += std::log1p(std::exp(-std::abs(x))) + std::max(-x, 0.0);
  }
  return sum / static_cast<double>(logits.size());
}

}  // namespace weft::input
