// What a checkpoint of a training says besides its tensors: the place in the
// data, the settings that must stay, the score; and the names that it keeps.

#ifndef WEFT_TRAIN_CHECKPOINT_METADATA_H_
#define WEFT_TRAIN_CHECKPOINT_METADATA_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"
#include "weft/input/sharded_sampler.h"
#include "weft/train/options.h"
#include "weft/train/settings.h"

namespace weft::train {

inline constexpr char kPlaceInData[] = "place_in_data";

// The file of the model in a checkpoint to which servers have added theirs: a
// number beyond those that ps::Client::Save gives to servers, and "format" in
// its metadata.
inline constexpr int kModelShard = 99999;
inline constexpr char kModelFormat[] = "weft.model/1";

checkpoint::Metadata MetadataOf(const Settings& settings,
                                const input::ShardedSampler::State& place,
                                std::optional<double> score = {});

// The place in the data of checkpoint `name`. kFailedPrecondition, with
// ExitCode kConfig, if a fixed setting that it holds is another now, or is not
// there: names both values and what to do. kInvalidArgument if no trainer saved
// it.
absl::StatusOr<std::string> PlaceInData(const std::string& name,
                                        const checkpoint::Metadata& metadata,
                                        const Settings& settings);

// Gives checkpoint `saved` the names that `options` ask for: "best" if its
// `score` is above that of the one that is named so, and keep_as if `is_last`
// of this run.
absl::Status NameCheckpoint(checkpoint::CheckpointDirectory& directory,
                            const std::string& saved, const Options& options,
                            std::optional<double> score, bool is_last);

}  // namespace weft::train

#endif  // WEFT_TRAIN_CHECKPOINT_METADATA_H_
