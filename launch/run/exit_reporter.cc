// ExitReporter: see the header.

#include "weft/launch/run/exit_reporter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/process_watch.h"

namespace weft::launch {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr absl::Duration kAtTheEnd = absl::Seconds(1);

}  // namespace

absl::Status ExitReporter::Report(const std::string& name, pid_t pid,
                                  const Exit& exit) {
  WEFT_ASSIGN_OR_RETURN(rendezvous::CoordinatorLink* const link,
                        channel_.Get());
  rendezvous::v1::ReportExitRequest request;
  request.set_job(channel_.job());
  request.set_name(name);
  if (const auto launcher = rendezvous::ThisProcess()) {
    request.mutable_process()->set_pid(static_cast<uint32_t>(pid));
    request.mutable_process()->set_space(launcher->space());
  }
  request.set_reason(absl::StrCat("its process has ended: ", exit.ToString()));
  reports_.push_back(
      link->Call("ReportExit", request.SerializeAsString(), kAnswerTime));
  return absl::OkStatus();
}

ExitReporter::~ExitReporter() {
  const Instant deadline = SteadyClock().Now() + kAtTheEnd;
  for (const Future<std::string>& report : reports_) {
    (void)report.Wait(
        std::max(deadline - SteadyClock().Now(), absl::ZeroDuration()));
  }
}

}  // namespace weft::launch
