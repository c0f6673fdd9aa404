// NcclAgreement: what the ranks tell each other before an operation is given to
// NCCL, over the group of the host: that all have called the same, with counts
// that fit.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_AGREEMENT_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_AGREEMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// What the ranks have agreed on; the same on all of them.
struct NcclAgreement {
  bool any_on_device = false;  // some rank's blocks are on its device
  bool any_factor = false;     // some rank's factor is not 1
};

// Waits for all ranks, until operation.deadline, as operation `number` of
// `host`. Errors are those of Backend::Run; kFailedPrecondition also where two
// ranks' counts do not fit.
absl::StatusOr<NcclAgreement> AgreeOnOperation(Backend& host,
                                               const Operation& operation,
                                               uint64_t number);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_AGREEMENT_H_
