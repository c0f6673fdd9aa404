// SameDeviceCommunicator: one rank in a room, of threads or of processes.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_COMMUNICATOR_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_COMMUNICATOR_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/same_device/rank_of_room.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: as DeviceCommunicator.
class SameDeviceCommunicator final : public DeviceCommunicator {
 public:
  SameDeviceCommunicator(std::shared_ptr<device::Context> context,
                         std::unique_ptr<RankOfRoom> room,
                         device::Stream stream, int rank)
      : context_(std::move(context)),
        room_(std::move(room)),
        stream_(stream),
        rank_(rank) {}
  // What was launched and is not on the stream does not come there.
  ~SameDeviceCommunicator() override;

  absl::Status Enqueue(const Operation& operation, bool with_factors,
                       DeviceScratch& scratch, const DeviceWait& wait) override;
  absl::Status Launch(const Operation& operation, bool with_factors,
                      DeviceScratch& scratch) override;
  absl::StatusOr<bool> IsReady() override { return room_->IsReady(); }
  bool HasEnded(const DeviceScratch& scratch) override {
    return room_->HasEnded(scratch.number);
  }
  // The events of the stream tell of them.
  absl::Status AsyncError() override { return absl::OkStatus(); }
  void Abort() override;

 private:
  // Has the inputs of an AllToAll in place copied, since it is written to what
  // others still read.
  absl::Status CopyInputs(Operation& operation, DeviceScratch& scratch) const;

  const std::shared_ptr<device::Context> context_;
  const std::unique_ptr<RankOfRoom> room_;
  const device::Stream stream_;
  const int rank_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SAME_DEVICE_COMMUNICATOR_H_
