// NcclCommunicator: this rank's communicator of NCCL. No call of it waits for
// other ranks but within a deadline: it is made with blocking=0, and polled.

#ifndef WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_
#define WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/device/device_mover.h"
#include "weft/collectives/backends/nccl/nccl_functions.h"
#include "weft/collectives/backends/nccl/nccl_launch.h"
#include "weft/collectives/operation.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: thread-safe; Enqueue, one thread at a time.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  struct Options {
    std::shared_ptr<const NcclFunctions> functions;
    std::shared_ptr<device::Context> context;
    device::Stream stream;  // of the device; what is enqueued runs on it
    nccl::UniqueId id;      // the same on all ranks
    int rank = 0;
    int size = 1;
  };

  // Waits until all ranks have come. kDeadlineExceeded; errors of NCCL.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      Options options, const DeviceWait& wait);
  // The same, and does not wait: it is to be used once IsReady says so.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Begin(
      Options options);
  // Leaves: waits at most 2 s for what NCCL still has to send, then aborts. An
  // abort has 10 s; one that has not ended then goes on alone.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // LaunchOnNccl, and waits until NCCL has put it on the stream.
  absl::Status Enqueue(const Operation& operation, bool with_factors,
                       DeviceScratch& scratch, const DeviceWait& wait) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Launch(const Operation& operation, bool with_factors,
                      DeviceScratch& scratch) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> IsReady() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AsyncError() override ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the kernels that run. NCCL may take long to end them, so a thread of
  // its own waits for that, and no other call does.
  void Abort() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // An abort that is under way.
  struct Aborting {
    Mutex mu;
    CondVar changed;
    bool is_over ABSL_GUARDED_BY(mu) = false;
  };

  explicit NcclCommunicator(Options options) : options_(std::move(options)) {}

  // Calls `call` with the stream as NCCL takes it, its device being current.
  absl::Status OnDevice(
      absl::string_view name,
      absl::FunctionRef<absl::Status(nccl::NativeStream)> call) const;
  void AwaitAbort() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the call `name` that has begun is over.
  absl::Status Await(absl::string_view name, const DeviceWait& wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<nccl::Result> Progress() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::shared_ptr<Aborting> aborting_ = std::make_shared<Aborting>();
  // Held in calls of NCCL, none of which blocks; not in CommAbort, which may.
  Mutex mu_;
  std::thread aborter_ ABSL_GUARDED_BY(mu_);
  nccl::Comm comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null once it has ended
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_
