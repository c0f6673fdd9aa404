#include "weft/ps/replicated/service.h"

#include <algorithm>
#include <memory>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/frame.h"
#include "weft/ps/replicated/load_report.h"
#include "weft/ps/replicated/rebalance_driver.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/replicated/replicated_table.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/function.h"

namespace weft::ps {
namespace {

constexpr char kNotServing[] = "weft.ps/not-serving";

absl::StatusOr<ReplicatedServer*> ServerOf(const rpc::CallContext& context) {
  if (auto* server = context.Local<ReplicatedServer>()) return server;
  if (context.Local<OneReplica>() != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--replicas is 1 at ", context.agent().name(),
        ", which serves tables, "
        "and 2 at ",
        context.peer().name, "; start all workers with the same --replicas"));
  }
  return NotServing(context);
}

// The table, as the caller has opened it.
absl::StatusOr<std::shared_ptr<ReplicatedTable>> TableOf(
    rpc::CallContext& context, const std::string& name, uint64_t opening,
    uint64_t opened_at, TableAccess::Right right) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  WEFT_RETURN_IF_ERROR(CheckAccess(server->access(), context.peer(), name,
                                   right == TableAccess::Right::kRead,
                                   right == TableAccess::Right::kWrite));
  const WorkerKey caller = context.peer().key;
  WEFT_RETURN_IF_ERROR(server->CheckCaller({context.peer().name, caller}));
  WEFT_ASSIGN_OR_RETURN(auto table, server->Find(name));
  // A server that came later may not have heard of it.
  WEFT_RETURN_IF_ERROR(
      table->Open({caller, ClientIdOf(caller, opening), opened_at}));
  return table;
}

}  // namespace

absl::Status CheckAccess(const TableAccess& access, const rpc::Worker& peer,
                         absl::string_view table, bool reads, bool writes) {
  using Right = TableAccess::Right;
  if (reads || !writes) {
    WEFT_RETURN_IF_ERROR(
        access.Check(peer.name, peer.role, table, Right::kRead));
  }
  if (!writes) return absl::OkStatus();
  return access.Check(peer.name, peer.role, table, Right::kWrite);
}

absl::Status CheckRank(const rpc::Worker& peer, int rank) {
  if (peer.role.empty()) return absl::OkStatus();
  absl::string_view own = peer.name;
  if (absl::ConsumePrefix(&own, peer.role) && own == absl::StrCat(rank)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(peer.name, " (", peer.key.ToString(),
                   ") gives a part of a round, or ticks, as rank ", rank,
                   ": its certificate allows its own rank only"));
}

Instant AnswerBy(const rpc::CallContext& context) {
  const absl::Duration remaining = context.Remaining();
  return SteadyClock().Now() + remaining -
         std::min(remaining / 10, absl::Milliseconds(500));
}

absl::Status NotServing(const rpc::CallContext& context) {
  absl::Status status = absl::UnavailableError(
      absl::StrCat("'", context.agent().name(),
                   "' serves no tables: it is no worker of role ps, or "
                   "still waits for the others to join"));
  status.SetPayload(kNotServing, absl::Cord("1"));
  return status;
}

bool IsNotServing(const absl::Status& status) {
  return status.GetPayload(kNotServing).has_value();
}

absl::StatusOr<v1::TableStats> OpenReplicated(rpc::CallContext& context,
                                              const v1::TableSpec& spec,
                                              uint64_t client,
                                              uint64_t opened_at) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  WEFT_RETURN_IF_ERROR(
      server->access().CheckOpen(context.peer().name, context.peer().role,
                                 spec.name(), server->Find(spec.name()).ok()));
  return server->OpenTable(spec, {context.peer().name, context.peer().key},
                           client, opened_at);
}
WEFT_RPC(OpenReplicated);

