// Call: an operation and its tensors as kernels take them, without a header of
// Abseil, which nvcc would have to read.

#ifndef WEFT_TENSOR_CUDA_CALL_H_
#define WEFT_TENSOR_CUDA_CALL_H_

#include <cstdint>

namespace weft::internal::cuda {

// The values of DType.
enum class Element : uint8_t {
  kF32,
  kF64,
  kI64,
  kU8,
  kBool,
  kF16,
  kBF16,
  kI32,
  kI8
};

inline constexpr int kMaxTensorDims = 32;
inline constexpr int kMaxOperands = 8;
inline constexpr int kMaxNumbers = 10;

// A tensor.
struct Operand {
  void* address;
  Element element;
  int dims;
  int64_t numel;
  bool is_contiguous;
  int64_t sizes[kMaxTensorDims];
  int64_t strides[kMaxTensorDims];  // in elements

  template <typename T>
  T* data() const {
    return static_cast<T*>(address);
  }
};

// The operands are in the order of the operation's call of OnDevice.
struct Call {
  int count;
  Operand operands[kMaxOperands];
  double numbers[kMaxNumbers];
};

// Launches a kernel on `stream`, a cudaStream_t. Null if it did, else what it
// lacks: "no kernel for these dtypes". What goes wrong on the device is for
// cudaGetLastError to say.
using Launcher = const char* (*)(const Call& call, void* stream);

inline constexpr const char* kNoDType = "no kernel for these dtypes";
inline constexpr const char* kNoCount = "no kernel for so many tensors";
inline constexpr const char* kNotContiguous =
    "its kernel takes contiguous tensors only";
inline constexpr const char* kNoMemory = "no memory for what is between";
inline constexpr const char* kTooManyDims =
    "its kernel takes at most 8 dimensions that do not join";

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_CALL_H_
