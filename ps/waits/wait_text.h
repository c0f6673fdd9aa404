// WaitText: what is said of a wait for servers, of their answers. Pure.

#ifndef WEFT_PS_WAITS_WAIT_TEXT_H_
#define WEFT_PS_WAITS_WAIT_TEXT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/base/clock.h"
#include "weft/ps/waits/wait_board.h"

namespace weft::ps {

// What a server has said to the question for whom it waits.
struct ServerAnswer {
  std::string server;
  bool has_answered = false;
  WaitAnswer waits;
};

// "Pull on table users still waits after 4s: ps0 waits for trainer1 (round 12
// waits for shard 1 of rank 1); ps1 does not answer; ps2 has not done it".
// `self`, who waits, is named by nobody. `weft run` reads it: launch/stuck.
std::string WaitText(absl::string_view operation, absl::string_view table,
                     absl::Duration waited, absl::string_view self,
                     absl::Span<const ServerAnswer> answers);
// "Pull on table users no longer waits, after 6s".
std::string EndOfWaitText(absl::string_view operation, absl::string_view table,
                          absl::Duration waited);

// When a thread that waits asks the servers, and when it reports: after 2 s,
// and each time that the wait has lasted twice as long. It asks 1.5 s before
// each report, so that who has not answered by then is not only late.
class WaitTimes {
 public:
  explicit WaitTimes(Instant since);

  enum class Due { kNothing, kQuestion, kReport };
  Instant since() const { return since_; }
  Instant next() const { return has_asked_ ? report_at_ : ask_at_; }
  // Each once.
  Due OnTime(Instant now);

 private:
  Instant since_;
  Instant ask_at_;
  Instant report_at_;
  bool has_asked_ = false;
};

}  // namespace weft::ps

#endif  // WEFT_PS_WAITS_WAIT_TEXT_H_
