// What the sources of ReplicatedTableClient have in common: which errors end an
// operation, and how calls name their parts. For table_client*.cc.

#ifndef WEFT_PS_REPLICATED_TABLE_CLIENT_CALLS_H_
#define WEFT_PS_REPLICATED_TABLE_CLIENT_CALLS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/core/replication/replication.h"

namespace weft::ps::replicated_calls {

// Windows; those of shards have ids above them.
inline constexpr uint64_t kChanges = 1;
inline constexpr uint64_t kPushes = 2;

// Whether sending it again, to any server, gives the same error. kAborted: this
// worker is out of its job.
inline bool IsForGood(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsInvalidArgument(status) ||
         absl::IsPermissionDenied(status) || absl::IsCancelled(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status) ||
         absl::IsDataLoss(status);
}

inline absl::Status StatusOf(const v1::SpanAnswer& span) {
  return {static_cast<absl::StatusCode>(span.status()), span.message()};
}

inline void SetKey(WorkerKey key, v1::Key* to) {
  to->set_id(key.id);
  to->set_epoch(key.epoch);
}

}  // namespace weft::ps::replicated_calls

#endif  // WEFT_PS_REPLICATED_TABLE_CLIENT_CALLS_H_
