// parameter_server: holds the tables of a job and applies what trainers push.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/launch/address_space.h"
#include "weft/launch/serve_tables.h"
#include "weft/launch/standard_streams.h"
#include "weft/ps/server.h"
#include "weft/ps/service.h"
#include "weft/train/job_outcome.h"
#include "weft/train/start_unless_stopped.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace {

constexpr absl::Duration kGoodBye = absl::Seconds(30);
// After a failure: the host of the coordinator still lets the others leave.
constexpr absl::Duration kHastyGoodBye = absl::Seconds(3);

struct Settings {
  weft::worker::Options options;
  absl::Duration grace = absl::Seconds(20);
  std::string checkpoint_dir;
  std::string table_log_dir;
  int64_t round_budget = weft::ps::ServerOptions().round_budget;
  int64_t table_memory = weft::ps::ServerOptions().table_memory;
  weft::ps::RebalanceMode rebalance = weft::ps::ServerOptions().rebalance;
  int64_t snapshot_memory = weft::ps::ServerOptions().snapshot_memory;
  weft::ps::TableAccess access;
};

absl::Status UsageError(const std::string& message) {
  return weft::worker::WithExitCode(absl::InvalidArgumentError(message),
                                    weft::worker::ExitCode::kUsage);
}

absl::Status Parse(int argc, char** argv, Settings& settings) {
  settings.options.role = "ps";
  weft::worker::Flags flags(
      "parameter_server",
      "Holds the tables of a job and applies what its trainers push. Ends when "
      "all trainers have gone; in an elastic job (--workers=MIN:MAX) once one "
      "of them has completed the training.");
  settings.options.AddTo(flags);
  flags.Add("grace", &settings.grace,
            "after SIGTERM, how long trainers may still save what they have");
  flags.Add("checkpoint-dir", &settings.checkpoint_dir,
            "where trainers may save and resume, the directory itself and what "
            "is below; empty: nowhere");
  flags.Add("table-log-dir", &settings.table_log_dir,
            "with --replicas=2: directory for the log of tables of durability "
            "LOGGED, in DIR/ps0 and so on; empty: none, such tables are "
            "refused",
            {"WEFT_TABLE_LOG_DIR"});
  flags.Add("round-budget", &settings.round_budget,
            "bytes of gradients that may wait for the other parts of their "
            "round");
  flags.Add("table-memory", &settings.table_memory,
            "bytes of rows beyond which a push that could make a row is "
            "refused; 0: any number");
  flags.AddWith(
      "rebalance",
      [&settings](const std::string& text) {
        WEFT_ASSIGN_OR_RETURN(settings.rebalance,
                              weft::ps::RebalanceModeOf(text));
        return absl::OkStatus();
      },
      "off",
      "on: with --replicas=2 the servers even out what they have to do; "
      "dry-run: they log what they would move",
      {"WEFT_REBALANCE"});
  flags.AddWith(
      "table-access",
      [&settings](const std::string& text) {
        WEFT_ASSIGN_OR_RETURN(settings.access,
                              weft::ps::TableAccess::Parse(text));
        return absl::OkStatus();
      },
      "",
      "which roles may read (r) and change (w) which tables: "
      "\"users*=trainer:rw,admin:r;*=trainer:rw\"; wants --certs. Empty: all "
      "members may do both",
      {"WEFT_TABLE_ACCESS"});
  flags.Add("snapshot-memory", &settings.snapshot_memory,
            "bytes of rows that may be kept because they change while they are "
            "being saved; beyond it that checkpoint fails");
  // The trainers' messages carry these settings. Both programs take the same
  // command line.
  bool ignored = false;
  for (const char* name :
       {"sync", "async", "resume", "keep-best", "allow-non-finite"}) {
    flags.Add(name, &ignored, "of trainers; taken and not used");
  }
  std::string of_trainers;
  for (const char* name :
       {"data", "strategy", "epochs", "batch-size", "lr", "optimizer",
        "clip-value", "clip-norm", "push-dtype", "pull-dtype", "staleness",
        "quorum", "late", "keep", "keep-as", "checkpoint-every",
        "snapshot-every", "full-snapshot-every", "loss-every"}) {
    flags.Add(name, &of_trainers, "of trainers; taken and not used");
  }
  return flags.Parse(argc, argv);
}

