// LongestWait: how long a rank waits for operations of a group that it has
// launched.

#ifndef WEFT_DDP_LONGEST_WAIT_H_
#define WEFT_DDP_LONGEST_WAIT_H_

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/collectives/process_group.h"

namespace weft::ddp {

// Twice the timeout of an operation, which is `timeout` or else the group's.
// Each operation ends at its own timeout, with an error that says which ranks
// it waited for; this wait ends after that, and also where a communication hook
// returned a Future that never ends.
inline absl::Duration LongestWait(const collectives::ProcessGroup& group,
                                  absl::optional<absl::Duration> timeout) {
  return 2 * timeout.value_or(group.timeout());
}

}  // namespace weft::ddp

#endif  // WEFT_DDP_LONGEST_WAIT_H_
