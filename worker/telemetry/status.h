// AskStatusPage: what a worker's status page shows, asked over the network.

#ifndef WEFT_WORKER_TELEMETRY_STATUS_H_
#define WEFT_WORKER_TELEMETRY_STATUS_H_

#include <string>

#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/telemetry/status_page.h"

namespace weft::worker {

// Sections of a worker's status page: its references (rref::References) and its
// distributed passes (dist_autograd::Contexts).
inline constexpr char kReferencesSection[] = "references";
inline constexpr char kPassesSection[] = "passes";

// StatusPage::RenderText of the worker, or RenderJson. Answered also where all
// threads of the worker's handlers are stuck. For members of the job.
// UNIMPLEMENTED by an agent that is no Worker's.
Future<std::string> AskStatusPage(const rpc::Target& target, bool as_json);

// What a worker answers it by: Agent::SetLocal. Both must outlive the agent;
// the page waits on a thread of `executor` for its sections.
struct StatusSource {
  telemetry::StatusPage* page;
  Executor* executor;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_TELEMETRY_STATUS_H_
