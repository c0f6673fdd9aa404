// ReduceOnDevice: the reduction of tensors of one device, as work of a stream.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_ON_DEVICE_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_ON_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "weft/collectives/accumulate.h"
#include "weft/collectives/reduction.h"
#include "weft/device/runtime.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// Puts ReduceContributions (accumulate.h) of device memory on `stream`; the
// bits are the same. Errors of the Runtime.
// REQUIRES: at most internal::kMostSharers of each.
absl::Status ReduceOnDevice(device::Stream stream, DType dtype, ReduceOp op,
                            std::vector<Contribution> contributions,
                            std::vector<std::byte*> outputs, int64_t count);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_ON_DEVICE_H_
