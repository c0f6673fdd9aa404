// Launcher: see the header.

#include "weft/launch/run/launcher.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "weft/base/status_macros.h"
#include "weft/launch/run/event_log.h"
#include "weft/launch/run/job.h"
#include "weft/launch/run/keeper.h"
#include "weft/launch/run/plan.h"
#include "weft/launch/run/rank_mark.h"
#include "weft/launch/run/signal_scope.h"

namespace weft::launch {

absl::StatusOr<int> Run(LaunchOptions options) {
  // Both outlive each start of the ranks: no signal is lost between two, and
  // the keeper is forked before anything here may start a thread.
  SignalScope signals;
  const std::string launcher = DrawLauncherId();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Keeper> keeper,
                        Keeper::Start(launcher, options.sweep));
  if (options.make_directory) {
    WEFT_ASSIGN_OR_RETURN(options.directory, options.make_directory());
  }
  EventLog events(options.job, options.node);
  if (!options.events_file.empty()) {
    WEFT_RETURN_IF_ERROR(events.Open(options.events_file));
  }
  std::ostream& err = options.err != nullptr ? *options.err : std::cerr;
  const std::string warning = CoresWarning(
      options,
      static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)));
  if (!warning.empty()) err << "weft: " << warning << std::endl;
  for (int restart = 0;; ++restart) {
    Job job(options, launcher, restart, signals, *keeper, events);
    const absl::StatusOr<int> code = job.Run();
    if (!code.ok() || restart >= options.max_restarts ||
        !job.may_start_again()) {
      return code;
    }
    err << "weft: starting all ranks again, restart " << restart + 1 << " of "
        << options.max_restarts << "\n";
    err.flush();
  }
}

}  // namespace weft::launch
