// DeviceOptions, DeviceTensors: tensors of devices in calls, and where they
// land: PyTorch's `devices` and `device_maps`.
//
//   rpc::DeviceOptions options;
//   options.devices = {gpu0, gpu1};  // of this worker
//   options.device_maps["ps0"] = {{gpu0, device::Device::Cuda(1)}};
//   WEFT_RETURN_IF_ERROR(agent.SetDevices(options));
//   rpc::Call(agent.To("ps0"), Scale, x, 2.0);  // x on gpu0: on cuda:1 there
//
// The map is the caller's, in both directions: a tensor in the reply, which
// lies on cuda:1 there, lands on gpu0. Its elements pass through pinned memory
// on streams of the agent's own (tensor/device_staging.h):
//
//   caller's current stream   ... made | CallAsync returns | later writes wait
//   copy to pinned memory                wait made, copy     for the copy
//   a thread of the agent                waits for the copy, sends
//   callee                               copy to its device; the current stream
//                                        of the function's thread waits for it
//
// No stream waits for the host, and CallAsync does not wait for a stream. A
// function's result is waited for on its thread; so an inline function cannot
// return a tensor of a device. The tensors of a reply are used on what was the
// caller's current stream at CallAsync.

#ifndef WEFT_RPC_CODEC_DEVICE_TENSORS_H_
#define WEFT_RPC_CODEC_DEVICE_TENSORS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"
#include "weft/rpc/attachment.h"
#include "weft/tensor/device.h"
#include "weft/tensor/device_staging.h"
#include "weft/tensor/tensor.h"

namespace weft::rpc {

// Tensors on `from`, a device of this worker, land on `to` of the other one.
struct DeviceMapping {
  Device from;
  device::Device to;  // may be the CPU
};
using DeviceMap = std::vector<DeviceMapping>;

struct DeviceOptions {
  // The devices of this worker on which tensors of calls may lie, and arrive.
  std::vector<Device> devices;
  // The map for each worker that is called, by its name. Calls to this worker
  // leave tensors where they are, unless its own name is among them.
  std::map<std::string, DeviceMap> device_maps;
};

class DeviceTensors;

// The current streams of a thread, one for each of its agent's devices.
struct DeviceStreams {
  std::shared_ptr<DeviceTensors> devices;
  std::vector<device::Stream> streams;
};

// The devices and maps of one agent. An error of a mapping is kInvalidArgument,
// and says what to set; those of devices are of device/runtime.h. Both keep
// their code where a codec's would be reworded (IsOfDevices).
//
// Thread-safety: thread-safe.
class DeviceTensors : public std::enable_shared_from_this<DeviceTensors> {
 public:
  // kInvalidArgument: a device twice, or two of one name; the CPU among
  // `devices`; a map from a device that is not among them, or that maps one
  // twice, or two to one that is not the CPU. `self` is the worker's name.
  static absl::StatusOr<std::shared_ptr<DeviceTensors>> Create(
      std::string self, DeviceOptions options);

  // Where `tensor` lands in the message of `context`. Of a reply its own
  // device, which the caller's map is for.
  absl::StatusOr<device::Device> LandsOn(const Tensor& tensor,
                                         const CodecContext& context) const;
  // The device here that the message of `context` means by `named`.
  absl::StatusOr<Device> ArrivesOn(device::Device named,
                                   const CodecContext& context) const;

  // Has the elements of `tensor`, which is contiguous and of a device, copied
  // to host(0) of what it returns, behind the current stream of this thread,
  // whose later work comes behind that.
  absl::StatusOr<std::unique_ptr<StagedCall>> Read(const Tensor& tensor);
  // For `tensor` to be written to from host(0), by End(); the current stream of
  // this thread sees that.
  absl::StatusOr<std::unique_ptr<StagedCall>> Write(const Tensor& tensor);

  // The current streams of this thread.
  std::unique_ptr<const DeviceStreams> CurrentStreams();

 private:
  DeviceTensors(std::string self, DeviceOptions options)
      : self_(std::move(self)), options_(std::move(options)) {}
  absl::Status Check() const;
  // Null if there is none for it.
  const DeviceMap* MapFor(const CodecContext& context) const;
  std::string OwnDevices() const;

  const std::string self_;
  const DeviceOptions options_;
  std::vector<std::shared_ptr<device::Context>> keeps_;  // of the devices
  const std::shared_ptr<DeviceStaging> staging_ =
      std::make_shared<DeviceStaging>();
};

// Waits for copies from devices. kDeadlineExceeded; the errors of
// device/runtime.h.
absl::Status AwaitCopies(const std::vector<StagedCall*>& copies,
                         absl::Duration timeout);

// `status` of a device or of where its tensors land, so marked.
absl::Status OfDevices(const absl::Status& status);
// Whether it was.
bool IsOfDevices(const absl::Status& status);

}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_DEVICE_TENSORS_H_