Future<v1::PushReply> PushSpans(rpc::CallContext& context,
                                const v1::PushRequest& request,
                                const std::vector<Bytes>& payloads) {
  auto table = TableOf(context, request.table(), request.opening(),
                       request.opened_at(), TableAccess::Right::kWrite);
  const bool is_of_rank =
      std::any_of(
          request.spans().begin(), request.spans().end(),
          [](const v1::PushSpan& s) { return s.client() == kRounds; }) ||
      std::any_of(payloads.begin(), payloads.end(), &IsOfClock);
  if (table.ok() && is_of_rank) {
    const absl::Status checked = CheckRank(context.peer(), request.rank());
    if (!checked.ok()) table = checked;
  }
  // Others' pushes would be taken for this one's.
  for (const v1::PushSpan& span : request.spans()) {
    if (span.client() == kRounds || !table.ok()) continue;
    if (span.client() != ClientIdOf(context.peer().key, request.opening())) {
      table = absl::PermissionDeniedError(
          absl::StrCat(context.peer().name, " pushes to table '",
                       request.table(), "' as a client that is not its own"));
    }
  }
  if (!table.ok()) return MakeReady<v1::PushReply>(table.status());
  return (*table)
      ->Push({context.peer().name, context.peer().key}, request, payloads)
      .Then([table = *table](const v1::PushReply& reply) { return reply; });
}
WEFT_RPC(PushSpans);

Future<PullSpansReply> PullSpans(rpc::CallContext& context,
                                 const v1::PullRequest& request,
                                 const std::vector<Bytes>& payloads) {
  auto table = TableOf(context, request.table(), request.opening(),
                       request.opened_at(), TableAccess::Right::kRead);
  if (table.ok() && request.has_clock()) {
    absl::Status checked = CheckRank(context.peer(), request.rank());
    for (const v1::PullSpan& span : request.spans()) {
      if (span.client() == ClientIdOf(context.peer().key, request.opening())) {
        continue;
      }
      checked = absl::PermissionDeniedError(absl::StrCat(
          context.peer().name, " pulls from table '", request.table(),
          "' at the clock of a client that is not its own"));
    }
    if (!checked.ok()) table = checked;
  }
  if (!table.ok()) return MakeReady<PullSpansReply>(table.status());
  return (*table)
      ->Pull(request, payloads, AnswerBy(context))
      .Then([table = *table](const ReplicatedTable::Pulled& pulled) {
        return PullSpansReply(pulled.reply, pulled.values);
      });
}
WEFT_RPC(PullSpans);

absl::StatusOr<v1::MapReply> GetMap(rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  v1::MapReply reply;
  reply.set_map(server->encoded_map());
  if (reply.map().empty()) return NotServing(context);
  return reply;
}
WEFT_RPC(GetMap);

absl::StatusOr<v1::ServerLoads> LoadsOf(rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  v1::ServerLoads loads;
  AddEntries(server->Loads(), loads);
  return loads;
}
WEFT_RPC(LoadsOf);
WEFT_RPC_ROLES(LoadsOf, "ps", "admin");

Future<v1::BalanceReply> BalanceServers(rpc::CallContext& context,
                                        bool dry_run) {
  const auto server = ServerOf(context);
  if (!server.ok()) return MakeReady<v1::BalanceReply>(server.status());
  return (*server)->Balance(dry_run);
}
WEFT_RPC(BalanceServers);
WEFT_RPC_ROLES(BalanceServers, "admin");

absl::StatusOr<v1::LeasePing> PingServer(rpc::CallContext& context,
                                         const v1::LeasePing& ping) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  return server->OnPing(context.peer().key, ping);
}
WEFT_RPC_INLINE(PingServer);
WEFT_RPC_ROLES(PingServer, "ps");

absl::Status Replicate(rpc::CallContext& context, const v1::ReplicaBatch& batch,
                       const std::vector<Bytes>& payloads) {
  WEFT_ASSIGN_OR_RETURN(ReplicatedServer * server, ServerOf(context));
  return server->OnBatch(context.peer().key, batch, payloads);
}
WEFT_RPC(Replicate);
WEFT_RPC_ROLES(Replicate, "ps");

}  // namespace weft::ps
