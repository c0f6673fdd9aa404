// WaitReports: when a member says that it waits for something of the
// coordinator, and how.
//
// It says so once a wait has lasted 2 s, again each time that it has lasted
// twice as long, and at its end if it was said before: "Wait for key K of the
// store still waits after 2s: nobody has set it". `weft run` reads these lines:
// launch/stuck/wait_line.h.

#ifndef WEFT_RENDEZVOUS_CLIENT_WAIT_REPORTS_H_
#define WEFT_RENDEZVOUS_CLIENT_WAIT_REPORTS_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"

namespace weft::rendezvous {

// Called on the thread that waits; must not block.
using WaitReport = std::function<void(absl::string_view text)>;

// A name that others have chosen, as a line of a log has it: one word.
std::string WordOf(absl::string_view name);

// Thread-safety: one thread at a time.
class WaitReports {
 public:
  // Of one wait, which begins now; `what`: "Wait for key K of the store". A
  // null `report`, which must outlive it: nothing is said.
  WaitReports(const WaitReport& report, std::string what, Instant now);

  // When it is to be said next.
  Instant due() const { return due_; }
  // The wait goes on; `why`: what is missing.
  void OnTime(Instant now, absl::string_view why);
  void End(Instant now, const absl::Status& status);

 private:
  std::string Head(absl::string_view verb, Instant now) const;

  const WaitReport& report_;
  const std::string what_;
  const Instant since_;
  Instant due_;
  bool has_reported_ = false;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_WAIT_REPORTS_H_
