// Options: what a training has, whatever its model and data: how long, where
// its checkpoints are, how it ends; and its Result.

#ifndef WEFT_TRAIN_OPTIONS_H_
#define WEFT_TRAIN_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/telemetry/progress.h"
#include "weft/train/settings.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::train {

// The name of the checkpoint of the highest score: see Options::keep_best.
inline constexpr char kBest[] = "best";

struct Options {
  int epochs = 3;
  std::string checkpoint_dir;  // empty: nothing is saved
  // Goes on from the newest checkpoint there. But if other trainers of the job
  // are already at work with parameter servers, this one joins them where they
  // are, whether this is set or not.
  bool resume = false;
  int keep = 3;  // so many of the last checkpoints stay
  // Computes the score after each epoch; the checkpoint with the highest stays,
  // under the name "best".
  bool keep_best = false;
  // The name under which the last checkpoint stays, if any.
  std::string keep_as;
  // In a data-parallel training, elastic or not: after so many steps of all
  // epochs, and again after as many, rank 0 saves besides, between two steps.
  // 0: never.
  int64_t checkpoint_every_steps = 0;
  // With parameter servers: how often the first trainer begins a checkpoint
  // that is written while training goes on, beside those between two epochs.
  // One at a time; 0: never.
  absl::Duration snapshot_every;
  // Every n-th of these checkpoints holds all of the tables. Those between hold
  // only what has changed since the checkpoint before them, and need that one
  // (a dense table that changes as a whole is whole in each). 1: all hold all.
  // Checkpoints between two epochs always do.
  int full_snapshot_every = 1;
  // Goes on with a loss that is NaN or infinite, instead of ending with it.
  bool allow_non_finite = false;
  // How long the last save is tried again, where it may succeed later.
  absl::Duration retry_last_save_for = absl::Seconds(20);
  telemetry::Progress::Style progress = telemetry::Progress::Style::kAuto;
  Settings settings;
  // Called after each step by the first trainer with the number of the step,
  // from 1, across resumes, and its mean loss; null: nobody asks.
  std::function<void(int64_t step, double loss)> on_loss = nullptr;
  // Asked after each step: once true, training ends as if that had been the
  // last one. Null: AskedToStop (stop_signal.h). What this or on_loss throws
  // ends the training.
  std::function<bool()> asked_to_stop = nullptr;

  // Adds flags that set these options: --epochs, --checkpoint-dir, --resume,
  // --keep, --keep-best, --keep-as, --checkpoint-every, --snapshot-every,
  // --full-snapshot-every, --allow-non-finite. Programs may add their own.
  void AddTo(worker::Flags& flags);
  // Checks them, makes checkpoint_dir absolute, and resumes a job that
  // `weft run --max-restarts` has started again. On rank 0 it also looks
  // whether checkpoints can be written there, and, without `resume`, that no
  // former run has left its own, which new ones would push out. After
  // Flags::Parse and worker::Options::Resolve. With ExitCode kUsage if a value
  // is invalid, with kConfig if the directory is.
  absl::Status Resolve(const worker::Options& worker);

  bool IsAskedToStop() const {
    return asked_to_stop == nullptr ? AskedToStop() : asked_to_stop();
  }

 private:
  int restart_count_ = 0;  // set by `weft run --max-restarts`
};

struct Result {
  // The first trainer has it, where there is a score; else it is absent.
  std::optional<double> score;
  double samples_per_s = 0;  // of all trainers that were there
  // The path of the newest checkpoint that this run saved, or else went on
  // from; empty if there is none.
  std::string checkpoint;
  bool was_stopped = false;  // before the last step
  // How saving the last checkpoint ended: an error leaves the one before as the
  // newest.
  absl::Status saved;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_OPTIONS_H_
