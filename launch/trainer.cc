// trainer: trains an image classifier, with the parameter servers of its job or
// with the other trainers only.

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "weft/base/catch_to_status.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/collectives/process_group.h"
#include "weft/launch/address_space.h"
#include "weft/launch/agree_on_settings.h"
#include "weft/launch/ddp_trainer.h"
#include "weft/launch/image_trainer.h"
#include "weft/launch/job_outcome.h"
#include "weft/launch/standard_streams.h"
#include "weft/launch/start_unless_stopped.h"
#include "weft/launch/stop_signal.h"
#include "weft/launch/training_checks.h"
#include "weft/rendezvous/membership.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/join_group.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace {

using weft::launch::ImageTrainerOptions;
using weft::launch::TrainingResult;

constexpr absl::Duration kGoodBye = absl::Seconds(30);
// After a failure: the host of the coordinator still lets the others leave.
constexpr absl::Duration kHastyGoodBye = absl::Seconds(3);
constexpr absl::Duration kAgreement = absl::Minutes(2);

// No step of Adam is of use beyond it: weights are far below.
constexpr double kMostLr = 1000;

constexpr char kPs[] = "ps";
constexpr char kDdp[] = "ddp";

absl::Status CheckDdpOptions(const weft::worker::Options& worker,
                             const ImageTrainerOptions& training) {
  if (worker.servers != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--strategy=ddp needs no parameter servers; wanted "
                     "--servers=0, found ",
                     worker.servers));
  }
  if (!training.is_sync) {
    return absl::InvalidArgumentError(
        "--async needs --strategy=ps; with ddp all trainers step together");
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const weft::worker::Options& worker,
                          const ImageTrainerOptions& training) {
  const std::string& strategy = training.strategy;
  if (worker.role != "trainer") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--role=", worker.role,
        " (or WEFT_ROLE): this program is a trainer; "
        "wanted --role=trainer, or bin/parameter_server for a server"));
  }
  if (worker.is_elastic()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--workers=", worker.min_workers, ":", worker.max_workers,
        " (or WEFT_WORKERS): this program is of no elastic job; wanted "
        "--servers=N and --trainers=N of at least 1"));
  }
  if (strategy != kPs && strategy != kDdp) {
    return absl::InvalidArgumentError(
        absl::StrCat("--strategy=", strategy, ": wanted ps or ddp"));
  }
  if (strategy == kDdp) {
    WEFT_RETURN_IF_ERROR(CheckDdpOptions(worker, training));
  } else if (worker.servers < 1 || worker.trainers < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted --servers=N and --trainers=N of at least 1, found ",
        worker.servers, " and ", worker.trainers,
        "; start servers too (weft run --role ps=1:bin/parameter_server --role "
        "trainer=2:bin/trainer), or train without any by --strategy=ddp"));
  }
  if (training.epochs < 0 || training.batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted --epochs of at least 0 and --batch-size of at least 1, found ",
        training.epochs, " and ", training.batch_size));
  }
  if (!(training.learning_rate > 0) || training.learning_rate > kMostLr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lr=", training.learning_rate,
                     ": wanted a number above 0 and at most ", kMostLr));
  }
  if (training.keep < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--keep=", training.keep, ": wanted at least 1 checkpoint"));
  }
  const bool is_named = training.keep_best || !training.keep_as.empty();
  if (is_named && training.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--keep-best and --keep-as need --checkpoint-dir=DIR to keep it in");
  }
  if (training.keep_as == "best" && training.keep_best) {
    return absl::InvalidArgumentError(
        "--keep-as=best is the name that --keep-best gives; choose another");
  }
  if (training.keep_as.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos ||
      training.keep_as.size() > 63) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep-as=", training.keep_as,
                     ": wanted a name of at most 63 of [a-z0-9-]"));
  }
  if (worker.device != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("--device=", worker.device,
                     ": this program trains on the CPU only; wanted cpu"));
  }
  if (training.resume && training.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--resume needs --checkpoint-dir=DIR to resume from");
  }
  return absl::OkStatus();
}

