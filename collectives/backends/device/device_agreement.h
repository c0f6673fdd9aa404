// DeviceAgreement: what the ranks tell each other before an operation is given
// to a communicator of devices, over the group of the host: that all have
// called the same, with counts that fit.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_AGREEMENT_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_AGREEMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// What the ranks have agreed on; the same on all of them.
struct DeviceAgreement {
  bool any_on_device = false;  // some rank's blocks are on its device
  bool any_factor = false;     // some rank's factor is not 1
};

// Whether only pairs of ranks know the counts of its blocks.
bool HasPairCounts(Verb verb);

// Whether it moves no element on any rank. REQUIRES: !HasPairCounts.
bool MovesNothing(const Operation& operation);

// Waits for all ranks, until operation.deadline, as operation `number` of
// `host`. Errors are those of Backend::Run; kFailedPrecondition also where two
// ranks' counts do not fit.
absl::StatusOr<DeviceAgreement> AgreeOnOperation(Backend& host,
                                                 const Operation& operation,
                                                 uint64_t number);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_AGREEMENT_H_
