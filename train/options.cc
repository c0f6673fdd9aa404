#include "weft/train/options.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/checkpoint/manifest.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

absl::Status CheckEvery(const Options& options, const worker::Options& worker) {
  const int64_t every = options.checkpoint_every_steps;
  if (every == 0) return absl::OkStatus();
  const auto refuse = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("--checkpoint-every=", every, wanted));
  };
  if (every < 0) return refuse(": wanted a number of steps of at least 0");
  if (options.checkpoint_dir.empty()) {
    return refuse(" needs --checkpoint-dir=DIR to save in");
  }
  if (worker.servers > 0 && !worker.is_elastic()) {
    return refuse(
        " is of data-parallel trainings; with parameter servers wanted "
        "--snapshot-every=TIME");
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const Options& options,
                         const worker::Options& worker) {
  if (options.epochs < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--epochs=", options.epochs, ": wanted a number of at least 0"));
  }
  if (options.keep < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--keep=", options.keep, ": wanted at least 1 checkpoint"));
  }
  const bool is_named = options.keep_best || !options.keep_as.empty();
  if (is_named && options.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--keep-best and --keep-as need --checkpoint-dir=DIR to keep it in");
  }
  if (options.keep_as == kBest && options.keep_best) {
    return absl::InvalidArgumentError(
        "--keep-as=best is the name that --keep-best gives; choose another");
  }
  if (options.keep_as.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos ||
      options.keep_as.size() > 63) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep-as=", options.keep_as,
                     ": wanted a name of at most 63 of [a-z0-9-]"));
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "--resume needs --checkpoint-dir=DIR to resume from");
  }
  WEFT_RETURN_IF_ERROR(CheckEvery(options, worker));
  if (options.full_snapshot_every < 1 ||
      options.full_snapshot_every > checkpoint::kMaxLinks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--full-snapshot-every=", options.full_snapshot_every,
                     ": wanted 1 to ", checkpoint::kMaxLinks));
  }
  if (options.full_snapshot_every > 1 &&
      options.snapshot_every <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "--full-snapshot-every is of checkpoints while training goes on, "
        "wanted "
        "--snapshot-every=TIME with it");
  }
  if (options.snapshot_every > absl::ZeroDuration()) {
    if (options.checkpoint_dir.empty()) {
      return absl::InvalidArgumentError(
          "--snapshot-every needs --checkpoint-dir=DIR to save in");
    }
    if (worker.servers == 0) {
      return absl::InvalidArgumentError(
          "--snapshot-every is of trainings with parameter servers, wanted "
          "--servers=N of at least 1");
    }
  }
  return absl::OkStatus();
}

// Whether a checkpoint can be begun there, which would else be known after an
// epoch, and, without --resume, whether no former run left its own there.
absl::Status CheckDirectory(const std::string& path, bool resume) {
  checkpoint::CheckpointDirectory::Options options;
  options.path = path;
  const auto unusable = [](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat("wanted a directory to write in: ", status.message()));
  };
  const auto directory = checkpoint::CheckpointDirectory::Open(options);
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

}  // namespace

void Options::AddTo(worker::Flags& flags) {
  flags.Add("epochs", &epochs, "passes over the data");
  flags.Add("checkpoint-dir", &checkpoint_dir,
            "where to save after each epoch; must be seen by all servers");
  flags.Add("resume", &resume, "go on from the newest checkpoint");
  flags.Add("keep", &keep, "so many of the last checkpoints stay");
  flags.Add("keep-best", &keep_best,
            "test after each epoch, and keep the best checkpoint besides");
  flags.Add("keep-as", &keep_as,
            "keep the last checkpoint of this run under this name");
  flags.Add("checkpoint-every", &checkpoint_every_steps,
            "in a data-parallel training, after how many steps to save "
            "besides; 0: never");
  flags.Add("snapshot-every", &snapshot_every,
            "how often to save besides while training with parameter servers "
            "goes on; 0: never");
  flags.Add("full-snapshot-every", &full_snapshot_every,
            "of these, each so many-th holds all, and others what has changed "
            "of the tables since the one before; 1: all do");
  flags.Add(
      "allow-non-finite", &allow_non_finite,
      "go on when the loss is NaN or infinite; such models are not saved");
  flags.Add("restart-count", &restart_count_,
            "set by `weft run --max-restarts`: above 0 with --checkpoint-dir, "
            "--resume",
            {"TORCHELASTIC_RESTART_COUNT"});
}

absl::Status Options::Resolve(const worker::Options& worker) {
  if (restart_count_ > 0 && !checkpoint_dir.empty()) resume = true;
  // One that takes the place of a trainer that has died goes on, with the
  // others or from there.
  if (worker.is_elastic() && worker.rejoins && !checkpoint_dir.empty()) {
    resume = true;
  }
  if (const absl::Status fit = CheckValues(*this, worker); !fit.ok()) {
    return worker::WithExitCode(fit, worker::ExitCode::kUsage);
  }
  if (checkpoint_dir.empty()) return absl::OkStatus();
  std::error_code unknown;
  const auto path = std::filesystem::absolute(checkpoint_dir, unknown);
  if (unknown) {
    return absl::NotFoundError(absl::StrCat(
        "--checkpoint-dir=", checkpoint_dir,
        ": the current directory is not there: ", unknown.message(),
        "; give an absolute path"));
  }
  checkpoint_dir = path.lexically_normal();
  if (worker.rank != 0) return absl::OkStatus();
  // In an elastic job others may be at work there already: who begins looks.
  const absl::Status fit =
      CheckDirectory(checkpoint_dir, resume || worker.is_elastic());
  if (fit.ok()) return fit;
  return worker::WithExitCode(
      absl::Status(fit.code(), absl::StrCat("--checkpoint-dir=", checkpoint_dir,
                                            ": ", fit.message())),
      worker::ExitCode::kConfig);
}

}  // namespace weft::train
