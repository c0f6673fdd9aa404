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

// Of a rank of any backend.
struct GroupTerms {
  // Of this group alone, among all that its ranks ever had. Where ranks meet in
  // a store: until they have, when their keys are removed from it.
  std::string name = "world";
  // How long to wait for the other ranks.
  absl::Duration connect_timeout = absl::Minutes(1);
  // Looked at while it waits for them: an error ends that within 2 s, and is
  // its result. Null: nothing but the time ends it. Not called later.
  std::function<absl::Status()> check_wait = nullptr;
  // A rank that says nothing for so long, though it is asked, is dead. (One of
  // this host, of the host backend, is watched instead.)
  absl::Duration dead_after = absl::Seconds(10);
  // How much this rank keeps of what one other has sent (ProcessGroup::Send)
  // and nobody has asked for. With more, that one's sends wait, and a Receive
  // of another tag is kResourceExhausted, unless one that goes on takes some of
  // it.
  int64_t max_unasked_bytes = kMostUnaskedBytes;
  DiagnosisOptions diagnosis;
};

// Of a rank that finds the others in a store.
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
