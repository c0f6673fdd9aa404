#include "weft/ps/service.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/ps/replicated/replicated_server.h"
#include "weft/ps/server.h"
#include "weft/ps/shard/shard_requests.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/function.h"
#include "weft/telemetry/telemetry.h"

namespace weft::ps {
namespace {

absl::StatusOr<Server*> ServerOf(rpc::CallContext& context) {
  if (Server* server = context.Local<Server>()) return server;
  return NotServing(context);
}

Caller CallerOf(const rpc::CallContext& context) {
  return {context.peer().name, context.peer().key};
}

// The table, as the caller's `client` has it open; it becomes its number there.
absl::StatusOr<std::shared_ptr<TableShard>> OpenedBy(rpc::CallContext& context,
                                                     const std::string& table,
                                                     bool reads, bool writes,
                                                     uint64_t& client) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  WEFT_RETURN_IF_ERROR(CheckAccess(server->options().access, context.peer(),
                                   table, reads, writes));
  WEFT_ASSIGN_OR_RETURN(auto shard, server->Find(table));
  WEFT_ASSIGN_OR_RETURN(client, shard->NumberOf(CallerOf(context), client));
  return shard;
}

Tensor OrUndefined(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

}  // namespace

std::vector<rpc::AccessRule> AccessToTables(const TableAccess& access) {
  if (access.is_open()) return {};
  std::set<std::string> named = access.roles();
  named.insert({"ps", "trainer", "admin"});
  const net::Roles roles = net::Roles::Only({named.begin(), named.end()});
  std::vector<rpc::AccessRule> rules;
  for (const char* function :
       {"OpenTable", "Initialize", "JoinClocks", "SetLearningRateScale",
        "Exchange", "ExchangeMany", "OpenReplicated", "PushSpans", "PullSpans",
        "GetMap"}) {
    rules.push_back({absl::StrCat("weft::ps::", function), roles});
  }
  return rules;
}

absl::StatusOr<v1::TableStats> OpenTable(rpc::CallContext& context,
                                         const v1::TableSpec& spec,
                                         uint64_t client) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  if (server->replicated() != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--replicas is 2 at ", context.agent().name(),
        ", which serves tables, "
        "and 1 at ",
        context.peer().name, "; start all workers with the same --replicas"));
  }
  WEFT_RETURN_IF_ERROR(server->options().access.CheckOpen(
      context.peer().name, context.peer().role, spec.name(),
      server->Find(spec.name()).ok()));
  WEFT_ASSIGN_OR_RETURN(auto shard,
                        server->OpenTable(spec, CallerOf(context), client));
  return shard->Stats();
}
WEFT_RPC(OpenTable);

absl::Status Initialize(rpc::CallContext& context, const std::string& table,
                        uint64_t client, const Tensor& values) {
  WEFT_ASSIGN_OR_RETURN(auto shard, OpenedBy(context, table, /*reads=*/false,
                                             /*writes=*/true, client));
  return shard->Initialize(values);
}
WEFT_RPC(Initialize);

absl::StatusOr<v1::ClockReply> JoinClocks(rpc::CallContext& context,
                                          const v1::ClockRequest& request) {
  WEFT_RETURN_IF_ERROR(CheckRank(context.peer(), request.rank()));
  v1::ClockRequest wanted = request;
  uint64_t client = request.client();
  WEFT_ASSIGN_OR_RETURN(auto shard,
                        OpenedBy(context, request.table(), /*reads=*/true,
                                 /*writes=*/false, client));
  wanted.set_client(client);
  return shard->JoinClocks(CallerOf(context), wanted);
}
WEFT_RPC(JoinClocks);

absl::Status SetLearningRateScale(rpc::CallContext& context,
                                  const v1::LearningRate& rate) {
  uint64_t client = rate.client();
  WEFT_ASSIGN_OR_RETURN(auto shard,
                        OpenedBy(context, rate.table(), /*reads=*/false,
                                 /*writes=*/true, client));
  return shard->SetLearningRateScale(rate.scale(), rate.from_round());
}
WEFT_RPC(SetLearningRateScale);

