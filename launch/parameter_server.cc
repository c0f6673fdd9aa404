// parameter_server: holds the tables of a job and applies what trainers push.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/reworded.h"
#include "weft/launch/address_space.h"
#include "weft/train/job_outcome.h"
#include "weft/launch/serve_tables.h"
#include "weft/launch/standard_streams.h"
#include "weft/train/start_unless_stopped.h"
#include "weft/train/stop_signal.h"
#include "weft/ps/server.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace {

constexpr absl::Duration kGoodBye = absl::Seconds(30);
// After a failure: the host of the coordinator still lets the others leave.
constexpr absl::Duration kHastyGoodBye = absl::Seconds(3);

absl::Status Run(int argc, char** argv) {
  weft::worker::Options options;
  options.role = "ps";
  absl::Duration grace = absl::Seconds(20);
  std::string of_trainers;
  weft::worker::Flags flags(
      "parameter_server",
      "Holds the tables of a job and applies what its trainers push. Ends when "
      "all trainers have gone.");
  options.AddTo(flags);
  flags.Add("grace", &grace,
            "after SIGTERM, how long trainers may still save what they have");
  std::string checkpoint_dir;
  flags.Add("checkpoint-dir", &checkpoint_dir,
            "where trainers may save and resume, the directory itself and what "
            "is below; empty: nowhere");
  int64_t round_budget = weft::ps::ServerOptions().round_budget;
  flags.Add("round-budget", &round_budget,
            "bytes of gradients that may wait for the other parts of their "
            "round");
  // The trainers' messages carry these settings. Both programs take the same
  // command line.
  bool ignored = false;
  for (const char* name :
       {"sync", "async", "resume", "keep-best", "allow-non-finite"}) {
    flags.Add(name, &ignored, "of trainers; taken and not used");
  }
  for (const char* name : {"data", "strategy", "epochs", "batch-size", "lr",
                           "keep", "keep-as", "loss-every"}) {
    flags.Add(name, &of_trainers, "of trainers; taken and not used");
  }
  if (absl::Status s = flags.Parse(argc, argv); !s.ok()) return s;
  // Its error has the form of --log.
  if (absl::Status s =
          weft::launch::CheckAddressSpace(weft::launch::kWorkerAddressSpace);
      !s.ok()) {
    return s;
  }
  if (absl::Status s = options.Resolve(); !s.ok()) return s;
  if (options.role != "ps") {
    return weft::worker::WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                                          "--role=", options.role,
                                          " (or WEFT_ROLE): this program is a "
                                          "parameter server; wanted --role=ps, "
                                          "or bin/trainer for a trainer")),
                                      weft::worker::ExitCode::kUsage);
  }
  if (options.is_elastic()) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "--workers=", options.min_workers, ":", options.max_workers,
            " (or WEFT_WORKERS): this program is of no elastic job; wanted "
            "--servers=N and --trainers=N of at least 1")),
        weft::worker::ExitCode::kUsage);
  }
  if (options.trainers < 1) {  // it would end at once: all have gone
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "wanted --trainers=N of at least 1, found ", options.trainers)),
        weft::worker::ExitCode::kUsage);
  }

  if (round_budget < 1) {
    return weft::worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "wanted --round-budget of at least 1 byte, found ", round_budget)),
        weft::worker::ExitCode::kUsage);
  }

  // Outlives the worker, whose handlers use it to their end.
  weft::ps::ServerOptions serving{options.rank, options.servers};
  serving.checkpoint_dir = checkpoint_dir;
  serving.round_budget = round_budget;
  weft::ps::Server server(serving);
  auto worker = weft::train::StartUnlessStopped(options);
  if (!worker.ok()) return worker.status();
  const absl::Status served = weft::launch::ServeTables(
      **worker, server, weft::train::StopSignal, grace);
  weft::worker::ShutdownOptions good_bye;
  good_bye.deadline = served.ok() ? kGoodBye : kHastyGoodBye;
  good_bye.together = "name=" + options.name();  // none calls another
  const absl::Status ended = (*worker)->Shutdown(good_bye).status();
  // Once served, the trainers have completed the training.
  const absl::Status status = !served.ok() ? served
                              : !ended.ok()
                                  ? weft::worker::WithoutRestart(ended)
                                  : absl::OkStatus();
  if (!status.ok() && !weft::worker::SignalOf(status).has_value()) {
    (*worker)->DumpFlightRecorder();
  }
  if (!weft::train::IsOfPeer(status)) return status;
  return weft::Reworded(
      status, absl::StrCat(status.message(),
                           "; start the job again: its trainers go on from a "
                           "checkpoint by --resume"));
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
