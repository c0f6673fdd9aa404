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
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

bool IsNotServing(const absl::Status& status);

// What is done with a table needs one that the caller has opened, and is done
// for the caller's own clients only: kPermissionDenied names the caller and
// whose the client is. Save and Restore are for trainers and admins.

// Server::OpenTable, for the caller's `client`.
absl::StatusOr<v1::TableStats> OpenTable(rpc::CallContext& context,
                                         const v1::TableSpec& spec,
                                         uint64_t client);

// TableShard::Initialize.
absl::Status Initialize(rpc::CallContext& context, const std::string& table,
                        uint64_t client, const Tensor& values);

// TableShard::SetLearningRateScale.
absl::Status SetLearningRateScale(rpc::CallContext& context,
                                  const v1::LearningRate& rate);

// Pulled values, which nobody writes to any more: so they travel as they lie,
// also while the Future that brought them holds them too.
struct Pulled {
  Tensor values;
};

// TableShard::Handle: a push, a pull or both. The tensors that proto/ps.proto
// names, as far as the request has them. A caller that proves its name, such as
// trainer1, gives parts of rounds as that rank only: else kPermissionDenied.
using ExchangeReply = std::tuple<v1::Reply, std::optional<Pulled>>;
Future<ExchangeReply> Exchange(rpc::CallContext& context, v1::Request request,
                               const std::optional<Tensor>& push_keys,
                               const std::optional<Tensor>& push_values,
                               const std::optional<Tensor>& pull_keys);

// Server::CheckCheckpointDirectory, Save and Restore.
absl::Status CheckCheckpointDirectory(rpc::CallContext& context,
                                      const std::string& directory);
absl::StatusOr<v1::SaveReply> Save(rpc::CallContext& context,
                                   const v1::SaveRequest& request);
absl::Status Restore(rpc::CallContext& context, const std::string& directory,
                     const std::string& checkpoint);

absl::StatusOr<v1::ServerStats> Describe(rpc::CallContext& context);

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
