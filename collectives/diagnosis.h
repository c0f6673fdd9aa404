// Diagnosis: what backends say of operations that do not fit or do not end.

#ifndef WEFT_COLLECTIVES_DIAGNOSIS_H_
#define WEFT_COLLECTIVES_DIAGNOSIS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// How much a rank keeps of what one other rank has sent before a Receive asks
// for it; beyond that the sends of that rank wait.
inline constexpr int64_t kMostUnaskedBytes = int64_t{256} << 20;

struct DiagnosisOptions {
  // An operation that waits longer is reported, and again each time that the
  // wait has lasted twice as long; it goes on. The end of a wait that was
  // reported is reported too.
  absl::Duration report_after = absl::Seconds(2);
  // Called with the report, on the thread that waits. If ranks of several hosts
  // called different operations, and this one has left the group before it
  // could be told, it is called with a report of that, on any thread. By
  // default it is written to standard error. Must not block. What it uses must
  // outlive the group, and the Streams that it used.
  std::function<void(absl::string_view report)> report;
};

// Hands `text` to options.report, or writes it to standard error.
void Report(const DiagnosisOptions& options, absl::string_view text);

// Decides when a wait is reported. `weft run` reads these lines: launch/stuck.
//
// Thread-safety: one thread at a time.
class WaitReports {
 public:
  // A wait begins, because the operation does or because something has moved.
  void Begin(const DiagnosisOptions& options, Instant now) {
    since_ = now;
    due_ = now + options.report_after;
    has_reported_ = false;
  }
  Instant since() const { return since_; }
  // When IsDue will be true next.
  Instant due() const { return due_; }
  // Whether a report is due; true once for each report.
  bool IsDue(Instant now);
  // Whether this wait was reported.
  bool has_reported() const { return has_reported_; }

 private:
  Instant since_;
  Instant due_ = Instant::Infinite();
  bool has_reported_ = false;
};

// "AllReduce #3 (...) at x.cc:12: rank 0 of group world still waits after 2s:
// <whom>".
std::string WaitText(const Operation& operation, int rank,
                     absl::string_view group, absl::Duration waited,
                     absl::string_view whom);
std::string WaitText(absl::string_view operation, int rank,
                     absl::string_view group, absl::Duration waited,
                     absl::string_view whom);
// "AllReduce #3 (...) at x.cc:12: rank 0 of group world no longer waits, after
// 2s"; with the code of `status`, if that is an error.
std::string EndOfWaitText(const Operation& operation, int rank,
                          absl::string_view group, absl::Duration waited,
                          const absl::Status& status);
std::string EndOfWaitText(absl::string_view operation, int rank,
                          absl::string_view group, absl::Duration waited,
                          const absl::Status& status);

// "rank 2 (trainer2)", or "rank 2" of one that has no name.
std::string RankText(int rank, absl::string_view name);

// What a rank announces of the operation that it has begun.
struct Announcement {
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;
  bool is_refused = false;
  std::string text;  // Describe(operation), or why it is refused
};
Announcement Announce(const Operation& operation);
Announcement AnnounceRefusal(const Operation& operation,
                             const absl::Status& why);

// kFailedPrecondition: "rank 0 called X, but rank 3 called Y".
absl::Status Mismatch(int rank, absl::string_view text, int other_rank,
                      absl::string_view other_text);
// kAborted: "rank 3 refused its part: ...".
absl::Status Refused(int rank, absl::string_view why);

// kResourceExhausted: `kept_bytes` of what `from` has sent have tags that no
// Receive asks for, the oldest one `tag`.
absl::Status TooMuchUnasked(int from, int64_t kept_bytes, uint64_t tag);

// "ranks 1, 2 and 5" or "rank 3".
std::string RankList(const std::vector<int>& ranks);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_DIAGNOSIS_H_
