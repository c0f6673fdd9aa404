// Settings: what must be the same for all trainers of a job, and for a run that
// goes on from a checkpoint.
//
//   train::Settings settings;
//   settings.fixed = {{"--layers", absl::StrCat(layers)}};
//   settings.common = {{"--lr", absl::StrCat(lr)}};
//
// A name is a flag or a property; a value is text without line breaks.

#ifndef WEFT_TRAIN_SETTINGS_H_
#define WEFT_TRAIN_SETTINGS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/rendezvous/membership.h"

namespace weft::train {

struct Settings {
  using Values = std::map<std::string, std::string>;

  // Equal for all trainers, and kept in each checkpoint: a run that goes on
  // from it must have all that it holds, and may have others besides.
  Values fixed;
  // Equal for all trainers; another run may have others.
  Values common;

  Values All() const;
};

// One line of text for each value, and back; ParseSettings of any other text
// is empty.
std::string FormatSettings(const Settings::Values& settings);
Settings::Values ParseSettings(absl::string_view text);

// kFailedPrecondition, with ExitCode kConfig, names both workers and each
// setting in which they differ.
absl::Status CompareSettings(const std::string& self,
                             const Settings::Values& own,
                             const std::string& other,
                             const Settings::Values& others);

// Tells the others, through the store of the job, with which settings trainer
// `rank` of `trainers` trains, and compares them with those of each trainer
// that lives. kFailedPrecondition as CompareSettings; kDeadlineExceeded names a
// trainer that has not told its own within `timeout`.
absl::Status AgreeOnSettings(rendezvous::Membership& membership, int rank,
                             int trainers, const Settings::Values& own,
                             absl::Duration timeout);

}  // namespace weft::train

#endif  // WEFT_TRAIN_SETTINGS_H_
