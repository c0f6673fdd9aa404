// GroupEndpoint: what a rank says of itself and of its group, whichever backend
// connects it.

#ifndef WEFT_COLLECTIVES_GROUP_ENDPOINT_H_
#define WEFT_COLLECTIVES_GROUP_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/collectives/diagnosis.h"
#include "weft/rendezvous/store.h"

namespace weft::collectives {

// The terms on which a rank joins a group, whatever the backend.
struct GroupTerms {
  // No other group that its ranks ever had may have this name. Where ranks meet
  // in a store, it may be used again once they have met: their keys are then
  // removed.
  std::string name = "world";
  // How long to wait for the other ranks.
  absl::Duration connect_timeout = absl::Minutes(1);
  // Called while this rank waits for them: an error ends the wait within 2 s,
  // and is its result. Null: only connect_timeout ends the wait. Not called
  // later.
  std::function<absl::Status()> check_wait = nullptr;
  // A rank that says nothing for so long, though it is asked, is dead. (One of
  // this host, of the host backend, is watched instead.)
  absl::Duration dead_after = absl::Seconds(10);
  // How much this rank keeps of what one other rank has sent
  // (ProcessGroup::Send) before a Receive asks for it. Beyond that the sends of
  // that rank wait, and a Receive of another tag is kResourceExhausted, unless
  // a Receive under way takes some of what is kept.
  int64_t max_unasked_bytes = kMostUnaskedBytes;
  DiagnosisOptions diagnosis;
};

// The same for a rank that finds the others in a store.
struct GroupEndpoint : GroupTerms {
  // Must outlive the group and the groups made from it.
  rendezvous::Store* store = nullptr;
  int rank = 0;
  int size = 1;
};

// kInvalidArgument, for `call`, if it makes no sense.
inline absl::Status CheckEndpoint(const GroupEndpoint& endpoint,
                                  absl::string_view call) {
  if (endpoint.store == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": no store is given"));
  }
  if (endpoint.rank < 0 || endpoint.rank >= endpoint.size) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": wants a rank from 0 to size - 1, found ",
                     endpoint.rank, " of ", endpoint.size));
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_ENDPOINT_H_
