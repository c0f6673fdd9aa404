// DeviceMover, DeviceCommunicator: what moves the tensors of a group from
// device to device, under DeviceBackend: NCCL, or the device that the ranks
// share.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_MOVER_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/backends/device/communicator_id.h"
#include "weft/collectives/operation.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// How long a call waits for other ranks.
struct DeviceWait {
  Clock& clock;
  Instant deadline;
  // An error ends it, and is its result.
  std::function<absl::Status()> check;
};

// What a launched operation uses besides its blocks, kept until it has run.
struct DeviceScratch {
  std::vector<std::shared_ptr<device::Block>> memory;
  // To be put on the stream behind it, which NCCL may not have put there yet.
  struct Copy {
    const std::byte* from;
    std::byte* to;
    int64_t bytes;
  };
  std::vector<Copy> copies;
  // Which operation of the communicator it is: for HasEnded.
  uint64_t number = 0;
};

// One rank's part of a communicator, whose ranks launch the same operations in
// the same order, on a stream each. Blocks are memory of the stream's device.
//
// Thread-safety: thread-safe; Enqueue and Launch, one thread at a time.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  // Puts `operation` on the stream; waits until it is there. Also after an
  // error some of it may be: until the stream has run that, the blocks may be
  // read and written. `with_factors`: some rank has a factor other than 1.
  virtual absl::Status Enqueue(const Operation& operation, bool with_factors,
                               DeviceScratch& scratch,
                               const DeviceWait& wait) = 0;
  // The same, and does not wait: it is on the stream once IsReady says so, and
  // nothing else is to be launched before.
  virtual absl::Status Launch(const Operation& operation, bool with_factors,
                              DeviceScratch& scratch) = 0;
  // Whether the call that was begun last, the communicator's making included,
  // is over, or the error it ended with.
  virtual absl::StatusOr<bool> IsReady() = 0;
  // Whether all ranks have done what was launched with `scratch`; called again
  // and again once this rank's stream has. On a rank whose process or device
  // has failed it never ends, while the streams of others may go on.
  virtual bool HasEnded(const DeviceScratch& /*scratch*/) { return true; }
  // The first error of what was put on the stream, as far as is known by now.
  virtual absl::Status AsyncError() = 0;
  // Ends what was launched and waits for other ranks, on this rank. What it
  // leaves in the blocks is undefined. Does not wait.
  virtual void Abort() = 0;
};

// Thread-safety: thread-safe.
class DeviceMover {
 public:
  struct Begun {
    device::Stream stream;  // of the device; what is enqueued runs on it
    CommunicatorId id;      // the same on all ranks
    int rank = 0;
    int size = 1;
  };

  virtual ~DeviceMover() = default;

  virtual absl::string_view name() const = 0;   // of the backend: "nccl"
  virtual absl::string_view title() const = 0;  // in messages: "NCCL"
  // The devices of this rank, and the one whose tensors are moved.
  virtual const std::shared_ptr<device::Context>& context() const = 0;
  virtual int device() const = 0;
  // A Send of at most so many bytes goes over the host.
  virtual int64_t host_bytes() const = 0;
  // How long an operation that was given up waits for the device to be done
  // with its tensors.
  virtual absl::Duration longest_end() const { return absl::Seconds(10); }
  // Whether what all ranks have on the CPU passes through the device too.
  virtual bool moves_host_tensors() const = 0;

  // Whether it does the operation as ProcessGroup promises it. All ranks that
  // call the same find the same. False of Barrier, Split and Subgroup.
  virtual bool Moves(const Operation& operation) const = 0;

  // The communicator of all ranks of `host`, each of which calls this; waits
  // for them. It may run one operation of `host`, whose number is `next`, which
  // it then counts up.
  virtual absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Connect(
      Backend& host, uint64_t& next, device::Stream stream,
      const DeviceWait& wait) = 0;
  // A communicator of two ranks, of which the sender (rank 0) makes the id.
  // Begin does not wait: it is to be used once its IsReady says so.
  virtual absl::StatusOr<CommunicatorId> MakeId() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceCommunicator>> Begin(
      const Begun& options) = 0;

  // That of a group of some of the ranks. `rank`: this one's in this group.
  virtual std::shared_ptr<DeviceMover> OfSubgroup(const SubgroupSpec& spec,
                                                  int rank) const = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_MOVER_H_
