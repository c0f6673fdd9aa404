#include "weft/rpc/codec/tensor_codec.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"

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
absl::Status CheckElements(const Tensor& tensor) {
  if (tensor.dtype() != DType::kBool) return absl::OkStatus();
  const auto* bytes = static_cast<const uint8_t*>(tensor.raw());
  uint8_t seen = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) seen |= bytes[i];
  if (seen <= 1) return absl::OkStatus();
  return Decoder::Malformed("a bool tensor with a byte that is not 0 or 1");
}

absl::Status DecodeDefined(Decoder& decoder, DType dtype, Tensor& tensor) {
  Shape shape;
  WEFT_RETURN_IF_ERROR(DecodeShape(decoder, dtype, shape));
  size_t size;
  WEFT_RETURN_IF_ERROR(decoder.AttachedSize(size));
  int64_t bytes = ItemSize(dtype);
  for (const int64_t n : shape) bytes *= n;
  if (static_cast<int64_t>(size) != bytes) {
    return Decoder::Malformed(
        absl::StrCat("a tensor of ", bytes, " bytes comes with ", size));
  }
  if (std::optional<Bytes> memory = decoder.InPlace(size)) {
    tensor = Tensor::FromBlob(const_cast<uint8_t*>(memory->data()), shape,
                              dtype, memory->owner());
  } else {
    tensor = Tensor::Empty(shape, dtype);
    WEFT_RETURN_IF_ERROR(decoder.Raw(tensor.raw(), size));
  }
  return CheckElements(tensor);
}

// Where it would land is not for the sender to guess.
absl::Status NotSentFrom(const Tensor& tensor) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot send ", tensor.Describe(), "; send To(Device::Cpu())"));
}

}  // namespace

void Codec<Tensor>::Encode(const Tensor& tensor, Encoder& encoder) {
  if (!tensor.defined()) return encoder.Varint(kUndefined);
  if (!tensor.device().is_cpu()) return encoder.Fail(NotSentFrom(tensor));
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
  if (code >= std::size(kDTypes)) {
    return Decoder::Malformed(absl::StrCat("a tensor of unknown type ", code));
  }
  // Tensor throws where it cannot be made, such as for want of memory.
  return CatchToStatus(
      [&] { return DecodeDefined(decoder, kDTypes[code], tensor); });
}

}  // namespace weft::rpc
