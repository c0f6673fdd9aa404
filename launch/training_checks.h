// TrainingChecks: what every trainer checks alike: that all train the same, and
// that the numbers are finite.

#ifndef WEFT_LAUNCH_TRAINING_CHECKS_H_
#define WEFT_LAUNCH_TRAINING_CHECKS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/launch/image_model.h"
#include "weft/launch/image_trainer.h"

namespace weft::launch {

// Flag or property -> value: what must be equal on all trainers of a job.
using Settings = std::map<std::string, std::string>;

Settings SettingsOf(const ImageTrainerOptions& options, const ImageData& data);

// One line of text, and back; ParseSettings of any other text is empty.
std::string FormatSettings(const Settings& settings);
Settings ParseSettings(absl::string_view text);

// kFailedPrecondition, with ExitCode kConfig, names both workers and each
// setting in which they differ.
absl::Status CompareSettings(const std::string& self, const Settings& own,
                             const std::string& other, const Settings& others);

// kOutOfRange, with ExitCode kDiverged, if `loss` is NaN or infinite: names
// `self`, the step, the loss and the first parameter that is not finite.
absl::Status CheckLoss(double loss, int64_t step, const std::string& self,
                       const ImageModel& model);

// kOutOfRange, with ExitCode kDiverged, names the first parameter or buffer
// that has NaN or infinity.
absl::Status CheckFinite(const ImageModel& model);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_TRAINING_CHECKS_H_