// Whether a checkpoint can be begun there, which would else be known after an
// epoch, and, without --resume, whether no former run left its own there: the
// new ones would push them out.
absl::Status CheckCheckpointDir(const std::string& path, bool resume) {
  weft::checkpoint::CheckpointDirectory::Options options;
  options.path = path;
  const auto unusable = [](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat("wanted a directory to write in: ", status.message()));
  };
  const auto directory = weft::checkpoint::CheckpointDirectory::Open(options);
  if (!directory.ok()) return unusable(directory.status());
  const auto names = (*directory)->List();
  if (!names.ok()) return unusable(names.status());
  if (!resume && !names->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "wanted a directory without checkpoints, found ", names->size(),
        " of a former run, the newest ", names->back(),
        "; give --resume to go on from it, or another directory"));
  }
  const auto attempt = (*directory)->Begin(0);
  if (!attempt.ok()) return unusable(attempt.status());
  (*directory)->Abandon(*attempt);
  return absl::OkStatus();
}

// `error` with what to do next, where starting again is a way on.
absl::Status WithWayOn(const absl::Status& error,
                       const ImageTrainerOptions& training) {
  const bool is_lost = weft::launch::IsOfPeer(error) ||
                       weft::worker::SignalOf(error).has_value();
  if (!is_lost) return error;
  const std::string way_on =
      training.checkpoint_dir.empty()
          ? "start the job again; with --checkpoint-dir it would go on from a "
            "checkpoint by --resume"
          : absl::StrCat("start the job again with --resume to go on from ",
                         training.checkpoint_dir);
  return weft::Reworded(error, absl::StrCat(error.message(), "; ", way_on));
}

// Reports to the other workers why this trainer has not completed its training,
// and returns with what it is to end: the cause, which another may have
// reported.
absl::Status Conclude(weft::worker::Worker& worker,
                      const ImageTrainerOptions& training,
                      const absl::StatusOr<TrainingResult>& result) {
  absl::Status why = result.status();
  if (result.ok() && result->was_stopped) {
    const int signal = weft::launch::StopSignal();
    why = weft::worker::EndedBySignal(
        signal != 0 ? signal : SIGTERM,  // that another rank was sent
        absl::StrCat(worker.self().name,
                     " was asked to stop before the training was complete"));
  }
  if (why.ok()) return why;
  weft::launch::JobOutcome outcome(worker.membership(),
                                   worker.options().trainers);
  outcome.Report(why);
  return WithWayOn(outcome.CauseOf(why), training);
}

// One JSON object; a loss that is not finite as a string, as JSON has no number
// for it. Failures show when the result is written.
void PrintLoss(int64_t step, double loss) {
  nlohmann::ordered_json object = {{"step", step}, {"loss", loss}};
  if (!std::isfinite(loss)) object["loss"] = absl::StrCat(loss);
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

// With ExitCode kResource if the result cannot be written.
absl::Status Print(const TrainingResult& result, bool json) {
  if (!result.test_accuracy.has_value()) return absl::OkStatus();
  if (json) {
    nlohmann::ordered_json object = {{"test_accuracy", *result.test_accuracy},
                                     {"samples_per_s", result.samples_per_s},
                                     {"checkpoint", result.checkpoint}};
    if (result.was_stopped) object["interrupted"] = true;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%stest accuracy %.2f %%, %.0f samples/s, checkpoint %s\n",
                result.was_stopped ? "interrupted: " : "",
                100 * *result.test_accuracy, result.samples_per_s,
                result.checkpoint.empty() ? "none" : result.checkpoint.c_str());
  }
  return weft::launch::FlushOutput();
}

absl::StatusOr<TrainingResult> TrainWithServers(
    weft::worker::Worker& worker, const weft::launch::ImageData& data,
    const ImageTrainerOptions& training) {
  weft::launch::ImageTrainer trainer(worker, data, training,
                                     weft::launch::AskedToStop);
  return trainer.Run();
}

