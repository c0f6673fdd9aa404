// OutcomeUnknown: whether a failed call's function may have run.

#ifndef WEFT_RPC_SESSION_OUTCOME_H_
#define WEFT_RPC_SESSION_OUTCOME_H_

#include "absl/status/status.h"

namespace weft::rpc {

// True if the function may have run, once at most: the call was given up, or
// the connection or the worker lost, while it was out. Nothing repeats such a
// call by itself.
bool OutcomeUnknown(const absl::Status& status);

// `status`, marked so.
absl::Status WithOutcomeUnknown(absl::Status status);
// `status`, as of a call that was answered: the mark is that of a nested one.
absl::Status WithOutcomeKnown(absl::Status status);

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_OUTCOME_H_
