// LastCall: which collective operation or remote call an error tells of.
//
// Weft's errors name an operation of a group as "AllReduce #656, rank 0 of
// group trainer/world", what another rank did last as "rank 2 has ended; it
// last called AllReduce #655", and a remote call by its function,
// "weft::ps::Exchange".

#ifndef WEFT_LAUNCH_FAILURE_LAST_CALL_H_
#define WEFT_LAUNCH_FAILURE_LAST_CALL_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/launch/failure/root_cause.h"

namespace weft::launch {

// The call of the rank that wrote `error`, as "AllReduce #656 of group
// trainer/world"; empty if `error` names none.
std::string CallIn(absl::string_view error);

// What `error`, which another has written, says of the last operation of
// `rank`: "AllReduce #655"; empty if nothing.
std::string CallOfPeerIn(absl::string_view error, absl::string_view rank,
                         absl::Span<const RoleSize> roles);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_LAST_CALL_H_
