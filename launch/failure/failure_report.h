// FailureReport: what `weft run` writes of a job that has failed, or shrunk: a
// table with the root cause first, and what its rank and the others wrote last.

#ifndef WEFT_LAUNCH_FAILURE_FAILURE_REPORT_H_
#define WEFT_LAUNCH_FAILURE_FAILURE_REPORT_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "weft/launch/failure/failure_facts.h"
#include "weft/launch/failure/failure_table.h"
#include "weft/telemetry/field.h"

namespace weft::launch {

// Lines, the last with its end too. Nothing that a rank has written moves the
// cursor.
std::string FailureReport(const FailureFacts& facts, const FailureTable& table);

// The same for programs: the fields of an event for each row, those of the root
// cause first.
std::vector<telemetry::Fields> FailureFields(const FailureFacts& facts,
                                             const FailureTable& table);

// How a rank ended, in words.
std::string HowItEnded(const RankReport& rank);

// Whether process `pid` is stopped by a signal or traced.
bool IsStopped(pid_t pid);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_FAILURE_FAILURE_REPORT_H_
