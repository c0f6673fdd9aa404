// TrainingPlace: where a data-parallel training is, beside its model and its
// optimizer: what a rank that joins it must be told.

#ifndef WEFT_TRAIN_TRAINING_PLACE_H_
#define WEFT_TRAIN_TRAINING_PLACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/input/sharded_sampler.h"
#include "weft/train/checkpoint_run.h"

namespace weft::train {

struct TrainingPlace {
  bool is_known = false;  // false: this rank has just come
  // Which steps, settings and tensors are trained: a hash of the description.
  uint64_t fingerprint = 0;
  int64_t steps = 0;  // that were taken
  int64_t epoch = 0;
  bool was_stopped = false;
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

// The rank from which the others go on: of those that know a place the lowest
// that has gone furthest; -1: none knows one.
int FurthestOf(const std::vector<TrainingPlace>& places);
// Whether both are after the same step, so that model and optimizer have the
// same bits.
bool IsSameStep(const TrainingPlace& a, const TrainingPlace& b);

}  // namespace weft::train

#endif  // WEFT_TRAIN_TRAINING_PLACE_H_
