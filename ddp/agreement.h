// Agreement: whether all ranks of a group have the same model, told to each of
// them.

#ifndef WEFT_DDP_AGREEMENT_H_
#define WEFT_DDP_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "weft/collectives/process_group.h"

namespace weft::ddp {

// Called by all ranks with what must be equal on all, a line for each thing
// (without line breaks), or with an error if this rank cannot go on. OK if
// `own` is OK everywhere and the lines are equal. Otherwise every rank gets the
// same kInvalidArgument, which names a rank, its line and that of rank 0, or a
// rank and its error. Other errors as ProcessGroup::AllGatherBytes.
absl::Status CheckAgreement(collectives::ProcessGroup& group,
                            const absl::Status& own,
                            const std::vector<std::string>& lines,
                            absl::optional<absl::Duration> timeout);

// The same of what each rank has sent, by rank: a pure function.
absl::Status CompareDescriptions(const std::vector<std::string>& by_rank);

}  // namespace weft::ddp

#endif  // WEFT_DDP_AGREEMENT_H_
