// RunningJob: what the trainers of a job write about their training in its
// store, so that a trainer that comes back can join it where it is.
//
//   trainers/training/<name>  the incarnation of a trainer that takes steps
//   trainers/start            the round and the place in the data at which
//                             training began, equal at all that began it; of
//                             an asynchronous job: at which an epoch began
//
// In a synchronous job each round takes one batch of each shard of the data, so
// start and the open round of the table give the place of every shard.

#ifndef WEFT_TRAIN_RUNNING_JOB_H_
#define WEFT_TRAIN_RUNNING_JOB_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/input/sharded_sampler.h"
#include "weft/rendezvous/membership.h"

namespace weft::train {

// Thread-safety: thread-safe.
class RunningJob {
 public:
  // `membership`, of trainer `rank` of `trainers`, must outlive it.
  RunningJob(rendezvous::Membership& membership, int rank, int trainers)
      : membership_(membership), rank_(rank), trainers_(trainers) {}

  // The name of a live trainer, other than this one, that takes steps; empty if
  // there is none.
  absl::StatusOr<std::string> FindTrainer() const;

  // Whether that trainer, which is a member now, takes steps: one that has come
  // back does not yet while it opens its table.
  absl::StatusOr<bool> Trains(const rendezvous::Member& trainer) const;

  struct Start {
    int64_t round = 0;  // ASYNC: steps that the first trainer had taken
    input::ShardedSampler::State place;
  };
  // One line of text, and back. kInternal if it cannot be read.
  static std::string FormatStart(const Start& start);
  static absl::StatusOr<Start> ParseStart(absl::string_view text);

  // Replaces the start. To be called before BeginTraining.
  absl::Status SetStart(const Start& start);
  // kInternal if it cannot be read.
  absl::StatusOr<Start> GetStart() const;

  // This trainer takes its first step.
  absl::Status BeginTraining();

 private:
  rendezvous::Membership& membership_;
  const int rank_;
  const int trainers_;
};

// The place in the data after `rounds` batches of `batch_size` examples of each
// shard from `start` on; the beginning of the next epoch where one has ended.
// kInvalidArgument if `start` is of other data than `sampler`.
absl::StatusOr<input::ShardedSampler::State> PlaceAfter(
    input::ShardedSampler sampler, const input::ShardedSampler::State& start,
    int64_t rounds, int64_t batch_size);

}  // namespace weft::train

#endif  // WEFT_TRAIN_RUNNING_JOB_H_
