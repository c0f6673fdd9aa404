// SharedFacts: what a launcher knows of the ranks of its node, as text for the
// launchers of other nodes.

#ifndef WEFT_LAUNCH_STUCK_SHARED_FACTS_H_
#define WEFT_LAUNCH_STUCK_SHARED_FACTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/launch/stuck/stuck.h"

namespace weft::launch {

// JSON of `ranks`, whose processes are on `host`. Of a wait for very many ranks
// the first ones are in it.
std::string FormatFacts(absl::Span<const RankFacts> ranks,
                        absl::string_view host);

// kInvalidArgument: it is no such text. Nothing in it is trusted: another
// process has written it. Names and operations are not yet to be shown on a
// terminal.
absl::StatusOr<std::vector<RankFacts>> ParseFacts(absl::string_view text);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_STUCK_SHARED_FACTS_H_
