// DeviceStaging: tensors of devices in what runs on the host, such as
// collectives and calls: their elements pass through pinned host memory.
//
// No stream waits for the host, and the host waits only for the inputs:
//
//   caller's stream   ... made | called                     wait done | used
//   ... `in` stream                  wait called, copy inputs host await
//   inputs, run `out` stream                                 wait called, copy
//   outputs, done
//
// Two streams, so that results do not wait behind the inputs of later calls,
// which wait for what the caller's stream has yet to compute.
//
// Source: the CUDA path of PyTorch's ProcessGroupGloo.

#ifndef WEFT_TENSOR_DEVICE_STAGING_H_
#define WEFT_TENSOR_DEVICE_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"
#include "weft/tensor/tensor.h"

namespace weft {

// What one user keeps for this: for each device whose tensors it was given
// two streams, and pinned memory, as much as was in use at one time. It keeps
// the device's Context.
//
// Thread-safety: thread-safe.
class DeviceStaging {
 public:
  DeviceStaging() = default;
  // Waits for copies that go on, at most 10 s; what they use then stays with
  // the Runtime.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Pinned memory that it has, in use or not.
  int64_t pinned_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class StagedCall;

  // May be used again once both events are done.
  struct Pinned {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    device::Event read_in;      // after the copies to it
    device::Event written_out;  // after those from it
  };
  struct Served {
    std::shared_ptr<device::Context> context;
    int index = 0;
    device::Stream in;
    device::Stream out;
    std::deque<Pinned> free;  // guarded by mu_; longest unused first
  };

  absl::StatusOr<Served*> Serve(Device device) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Pinned> Take(Served& served, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GiveBack(Served& served, Pinned pinned) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::vector<std::unique_ptr<Served>> served_ ABSL_GUARDED_BY(mu_);
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// A contiguous tensor of a device, and what the operation does with it.
struct StagedTensor {
  Tensor tensor;
  bool is_read = false;
  bool is_written = false;
};

// The tensors of one call. Errors are those of device/runtime.h, and name the
// device.
//
// Thread-safety: one thread at a time.
class StagedCall {
 public:
  // Has the elements that are read copied to host memory, behind what is on
  // the current stream of this thread, and does not wait for that.
  // kResourceExhausted: no pinned memory. REQUIRES: `tensors` is not empty, and
  // all are on one device.
  static absl::StatusOr<std::unique_ptr<StagedCall>> Begin(
      std::shared_ptr<DeviceStaging> staging,
      std::vector<StagedTensor> tensors);
  ~StagedCall();
  StagedCall(const StagedCall&) = delete;
  StagedCall& operator=(const StagedCall&) = delete;

  const std::vector<StagedTensor>& tensors() const { return tensors_; }
  // Where the elements of tensors()[i] are on the host: not to be touched
  // before HasInputs() is true.
  std::byte* host(size_t i) const { return pinned_.memory + offsets_[i]; }
  // The stream of the caller, which sees the results.
  device::Stream caller() const { return caller_; }

  // What is put on the caller's stream from now on comes behind the copies of
  // the inputs, so that it may write to the tensors.
  absl::Status HoldCaller();

  absl::StatusOr<bool> HasInputs();
  // Waits for it. kDeadlineExceeded.
  absl::Status AwaitInputs(absl::Duration timeout);

  // Has what was written copied to the tensors, then calls `after`, whose work
  // on the current stream of the device comes behind that; the caller's stream
  // waits for all of it. Does not wait itself. What `after` throws passes.
  absl::Status End(absl::FunctionRef<void()> after);

 private:
  StagedCall(std::shared_ptr<DeviceStaging> staging,
             std::vector<StagedTensor> tensors)
      : staging_(std::move(staging)), tensors_(std::move(tensors)) {}
  absl::Status CopyInputs();
  // `status`, with how the tensors pass.
  absl::Status Annotate(const absl::Status& status) const;

  const std::shared_ptr<DeviceStaging> staging_;
  const std::vector<StagedTensor> tensors_;
  std::vector<int64_t> offsets_;  // in bytes, by tensor
  DeviceStaging::Served* served_ = nullptr;
  DeviceStaging::Pinned pinned_;
  device::Stream caller_;
  device::Event called_;
  bool has_inputs_ = false;
};

}  // namespace weft

#endif  // WEFT_TENSOR_DEVICE_STAGING_H_
