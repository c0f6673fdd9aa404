#include "weft/tensor/codec.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "weft/base/status_macros.h"

namespace weft {
namespace {

namespace wire = ::weft::tensor::v1;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "elements travel as they lie in memory, little-endian");

wire::DType WireDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return wire::DTYPE_F32;
    case DType::kF64:
      return wire::DTYPE_F64;
    case DType::kI64:
      return wire::DTYPE_I64;
    case DType::kU8:
      return wire::DTYPE_U8;
    case DType::kBool:
      return wire::DTYPE_BOOL;
    case DType::kF16:
      return wire::DTYPE_F16;
    case DType::kBF16:
      return wire::DTYPE_BF16;
    case DType::kI32:
      return wire::DTYPE_I32;
    case DType::kI8:
      return wire::DTYPE_I8;
  }
  return wire::DTYPE_UNSPECIFIED;
}

absl::optional<DType> LocalDType(wire::DType dtype) {
  switch (dtype) {
    case wire::DTYPE_F32:
      return DType::kF32;
    case wire::DTYPE_F64:
      return DType::kF64;
    case wire::DTYPE_I64:
      return DType::kI64;
    case wire::DTYPE_U8:
      return DType::kU8;
    case wire::DTYPE_BOOL:
      return DType::kBool;
    case wire::DTYPE_F16:
      return DType::kF16;
    case wire::DTYPE_BF16:
      return DType::kBF16;
    case wire::DTYPE_I32:
      return DType::kI32;
    case wire::DTYPE_I8:
      return DType::kI8;
    default:  // Any number may come off the wire.
      return absl::nullopt;
  }
}

wire::TensorHeader MakeHeader(DType dtype, const Shape& shape, int64_t bytes) {
  wire::TensorHeader header;
  header.set_dtype(WireDType(dtype));
  for (const int64_t size : shape) header.add_shape(size);
  header.set_bytes(bytes);
  return header;
}

// The bytes that dtype and shape make.
absl::StatusOr<int64_t> BytesOf(DType dtype, const wire::TensorHeader& header) {
  if (header.shape_size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("TensorHeader: ", header.shape_size(),
                     " dimensions; at most ", kMaxDims, " are possible"));
  }
  // Sizes of 0 are left out until the end, so that no later view overflows.
  int64_t bytes = ItemSize(dtype);
  bool is_empty = false;
  for (const int64_t size : header.shape()) {
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("TensorHeader: a dimension of ", size));
    }
    is_empty |= size == 0;
    const int64_t factor = size == 0 ? 1 : size;
    if (__builtin_mul_overflow(bytes, factor, &bytes) ||
        bytes > kMaxTensorBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("TensorHeader: more than ", kMaxTensorBytes, " bytes"));
    }
  }
  return is_empty ? 0 : bytes;
}

absl::Status CheckBools(const Tensor& tensor) {
  // As bytes: reading another value through bool is undefined.
  const auto* const bytes = static_cast<const uint8_t*>(tensor.raw());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (bytes[i] > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Tensor: bool element ", i, " is byte ",
                       static_cast<int>(bytes[i]), "; wanted 0 or 1"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Allocate(const wire::TensorHeader& header) {
  try {
    return Tensor::Empty(ShapeOfHeader(header), DTypeOfHeader(header));
  } catch (const Error& error) {
    return error.status();
  }
}

}  // namespace

wire::TensorHeader HeaderOf(const Payload& payload) {
  return MakeHeader(payload.dtype(), payload.shape(), payload.bytes());
}

wire::TensorHeader HeaderOf(const Tensor& tensor) {
  return MakeHeader(tensor.dtype(), tensor.shape(), tensor.bytes());
}

absl::Status CheckHeader(const wire::TensorHeader& header) {
  const absl::optional<DType> dtype = LocalDType(header.dtype());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TensorHeader: dtype ", static_cast<int>(header.dtype()),
                     " is unknown here"));
  }
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(*dtype, header));
  if (bytes != header.bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TensorHeader: ", header.bytes(),
                     " bytes announced, dtype and shape make ", bytes));
  }
  return absl::OkStatus();
}

DType DTypeOfHeader(const wire::TensorHeader& header) {
  return LocalDType(header.dtype()).value();
}

Shape ShapeOfHeader(const wire::TensorHeader& header) {
  return Shape(header.shape().begin(), header.shape().end());
}

absl::StatusOr<Tensor> DecodeTensor(const wire::TensorHeader& header,
                                    const Slices& elements) {
  WEFT_RETURN_IF_ERROR(CheckHeader(header));
  const size_t found = TotalSize(elements);
  if (found != static_cast<size_t>(header.bytes())) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tensor: ", header.bytes(),
                     " bytes of elements announced, ", found, " received"));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Allocate(header));
  char* out = static_cast<char*>(tensor.raw());
  for (const Bytes& slice : elements) {
    if (slice.empty()) continue;
    std::memcpy(out, slice.data(), slice.size());
    out += slice.size();
  }
  if (tensor.dtype() == DType::kBool) WEFT_RETURN_IF_ERROR(CheckBools(tensor));
  return tensor;
}

absl::StatusOr<Tensor> DecodeTensor(const wire::Tensor& message) {
  // The message outlives the call: its bytes need no owner.
  return DecodeTensor(message.header(),
                      {Bytes::Wrap(message.elements().data(),
                                   message.elements().size(), nullptr)});
}

wire::Tensor EncodeTensor(const Tensor& tensor) {
  const Tensor source = tensor.To(Device::Cpu()).Contiguous();
  wire::Tensor message;
  *message.mutable_header() = HeaderOf(source);
  message.set_elements(source.raw(), source.bytes());
  return message;
}

}  // namespace weft
