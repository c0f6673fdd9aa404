// TrainingPlace: where a data-parallel training is, beside its model and its
// optimizer: what a rank that joins it must be told.

#ifndef WEFT_TRAIN_TRAINING_PLACE_H_
#define WEFT_TRAIN_TRAINING_PLACE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/input/sharded_sampler.h"
#include "weft/train/core/step_commit.h"
#include "weft/train/saving/checkpoint_run.h"

namespace weft::train {

struct TrainingPlace {
  // The step after which the rank is; its fingerprint is a hash of the
  // description of settings and tensors.
  RankPlace rank;
  double mean_loss = 0;           // of the last step
  int64_t samples = 0;            // of this run
  uint64_t seed = 0, stream = 0;  // of the generator of all shards
  input::ShardedSampler::State data;
  CheckpointRun run;
  std::string checkpoint;  // the newest
};

std::string FormatPlace(const TrainingPlace& place);
// kInvalidArgument: it is no text of FormatPlace.
absl::StatusOr<TrainingPlace> ParsePlace(absl::string_view text);

}  // namespace weft::train

#endif  // WEFT_TRAIN_TRAINING_PLACE_H_
