// CallOptions: what one call of a collective may say besides its arguments.

#ifndef WEFT_COLLECTIVES_CALL_OPTIONS_H_
#define WEFT_COLLECTIVES_CALL_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace weft::collectives {

struct CallOptions {
  absl::optional<absl::Duration> timeout;  // none: the group's
  // A number that must be equal on all ranks besides the arguments, made of a
  // step and a bucket for instance: so a rank that skips one of two equal
  // operations is found.
  uint64_t label = 0;
};

// Options of a call that makes a group. All members give the same, but for
// `timeout` and `label`.
struct SubgroupOptions : CallOptions {
  // What ProcessGroup::Allocate of the new group may hand out on each rank, at
  // the backends that have memory for it (HostOptions::arena_bytes); none: as
  // much as in the group that it is made from. 0: nothing.
  absl::optional<int64_t> arena_bytes;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CALL_OPTIONS_H_
