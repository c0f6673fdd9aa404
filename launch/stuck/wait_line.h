// WaitLine: what a line of a rank's log tells of an operation that waits: the
// reports of collectives/diagnosis.h, of ps/waits/server_waits.h, and of
// rendezvous/client/wait_reports.h.

#ifndef WEFT_LAUNCH_STUCK_WAIT_LINE_H_
#define WEFT_LAUNCH_STUCK_WAIT_LINE_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

struct WaitLine {
  RankWait wait;  // of one that is over without `awaited`
  bool is_over = false;
  bool has_failed = false;  // it ended with an error
};

// Reads a line of the log, as text or as JSON. Nothing if it reports no wait.
std::optional<WaitLine> WaitLineIn(absl::string_view line);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_WAIT_LINE_H_