// The group of all trainers. A signal ends the wait for the others: this worker
// leaves the job, by which all its waits end.
absl::StatusOr<std::unique_ptr<weft::collectives::ProcessGroup>>
JoinUnlessStopped(weft::worker::Worker& worker,
                  const ImageTrainerOptions& training,
                  const weft::launch::ImageData& data) {
  weft::rendezvous::Membership& membership = worker.membership();
  absl::Status stopped;
  absl::StatusOr<std::unique_ptr<weft::collectives::ProcessGroup>> group;
  {
    const weft::launch::OnStopSignal leave([&] {
      stopped = weft::worker::EndedBySignal(
          weft::launch::StopSignal(),
          absl::StrCat(worker.self().name,
                       " was asked to stop while the trainers met"));
      // One that leaves without a report has completed its training.
      weft::launch::JobOutcome(membership, worker.options().trainers)
          .Report(stopped);
      membership.Leave(kHastyGoodBye).IgnoreError();
    });
    group = [&]() -> decltype(group) {
      WEFT_RETURN_IF_ERROR(weft::launch::AgreeOnSettings(
          membership, worker.options().rank, worker.options().trainers,
          weft::launch::SettingsOf(training, data), kAgreement));
      return weft::worker::JoinGroup(worker);
    }();
  }
  if (!stopped.ok()) return stopped;
  return group;
}

absl::StatusOr<TrainingResult> TrainTogether(
    weft::worker::Worker& worker, const weft::launch::ImageData& data,
    const ImageTrainerOptions& training) {
  WEFT_ASSIGN_OR_RETURN(const auto group,
                        JoinUnlessStopped(worker, training, data));
  weft::launch::DdpTrainer trainer(*group, data, worker.telemetry(), training,
                                   weft::launch::AskedToStop);
  return trainer.Run();
}

weft::worker::ShutdownOptions GoodBye(const weft::worker::Worker& worker,
                                      const ImageTrainerOptions& training,
                                      bool has_completed) {
  const weft::worker::Options& options = worker.options();
  weft::worker::ShutdownOptions good_bye;
  good_bye.deadline = has_completed ? kGoodBye : kHastyGoodBye;
  // With servers no trainer calls another: each ends when it is done. Without,
  // trainer 0 hosts what the others need to leave, and to learn why it failed.
  if (training.strategy == kPs || !has_completed) {
    good_bye.together = "name=" + options.name();
  }
  good_bye.graceful = has_completed || options.hosts_coordinator();
  return good_bye;
}

absl::Status Usage(absl::string_view message) {
  return weft::worker::WithExitCode(absl::InvalidArgumentError(message),
                                    weft::worker::ExitCode::kUsage);
}

// Reads the flags into `options` and `training`, and checks them.
absl::Status ParseFlags(int argc, char** argv, weft::worker::Options& options,
                        ImageTrainerOptions& training) {
  bool sync = false;
  bool async = false;
  weft::worker::Flags flags("trainer",
                            "Trains a small CNN on IDX images with the "
                            "parameter servers or trainers of its job.");
  options.AddTo(flags);
  flags.Add("data", &training.data, "directory of the IDX files, .gz or not");
  flags.Add("strategy", &training.strategy,
            "ps: with parameter servers; ddp: without, gradients averaged over "
            "the trainers");
  flags.Add("sync", &sync, "rounds that wait for all trainers (the default)");
  flags.Add("async", &async, "each trainer's gradient counts as it comes");
  flags.Add("epochs", &training.epochs, "passes over the data");
  flags.Add("batch-size", &training.batch_size, "examples a step and trainer");
  flags.Add("lr", &training.learning_rate, "learning rate of Adam");
  flags.Add("checkpoint-dir", &training.checkpoint_dir,
            "where to save after each epoch; must be seen by all servers");
  flags.Add("resume", &training.resume, "go on from the newest checkpoint");
  flags.Add("keep", &training.keep, "so many of the last checkpoints stay");
  int loss_every = 100;
  flags.Add("loss-every", &loss_every,
            "with --json, the loss of every so many steps; 0: of none");
  flags.Add("keep-best", &training.keep_best,
            "test after each epoch, and keep the best checkpoint besides");
  flags.Add("keep-as", &training.keep_as,
            "keep the last checkpoint of this run under this name");
  flags.Add(
      "allow-non-finite", &training.allow_non_finite,
      "go on when the loss is NaN or infinite; such models are not saved");
  int restart_count = 0;
  flags.Add("restart-count", &restart_count,
            "set by `weft run --max-restarts`: above 0 with --checkpoint-dir, "
            "--resume",
            {"TORCHELASTIC_RESTART_COUNT"});
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  // Its error has the form of --log.
  WEFT_RETURN_IF_ERROR(
      weft::launch::CheckAddressSpace(weft::launch::kWorkerAddressSpace));
  if (sync && async) return Usage("wanted --sync or --async, found both");
  const bool no_sync = flags.Origin("sync") != "default" && !sync;
  const bool no_async = flags.Origin("async") != "default" && !async;
  if (no_sync && no_async) {
    return Usage("wanted --sync or --async, found --no-sync and --no-async");
  }
  if (loss_every < 0) {
    return Usage(absl::StrCat("--loss-every=", loss_every,
                              ": wanted a number of at least 0"));
  }
  training.is_sync = !async && !no_sync;
  if (restart_count > 0 && !training.checkpoint_dir.empty()) {
    training.resume = true;
  }
  WEFT_RETURN_IF_ERROR(options.Resolve());
  if (absl::Status s = CheckOptions(options, training); !s.ok()) {
    return weft::worker::WithExitCode(s, weft::worker::ExitCode::kUsage);
  }
  training.seed = options.seed;
  if (options.json && loss_every > 0) {
    training.on_loss = [loss_every](int64_t step, double loss) {
      if (step % loss_every == 0) PrintLoss(step, loss);
    };
  }
  return absl::OkStatus();
}

