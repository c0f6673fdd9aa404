#include "weft/worker/join_group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/host/host_backend.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/telemetry/logger.h"

namespace weft::worker {

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
  if (options.host.empty()) {  // else it shares no memory with other hosts
    host.own_stream.memory_socket =
        worker.group_streams().transport().memory_socket();
  }
  host.host = options.host;
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
