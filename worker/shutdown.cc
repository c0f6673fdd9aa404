#include "weft/worker/shutdown.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/reworded.h"
#include "weft/base/said_by.h"

namespace weft::worker {

void ShutdownReport::AddLeaks(const std::vector<rpc::Leak>& leaks) {
  for (const rpc::Leak& left : leaks) {
    (left.is_stream ? leaked_streams : leaked_objects)
        .push_back(left.ToString());
  }
}

absl::Status ShutdownReport::LeakStatus() const {
  if (leaked_objects.empty() && leaked_streams.empty()) return absl::OkStatus();
  std::vector<std::string> all = leaked_objects;
  all.insert(all.end(), leaked_streams.begin(), leaked_streams.end());
  return absl::FailedPreconditionError(absl::StrCat(
      "wanted no object and no stream left, found ", absl::StrJoin(all, ", "),
      "; call rpc::Release of each handle, and read or cancel each stream, "
      "before Shutdown"));
}

absl::Status ShutdownReport::status() const {
  const absl::Status leaks = strict_leaks ? LeakStatus() : absl::OkStatus();
  for (const Phase& phase : phases) {
    if (phase.status.ok()) continue;
    std::string message = SaidBy(phase.name, phase.status.message());
    if (!leaks.ok()) absl::StrAppend(&message, "; ", leaks.message());
    return Reworded(phase.status, message);
  }
  return leaks;
}

std::string ShutdownReport::ToString() const {
  std::string text =
      absl::StrJoin(phases, "; ", [](std::string* out, const Phase& phase) {
        absl::StrAppend(out, phase.name, " ",
                        phase.status.ok() ? "ok" : phase.status.message(), " (",
                        absl::FormatDuration(
                            absl::Trunc(phase.took, absl::Milliseconds(1))),
                        ")");
      });
  const auto add = [&](const char* what, const std::vector<std::string>& all) {
    if (all.empty()) return;
    absl::StrAppend(&text, "; ", what, ": ", absl::StrJoin(all, ", "));
  };
  add("cut", pending_calls);
  add("objects left", leaked_objects);
  add("streams left", leaked_streams);
  return text;
}

ShutdownReport RunShutdown(const ShutdownOptions& options, const Clock& clock,
                           const ShutdownSteps& steps) {
  ShutdownReport report;
  report.strict_leaks = options.strict_leaks;
  const Instant deadline = clock.Now() + options.deadline;
  bool may_wait = options.graceful;
  const auto phase = [&](const char* name,
                         absl::FunctionRef<absl::Status(absl::Duration)> run) {
    const Instant start = clock.Now();
    const absl::Status status =
        run(may_wait ? std::max(deadline - start, absl::ZeroDuration())
                     : absl::ZeroDuration());
    may_wait = may_wait && status.ok();
    report.phases.push_back({name, options.graceful ? status : absl::OkStatus(),
                             clock.Now() - start});
  };
  if (options.graceful) phase("quiesce", steps.quiesce);
  if (may_wait) phase("drain", steps.drain);
  phase("release", [&](absl::Duration timeout) {
    return steps.release(timeout, &report);
  });
  phase("leave", steps.leave);
  return report;
}

}  // namespace weft::worker
