#include "weft/ps/service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/ps/server.h"
#include "weft/ps/table_shard.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/function.h"
#include "weft/telemetry/telemetry.h"

namespace weft::ps {
namespace {

constexpr char kNotServing[] = "weft.ps/not-serving";

absl::StatusOr<Server*> ServerOf(rpc::CallContext& context) {
  if (Server* server = context.Local<Server>()) return server;
  absl::Status status = absl::UnavailableError(
      absl::StrCat("'", context.agent().name(),
                   "' serves no tables: it is no worker of role ps, or "
                   "still waits for the others to join"));
  status.SetPayload(kNotServing, absl::Cord("1"));
  return status;
}

// A little before the caller gives up, so that it hears who was missing rather
// than only that time passed.
Instant AnswerBy(const rpc::CallContext& context) {
  const absl::Duration remaining = context.Remaining();
  return SteadyClock().Now() + remaining -
         std::min(remaining / 10, absl::Milliseconds(500));
}

Caller CallerOf(const rpc::CallContext& context) {
  return {context.peer().name, context.peer().key};
}

// The table, as the caller's `client` has it open; it becomes its number there.
absl::StatusOr<std::shared_ptr<TableShard>> OpenedBy(rpc::CallContext& context,
                                                     const std::string& table,
                                                     uint64_t& client) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  WEFT_ASSIGN_OR_RETURN(auto shard, server->Find(table));
  WEFT_ASSIGN_OR_RETURN(client, shard->NumberOf(CallerOf(context), client));
  return shard;
}

// A name that is proven is a role and a rank: trainer1.
absl::Status CheckRank(const rpc::Worker& peer, int rank) {
  if (peer.role.empty()) return absl::OkStatus();
  absl::string_view own = peer.name;
  if (absl::ConsumePrefix(&own, peer.role) && own == absl::StrCat(rank)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(peer.name, " (", peer.key.ToString(),
                   ") gives a part of a round as rank ", rank,
                   ": its certificate allows that of its own rank only"));
}

Tensor OrUndefined(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

}  // namespace

bool IsNotServing(const absl::Status& status) {
  return status.GetPayload(kNotServing).has_value();
}

absl::StatusOr<v1::TableStats> OpenTable(rpc::CallContext& context,
                                         const v1::TableSpec& spec,
                                         uint64_t client) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  WEFT_ASSIGN_OR_RETURN(auto shard,
                        server->OpenTable(spec, CallerOf(context), client));
  return shard->Stats();
}
WEFT_RPC(OpenTable);

absl::Status Initialize(rpc::CallContext& context, const std::string& table,
                        uint64_t client, const Tensor& values) {
  WEFT_ASSIGN_OR_RETURN(auto shard, OpenedBy(context, table, client));
  return shard->Initialize(values);
}
WEFT_RPC(Initialize);

absl::Status SetLearningRateScale(rpc::CallContext& context,
                                  const v1::LearningRate& rate) {
  uint64_t client = rate.client();
  WEFT_ASSIGN_OR_RETURN(auto shard, OpenedBy(context, rate.table(), client));
  return shard->SetLearningRateScale(rate.scale(), rate.from_round());
}
WEFT_RPC(SetLearningRateScale);

Future<ExchangeReply> Exchange(rpc::CallContext& context, v1::Request request,
                               const std::optional<Tensor>& push_keys,
                               const std::optional<Tensor>& push_values,
                               const std::optional<Tensor>& pull_keys) {
  uint64_t client = request.client();
  absl::StatusOr<std::shared_ptr<TableShard>> shard =
      OpenedBy(context, request.table(), client);
  if (shard.ok() && request.push() &&
      (*shard)->spec().mode() == v1::TableSpec::SYNC) {
    const absl::Status checked = CheckRank(context.peer(), request.rank());
    if (!checked.ok()) shard = checked;
  }
  if (!shard.ok()) return MakeReady<ExchangeReply>(shard.status());
  request.set_client(client);
  telemetry::FlightRecorder& recorder = context.agent().telemetry().recorder();
  recorder.Record(request.push() ? "ps.push" : "ps.pull", request.table(),
                  request.rank(), request.round());
  return (*shard)
      ->Handle(request, OrUndefined(push_keys), OrUndefined(push_values),
               OrUndefined(pull_keys), AnswerBy(context))
      .Then([shard = *shard, &recorder, name = request.table(),
             rank = request.rank()](const ShardReply& reply) {
        recorder.Record("ps.answer", name, rank, reply.reply.version());
        std::optional<Pulled> values;
        if (reply.values.defined()) values = Pulled{reply.values};
        return ExchangeReply(reply.reply, std::move(values));
      });
}
WEFT_RPC(Exchange);

absl::Status CheckCheckpointDirectory(rpc::CallContext& context,
                                      const std::string& directory) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  return server->CheckCheckpointDirectory(directory);
}
WEFT_RPC(CheckCheckpointDirectory);

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

absl::StatusOr<v1::ServerStats> Describe(rpc::CallContext& context) {
  WEFT_ASSIGN_OR_RETURN(Server * server, ServerOf(context));
  v1::ServerStats stats = server->Stats();
  stats.set_server(context.agent().name());
  return stats;
}
WEFT_RPC(Describe);

}  // namespace weft::ps

namespace weft::rpc {

void Codec<ps::Pulled>::Encode(const ps::Pulled& pulled, Encoder& encoder) {
  std::vector<Payload> unchanged;  // nobody need look whether they are
  internal::EncodeBorrowed(pulled.values, encoder, unchanged);
}

}  // namespace weft::rpc
