#include "weft/train/saving/last_save.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "weft/base/clock.h"
#include "weft/base/reworded.h"
#include "weft/train/job_outcome.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

using worker::ExitCode;

constexpr absl::Duration kLookForStop = absl::Milliseconds(100);

// Whether the same save may succeed a little later.
bool MayPass(const absl::Status& failure, const LastSaveOptions& options) {
  switch (failure.code()) {
    case absl::StatusCode::kUnavailable:
      return options.outlives_servers;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kDataLoss:  // a device that fails to read or write
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status RetryLastSave(const absl::Status& failure,
                           absl::FunctionRef<absl::Status()> save,
                           const LastSaveOptions& options,
                           telemetry::Logger& logger) {
  const auto is_stopped = [&] {
    return options.asked_to_stop != nullptr && options.asked_to_stop();
  };
  absl::Status saved = failure;
  absl::Duration pause = options.first_pause;
  const Instant give_up = SteadyClock().Now() + options.retry_for;
  while (!saved.ok() && MayPass(saved, options) && !is_stopped() &&
         SteadyClock().Now() + pause <= give_up) {
    WEFT_LOG(logger, Warning, "the last checkpoint was not saved; trying again")
        .With("after", absl::FormatDuration(pause))
        .With("why", saved.message());
    const Instant next = SteadyClock().Now() + pause;
    while (SteadyClock().Now() < next && !is_stopped()) {
      absl::SleepFor(std::min(kLookForStop, next - SteadyClock().Now()));
    }
    pause *= 2;
    saved = save();
  }
  if (saved.ok()) return saved;
  return NotSaved(saved, options.directory);
}

absl::Status NotSaved(const absl::Status& why, const std::string& directory) {
  if (IsOfPeer(why) || worker::SignalOf(why).has_value()) return why;
  const ExitCode code = worker::ExitCodeFor(why);
  const bool says_what_to_do = code != ExitCode::kResource &&
                               code != ExitCode::kAuth &&
                               code != ExitCode::kInternal;
  if (says_what_to_do) return worker::WithoutRestart(why);
  const std::string what =
      absl::StrContains(why.message(), directory)
          ? ""
          : absl::StrCat("no checkpoint was saved in ", directory, ": ");
  return worker::WithoutRestart(worker::WithExitCode(
      Reworded(why, absl::StrCat(what, why.message(),
                                 "; the training is complete, and its last "
                                 "checkpoint is missing: make room in ",
                                 directory,
                                 " and let this user write there, then start "
                                 "the job again with --resume")),
      ExitCode::kInternal));
}

}  // namespace weft::train
