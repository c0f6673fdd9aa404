// The names that safetensors gives our dtypes.

#ifndef WEFT_CHECKPOINT_SAFETENSORS_DTYPE_H_
#define WEFT_CHECKPOINT_SAFETENSORS_DTYPE_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "weft/tensor/dtype.h"

namespace weft::checkpoint {

constexpr absl::string_view SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI32:
      return "I32";
    case DType::kI8:
      return "I8";
  }
  return "";
}

inline std::optional<DType> DTypeFromSafetensors(absl::string_view name) {
  for (const DType dtype : kAllDTypes) {
    if (name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace weft::checkpoint

#endif  // WEFT_CHECKPOINT_SAFETENSORS_DTYPE_H_
