// ShardRequest: one request with its tensors, and the table that it is about;
// and several that came in one message, without the network.

#ifndef WEFT_PS_SHARD_SHARD_REQUESTS_H_
#define WEFT_PS_SHARD_SHARD_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/future.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/shard/table_shard.h"
#include "weft/tensor/tensor.h"

namespace weft::ps {

// Limits of one message. Its parts:
inline constexpr int kMostParts = 1024;
// Bytes of all that it pushes, and of all that it pulls.
inline constexpr int64_t kMostManyBytes = int64_t{64} << 20;

struct ShardRequest {
  std::shared_ptr<TableShard> shard;
  v1::Request request;
  // Undefined: it has none.
  Tensor push_keys, push_values, pull_keys;

  int64_t bytes() const;  // of the tensors
};

// Finds the shard, and makes the client that of the caller there.
using FindShard = absl::FunctionRef<absl::Status(ShardRequest&)>;
// As TableShard::Handle.
using ApplyRequest = absl::FunctionRef<Future<ShardReply>(ShardRequest)>;

// Applies each part by itself; its error, also of FindShard, is that part's
// only. `tensors` are three for each part. Ready once all parts are. A part
// that its table keeps, or that waits, does not keep the rest of the message in
// memory: else a few bytes that count would keep many that do not.
//   kInvalidArgument  nothing was applied: more than kMostParts, not three
//                     tensors for each, or more than kMostManyBytes
Future<std::vector<Result<ShardReply>>> HandleMany(
    v1::RequestMany request, const std::vector<std::optional<Tensor>>& tensors,
    FindShard find, ApplyRequest apply);

}  // namespace weft::ps

#endif  // WEFT_PS_SHARD_SHARD_REQUESTS_H_