namespace {

// Finds the table, and makes the client that of the caller there.
absl::Status Find(rpc::CallContext& context, ShardRequest& one) {
  uint64_t client = one.request.client();
  WEFT_ASSIGN_OR_RETURN(
      one.shard, OpenedBy(context, one.request.table(), one.request.pull(),
                          one.request.push(), client));
  one.request.set_client(client);
  const bool is_part =
      one.request.push() && one.shard->spec().mode() == v1::TableSpec::SYNC;
  if (!is_part && !one.request.has_clock()) return absl::OkStatus();
  return CheckRank(context.peer(), one.request.rank());
}

Future<ShardReply> Apply(rpc::CallContext& context, ShardRequest one) {
  telemetry::FlightRecorder& recorder = context.agent().telemetry().recorder();
  const v1::Request& request = one.request;
  recorder.Record(request.push() ? "ps.push" : "ps.pull", request.table(),
                  request.rank(), request.round());
  return one.shard
      ->Handle(request, std::move(one.push_keys), std::move(one.push_values),
               std::move(one.pull_keys), AnswerBy(context))
      .Then([shard = one.shard, &recorder, name = request.table(),
             rank = request.rank()](const ShardReply& reply) {
        recorder.Record("ps.answer", name, rank, reply.reply.version());
        return reply;
      });
}

std::optional<Pulled> PulledOf(const ShardReply& reply) {
  if (!reply.values.defined()) return std::nullopt;
  return Pulled{reply.values};
}

}  // namespace

Future<ExchangeReply> Exchange(rpc::CallContext& context, v1::Request request,
                               const std::optional<Tensor>& push_keys,
                               const std::optional<Tensor>& push_values,
                               const std::optional<Tensor>& pull_keys) {
  const absl::Status failed = WEFT_FAILPOINT("ps/exchange");
  if (!failed.ok()) return MakeReady<ExchangeReply>(failed);
  ShardRequest one{nullptr, std::move(request), OrUndefined(push_keys),
                   OrUndefined(push_values), OrUndefined(pull_keys)};
  const absl::Status found = Find(context, one);
  if (!found.ok()) return MakeReady<ExchangeReply>(found);
  return Apply(context, std::move(one)).Then([](const ShardReply& reply) {
    return ExchangeReply(reply.reply, PulledOf(reply));
  });
}
WEFT_RPC(Exchange);

namespace {

ManyReply JoinReplies(const std::vector<Result<ShardReply>>& results) {
  ManyReply all;
  for (const Result<ShardReply>& result : results) {
    v1::ReplyMany::Part& part = *std::get<0>(all).add_parts();
    std::optional<Pulled>& values = std::get<1>(all).emplace_back();
    if (result.ok()) {
      *part.mutable_reply() = result->reply;
      values = PulledOf(*result);
    } else {
      part.set_status(result.status().raw_code());
      part.set_message(std::string(result.status().message()));
    }
  }
  return all;
}

}  // namespace

Future<ManyReply> ExchangeMany(
    rpc::CallContext& context, v1::RequestMany request,
    const std::vector<std::optional<Tensor>>& tensors) {
  const absl::Status serves = ServerOf(context).status();
  if (!serves.ok()) return MakeReady<ManyReply>(serves);
  return HandleMany(
             std::move(request), tensors,
             [&](ShardRequest& part) { return Find(context, part); },
             [&](ShardRequest part) { return Apply(context, std::move(part)); })
      .Then(JoinReplies);
}
WEFT_RPC(ExchangeMany);

absl::Status CheckCheckpointDirectory(rpc::CallContext& context,
                                      const std::string& directory) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  return server->CheckCheckpointDirectory(directory);
}
WEFT_RPC(CheckCheckpointDirectory);

absl::Status Freeze(rpc::CallContext& context, const v1::SaveRequest& request) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  const absl::Status frozen = server->Freeze(request);
  context.agent().telemetry().recorder().Record(
      "ps.freeze", request.attempt(), request.version(), frozen.raw_code());
  return frozen;
}
WEFT_RPC(Freeze);
WEFT_RPC_ROLES(Freeze, "trainer", "admin");

absl::StatusOr<v1::SaveReply> Save(rpc::CallContext& context,
                                   const v1::SaveRequest& request) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  telemetry::FlightRecorder& recorder = context.agent().telemetry().recorder();
  recorder.Record("ps.save", request.attempt(), request.version());
  auto saved = server->Save(request);
  recorder.Record("ps.saved", request.attempt(), request.version(),
                  saved.status().raw_code());
  return saved;
}
WEFT_RPC(Save);
WEFT_RPC_ROLES(Save, "trainer", "admin");

