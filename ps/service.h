// The calls of a parameter server, as registered functions. Clients use
// client.h; this is what travels.
//
// Each finds its Server by CallContext::Local<Server>(). A worker that has
// none, or not yet, answers kUnavailable, of which IsNotServing() is true: a
// server is in the view a moment before it can answer.

#ifndef WEFT_PS_SERVICE_H_
#define WEFT_PS_SERVICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/replicated/service.h"
#include "weft/ps/shard/shard_requests.h"
#include "weft/ps/table_access.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// Functions about a table need one that the caller has opened, and act for the
// caller's own clients only: kPermissionDenied names the caller and the worker
// that has the client. Freeze, Save and Restore are for trainers and admins.

// For AgentOptions::access of a server of tables: the functions that ask
// `access` may be called by the roles that it names, beside those that may call
// all. Nothing for one without rules.
std::vector<rpc::AccessRule> AccessToTables(const TableAccess& access);

// Server::OpenTable, for the caller's `client`.
absl::StatusOr<v1::TableStats> OpenTable(rpc::CallContext& context,
                                         const v1::TableSpec& spec,
                                         uint64_t client);

// TableShard::Initialize.
absl::Status Initialize(rpc::CallContext& context, const std::string& table,
                        uint64_t client, const Tensor& values);

// TableShard::JoinClocks.
absl::StatusOr<v1::ClockReply> JoinClocks(rpc::CallContext& context,
                                          const v1::ClockRequest& request);

// TableShard::SetLearningRateScale.
absl::Status SetLearningRateScale(rpc::CallContext& context,
                                  const v1::LearningRate& rate);

// Pulled values. Nobody writes to them any more, so they are sent without a
// copy, although the Future that brought them holds them too.
struct Pulled {
  Tensor values;
};

// TableShard::Handle: a push, a pull or both. The tensors are those that
// proto/ps.proto names, as far as the request has them. A caller that proves
// its name, such as trainer1, gives parts of rounds, and ticks, as that rank
// only: else kPermissionDenied.
using ExchangeReply = std::tuple<v1::Reply, std::optional<Pulled>>;
Future<ExchangeReply> Exchange(rpc::CallContext& context, v1::Request request,
                               const std::optional<Tensor>& push_keys,
                               const std::optional<Tensor>& push_values,
                               const std::optional<Tensor>& pull_keys);

// The same for several tables, as HandleMany of shard_requests.h: each part of
// `request` is applied, refused and answered by itself. `tensors` has three for
// each part. The reply has the values of each part that pulls. It comes once
// all parts are answered; parts that still wait for a round at the deadline are
// refused.
using ManyReply = std::tuple<v1::ReplyMany, std::vector<std::optional<Pulled>>>;
Future<ManyReply> ExchangeMany(
    rpc::CallContext& context, v1::RequestMany request,
    const std::vector<std::optional<Tensor>>& tensors);

// ReplicatedServer::SetDrained, of the server with that WorkerKey::id; any
// server of the job can be asked. For admins.
absl::StatusOr<uint64_t> SetDrained(rpc::CallContext& context, uint32_t server,
                                    bool is_drained);

// Server::CheckCheckpointDirectory, Freeze, Save and Restore.
absl::Status CheckCheckpointDirectory(rpc::CallContext& context,
                                      const std::string& directory);
absl::Status Freeze(rpc::CallContext& context, const v1::SaveRequest& request);
absl::StatusOr<v1::SaveReply> Save(rpc::CallContext& context,
                                   const v1::SaveRequest& request);
absl::Status Restore(rpc::CallContext& context, const std::string& directory,
                     const std::string& checkpoint);

// With two replicas these three are called in this order, the first only if all
// copies of a partition are lost. Each returns at once; a change of the map
// shows that it was done.
//
// Makes all tables void, and deals what is lost anew: PartitionMap,
// "Restoring". Fails, and changes nothing, if there is no such checkpoint.
absl::Status BeginRestore(rpc::CallContext& context,
                          const std::string& directory,
                          const std::string& checkpoint, uint64_t generation);
// Server::RestoreReplicated. kUnavailable, to ask again, if that is not the
// newest map.
absl::StatusOr<uint64_t> RestoreReplicated(rpc::CallContext& context,
                                           const std::string& directory,
                                           const std::string& checkpoint,
                                           uint64_t generation,
                                           uint64_t map_epoch);
// To be called once all servers have loaded the checkpoint.
absl::Status EndRestore(rpc::CallContext& context,
                        const v1::EndRestoreRequest& request);

absl::StatusOr<v1::ServerStats> Describe(rpc::CallContext& context);
// Server::Loads.
absl::StatusOr<v1::ServerLoads> DescribeLoads(rpc::CallContext& context);

}  // namespace weft::ps

template <>
struct weft::rpc::Codec<weft::ps::Pulled> {
  static std::string TypeName() { return Codec<Tensor>::TypeName(); }
  static void Encode(const ps::Pulled& pulled, Encoder& encoder);
  static absl::Status Decode(Decoder& decoder, ps::Pulled& pulled) {
    return Codec<Tensor>::Decode(decoder, pulled.values);
  }
};

#endif  // WEFT_PS_SERVICE_H_
