// DdpTrainer: one trainer of an image classifier that every rank holds whole,
// without parameter servers.
//
// Every rank runs the same steps on its share of the data; gradients are
// averaged over all ranks (ddp/), and each rank updates its own copy. Rank 0
// also saves checkpoints and, to resume, reads the newest and gives the others
// what it holds: they need not see its files, and may be more or fewer than the
// ranks that saved it. Each tests the result on its part of the test images.

#ifndef WEFT_LAUNCH_DDP_TRAINER_H_
#define WEFT_LAUNCH_DDP_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/input/data_loader.h"
#include "weft/launch/checkpoint_run.h"
#include "weft/launch/image_model.h"
#include "weft/launch/image_trainer.h"
#include "weft/launch/training_metrics.h"
#include "weft/optimizer/optimizer.h"
#include "weft/telemetry/logger.h"
#include "weft/telemetry/progress.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tensor/random.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class DdpTrainer {
 public:
  // `group`, `data` and `telemetry` must outlive it. `asked_to_stop` is asked
  // after each step: once true on any rank, training ends on all as if that had
  // been the last step. Of `options`, `is_sync` is not used.
  DdpTrainer(collectives::ProcessGroup& group, const ImageData& data,
             telemetry::Telemetry& telemetry, ImageTrainerOptions options,
             std::function<bool()> asked_to_stop);
  ~DdpTrainer();

  // Called by all ranks. kDataLoss, on all, if their weights are not the same
  // bits in the end. What Backward throws becomes its status.
  absl::StatusOr<TrainingResult> Run();

 private:
  // What all ranks say after a step.
  struct Verdict {
    double mean_loss = 0;
    bool stops = false;
  };

  absl::Status Begin();
  // The newest checkpoint, into model, optimizer and loader of every rank.
  absl::Status Resume();
  // On rank 0: into its own model and optimizer; the step and the place in the
  // data, or nothing if there is no checkpoint.
  absl::StatusOr<std::string> RestoreNewest();
  absl::Status CheckNewest(checkpoint::CheckpointDirectory& directory) const;
  absl::Status BeginSaving();
  absl::Status GiveOptimizerToAll();
  absl::Status GoOnFrom(const std::string& place);
  absl::StatusOr<TrainingResult> Train();
  absl::Status TrainEpoch(int epoch);
  absl::StatusOr<std::optional<input::Example>> NextBatch();
  absl::StatusOr<Verdict> Step(const input::Example& batch);
  // Of rank 0; the other ranks help to test the model.
  absl::Status Save(bool is_last);
  absl::Status SaveOnce(std::optional<double> accuracy, bool is_last);
  absl::StatusOr<double> Test();
  bool is_first() const { return group_.rank() == 0; }

  collectives::ProcessGroup& group_;
  const ImageData& data_;
  telemetry::Logger& logger_;
  const ImageTrainerOptions options_;
  const std::function<bool()> asked_to_stop_;

  Generator generator_;
  ImageModel model_;
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  std::unique_ptr<ddp::DistributedDataParallel> ddp_;
  std::unique_ptr<input::DataLoader> loader_;
  telemetry::Progress progress_;
  TrainingMetrics metrics_;
  int first_epoch_ = 0;
  int64_t steps_ = 0;    // since the training began, in earlier runs too
  int64_t samples_ = 0;  // of all ranks, in this run
  bool was_stopped_ = false;
  std::string checkpoint_;
  CheckpointRun run_;  // of rank 0
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_DDP_TRAINER_H_
