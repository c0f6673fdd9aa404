#include "weft/tensor/on_device.h"

#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"
#include "weft/tensor/cuda_kernels.h"
#include "weft/tensor/overlap.h"

namespace weft {

Device::Device(device::Context& context, int index)
    : context_(&context), id_(context.device(index)) {
  if (index < 0 || index >= context.device_count()) {
    ThrowInvalidArgument("Device: wanted device ", index, ", there are ",
                         context.device_count(), ", ", Name(context.device(0)),
                         " being the first");
  }
}

namespace internal {
namespace {

using ::weft::device::DeviceMemory;
using ::weft::device::Event;
using ::weft::device::Runtime;
using ::weft::device::Stream;

Stream CurrentStream(Device device) {
  const absl::StatusOr<Stream> stream =
      device.context()->CurrentStream(device.index());
  ThrowIfError(stream.status());
  return *stream;
}

void TellOfStream(const Storage& storage, Stream stream) {
  if (storage.block() != nullptr) storage.block()->UsedOn(stream);
}

// A tensor as a task sees it, which must not keep the memory: work that comes
// after the memory was given back is a fault that a simulated device shows.
struct View {
  explicit View(const Tensor& x)
      : dtype(x.dtype()), shape(x.shape()), strides(x.strides()) {
    if (x.numel() == 0) return;
    const ElementReach reach = ReachOf(x);
    const int64_t item = ItemSize(dtype);
    lowest = static_cast<char*>(x.address()) + reach.low * item;
    offset = -reach.low;
    bytes = (reach.high - reach.low + 1) * item;
  }

  absl::StatusOr<Tensor> OnHost(const DeviceMemory& memory) const {
    char* found = nullptr;
    if (bytes > 0) {
      WEFT_ASSIGN_OR_RETURN(found, memory.At(lowest, bytes));
    }
    return Tensor::FromStorage(Storage::Wrap(found, bytes, nullptr), offset,
                               shape, strides, dtype);
  }

  char* lowest = nullptr;
  int64_t offset = 0;  // of the first element, in elements from `lowest`
  int64_t bytes = 0;
  DType dtype;
  Shape shape;
  Shape strides;
};

absl::Status RunOnHost(absl::AnyInvocable<void(const Tensor*)>& host,
                       const std::vector<View>& views,
                       const DeviceMemory& memory) {
  std::vector<Tensor> tensors;
  tensors.reserve(views.size());
  for (const View& view : views) {
    WEFT_ASSIGN_OR_RETURN(Tensor tensor, view.OnHost(memory));
    tensors.push_back(std::move(tensor));
  }
  try {
    host(tensors.data());
  } catch (const Error& error) {
    return absl::InternalError(error.status().message());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
  return absl::OkStatus();
}

// `later` goes on only after what is on `earlier` now.
absl::Status OrderStreams(Stream earlier, Stream later) {
  if (earlier == later) return absl::OkStatus();
  Runtime& runtime = earlier.runtime();
  WEFT_ASSIGN_OR_RETURN(Event event, runtime.CreateEvent(earlier.device()));
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(event, earlier));
  return runtime.StreamWaitEvent(later, event);
}

// Between two devices of one context. The copy is work of the destination's
// stream, and the source's goes on after it.
absl::Status CopyBetweenDevices(const Storage& destination, void* to,
                                const Storage& source, const void* from,
                                int64_t bytes) {
  const Stream reads = CurrentStream(source.device());
  const Stream writes = CurrentStream(destination.device());
  WEFT_RETURN_IF_ERROR(OrderStreams(reads, writes));
  TellOfStream(source, reads);
  TellOfStream(destination, writes);
  WEFT_RETURN_IF_ERROR(writes.runtime().CopyAsync(to, from, bytes, writes));
  return OrderStreams(writes, reads);
}

}  // namespace

void CheckSameDevice(const Tensor& a, const Tensor& b, const char* where) {
  if (a.device() == b.device()) return;
  const bool is_one_name = Name(a.device()) == Name(b.device());
  ThrowInvalidArgument(where, ": tensors of two devices: ", a.Describe(),
                       a.device().is_cpu() ? " on cpu" : "", " and ",
                       b.Describe(), b.device().is_cpu() ? " on cpu" : "",
                       is_one_name ? ", which are of two contexts" : "",
                       "; take To(device) of one");
}

void EnqueueOnDevice(const Operation& operation,
                     absl::Span<const Tensor* const> tensors,
                     absl::AnyInvocable<void(const Tensor*)> host) {
  const Device device = tensors[0]->device();
  for (const Tensor* tensor : tensors) {
    CheckSameDevice(*tensors[0], *tensor, operation.name);
  }
  const Stream stream = CurrentStream(device);
  for (const Tensor* tensor : tensors) TellOfStream(*tensor->storage(), stream);
  if (OperationObserver* const observer = OperationObserver::current()) {
    host = observer->OnEnqueue(operation, tensors, std::move(host));
  }
  if (device.kind() == Device::Kind::kSimulated) {
    std::vector<View> views;
    views.reserve(tensors.size());
    for (const Tensor* tensor : tensors) views.emplace_back(*tensor);
    ThrowIfError(stream.runtime().EnqueueHost(
        stream, operation.name,
        [host = std::move(host),
         views = std::move(views)](const DeviceMemory& memory) mutable {
          return RunOnHost(host, views, memory);
        }));
    return;
  }
  ThrowIfError(
      stream.runtime().LaunchNative(stream, operation.name, [&](void* native) {
        return LaunchCudaKernel(operation, tensors, native);
      }));
}

void CopyBytes(const Storage& destination, void* to, const Storage& source,
               const void* from, int64_t bytes) {
  if (bytes == 0 || to == from) return;
  const Device there = destination.device();
  const Device here = source.device();
  if (there.is_cpu() && here.is_cpu()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  if (!there.is_cpu() && !here.is_cpu() && there != here) {
    if (there.context() == here.context()) {
      return ThrowIfError(
          CopyBetweenDevices(destination, to, source, from, bytes));
    }
    const IntrusivePtr<Storage> between = Storage::Allocate(bytes);
    CopyBytes(*between, between->memory(), source, from, bytes);
    return CopyBytes(destination, to, *between, between->memory(), bytes);
  }
  const Stream stream = CurrentStream(there.is_cpu() ? here : there);
  TellOfStream(source, stream);
  TellOfStream(destination, stream);
  ThrowIfError(stream.runtime().CopyAsync(to, from, bytes, stream));
}

}  // namespace internal
}  // namespace weft
