// trainer: trains an image classifier, with the parameter servers of its job or
// with the other trainers only.

#include <cmath>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/launch/address_space.h"
#include "weft/launch/image_training.h"
#include "weft/launch/standard_streams.h"
#include "weft/train/options.h"
#include "weft/train/run.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace {

using weft::launch::ImageTrainingOptions;
using weft::train::Result;

// No step of Adam is of use beyond it: weights are far below.
constexpr double kMostLr = 1000;

constexpr char kPs[] = "ps";
constexpr char kDdp[] = "ddp";

absl::Status CheckDdpOptions(const weft::worker::Options& worker,
                             const ImageTrainingOptions& training) {
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
                          const ImageTrainingOptions& training) {
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
  if (training.batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch-size=", training.batch_size, ": wanted at least 1"));
  }
  if (!(training.learning_rate > 0) || training.learning_rate > kMostLr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lr=", training.learning_rate,
                     ": wanted a number above 0 and at most ", kMostLr));
  }
  if (worker.device != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("--device=", worker.device,
                     ": this program trains on the CPU only; wanted cpu"));
  }
  return absl::OkStatus();
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
absl::Status Print(const Result& result, bool json) {
  if (!result.score.has_value()) return absl::OkStatus();
  if (json) {
    nlohmann::ordered_json object = {{"test_accuracy", *result.score},
                                     {"samples_per_s", result.samples_per_s},
                                     {"checkpoint", result.checkpoint}};
    if (result.was_stopped) object["interrupted"] = true;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%stest accuracy %.2f %%, %.0f samples/s, checkpoint %s\n",
                result.was_stopped ? "interrupted: " : "", 100 * *result.score,
                result.samples_per_s,
                result.checkpoint.empty() ? "none" : result.checkpoint.c_str());
  }
  return weft::launch::FlushOutput();
}

absl::Status Usage(absl::string_view message) {
  return weft::worker::WithExitCode(absl::InvalidArgumentError(message),
                                    weft::worker::ExitCode::kUsage);
}

// Reads the flags into `options` and `training`, and checks them.
absl::Status ParseFlags(int argc, char** argv, weft::worker::Options& options,
                        ImageTrainingOptions& training) {
  bool sync = false;
  bool async = false;
  weft::worker::Flags flags("trainer",
                            "Trains a small CNN on IDX images with the "
                            "parameter servers or trainers of its job.");
  options.AddTo(flags);
  training.AddTo(flags);
  flags.Add("data", &training.data, "directory of the IDX files, .gz or not");
  flags.Add("strategy", &training.strategy,
            "ps: with parameter servers; ddp: without, gradients averaged over "
            "the trainers");
  flags.Add("sync", &sync, "rounds that wait for all trainers (the default)");
  flags.Add("async", &async, "each trainer's gradient counts as it comes");
  flags.Add("batch-size", &training.batch_size, "examples a step and trainer");
  flags.Add("lr", &training.learning_rate, "learning rate of Adam");
  int loss_every = 100;
  flags.Add("loss-every", &loss_every,
            "with --json, the loss of every so many steps; 0: of none");
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
  WEFT_RETURN_IF_ERROR(options.Resolve());
  if (absl::Status s = CheckOptions(options, training); !s.ok()) {
    return weft::worker::WithExitCode(s, weft::worker::ExitCode::kUsage);
  }
  WEFT_RETURN_IF_ERROR(training.Resolve(options));
  training.seed = options.seed;
  if (options.json && loss_every > 0) {
    training.on_loss = [loss_every](int64_t step, double loss) {
      if (step % loss_every == 0) PrintLoss(step, loss);
    };
  }
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  weft::worker::Options options;
  ImageTrainingOptions training;
  WEFT_RETURN_IF_ERROR(ParseFlags(argc, argv, options, training));
  // Before joining: a missing file is this trainer's own trouble.
  const auto data = weft::launch::LoadImageData(training);
  if (!data.ok()) {
    return weft::worker::WithExitCode(data.status(),
                                      weft::worker::ExitCode::kConfig);
  }
  training.settings = weft::launch::SettingsOf(training, *data);
  return weft::train::Run(
      options, training,
      [&](weft::train::Job& job) -> absl::StatusOr<Result> {
        if (training.strategy == kPs) {
          return weft::launch::TrainWithServers(job.worker(), *data, training);
        }
        WEFT_ASSIGN_OR_RETURN(const auto group, job.JoinGroup());
        return weft::launch::TrainTogether(*group, job.telemetry(), *data,
                                           training);
      },
      [&](const Result& result) { return Print(result, options.json); });
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
