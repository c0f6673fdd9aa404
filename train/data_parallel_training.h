// DataParallelTraining: trains a model that every rank holds whole, in a loop
// of the caller's own.
//
//   WEFT_ASSIGN_OR_RETURN(
//       auto training,
//       train::DataParallelTraining::Create(
//           *group, telemetry, {&net, optimizer.get(), loader.get()},
//           options));
//   for (;;) {
//     WEFT_ASSIGN_OR_RETURN(const auto batch, training->Next());
//     if (!batch.has_value()) break;
//     WEFT_RETURN_IF_ERROR(training->Step(
//         CrossEntropy(net.Forward(Variable((*batch)[0])), (*batch)[1])));
//   }
//   return training->Finish();
//
// Every rank runs the same steps on its share of the data; gradients are
// averaged over all ranks (ddp/), and each rank updates its own copy. After
// each epoch, and where the training is asked to stop, rank 0 saves a
// checkpoint of model, optimizer and place in the data. To resume, it reads the
// newest and gives the others what it holds: they need not see its files, and
// may be more or fewer than the ranks that saved it. With as many, a resumed
// training has the same bits as one that was never interrupted.
//
// An error on one rank ends all: an operation that this rank does not come to
// fails on the others with the reason.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_
#define WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/autograd/variable.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/input/data_loader.h"
#include "weft/nn/module.h"
#include "weft/optimizer/optimizer.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/progress.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/random.h"
#include "weft/train/checkpoint_run.h"
#include "weft/train/options.h"
#include "weft/train/training_metrics.h"

namespace weft::train {

class DataParallelTraining {
 public:
  // What is trained; all of it must outlive the training.
  struct Parts {
    nn::Module* model = nullptr;
    optimizer::Optimizer* optimizer = nullptr;  // of the model's parameters
    // Of this rank's shard: a ShardedSampler with group.rank() of group.size().
    input::DataLoader* loader = nullptr;
    // From which the steps draw (Dropout): each rank its own. A resumed
    // training goes on at the position at which that of rank 0 was, which is
    // that of every rank if all have drawn as many numbers. Null: none.
    Generator* generator = nullptr;
    // A measure of the model, higher is better; called by all ranks at the same
    // time, after an epoch (Options::keep_best) and in Finish, and the same on
    // all. Null: there is none.
    std::function<absl::StatusOr<double>()> score = nullptr;
    ddp::DistributedDataParallelOptions ddp = {};
  };

  // Called by all ranks, with the same options, but for the checkpoint
  // directory, which rank 0 alone reads and writes. Begins, or goes on from the
  // newest checkpoint; gives all ranks the model of rank 0. `group` and
  // `telemetry` must outlive it.
  //   kInvalidArgument     a part is missing; or the checkpoint is not of these
  //                        tensors, which names the first difference
  //   kFailedPrecondition  the checkpoint has other fixed settings (ExitCode
  //                        kConfig), or was saved by something else
  //   kDataLoss            every checkpoint is damaged
  // and those of DistributedDataParallel::Create.
  static absl::StatusOr<std::unique_ptr<DataParallelTraining>> Create(
      collectives::ProcessGroup& group, telemetry::Telemetry& telemetry,
      Parts parts, Options options);

  ~DataParallelTraining();
  DataParallelTraining(const DataParallelTraining&) = delete;
  DataParallelTraining& operator=(const DataParallelTraining&) = delete;

  // The next batch of this rank; at the end of an epoch it saves, and goes on
  // with the next one. Nothing after the last epoch, or once the training was
  // asked to stop. A checkpoint that cannot be saved is logged and reported by
  // Finish; training goes on without it. The errors of DataLoader::Next.
  absl::StatusOr<std::optional<input::Example>> Next();

  // One step: Backward(loss), then Step(). Each rank takes as many.
  absl::Status Step(const Variable& loss);

  // Its parts, for what belongs between them: clipped gradients, or several
  // passes for a step (all but the last in a ddp::NoSyncScope).
  //
  // Adds the gradients of `loss`, one element of f32 or f64, and averages them
  // over the ranks. What the pass throws becomes its status.
  absl::Status Backward(const Variable& loss);
  // Updates the parameters, makes their gradients undefined, and tells all
  // ranks the mean of the losses since the step before. kOutOfRange, with
  // ExitCode kDiverged and on every rank, if that is not finite, unless
  // Options::allow_non_finite. kFailedPrecondition without a Backward before.
  absl::Status Step();

  // After the last step: checks that all ranks hold the same bits (kDataLoss),
  // and computes the score. Called by all ranks.
  absl::StatusOr<Result> Finish();

  int64_t epoch() const { return epoch_; }  // from 0; of the next batch
  // Since the training began, in earlier runs too.
  int64_t steps() const { return steps_; }
  // The mean over all ranks in the last step; 0 before.
  double mean_loss() const { return mean_loss_; }
  ddp::DistributedDataParallel& ddp() { return *ddp_; }

 private:
  DataParallelTraining(collectives::ProcessGroup& group,
                       telemetry::Telemetry& telemetry, Parts parts,
                       Options options);

  absl::Status Begin();
  absl::StatusOr<std::unique_ptr<checkpoint::CheckpointDirectory>>
  OpenCheckpoints() const;
  // The newest checkpoint, into the parts of every rank.
  absl::Status Resume();
  // On rank 0: into its own model and optimizer; where it was saved, as text
  // for GoOnFrom, or nothing if there is no checkpoint.
  absl::StatusOr<std::string> RestoreNewest();
  absl::Status CheckNewest(checkpoint::CheckpointDirectory& directory) const;
  absl::Status GiveOptimizerToAll();
  absl::Status GoOnFrom(const std::string& place);
  // Goes to the next epoch, or to the end.
  absl::Status EndEpoch();
  // By all ranks, of which rank 0 writes.
  absl::Status Save(bool is_last);
  absl::Status SaveOnce(std::optional<double> score, bool is_last);
  absl::StatusOr<double> Score();
  bool is_first() const { return group_.rank() == 0; }
  bool is_at_end() const { return was_stopped_ || epoch_ >= options_.epochs; }

  collectives::ProcessGroup& group_;
  telemetry::Logger& logger_;
  const Parts parts_;
  const Options options_;

  std::unique_ptr<ddp::DistributedDataParallel> ddp_;
  telemetry::Progress progress_;
  TrainingMetrics metrics_;
  std::optional<TrainingMetrics::Phase> forward_;
  CheckpointRun run_;  // of rank 0
  int64_t epoch_ = 0;
  int64_t steps_ = 0;
  int64_t samples_ = 0;       // of all ranks, in this run
  int64_t step_samples_ = 0;  // of this rank, since the last step
  double loss_ = 0;           // the sum of this rank's since the last step
  int passes_ = 0;            // Backward since the last step
  double mean_loss_ = 0;
  Instant epoch_begin_;
  absl::Duration training_;  // time of epochs that have ended
  bool was_stopped_ = false;
  std::string checkpoint_;
  absl::Status saved_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_DATA_PARALLEL_TRAINING_H_
