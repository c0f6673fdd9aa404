// Recording: how the history of Variables travels with a message, as an
// attachment with its context, its number and its lineage.

#ifndef WEFT_DIST_AUTOGRAD_RECORDING_H_
#define WEFT_DIST_AUTOGRAD_RECORDING_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/autograd/variable.h"
#include "weft/base/bytes.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_table.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/codec.h"

namespace weft::dist_autograd {

inline constexpr absl::string_view kRecordedKind = "weft.dist_autograd";

// The most intervals of a lineage that a message can carry.
inline constexpr size_t kMostIntervals = size_t{1} << 12;

// What a recorded request to `to` carries. `function`: its name, for reports.
std::unique_ptr<rpc::Attachment> StageRequest(std::shared_ptr<Context> context,
                                              WorkerKey to,
                                              std::string function);

// What `bytes`, of kind kRecordedKind, bring to a worker with `contexts`.
// `join(id)`: the context is new here, and did not come from its creator, which
// does not know yet that this worker has part in it.
absl::StatusOr<std::unique_ptr<rpc::ReceivedAttachment>> TakeRecorded(
    const std::shared_ptr<ContextTable>& contexts,
    const rpc::CodecContext& message, const Bytes& bytes,
    absl::FunctionRef<void(ContextId)> join);

// The context of the call that `call` serves. kFailedPrecondition if it was not
// recorded.
absl::StatusOr<std::shared_ptr<Context>> ContextOf(
    const rpc::CallContext& call);

// For Codec<Variable>: writes the history of `variable` into the message of
// `encoder`, as its slot; and makes the variable of a value that came.
void EncodeSlot(const Variable& variable, rpc::Encoder& encoder);
absl::Status DecodeSlot(rpc::Decoder& decoder, Tensor value,
                        Variable& variable);

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_RECORDING_H_
