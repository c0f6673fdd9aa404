// The calls of a parameter server of a job with two replicas, as registered
// functions. Each finds its ReplicatedServer by
// CallContext::Local<ReplicatedServer>(); a worker that has none, or not yet,
// answers kUnavailable, of which IsNotServing() is true.

#ifndef WEFT_PS_REPLICATED_SERVICE_H_
#define WEFT_PS_REPLICATED_SERVICE_H_

#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/proto/ps_load.pb.h"
#include "weft/ps/table_access.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/session/directory.h"

namespace weft::ps {

class ReplicatedServer;

// What a server of a job with one replica has (Agent::SetLocal) in place of a
// ReplicatedServer, so that a client that wants two is told at once.
struct OneReplica {};

// The error of a worker that serves no tables, or not yet.
absl::Status NotServing(const rpc::CallContext& context);
bool IsNotServing(const absl::Status& status);

// TableAccess::Check of what `peer` does with the table; of neither, that of a
// reader.
absl::Status CheckAccess(const TableAccess& access, const rpc::Worker& peer,
                         absl::string_view table, bool reads, bool writes);
// kPermissionDenied: `peer` proves its name, which is a role and a rank, such
// as trainer1, and that is not `rank`.
absl::Status CheckRank(const rpc::Worker& peer, int rank);
// A little before the caller gives up: it hears what was missing, rather than
// only that time passed.
Instant AnswerBy(const rpc::CallContext& context);

// --- For clients. ---

// ReplicatedServer::OpenTable, for the caller's `client`. `opened_at` grows
// from one opening of a worker to the next: see OpenClients.
absl::StatusOr<v1::TableStats> OpenReplicated(rpc::CallContext& context,
                                              const v1::TableSpec& spec,
                                              uint64_t client,
                                              uint64_t opened_at);
// ReplicatedTable::Push. A caller that proves its name, such as trainer1, gives
// parts of rounds as that rank only: else kPermissionDenied.
Future<v1::PushReply> PushSpans(rpc::CallContext& context,
                                const v1::PushRequest& request,
                                const std::vector<Bytes>& payloads);
// ReplicatedTable::Pull.
using PullSpansReply = std::tuple<v1::PullReply, std::vector<Bytes>>;
Future<PullSpansReply> PullSpans(rpc::CallContext& context,
                                 const v1::PullRequest& request,
                                 const std::vector<Bytes>& payloads);
// The newest map that the server knows. kUnavailable (IsNotServing): none yet.
// kFailedPrecondition: it has OneReplica.
absl::StatusOr<v1::MapReply> GetMap(rpc::CallContext& context);

// --- For those who even out what servers have to do. ---

// What this server has to do for each entry.
absl::StatusOr<v1::ServerLoads> LoadsOf(rpc::CallContext& context);
// RebalanceDriver::Balance; any server of the job can be asked. For admins.
Future<v1::BalanceReply> BalanceServers(rpc::CallContext& context,
                                        bool dry_run);

// --- For other servers. ---

absl::StatusOr<v1::LeasePing> PingServer(rpc::CallContext& context,
                                         const v1::LeasePing& ping);
absl::Status Replicate(rpc::CallContext& context, const v1::ReplicaBatch& batch,
                       const std::vector<Bytes>& payloads);

}  // namespace weft::ps

#endif  // WEFT_PS_REPLICATED_SERVICE_H_
