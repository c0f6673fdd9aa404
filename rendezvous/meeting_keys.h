// LeaveMeeting, AwaitOthersLeft: how the keys by which the ranks of a group
// have met leave the store.

#ifndef WEFT_RENDEZVOUS_MEETING_KEYS_H_
#define WEFT_RENDEZVOUS_MEETING_KEYS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/rendezvous/store.h"

namespace weft::rendezvous {

// Called once by each of `ranks` ranks when it needs the keys of the meeting
// `name` no more: the last one removes `keys`, which must be those of all
// ranks, and what counted the calls. Until it has returned on every rank the
// same keys must not be used again. An error of the store leaves keys behind,
// and harms nothing else.
absl::Status LeaveMeeting(Store& store, absl::string_view name, int ranks,
                          const std::vector<std::string>& keys,
                          absl::Duration timeout);

// Before this rank's LeaveMeeting: returns once all the others have returned
// from theirs, or after `timeout`. For a rank whose end may take the store
// along, when it has written what the others must read.
void AwaitOthersLeft(Store& store, absl::string_view name, int ranks,
                     absl::Duration timeout);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_MEETING_KEYS_H_
