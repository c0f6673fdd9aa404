// AgreeOnSettings: that all trainers of a job train the same.

#ifndef WEFT_LAUNCH_AGREE_ON_SETTINGS_H_
#define WEFT_LAUNCH_AGREE_ON_SETTINGS_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/launch/training_checks.h"
#include "weft/rendezvous/membership.h"

namespace weft::launch {

// Tells the others, through the store of the job, with which settings trainer
// `rank` of `trainers` trains, and compares them with those of each trainer
// that lives. kFailedPrecondition as CompareSettings; kDeadlineExceeded names a
// trainer that has not told its own within `timeout`.
absl::Status AgreeOnSettings(rendezvous::Membership& membership, int rank,
                             int trainers, const Settings& own,
                             absl::Duration timeout);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_AGREE_ON_SETTINGS_H_
