// weft coordinator: hosts where a job meets, in a process that is none of its
// workers.

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/launch/commands/commands.h"
#include "weft/rendezvous/init_url.h"
#include "weft/train/background_task.h"
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

// How often a second signal is looked for while workers leave, and a first one
// while it stands by.
constexpr absl::Duration kLook = absl::Milliseconds(100);
// How often one that stood by looks whether another has taken its place.
constexpr absl::Duration kLookForOther = absl::Seconds(1);

using Server = std::unique_ptr<worker::CoordinatorServer>;

absl::Status ReadFlags(int argc, char** argv, worker::Options& options,
                       absl::Duration& grace) {
  worker::Flags flags("weft coordinator", kAbout);
  options.AddTo(flags);
  flags.Add("grace", &grace,
            "once it is asked to end, how long its workers may still leave; "
            "Ctrl-C again ends it at once");
  flags.Add("standby", &options.stands_by,
            "with --init=etcd://: wait until no other coordinator hosts the "
            "job, and go on for it then");
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
  WEFT_RETURN_IF_ERROR(options.Resolve());
  if (!options.stands_by ||
      options.init_url.kind == rendezvous::InitUrl::Kind::kEtcd) {
    return absl::OkStatus();
  }
  return worker::WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(
          "weft coordinator: --standby goes on with records in etcd: wanted "
          "--init=etcd://HOST:PORT, found ",
          options.init.empty() ? "no --init"
                               : absl::StrCat("--init=", options.init))),
      worker::ExitCode::kUsage);
}

// Waits for one of `signals`; 0: none has come.
int TakeSignal(const sigset_t& signals, absl::Duration timeout) {
  const timespec time = absl::ToTimespec(timeout);
  return std::max(sigtimedwait(&signals, nullptr, &time), 0);
}

// Starts it once no other hosts the job. Null: one of `ends` has come.
absl::StatusOr<Server> StandBy(worker::Options options, const sigset_t& ends) {
  CancelSource cancel;
  options.cancel = cancel.token();
  train::BackgroundTask<Server> starting;
  WEFT_RETURN_IF_ERROR(
      starting.Begin("a coordinator that stands by", [&options] {
        return worker::CoordinatorServer::Start(std::move(options));
      }));
  while (!starting.is_done()) {
    if (TakeSignal(ends, kLook) == 0) continue;
    cancel.Cancel();
    starting.Take();
    return nullptr;
  }
  return *starting.Take();
}

// One that stood by ends where another has taken its place, to stand by again.
absl::Status AwaitSignal(const Server& server, bool stood_by,
                         const sigset_t& ends) {
  while (TakeSignal(ends, kLookForOther) == 0) {
    if (!stood_by || !server->has_stopped()) continue;
    return worker::WithExitCode(
        absl::UnavailableError("another coordinator hosts the job, or etcd has "
                               "refused a record"),
        worker::ExitCode::kPeerLost);
  }
  return absl::OkStatus();
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
  const bool stands_by = options.stands_by;
  if (stands_by && is_told) {
    std::printf("job %s: standing by\n", job.c_str());
    std::fflush(stdout);
  }
  WEFT_ASSIGN_OR_RETURN(
      const Server server,
      stands_by ? StandBy(std::move(options), ends)
                : worker::CoordinatorServer::Start(std::move(options)));
  if (server == nullptr) return 0;
  if (is_told) {
    std::printf("job %s meets at %s\n", job.c_str(), server->address().c_str());
    std::fflush(stdout);
  }
  WEFT_RETURN_IF_ERROR(AwaitSignal(server, stands_by, ends));
  const Instant deadline = SteadyClock().Now() + grace;
  while (SteadyClock().Now() < deadline && !server->AwaitNoMembers(kLook)) {
    if (TakeSignal(ends, absl::Milliseconds(10)) != 0) break;
  }
  return 0;
}

}  // namespace weft::launch