absl::Status Restore(rpc::CallContext& context, const std::string& directory,
                     const std::string& checkpoint) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  telemetry::FlightRecorder& recorder = context.agent().telemetry().recorder();
  recorder.Record("ps.restore", checkpoint);
  absl::Status restored = server->Restore(directory, checkpoint);
  recorder.Record("ps.restored", checkpoint, 0, restored.raw_code());
  return restored;
}
WEFT_RPC(Restore);
WEFT_RPC_ROLES(Restore, "trainer", "admin");

absl::Status BeginRestore(rpc::CallContext& context,
                          const std::string& directory,
                          const std::string& checkpoint, uint64_t generation) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  const auto tables = server->replicated();
  if (tables == nullptr) return NotServing(context);
  WEFT_RETURN_IF_ERROR(server->CheckCheckpoint(directory, checkpoint));
  context.agent().telemetry().recorder().Record("ps.begin_restore", checkpoint);
  MapChange begin;
  begin.kind = MapChange::Kind::kBeginRestore;
  begin.generation = generation;
  tables->Propose(begin);
  return absl::OkStatus();
}
WEFT_RPC(BeginRestore);
WEFT_RPC_ROLES(BeginRestore, "trainer", "admin");

absl::StatusOr<uint64_t> RestoreReplicated(rpc::CallContext& context,
                                           const std::string& directory,
                                           const std::string& checkpoint,
                                           uint64_t generation,
                                           uint64_t map_epoch) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  const auto tables = server->replicated();
  if (tables == nullptr) return NotServing(context);
  WEFT_RETURN_IF_ERROR(tables->CheckMap(map_epoch));
  telemetry::FlightRecorder& recorder = context.agent().telemetry().recorder();
  recorder.Record("ps.restore", checkpoint);
  auto restored = server->RestoreReplicated(directory, checkpoint, generation);
  recorder.Record("ps.restored", checkpoint, 0, restored.status().raw_code());
  return restored;
}
WEFT_RPC(RestoreReplicated);
WEFT_RPC_ROLES(RestoreReplicated, "trainer", "admin");

absl::Status EndRestore(rpc::CallContext& context,
                        const v1::EndRestoreRequest& request) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  const auto tables = server->replicated();
  if (tables == nullptr) return NotServing(context);
  MapChange end;
  end.kind = MapChange::Kind::kEndRestore;
  end.generation = request.generation();
  for (const v1::EndRestoreRequest::Loaded& loaded : request.loaded()) {
    end.loaded[{loaded.server().id(), loaded.server().epoch()}] =
        loaded.map_epoch();
  }
  tables->Propose(end);
  return absl::OkStatus();
}
WEFT_RPC(EndRestore);
WEFT_RPC_ROLES(EndRestore, "trainer", "admin");

absl::StatusOr<uint64_t> SetDrained(rpc::CallContext& context, uint32_t id,
                                    bool is_drained) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  const auto tables = server->replicated();
  if (tables == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(context.agent().name(),
                     " has one replica of each partition: only a "
                     "job of --replicas=2 can move them"));
  }
  context.agent().telemetry().recorder().Record("ps.drain", "", id, is_drained);
  return tables->SetDrained(id, is_drained);
}
WEFT_RPC(SetDrained);
WEFT_RPC_ROLES(SetDrained, "admin");

absl::StatusOr<v1::ServerStats> Describe(rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  v1::ServerStats stats = server->Stats();
  stats.set_server(context.agent().name());
  return stats;
}
WEFT_RPC(Describe);

absl::StatusOr<v1::ServerLoads> DescribeLoads(rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  return server->Loads();
}
WEFT_RPC(DescribeLoads);

}  // namespace weft::ps

namespace weft::rpc {

void Codec<ps::Pulled>::Encode(const ps::Pulled& pulled, Encoder& encoder) {
  std::vector<Payload> unchanged;  // nobody need look whether they are
  internal::EncodeBorrowed(pulled.values, encoder, unchanged);
}

}  // namespace weft::rpc
