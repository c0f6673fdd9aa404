// JoinGroup: the process group of a worker and the others of its role.
//
//   auto group = weft::worker::JoinGroup(**worker);
//   weft::ExitIfError(group.status());
//   weft::ExitIfError((*group)->AllReduce(gradient));

#ifndef WEFT_WORKER_JOIN_GROUP_H_
#define WEFT_WORKER_JOIN_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/collectives/process_group.h"
#include "weft/worker/worker.h"

namespace weft::worker {

struct JoinGroupOptions {
  // Unique among the groups of the job's role.
  std::string name = "world";
  // Bytes of shared memory that ProcessGroup::Allocate may hand out on this
  // worker; reserved when the group is made. Holds the buckets of ddp.
  int64_t arena_bytes = int64_t{64} << 20;
  // Timeout of an operation that has none of its own.
  absl::Duration timeout = absl::Minutes(5);
  // In place of the worker's Options::host_id.
  std::string host_id;
};

// Called by every worker of the role; its ranks are those of the workers, on
// one host or several. Waits for all of them, --join-timeout at most. `worker`
// must outlive the group. Reports of stuck operations go into the worker's log.
// A rank of another host that is silent for Limits::dead_after is dead. Errors
// as those of collectives::ConnectHost; kFailedPrecondition for a worker of an
// elastic job, which does not know how many ranks there are.
absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> JoinGroup(
    Worker& worker, const JoinGroupOptions& options = {});

}  // namespace weft::worker

#endif  // WEFT_WORKER_JOIN_GROUP_H_