// Makes the path absolute; trainer 0, which begins all checkpoints, tries it.
absl::Status PrepareCheckpointDir(const weft::worker::Options& options,
                                  ImageTrainerOptions& training) {
  if (training.checkpoint_dir.empty()) return absl::OkStatus();
  std::error_code unknown;
  const auto path = std::filesystem::absolute(training.checkpoint_dir, unknown);
  if (unknown) {
    return absl::NotFoundError(absl::StrCat(
        "--checkpoint-dir=", training.checkpoint_dir,
        ": the current directory is not there: ", unknown.message(),
        "; give an absolute path"));
  }
  training.checkpoint_dir = path.lexically_normal();
  if (options.rank != 0) return absl::OkStatus();
  const absl::Status fit =
      CheckCheckpointDir(training.checkpoint_dir, training.resume);
  if (fit.ok()) return fit;
  return weft::worker::WithExitCode(
      absl::Status(fit.code(),
                   absl::StrCat("--checkpoint-dir=", training.checkpoint_dir,
                                ": ", fit.message())),
      weft::worker::ExitCode::kConfig);
}

absl::Status Run(int argc, char** argv) {
  weft::worker::Options options;
  ImageTrainerOptions training;
  WEFT_RETURN_IF_ERROR(ParseFlags(argc, argv, options, training));
  WEFT_RETURN_IF_ERROR(PrepareCheckpointDir(options, training));

  // Before joining: a missing file is this trainer's own trouble.
  auto data = weft::launch::LoadImageData(training);
  if (!data.ok()) {
    return weft::worker::WithExitCode(data.status(),
                                      weft::worker::ExitCode::kConfig);
  }
  auto worker = weft::launch::StartUnlessStopped(options);
  if (!worker.ok()) return worker.status();
  // From here on a signal ends training after the step, with a checkpoint.
  const auto result = training.strategy == kDdp
                          ? TrainTogether(**worker, *data, training)
                          : TrainWithServers(**worker, *data, training);
  // Before this worker leaves: the others end by it.
  const absl::Status cause = Conclude(**worker, training, result);
  const absl::Status ended =
      (*worker)->Shutdown(GoodBye(**worker, training, result.ok())).status();
  if (!result.ok() || !ended.ok()) (*worker)->DumpFlightRecorder();
  if (!result.ok()) return cause;
  const absl::Status printed = Print(*result, options.json);
  if (!result->saved.ok()) return result->saved;
  // The training is complete: once more it would end no better.
  for (const absl::Status& status : {printed, ended}) {
    if (!status.ok()) return weft::worker::WithoutRestart(status);
  }
  return cause;
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
