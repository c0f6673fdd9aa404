// Processes of the main job, and how they end.

#ifndef WEFT_TESTS_JOB_ENDINGS_H_
#define WEFT_TESTS_JOB_ENDINGS_H_

#include <signal.h>

#include <string>

#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/worker/worker.h"

namespace weft::testing {

inline constexpr int kConfig = 3;
inline constexpr int kPeerLost = 10;
inline constexpr int kTerminated = 128 + SIGTERM;
// Silence is death after 10 s.
inline constexpr absl::Duration kSeconds = absl::Seconds(40);
// 256 images, 2 trainers with 16 a step.
inline constexpr int64_t kSteps = 8;

inline std::string ModelIn(const std::string& checkpoint) {
  return ReadBytes(checkpoint + "/shard-99999.safetensors");
}

// The training in `saved`, which was stopped, has the bits of one that nobody
// touched.
inline void ExpectUndisturbed(const Job& job, const std::string& saved) {
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0);
  const TrainerResult whole = job.Train(
      {trained.flag(), "--checkpoint-dir=" + job.Path("undisturbed")});
  EXPECT_EQ(ModelIn(trained.checkpoint) == ModelIn(whole.checkpoint), true)
      << trained.checkpoint;
}

}  // namespace weft::testing

#endif  // WEFT_TESTS_JOB_ENDINGS_H_
