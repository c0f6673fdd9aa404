// CheckpointRun: which run of a job saves in a checkpoint directory.
//
// Two runs that were started at the same time into one empty directory would
// each remove the other's checkpoints. So each checkpoint's metadata names its
// run, and a run saves only if the newest checkpoint is its own or was there
// when it began.

#ifndef WEFT_TRAIN_CHECKPOINT_RUN_H_
#define WEFT_TRAIN_CHECKPOINT_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"

namespace weft::train {

struct CheckpointRun {
  std::string id;      // of the run, at random
  std::string before;  // the newest checkpoint as it began; empty: none
};

// A run that begins now. `is_resumed`: it may go on where others have saved.
absl::StatusOr<CheckpointRun> BeginRun(
    checkpoint::CheckpointDirectory& directory, bool is_resumed);

// One line of text, and back.
std::string FormatRun(const CheckpointRun& run);
CheckpointRun ParseRun(absl::string_view text);

// kAlreadyExists names the newest checkpoint of `directory` if another run has
// saved it since `run` began.
absl::Status CheckRun(checkpoint::CheckpointDirectory& directory,
                      const CheckpointRun& run);

// Adds what CheckRun reads.
void AddRun(const CheckpointRun& run, checkpoint::Metadata* metadata);

}  // namespace weft::train

#endif  // WEFT_TRAIN_CHECKPOINT_RUN_H_
