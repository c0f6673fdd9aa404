#include "weft/train/saving/training_place.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"

namespace weft::train {
namespace {

// A line for each; the last may hold anything but a line break.
constexpr size_t kLines = 11;

}  // namespace

std::string FormatPlace(const TrainingPlace& place) {
  const StepPosition& at = place.rank.position;
  // 17 digits keep a number's bits.
  return absl::StrCat(
      place.rank.is_known ? "1" : "0", "\n", place.rank.fingerprint, "\n",
      at.steps, "\n", at.epoch, "\n", at.was_stopped ? "1" : "0", "\n",
      absl::StrFormat("%.17g", place.mean_loss), "\n", place.samples, "\n",
      absl::StrCat(place.seed, " ", place.stream), "\n", place.data.ToString(),
      "\n", FormatRun(place.run), "\n", place.checkpoint);
}

absl::StatusOr<TrainingPlace> ParsePlace(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  TrainingPlace place;
  StepPosition& at = place.rank.position;
  const auto wanted = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a rank's place in its training, found ", what));
  };
  if (lines.size() != kLines) {
    return wanted(absl::StrCat(lines.size(), " lines, not ", kLines));
  }
  const std::vector<absl::string_view> random = absl::StrSplit(lines[7], ' ');
  if (random.size() != 2 ||
      !absl::SimpleAtoi(lines[1], &place.rank.fingerprint) ||
      !absl::SimpleAtoi(lines[2], &at.steps) || at.steps < 0 ||
      !absl::SimpleAtoi(lines[3], &at.epoch) || at.epoch < 0 ||
      !absl::SimpleAtod(lines[5], &place.mean_loss) ||
      !absl::SimpleAtoi(lines[6], &place.samples) ||
      !absl::SimpleAtoi(random[0], &place.seed) ||
      !absl::SimpleAtoi(random[1], &place.stream)) {
    return wanted("no numbers where they belong");
  }
  place.rank.is_known = lines[0] == "1";
  at.was_stopped = lines[4] == "1";
  WEFT_ASSIGN_OR_RETURN(place.data,
                        input::ShardedSampler::State::Parse(lines[8]));
  place.run = ParseRun(lines[9]);
  place.checkpoint = std::string(lines[10]);
  return place;
}

}  // namespace weft::train
