#include "weft/train/saving/checkpoint_metadata.h"

#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

// In a checkpoint's metadata.
constexpr char kSettings[] = "settings";
constexpr char kScore[] = "score";

std::string MayChange(const Settings& settings) {
  std::vector<std::string> names;
  for (const auto& [name, value] : settings.common) names.push_back(name);
  names.push_back("the number of trainers and servers");
  return absl::StrJoin(names, ", ");
}

}  // namespace

checkpoint::Metadata MetadataOf(const Settings& settings,
                                const input::ShardedSampler::State& place,
                                std::optional<double> score) {
  checkpoint::Metadata metadata = {{kPlaceInData, place.ToString()},
                                   {kSettings, FormatSettings(settings.fixed)}};
  if (score.has_value()) metadata[kScore] = absl::StrCat(*score);
  return metadata;
}

absl::StatusOr<std::string> PlaceInData(const std::string& name,
                                        const checkpoint::Metadata& metadata,
                                        const Settings& settings) {
  const auto place = metadata.find(kPlaceInData);
  if (place == metadata.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " was not saved by a trainer"));
  }
  const auto text = metadata.find(kSettings);
  if (text == metadata.end()) return place->second;  // of an earlier version
  std::vector<std::string> differences;
  for (const auto& [setting, saved] : ParseSettings(text->second)) {
    const auto own = settings.fixed.find(setting);
    const std::string now =
        own == settings.fixed.end() ? "not there" : own->second;
    if (now == saved) continue;
    differences.push_back(
        absl::StrCat(setting, " is ", saved, " there and ", now, " now"));
  }
  if (differences.empty()) return place->second;
  return worker::WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          "cannot go on from ", name, ": ", absl::StrJoin(differences, "; "),
          "; give what it was saved with, or begin anew in another "
          "--checkpoint-dir (these may change: ",
          MayChange(settings), ")")),
      worker::ExitCode::kConfig);
}

absl::Status NameCheckpoint(checkpoint::CheckpointDirectory& directory,
                            const std::string& saved, const Options& options,
                            std::optional<double> score, bool is_last) {
  if (is_last && !options.keep_as.empty()) {
    WEFT_RETURN_IF_ERROR(directory.SetName(options.keep_as, saved));
  }
  if (!options.keep_best || !score.has_value()) return absl::OkStatus();
  const absl::StatusOr<std::string> named = directory.Named(kBest);
  if (named.ok()) {
    const auto manifest = directory.ReadManifest(*named);
    double best = 0;
    const bool has_best =
        manifest.ok() && manifest->metadata.count(kScore) != 0 &&
        absl::SimpleAtod(manifest->metadata.at(kScore), &best) &&
        !std::isnan(best);
    if (has_best && !(*score > best)) return absl::OkStatus();
  }
  return directory.SetName(kBest, saved);
}

}  // namespace weft::train
