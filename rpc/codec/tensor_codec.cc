#include "weft/rpc/codec/tensor_codec.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/reworded.h"
#include "weft/device/context.h"
#include "weft/device/current.h"
#include "weft/rpc/codec/device_tensors.h"

namespace weft::rpc {
namespace {

constexpr int kMaxDims = 32;
constexpr int64_t kMaxBytes = int64_t{1} << 47;
// On the wire; never renumber.
constexpr DType kDTypes[] = {DType::kF32,  DType::kF64,  DType::kI64,
                             DType::kU8,   DType::kBool, DType::kF16,
                             DType::kBF16, DType::kI32,  DType::kI8};
static_assert(std::size(kDTypes) == std::size(kAllDTypes));
constexpr uint64_t kUndefined = 255;
// The kind of the device on which it lands follows, its index, and then what
// every tensor has.
constexpr uint64_t kOnDevice = 254;
constexpr uint64_t kCuda = 1;
constexpr uint64_t kSimulated = 2;
constexpr uint64_t kMostDevices = 1 << 16;

uint64_t Code(DType dtype) {
  uint64_t code = 0;
  while (kDTypes[code] != dtype) ++code;
  return code;
}

// Too small to travel by reference.
bool IsSmall(const Tensor& tensor) {
  return tensor.bytes() < static_cast<int64_t>(Encoder::kByReference);
}

// Everything before the elements.
void EncodeHeader(const Tensor& tensor, Encoder& encoder) {
  encoder.Varint(Code(tensor.dtype()));
  encoder.Varint(tensor.dim());
  for (const int64_t size : tensor.shape()) encoder.Varint(size);
}

absl::Status DecodeShape(Decoder& decoder, DType dtype, Shape& shape) {
  uint64_t dims;
  WEFT_RETURN_IF_ERROR(decoder.Varint(dims));
  if (dims > kMaxDims) {
    return Decoder::Malformed(
        absl::StrCat("a tensor of ", dims, " dimensions"));
  }
  int64_t bytes = ItemSize(dtype);
  for (uint64_t i = 0; i < dims; ++i) {
    uint64_t size;
    WEFT_RETURN_IF_ERROR(decoder.Varint(size));
    if (size > kMaxBytes ||
        __builtin_mul_overflow(bytes, static_cast<int64_t>(size), &bytes) ||
        bytes > kMaxBytes) {
      return Decoder::Malformed("a tensor of more than 2^47 bytes");
    }
    shape.push_back(static_cast<int64_t>(size));
  }
  return absl::OkStatus();
}

// A bool must be 0 or 1 for the compiler's sake.
absl::Status CheckElements(DType dtype, const void* elements, int64_t count) {
  if (dtype != DType::kBool) return absl::OkStatus();
  const auto* bytes = static_cast<const uint8_t*>(elements);
  uint8_t seen = 0;
  for (int64_t i = 0; i < count; ++i) seen |= bytes[i];
  if (seen <= 1) return absl::OkStatus();
  return Decoder::Malformed("a bool tensor with a byte that is not 0 or 1");
}

// Up to the elements, of which there are `size` bytes.
absl::Status DecodeHeader(Decoder& decoder, DType dtype, Shape& shape,
                          size_t& size) {
  WEFT_RETURN_IF_ERROR(DecodeShape(decoder, dtype, shape));
  WEFT_RETURN_IF_ERROR(decoder.AttachedSize(size));
  int64_t bytes = ItemSize(dtype);
  for (const int64_t n : shape) bytes *= n;
  if (static_cast<int64_t>(size) != bytes) {
    return Decoder::Malformed(
        absl::StrCat("a tensor of ", bytes, " bytes comes with ", size));
  }
  return absl::OkStatus();
}

absl::Status DecodeDefined(Decoder& decoder, DType dtype, Tensor& tensor) {
  Shape shape;
  size_t size;
  WEFT_RETURN_IF_ERROR(DecodeHeader(decoder, dtype, shape, size));
  if (std::optional<Bytes> memory = decoder.InPlace(size)) {
    tensor = Tensor::FromBlob(const_cast<uint8_t*>(memory->data()), shape,
                              dtype, memory->owner());
  } else {
    tensor = Tensor::Empty(shape, dtype);
    WEFT_RETURN_IF_ERROR(decoder.Raw(tensor.raw(), size));
  }
  return CheckElements(dtype, tensor.raw(), tensor.numel());
}

absl::StatusOr<DType> DecodeDType(uint64_t code) {
  if (code < std::size(kDTypes)) return kDTypes[code];
  return Decoder::Malformed(absl::StrCat("a tensor of unknown type ", code));
}

absl::Status DecodeElementsTo(Device device, Decoder& decoder,
                              DeviceTensors& devices, Tensor& tensor) {
  uint64_t code = 0;
  Shape shape;
  size_t size = 0;
  WEFT_RETURN_IF_ERROR(decoder.Varint(code));
  WEFT_ASSIGN_OR_RETURN(const DType dtype, DecodeDType(code));
  WEFT_RETURN_IF_ERROR(DecodeHeader(decoder, dtype, shape, size));
  // For the stream that uses it: another's memory would come without order.
  std::optional<device::StreamScope> scope;
  if (const auto* streams = decoder.context().streams) {
    for (const device::Stream& stream : *streams) {
      if (&stream.runtime() == &device.context()->runtime() &&
          stream.device() == device.id()) {
        scope.emplace(stream);
      }
    }
  }
  const absl::Status made = CatchToStatus([&]() -> absl::Status {
    tensor = Tensor::Empty(shape, dtype, device);
    return absl::OkStatus();
  });
  if (!made.ok()) return OfDevices(made);
  if (size == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<StagedCall> staged,
                        devices.Write(tensor));
  WEFT_RETURN_IF_ERROR(decoder.Raw(staged->host(0), size));
  WEFT_RETURN_IF_ERROR(CheckElements(dtype, staged->host(0), tensor.numel()));
  return OfDevices(staged->End([] {}));
}

absl::Status DecodeOfDevice(Decoder& decoder, Tensor& tensor) {
  uint64_t kind = 0;
  uint64_t index = 0;
  WEFT_RETURN_IF_ERROR(decoder.Varint(kind));
  WEFT_RETURN_IF_ERROR(decoder.Varint(index));
  if ((kind != kCuda && kind != kSimulated) || index >= kMostDevices) {
    return Decoder::Malformed("a tensor for a device of unknown kind");
  }
  const device::Device named{
      kind == kCuda ? Device::Kind::kCuda : Device::Kind::kSimulated,
      static_cast<int>(index)};
  DeviceTensors* const devices = decoder.context().devices;
  if (devices == nullptr) {
    const absl::string_view peer = decoder.context().peer_name;
    return OfDevices(absl::InvalidArgumentError(absl::StrCat(
        "a tensor on ", Name(named), peer.empty() ? "" : " that ", peer,
        peer.empty() ? "" : " sends",
        ", and no devices were set here: set DeviceOptions::devices and "
        "device_maps by Agent::SetDevices, or send To(Device::Cpu())")));
  }
  WEFT_ASSIGN_OR_RETURN(const Device device,
                        devices->ArrivesOn(named, decoder.context()));
  return DecodeElementsTo(device, decoder, *devices, tensor);
}

// Where it would land is not for the sender to guess.
absl::Status NotSentFrom(const Tensor& tensor, absl::string_view peer) {
  return OfDevices(absl::InvalidArgumentError(absl::StrCat(
      "cannot send ", tensor.Describe(), peer.empty() ? "" : " to ", peer,
      ": no devices were set for it: set DeviceOptions::devices and "
      "device_maps by Agent::SetDevices, or send To(Device::Cpu())")));
}

// `lands`: on the CPU, or where the device map says.
absl::Status WriteOfDevice(const Tensor& tensor, bool lands_on_cpu,
                           Encoder& encoder) {
  DeviceTensors* const devices = encoder.context().devices;
  if (devices == nullptr) {
    return NotSentFrom(tensor, encoder.context().peer_name);
  }
  device::Device lands;
  if (!lands_on_cpu) {
    WEFT_ASSIGN_OR_RETURN(lands, devices->LandsOn(tensor, encoder.context()));
  }
  if (!lands.is_cpu()) {
    encoder.Varint(kOnDevice);
    encoder.Varint(lands.kind == Device::Kind::kCuda ? kCuda : kSimulated);
    encoder.Varint(static_cast<uint64_t>(lands.index));
  }
  EncodeHeader(tensor, encoder);
  if (tensor.numel() == 0) {
    encoder.Attach(Bytes());
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StagedCall> staged,
                        devices->Read(tensor.Contiguous()));
  StagedCall* const copy = staged.get();
  encoder.AttachLater(
      Bytes::Wrap(copy->host(0), tensor.bytes(), std::move(staged)), copy);
  return absl::OkStatus();
}

void EncodeOfDevice(const Tensor& tensor, bool lands_on_cpu, Encoder& encoder) {
  absl::Status written = CatchToStatus(
      [&] { return WriteOfDevice(tensor, lands_on_cpu, encoder); });
  if (written.ok()) return;
  if (encoder.argument() > 0) {
    written = Reworded(written, absl::StrCat("argument ", encoder.argument(),
                                             ": ", written.message()));
  }
  encoder.Fail(OfDevices(written));
}

}  // namespace

void Codec<Tensor>::Encode(const Tensor& tensor, Encoder& encoder) {
  if (!tensor.defined()) return encoder.Varint(kUndefined);
  if (!tensor.device().is_cpu()) {
    return EncodeOfDevice(tensor, /*lands_on_cpu=*/false, encoder);
  }
  EncodeHeader(tensor, encoder);
  if (tensor.is_contiguous()) {
    encoder.AttachCopy(tensor.raw(), tensor.bytes());
  } else {
    const Tensor contiguous = tensor.Contiguous();  // that is the copy
    auto owner = std::make_shared<const Tensor>(contiguous);
    encoder.Attach(Bytes::Wrap(contiguous.raw(), contiguous.bytes(), owner));
  }
}

void Codec<Tensor>::Encode(Tensor&& tensor, Encoder& encoder) {
  if (!tensor.defined() || !tensor.is_contiguous() ||
      !tensor.is_sole_handle() || !tensor.device().is_cpu()) {
    return Encode(static_cast<const Tensor&>(tensor), encoder);
  }
  EncodeHeader(tensor, encoder);
  if (IsSmall(tensor)) return encoder.AttachCopy(tensor.raw(), tensor.bytes());
  auto owner = std::make_shared<const Tensor>(std::move(tensor));
  encoder.Attach(Bytes::Wrap(owner->raw(), owner->bytes(), owner));
}

void EncodeForHost(const Tensor& tensor, Encoder& encoder) {
  if (!tensor.defined() || tensor.device().is_cpu()) {
    return Codec<Tensor>::Encode(tensor, encoder);
  }
  EncodeOfDevice(tensor, /*lands_on_cpu=*/true, encoder);
}

namespace internal {

void EncodeBorrowed(const Tensor& tensor, Encoder& encoder,
                    std::vector<Payload>& borrowed) {
  if (!tensor.defined() || !tensor.is_contiguous() || IsSmall(tensor) ||
      !tensor.device().is_cpu()) {
    return Codec<Tensor>::Encode(tensor, encoder);
  }
  EncodeHeader(tensor, encoder);
  borrowed.push_back(Payload::Borrow(tensor));
  auto owner = std::make_shared<const Tensor>(tensor);
  encoder.Attach(Bytes::Wrap(owner->raw(), owner->bytes(), owner));
}

}  // namespace internal

absl::Status Codec<Tensor>::Decode(Decoder& decoder, Tensor& tensor) {
  uint64_t code;
  WEFT_RETURN_IF_ERROR(decoder.Varint(code));
  if (code == kUndefined) {
    tensor = Tensor();
    return absl::OkStatus();
  }
  if (code == kOnDevice) return DecodeOfDevice(decoder, tensor);
  WEFT_ASSIGN_OR_RETURN(const DType dtype, DecodeDType(code));
  // Tensor throws where it cannot be made, such as for want of memory.
  return CatchToStatus([&] { return DecodeDefined(decoder, dtype, tensor); });
}

}  // namespace weft::rpc
