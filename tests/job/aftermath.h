// What a job of `weft run` leaves behind: checkpoints, which must hold the
// right weights, and nothing else.

#ifndef WEFT_TESTS_JOB_AFTERMATH_H_
#define WEFT_TESTS_JOB_AFTERMATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "weft/checkpoint/checkpoint_directory.h"

namespace weft::testing {

// The name of the newest committed checkpoint in `directory`; empty without
// one.
std::string NewestName(const std::string& directory);

absl::StatusOr<checkpoint::CheckpointDirectory::Loaded> LoadNewest(
    const std::string& directory);

// The same names, and floats that differ by `tolerance` at most.
void ExpectNear(const checkpoint::NamedTensors& wanted,
                const checkpoint::NamedTensors& found, double tolerance);

// No process has `runtime_directory` as its XDG_RUNTIME_DIR any more, soon, and
// no socket or folder of a job is left in it.
void ExpectNothingLeft(const std::string& runtime_directory);

}  // namespace weft::testing

#endif  // WEFT_TESTS_JOB_AFTERMATH_H_
