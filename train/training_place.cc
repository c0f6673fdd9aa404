#include "weft/train/training_place.h"

#include <tuple>

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
  // 17 digits keep a number's bits.
  return absl::StrCat(
      place.is_known ? "1" : "0", "\n", place.fingerprint, "\n", place.steps,
      "\n", place.epoch, "\n", place.was_stopped ? "1" : "0", "\n",
      absl::StrFormat("%.17g", place.mean_loss), "\n", place.samples, "\n",
      absl::StrCat(place.seed, " ", place.stream), "\n", place.data.ToString(),
      "\n", FormatRun(place.run), "\n", place.checkpoint);
}

absl::StatusOr<TrainingPlace> ParsePlace(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  TrainingPlace place;
  const auto wanted = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a rank's place in its training, found ", what));
  };
  if (lines.size() != kLines) {
    return wanted(absl::StrCat(lines.size(), " lines, not ", kLines));
  }
  const std::vector<absl::string_view> random = absl::StrSplit(lines[7], ' ');
  if (random.size() != 2 || !absl::SimpleAtoi(lines[1], &place.fingerprint) ||
      !absl::SimpleAtoi(lines[2], &place.steps) || place.steps < 0 ||
      !absl::SimpleAtoi(lines[3], &place.epoch) || place.epoch < 0 ||
      !absl::SimpleAtod(lines[5], &place.mean_loss) ||
      !absl::SimpleAtoi(lines[6], &place.samples) ||
      !absl::SimpleAtoi(random[0], &place.seed) ||
      !absl::SimpleAtoi(random[1], &place.stream)) {
    return wanted("no numbers where they belong");
  }
  place.is_known = lines[0] == "1";
  place.was_stopped = lines[4] == "1";
  WEFT_ASSIGN_OR_RETURN(place.data,
                        input::ShardedSampler::State::Parse(lines[8]));
  place.run = ParseRun(lines[9]);
  place.checkpoint = std::string(lines[10]);
  return place;
}

int FurthestOf(const std::vector<TrainingPlace>& places) {
  const auto order = [](const TrainingPlace& place) {
    return std::make_tuple(place.steps, place.epoch, place.was_stopped);
  };
  int furthest = -1;
  for (size_t r = 0; r < places.size(); ++r) {
    if (!places[r].is_known) continue;
    if (furthest < 0 || order(places[r]) > order(places[furthest])) {
      furthest = static_cast<int>(r);
    }
  }
  return furthest;
}

bool IsSameStep(const TrainingPlace& a, const TrainingPlace& b) {
  return a.is_known && b.is_known && a.steps == b.steps;
}

}  // namespace weft::train
