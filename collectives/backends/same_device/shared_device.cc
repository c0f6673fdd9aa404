#include "weft/collectives/backends/same_device/shared_device.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/same_device/same_device_room.h"

namespace weft::collectives {
namespace {

std::string DrawToken() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  }
  return token;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedDevice>> SharedDevice::Create(
    std::shared_ptr<device::Context> context, int index) {
  const int count = context == nullptr ? 0 : context->device_count();
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("SharedDevice: wants a device from 0 to ", count - 1,
                     " of its context, found ", index));
  }
  return std::shared_ptr<SharedDevice>(
      new SharedDevice(std::move(context), index, DrawToken()));
}

CommunicatorId SharedDevice::MakeId() {
  CommunicatorId id;
  const std::string prefix = absl::StrCat("same device ", token_, " ");
  memcpy(id.bytes, prefix.data(), prefix.size());
  MutexLock lock(mu_);
  memcpy(id.bytes + prefix.size(), &next_, sizeof next_);
  ++next_;
  return id;
}

absl::StatusOr<std::shared_ptr<SameDeviceRoom>> SharedDevice::Enter(
    absl::string_view name, int rank, int size) {
  MutexLock lock(mu_);
  for (auto it = rooms_.begin(); it != rooms_.end();) {
    it = it->second.expired() ? rooms_.erase(it) : std::next(it);
  }
  std::weak_ptr<SameDeviceRoom>& known = rooms_[std::string(name)];
  std::shared_ptr<SameDeviceRoom> room = known.lock();
  if (room == nullptr) {
    room = std::make_shared<SameDeviceRoom>(size);
    known = room;
  }
  if (room->size() != size) {
    return absl::FailedPreconditionError(
        absl::StrCat("a communicator of the shared device is of ", room->size(),
                     " ranks, and rank ", rank, " wants ", size));
  }
  WEFT_RETURN_IF_ERROR(room->Enter(rank));
  return room;
}

}  // namespace weft::collectives
