#include "weft/launch/training_checks.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

constexpr char kBetween[] = "\n";
// In a checkpoint's metadata.
constexpr char kSettings[] = "settings";
constexpr char kAccuracy[] = "test_accuracy";
constexpr char kBest[] = "best";  // the name of the best one

// "conv1.weight has nan at element 5"; none if all are finite.
std::optional<std::string> FirstNotFinite(const ImageModel& model) {
  for (const auto& [name, tensor] : model.StateDict()) {
    if (tensor.dtype() != DType::kF32) continue;
    const Tensor values = tensor.Contiguous();
    const auto elements = values.span<float>();
    for (size_t i = 0; i < elements.size(); ++i) {
      if (std::isfinite(elements[i])) continue;
      return absl::StrCat(name, " has ", elements[i], " at element ", i);
    }
  }
  return std::nullopt;
}

}  // namespace

Settings SettingsOf(const ImageTrainerOptions& options, const ImageData& data) {
  Settings settings = {
      {"--strategy", options.strategy},
      {"--allow-non-finite", options.allow_non_finite ? "on" : "off"},
      {"--keep-best", options.keep_best ? "on" : "off"},
      {"--seed", absl::StrCat(options.seed)},
      {"--batch-size", absl::StrCat(options.batch_size)},
      {"--epochs", absl::StrCat(options.epochs)},
      {"--lr", absl::StrCat(options.learning_rate)},
      {"--sync or --async", options.is_sync ? "--sync" : "--async"},
      {"images of --data",
       absl::StrCat(data.train->size(), " of ", data.train->height(), "x",
                    data.train->width())},
      {"checksum of --data",
       absl::StrCat(absl::Hex(data.train->Checksum(), absl::kZeroPad16))},
  };
  if (options.strategy == "ddp") return settings;  // rank 0 alone saves
  // Any trainer may get the duty to save.
  const auto or_none = [](const std::string& value) {
    return value.empty() ? std::string("none") : value;
  };
  settings["--checkpoint-dir"] = or_none(options.checkpoint_dir);
  settings["--keep"] = absl::StrCat(options.keep);
  settings["--keep-as"] = or_none(options.keep_as);
  return settings;
}

Settings FixedOf(const Settings& settings) {
  Settings fixed;
  for (const char* name : {"--strategy", "--seed", "--sync or --async",
                           "images of --data", "checksum of --data"}) {
    const auto found = settings.find(name);
    if (found != settings.end()) fixed.insert(*found);
  }
  return fixed;
}

checkpoint::Metadata MetadataOf(const Settings& settings,
                                const input::ShardedSampler::State& place,
                                std::optional<double> accuracy) {
  checkpoint::Metadata metadata = {
      {kPlaceInData, place.ToString()},
      {kSettings, FormatSettings(FixedOf(settings))}};
  if (accuracy.has_value()) metadata[kAccuracy] = absl::StrCat(*accuracy);
  return metadata;
}

absl::Status NameCheckpoint(checkpoint::CheckpointDirectory& directory,
                            const std::string& saved,
                            const ImageTrainerOptions& options,
                            std::optional<double> accuracy, bool is_last) {
  if (is_last && !options.keep_as.empty()) {
    WEFT_RETURN_IF_ERROR(directory.SetName(options.keep_as, saved));
  }
  if (!options.keep_best || !accuracy.has_value()) return absl::OkStatus();
  double best = -1;
  const absl::StatusOr<std::string> named = directory.Named(kBest);
  if (named.ok()) {
    const auto manifest = directory.ReadManifest(*named);
    if (manifest.ok() && manifest->metadata.count(kAccuracy) != 0) {
      (void)absl::SimpleAtod(manifest->metadata.at(kAccuracy), &best);
    }
  }
  return *accuracy > best ? directory.SetName(kBest, saved) : absl::OkStatus();
}

absl::StatusOr<std::string> CheckMetadata(const std::string& name,
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
    const auto own = settings.find(setting);
    const std::string now = own == settings.end() ? "not there" : own->second;
    if (now == saved) continue;
    differences.push_back(
        absl::StrCat(setting, " is ", saved, " there and ", now, " now"));
  }
  if (differences.empty()) return place->second;
  return worker::WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          "cannot go on from ", name, ": ", absl::StrJoin(differences, "; "),
          "; give what it was saved with, or begin anew in another "
          "--checkpoint-dir (--lr, --batch-size, --epochs and the number of "
          "trainers and servers may change)")),
      worker::ExitCode::kConfig);
}

std::string FormatSettings(const Settings& settings) {
  return absl::StrJoin(settings, kBetween, absl::PairFormatter("="));
}

Settings ParseSettings(absl::string_view text) {
  Settings settings;
  for (const absl::string_view line : absl::StrSplit(text, kBetween)) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (parts.size() != 2) return {};
    settings.emplace(parts[0], parts[1]);
  }
  return settings;
}

absl::Status CompareSettings(const std::string& self, const Settings& own,
                             const std::string& other, const Settings& others) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : own) {
    const auto found = others.find(name);
    const std::string theirs =
        found == others.end() ? "not there" : found->second;
    if (theirs == value) continue;
    differences.push_back(absl::StrCat(name, " is ", value, " at ", self,
                                       " and ", theirs, " at ", other));
  }
  if (differences.empty()) return absl::OkStatus();
  return worker::WithExitCode(absl::FailedPreconditionError(absl::StrCat(
                                  "all trainers of a job must train the same: ",
                                  absl::StrJoin(differences, "; "),
                                  "; start them with the same flags and data")),
                              worker::ExitCode::kConfig);
}

absl::Status CheckLoss(double loss, int64_t step, const std::string& self,
                       const ImageModel& model) {
  if (std::isfinite(loss)) return absl::OkStatus();
  const std::optional<std::string> first = FirstNotFinite(model);
  return worker::WithExitCode(
      absl::OutOfRangeError(absl::StrCat(
          self, ", step ", step, ": the loss is ", loss, "; ",
          first.has_value() ? absl::StrCat("the parameter ", *first)
                            : "all parameters are finite",
          "; try a smaller --lr, or --allow-non-finite to go on")),
      worker::ExitCode::kDiverged);
}

absl::Status CheckFinite(const ImageModel& model) {
  const std::optional<std::string> first = FirstNotFinite(model);
  if (!first.has_value()) return absl::OkStatus();
  return worker::WithExitCode(
      absl::OutOfRangeError(absl::StrCat("the parameter ", *first)),
      worker::ExitCode::kDiverged);
}

}  // namespace weft::launch
