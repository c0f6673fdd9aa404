// Run: the life of a trainer program around its training.
//
//   int main(int argc, char** argv) {
//     weft::worker::Options worker;
//     weft::train::Options training;
//     weft::worker::Flags flags("points", "Learns a circle.");
//     worker.AddTo(flags);
//     training.AddTo(flags);
//     weft::ExitIfError(flags.Parse(argc, argv));
//     weft::ExitIfError(worker.Resolve());
//     weft::ExitIfError(training.Resolve(worker));
//     weft::ExitIfError(weft::train::Run(worker, training, Train));
//   }

#ifndef WEFT_TRAIN_RUN_H_
#define WEFT_TRAIN_RUN_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/cancel.h"
#include "weft/collectives/process_group.h"
#include "weft/telemetry/telemetry.h"
#include "weft/train/background_task.h"
#include "weft/train/data_parallel_training.h"
#include "weft/train/options.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::train {

// A trainer that has joined its job. Thread-safety: one thread at a time.
class Job {
 public:
  // Both must outlive it.
  Job(worker::Worker& worker, const Options& options)
      : worker_(worker), options_(options) {}

  ~Job() { EndJoin(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  worker::Worker& worker() { return worker_; }
  telemetry::Telemetry& telemetry() { return worker_.telemetry(); }
  const Options& options() const { return options_; }

  // worker::JoinGroup, once all trainers have agreed on `settings`: what must
  // be the same for all (kFailedPrecondition, with ExitCode kConfig, names what
  // differs). A signal ends the wait for the others (EndedBySignal), and this
  // worker leaves the job.
  // kInvalidArgument, with ExitCode kUsage, in an elastic job: see MakeElastic.
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinGroup(
      const worker::JoinGroupOptions& options = {});
  // In an elastic job: how its trainers come together for
  // DataParallelTraining::CreateElastic: as many as --workers says, and at most
  // `max`. Settings are compared there. This must outlive the training.
  // `elastic` and `cancel` of `options` are not used.
  DataParallelTraining::Elastic MakeElastic(
      int max, worker::JoinGroupOptions options = {});
  // Ends what the training has left of a group that was being made.
  void EndJoin();

 private:
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> Join(
      const worker::JoinGroupOptions& options,
      const DataParallelTraining::Elastic::Prepare& prepare = nullptr);
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinElastic(
      const worker::JoinGroupOptions& options,
      const DataParallelTraining::Elastic::Prepare& prepare);
  bool HasNewcomers(const worker::JoinGroupOptions& options);
  // Ends this process: DataParallelTraining::Elastic::on_hang.
  void EndHung(const std::string& what, absl::Duration after);

  worker::Worker& worker_;
  const Options& options_;
  CancelSource end_join_;
  // The group that is made while the training goes on.
  BackgroundTask<std::unique_ptr<collectives::ProcessGroup>> next_group_;
  // Waits until others wait to take part: true then. What it waits for ends
  // once this worker has left the job.
  BackgroundTask<bool> newcomers_;
};

// Joins the job as a trainer, runs `train`, and leaves the job. From the start
// on SIGTERM, SIGINT and SIGHUP ask the training to stop (stop_signal.h).
// Returns the status with which the program is to end (ExitIfError): an error
// of `train`, whose exceptions become one; EndedBySignal if its result
// was_stopped, by SIGTERM where the signal came to another trainer; the error
// of another one, where that is why this one failed; of the last save; or of
// `print`, which runs after a training that ended in good order, once this
// worker has left. The other workers learn how this one ended.
//
// Both options are resolved. kInvalidArgument, with ExitCode kUsage, if the
// worker is no trainer. `train` must end what uses the worker, a group among
// it, before it returns. In an elastic job (docs/elastic.md) each trainer ends
// for itself.
absl::Status Run(
    worker::Options worker, const Options& options,
    absl::FunctionRef<absl::StatusOr<Result>(Job& job)> train,
    absl::FunctionRef<absl::Status(const Result& result)> print =
        [](const Result&) { return absl::OkStatus(); });

}  // namespace weft::train

#endif  // WEFT_TRAIN_RUN_H_
