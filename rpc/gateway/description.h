// ParseDescription: what a worker says of itself to who is none, checked.

#ifndef WEFT_RPC_GATEWAY_DESCRIPTION_H_
#define WEFT_RPC_GATEWAY_DESCRIPTION_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/proto/rpc.pb.h"

namespace weft::rpc {

// The DescribeReply of who answers at `address`, with a job and a name that are
// fit, a key that a coordinator gave, and up to kMaxFunctions functions, each
// with a name. kInternal says what is wrong with it, and where.
absl::StatusOr<v1::DescribeReply> ParseDescription(absl::string_view address,
                                                   absl::string_view bytes);

}  // namespace weft::rpc

#endif  // WEFT_RPC_GATEWAY_DESCRIPTION_H_
