// FailureTable: what became of each rank of a job that has failed, or shrunk,
// the root cause first.
//
// A pure function of what the launcher has seen: how each process ended, in
// what order, what it wrote last, and what the kernel says of memory.

#ifndef WEFT_LAUNCH_FAILURE_FAILURE_TABLE_H_
#define WEFT_LAUNCH_FAILURE_FAILURE_TABLE_H_

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/launch/failure/failure_facts.h"
#include "weft/launch/failure/root_cause.h"

namespace weft::launch {

enum class FailureClass {
  kKilledBySignal,   // which the launcher did not send
  kOutOfMemory,      // killed by the kernel, or by its own words
  kRefusedInput,     // a command line, a file or a value (2, 3, 20)
  kLostPeer,         // a victim
  kTimeout,          // a victim that has waited in vain (11)
  kFailed,           // with another exit code of its own
  kStopped,          // by SIGSTOP or a debugger
  kHung,             // the root cause: it did not end when asked
  kEndedByLauncher,  // since another failed
  kEndedWell,        // with 0, before the others were asked to end
  kElsewhere,        // on another node: known from an error alone
};

struct FailureRow {
  std::string rank;
  std::string host;   // empty: another node's
  std::string end;    // "exit code 10 (peer lost)", "killed by SIGKILL"
  int exit_code = 0;  // 128 + signal if one killed it
  absl::Duration after = absl::ZeroDuration();
  FailureClass why = FailureClass::kFailed;
  // With kLostPeer and kTimeout: the rank that it lost, or waited for; empty:
  // unknown.
  std::string victim_of;
  std::string memory;     // what is known of it; empty: nothing
  std::string last_call;  // or collective operation; empty: unknown
  std::string log_file;   // empty: none
  // Its last lines, as they came: not yet to be shown on a terminal.
  std::vector<std::string> tail;
};

struct FailureTable {
  RootCause cause;
  // The root cause, then those that failed by themselves, then victims, then
  // the others; each in the order in which they ended.
  std::vector<FailureRow> rows;
};

FailureTable MakeFailureTable(const FailureFacts& facts);

// For a job that goes on, where `facts` has all that failed lately: the rows of
// the root cause, of those that have just failed, `now`, and of those that are
// victims of one of them.
FailureTable MakeShrunkTable(const FailureFacts& facts,
                             const std::set<std::string>& now);

// "killed by a signal", "victim of trainer1".
std::string WhyText(const FailureRow& row);

// "killed-by-signal": one word, for programs.
absl::string_view NameOf(FailureClass why);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_FAILURE_TABLE_H_
