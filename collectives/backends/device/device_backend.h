// DeviceBackend: ranks whose tensors a DeviceMover moves from device to device;
// beside a group of the same ranks over the host. nccl_backend.h and
// same_device_backend.h are what a user calls.
//
// Each operation is compared over the group of the host before it is given to
// the mover, so ranks that differ, have ended or do not come are named there.
// What the mover does not do, Barrier and Split run over the host; so does what
// all ranks have on the CPU, after one exchange more.
//
// An operation ends by an event of its stream; its Future is set after that. It
// is aborted, on every rank, by Revoke, at its deadline, when a rank's process
// ends and when the mover reports an error.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_BACKEND_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_BACKEND_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/device/device_mover.h"

namespace weft::collectives {

// Waits for all ranks, until `deadline`; `check`, which may be null, ends the
// wait with its error. Where it fails on one rank, it fails on all: `host` is
// aborted. `call` begins its errors.
absl::StatusOr<std::unique_ptr<Backend>> ConnectDeviceBackend(
    absl::string_view call, std::shared_ptr<DeviceMover> mover,
    std::unique_ptr<Backend> host, Instant deadline,
    std::function<absl::Status()> check);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_BACKEND_H_
