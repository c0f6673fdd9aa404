// TrainingChecks: what every trainer checks alike: that all train the same, and
// that the numbers are finite.

#ifndef WEFT_LAUNCH_TRAINING_CHECKS_H_
#define WEFT_LAUNCH_TRAINING_CHECKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"
#include "weft/input/sharded_sampler.h"
#include "weft/launch/image_model.h"
#include "weft/launch/image_trainer.h"

namespace weft::launch {

// Flag or property -> value: what must be equal on all trainers of a job.
using Settings = std::map<std::string, std::string>;

Settings SettingsOf(const ImageTrainerOptions& options, const ImageData& data);
// Those of `settings` that must stay when a job goes on from a checkpoint,
// which keeps them in its metadata. Others may change: --lr, --batch-size,
// --epochs, the number of trainers and of servers.
Settings FixedOf(const Settings& settings);

// One line of text, and back; ParseSettings of any other text is empty.
std::string FormatSettings(const Settings& settings);
Settings ParseSettings(absl::string_view text);

// kFailedPrecondition, with ExitCode kConfig, names both workers and each
// setting in which they differ.
absl::Status CompareSettings(const std::string& self, const Settings& own,
                             const std::string& other, const Settings& others);

// The metadata of a checkpoint.
inline constexpr char kPlaceInData[] = "place_in_data";
checkpoint::Metadata MetadataOf(const Settings& settings,
                                const input::ShardedSampler::State& place,
                                std::optional<double> accuracy = {});
// The place in the data of checkpoint `name`. kFailedPrecondition, with
// ExitCode kConfig, if a setting that must stay is another now: names both
// values and what to do. kInvalidArgument if no trainer saved it.
absl::StatusOr<std::string> CheckMetadata(const std::string& name,
                                          const checkpoint::Metadata& metadata,
                                          const Settings& settings);

// Gives checkpoint `saved` the names that `options` ask for: "best" if its
// `accuracy` is above that of the one that is named so, and keep_as if
// `is_last` of this run.
absl::Status NameCheckpoint(checkpoint::CheckpointDirectory& directory,
                            const std::string& saved,
                            const ImageTrainerOptions& options,
                            std::optional<double> accuracy, bool is_last);

// kOutOfRange, with ExitCode kDiverged, if `loss` is NaN or infinite: names
// `self`, the step, the loss and the first parameter that is not finite.
absl::Status CheckLoss(double loss, int64_t step, const std::string& self,
                       const ImageModel& model);

// kOutOfRange, with ExitCode kDiverged, names the first parameter or buffer
// that has NaN or infinity.
absl::Status CheckFinite(const ImageModel& model);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_TRAINING_CHECKS_H_
