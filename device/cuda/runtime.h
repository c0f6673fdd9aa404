// CudaRuntime: the NVIDIA devices of this process, by the CUDA runtime.

#ifndef WEFT_DEVICE_CUDA_RUNTIME_H_
#define WEFT_DEVICE_CUDA_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/device/runtime.h"

namespace weft::device {

struct CudaOptions {
  // How long a copy with pageable memory waits for what is on its stream.
  absl::Duration pageable_copy_timeout = absl::Minutes(5);
};

// All CUDA devices that this process sees; touches none until it is used.
// kUnimplemented if the build found no CUDA toolkit; kUnavailable if there is
// no driver or no device, in the driver's words.
//
// Its streams do not wait for CUDA's legacy default stream. The current CUDA
// device of the calling thread is left as it was. A wait polls: it spins for
// 50 us, then sleeps 20 us to 1 ms, so that it can end at its deadline; no call
// of Weft enters cudaStreamSynchronize. Allocate, Free and FreePinned may wait
// in the driver for work of the device: one that hangs holds them.
absl::StatusOr<std::unique_ptr<Runtime>> CreateCudaRuntime(
    CudaOptions options = CudaOptions());

}  // namespace weft::device

#endif  // WEFT_DEVICE_CUDA_RUNTIME_H_
