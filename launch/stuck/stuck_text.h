// StuckText: what is said of a job that is stuck.

#ifndef WEFT_LAUNCH_STUCK_STUCK_TEXT_H_
#define WEFT_LAUNCH_STUCK_STUCK_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/launch/stuck/stuck.h"
#include "weft/telemetry/field.h"

namespace weft::launch {

// A sentence for people, without its end: who waits, in what and for how long,
// for whom, what is known of that one, and what to do. Not yet to be shown on a
// terminal. `cause` is one of FindStuck(ranks); the processes of `ranks` are on
// `host`, but for those of another RankFacts::host.
std::string StuckText(const StuckCause& cause,
                      absl::Span<const RankFacts> ranks, absl::string_view host,
                      absl::string_view job);

// The same for programs: the fields of the event "stuck".
telemetry::Fields StuckFields(const StuckCause& cause,
                              absl::Span<const RankFacts> ranks,
                              absl::string_view host);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_STUCK_TEXT_H_