absl::Status Check(const Settings& settings) {
  const weft::worker::Options& options = settings.options;
  if (options.role != "ps") {
    return UsageError(absl::StrCat("--role=", options.role,
                                   " (or WEFT_ROLE): this program is a "
                                   "parameter server; wanted --role=ps, or "
                                   "bin/trainer for a trainer"));
  }
  if (options.is_elastic() && (options.servers < 2 || options.replicas < 2)) {
    return UsageError(absl::StrCat(
        "--workers=", options.min_workers, ":", options.max_workers,
        " (or WEFT_WORKERS): in an elastic job this program wants --servers=N "
        "of at least 2 and --replicas=2, found --servers=",
        options.servers, " and --replicas=", options.replicas));
  }
  // Without trainers the server would end at once, since all of them have gone.
  if (!options.is_elastic() && options.trainers < 1) {
    return UsageError(absl::StrCat("wanted --trainers=N of at least 1, found ",
                                   options.trainers));
  }
  if (settings.round_budget < 1) {
    return UsageError(
        absl::StrCat("wanted --round-budget of at least 1 byte, found ",
                     settings.round_budget));
  }
  if (!settings.table_log_dir.empty() && options.replicas < 2) {
    return UsageError(
        "--table-log-dir (or WEFT_TABLE_LOG_DIR) wants --replicas=2: a push is "
        "acknowledged once both copies have it on disk");
  }
  if (settings.rebalance != weft::ps::RebalanceMode::kOff &&
      options.replicas < 2) {
    return UsageError(
        "--rebalance (or WEFT_REBALANCE) wants --replicas=2: with one copy of "
        "each partition none can move while the job runs");
  }
  if (!settings.access.is_open() && options.certs.empty()) {
    return UsageError(
        "--table-access (or WEFT_TABLE_ACCESS) wants --certs: without "
        "certificates no peer proves its role, and all may do everything");
  }
  if (settings.table_memory < 0) {
    return UsageError(absl::StrCat(
        "wanted --table-memory of at least 1 byte, or 0 for any number, found ",
        settings.table_memory));
  }
  if (settings.snapshot_memory < 1) {
    return UsageError(
        absl::StrCat("wanted --snapshot-memory of at least 1 byte, found ",
                     settings.snapshot_memory));
  }
  return absl::OkStatus();
}

absl::Status Serve(const Settings& settings) {
  const weft::worker::Options& options = settings.options;
  // Outlives the worker, whose handlers use it to their end.
  weft::ps::ServerOptions serving{options.rank, options.servers};
  serving.checkpoint_dir = settings.checkpoint_dir;
  serving.table_log_dir = settings.table_log_dir;
  serving.round_budget = settings.round_budget;
  serving.table_memory = settings.table_memory;
  serving.rebalance = settings.rebalance;
  serving.access = settings.access;
  serving.snapshot_memory = settings.snapshot_memory;
  weft::ps::Server server(serving);
  weft::worker::Options starting = options;
  starting.access = weft::ps::AccessToTables(settings.access);
  auto worker = weft::train::StartUnlessStopped(starting);
  if (!worker.ok()) return worker.status();
  const absl::Status served = weft::launch::ServeTables(
      **worker, server, weft::train::StopSignal, settings.grace);
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

absl::Status Run(int argc, char** argv) {
  Settings settings;
  WEFT_RETURN_IF_ERROR(Parse(argc, argv, settings));
  // Its error has the form of --log.
  WEFT_RETURN_IF_ERROR(
      weft::launch::CheckAddressSpace(weft::launch::kWorkerAddressSpace));
  WEFT_RETURN_IF_ERROR(settings.options.Resolve());
  WEFT_RETURN_IF_ERROR(Check(settings));
  return Serve(settings);
}

}  // namespace

int main(int argc, char** argv) {
  weft::launch::OpenStandardStreams();
  weft::ExitIfError(weft::CatchToStatus([&] { return Run(argc, argv); }));
}
