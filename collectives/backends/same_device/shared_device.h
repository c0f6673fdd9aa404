// SharedDevice: a device that several ranks of one process share, and where
// they meet. Made once, and given to each of them.
//
//   auto shared = SharedDevice::Create(devices, 0);   // device/context.h
//   ... on the thread of each rank:
//   SameDeviceOptions options;                        // same_device_backend.h
//   options.device = *shared;

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_DEVICE_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/device/communicator_id.h"
#include "weft/device/context.h"

namespace weft::collectives {

class SameDeviceRoom;

// Thread-safety: thread-safe.
class SharedDevice {
 public:
  // Device `index` of `context`. kInvalidArgument: there is none.
  static absl::StatusOr<std::shared_ptr<SharedDevice>> Create(
      std::shared_ptr<device::Context> context, int index);
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

  const std::shared_ptr<device::Context>& context() const { return context_; }
  int index() const { return index_; }
  // 32 letters that no other SharedDevice has, of this process or another.
  const std::string& token() const { return token_; }

  // --- For the backend. ---
  // That no other call gives.
  CommunicatorId MakeId() ABSL_LOCKS_EXCLUDED(mu_);
  // The room of a communicator that no other has this name of: the same for all
  // ranks that enter it while one of them is in it. kFailedPrecondition: it is
  // for another number of ranks, or has this rank.
  absl::StatusOr<std::shared_ptr<SameDeviceRoom>> Enter(absl::string_view name,
                                                        int rank, int size)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  SharedDevice(std::shared_ptr<device::Context> context, int index,
               std::string token)
      : context_(std::move(context)), index_(index), token_(std::move(token)) {}

  const std::shared_ptr<device::Context> context_;
  const int index_;
  const std::string token_;
  Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  // By their names.
  std::map<std::string, std::weak_ptr<SameDeviceRoom>> rooms_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_SHARED_DEVICE_H_
