// weft coordinator: hosts where a job meets, in a process that is none of its
// workers.

#include <signal.h>
#include <time.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/worker/coordinator_server.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/flags.h"
#include "weft/worker/options.h"

namespace weft::launch {
namespace {

constexpr char kAbout[] =
    "Hosts the coordinator of a job until it is asked to end (SIGTERM, Ctrl-C) "
    "and its workers have left.\nweft run starts one by itself. Workers find "
    "it "
    "by the same --job and --coordinator, with\n"
    "--coordinator-host=coordinator0.\n\n"
    "  weft coordinator --job=mnist --coordinator=node1:7000 --certs=certs "
    "--coordinator-log=mnist.log\n";

// How often a second signal is looked for while workers leave.
constexpr absl::Duration kLook = absl::Milliseconds(100);

absl::Status ReadFlags(int argc, char** argv, worker::Options& options,
                       absl::Duration& grace) {
  worker::Flags flags("weft coordinator", kAbout);
  options.AddTo(flags);
  flags.Add("grace", &grace,
            "once it is asked to end, how long its workers may still leave; "
            "Ctrl-C again ends it at once");
  WEFT_RETURN_IF_ERROR(flags.Parse(argc, argv));
  for (const char* name : {"role", "rank", "servers", "trainers", "workers"}) {
    if (flags.Origin(name) != "flag") continue;
    return worker::WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "weft coordinator: --", name,
            " is of a worker; this is coordinator0 of any job: leave it out, "
            "and give it to the workers")),
        worker::ExitCode::kUsage);
  }
  // It has no place in the job's world: what the environment of a rank says of
  // that does not concern it.
  options.role = worker::kCoordinatorRole;
  options.rank = 0;
  options.servers = options.trainers = 0;
  options.min_workers = options.max_workers = 0;
  options.coordinator_host = options.name();
  return options.Resolve();
}

}  // namespace

absl::StatusOr<int> CoordinatorCommand(int argc, char** argv) {
  worker::Options options;
  absl::Duration grace = absl::Seconds(30);
  WEFT_RETURN_IF_ERROR(ReadFlags(argc, argv, options, grace));
  // Blocked before any thread is there, which inherit it.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const bool is_told = options.log_level <= telemetry::Level::kInfo;
  const std::string job = options.job;
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<worker::CoordinatorServer> server,
                        worker::CoordinatorServer::Start(std::move(options)));
  if (is_told) {
    std::printf("job %s meets at %s\n", job.c_str(), server->address().c_str());
    std::fflush(stdout);
  }
  int signal = 0;
  sigwait(&ends, &signal);
  const Instant deadline = SteadyClock().Now() + grace;
  const timespec moment = {0, 10 * 1000 * 1000};
  while (SteadyClock().Now() < deadline && !server->AwaitNoMembers(kLook)) {
    if (sigtimedwait(&ends, nullptr, &moment) > 0) break;
  }
  return 0;
}

}  // namespace weft::launch
