// CoordinatorLink: how a member's requests reach the coordinator: over the
// network, or within the process that hosts it.

#ifndef WEFT_RENDEZVOUS_COORDINATOR_LINK_H_
#define WEFT_RENDEZVOUS_COORDINATOR_LINK_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"

namespace weft::rendezvous {

// Thread-safety: thread-safe.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  // `method` is the last part of the gRPC path (Join), `request` the serialised
  // message; answered by a serialised reply within `timeout`.
  virtual Future<std::string> Call(absl::string_view method,
                                   std::string request,
                                   absl::Duration timeout) = 0;

  // For messages to people: "10.0.0.1:7000".
  virtual const std::string& address() const = 0;
};

// Runs things later.
//
// Thread-safety: thread-safe.
class TimerSource {
 public:
  virtual ~TimerSource() = default;

  // The driver whose clock measures delays, and by which a thread waits for
  // what a timer does.
  virtual Driver& driver() = 0;

  // Runs `fn` once, not before `delay` has passed; drops it unrun if the source
  // ends.
  virtual void RunAfter(absl::Duration delay,
                        absl::AnyInvocable<void() &&> fn) = 0;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_COORDINATOR_LINK_H_
