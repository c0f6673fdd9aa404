#include "weft/worker/join_group.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/view.h"
#include "weft/rendezvous/worker_key.h"
#include "weft/telemetry/logger.h"

namespace weft::worker {

namespace {

// Checks against membership that the ranks of a role are alive: the ones that
// are members now, as a rank that comes back later is not of their group.
std::function<absl::Status(int)> CheckMembers(rendezvous::Membership& members,
                                              const std::string& role,
                                              int size) {
  std::vector<std::optional<rendezvous::WorkerKey>> keys(size);
  const auto now = members.view();
  for (int rank = 0; rank < size; ++rank) {
    const rendezvous::Member* const member =
        now->Find(absl::StrCat(role, rank));
    if (member != nullptr) keys[rank] = member->key;
  }
  return [&members, keys = std::move(keys)](int rank) -> absl::Status {
    if (!keys[rank].has_value()) return absl::OkStatus();
    const auto view = members.view();
    if (!view->IsGone(*keys[rank])) return absl::OkStatus();
    for (const rendezvous::Departed& departed : view->departed()) {
      if (departed.key == *keys[rank]) {
        return absl::UnavailableError(departed.reason);
      }
    }
    return absl::UnavailableError("another has taken its place");
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinGroup(
    Worker& worker, const JoinGroupOptions& options) {
  const Options& own = worker.options();
  if (own.is_elastic()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "JoinGroup: ", own.name(),
        " is of an elastic job, in which the number of ranks is not known; ",
        "start the job with --servers and --trainers"));
  }
  collectives::HostOptions host;
  host.store = &worker.membership().store();
  host.name = absl::StrCat(own.role, "/", options.name);
  host.rank = own.rank;
  host.size = own.role == "ps" ? own.servers : own.trainers;
  host.arena_bytes = options.arena_bytes;
  host.connect_timeout = own.join_timeout;
  host.memory_budget = worker.memory_budget();
  host.streams = &worker.group_streams();
  host.own_stream = {worker.self().name, worker.self().address};
  host.host = options.host_id.empty() ? own.host_id : options.host_id;
  if (host.host.empty()) {  // else it shares no memory with other hosts
    host.own_stream.memory_socket =
        worker.group_streams().transport().memory_socket();
  }
  host.dead_after = own.limits.dead_after;
  host.check_member = CheckMembers(worker.membership(), own.role, host.size);
  host.diagnosis.report = [&worker](absl::string_view report) {
    WEFT_LOG(worker.telemetry().logger(), Warning, report);
  };
  WEFT_ASSIGN_OR_RETURN(host.directory, net::DefaultSocketDirectory(own.job));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<collectives::Backend> backend,
                        collectives::ConnectHost(std::move(host)));
  collectives::GroupOptions group;
  group.name = absl::StrCat(own.role, "/", options.name);
  group.timeout = options.timeout;
  group.recorder = &worker.telemetry().recorder();
  return collectives::ProcessGroup::Create(std::move(backend),
                                           std::move(group));
}

}  // namespace weft::worker
