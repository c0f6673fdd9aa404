#include "weft/collectives/reduction.h"

#include "absl/strings/str_cat.h"

namespace weft::collectives {

absl::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kAnd:
      return "and";
    case ReduceOp::kOr:
      return "or";
    case ReduceOp::kXor:
      return "xor";
  }
  return "unknown";
}

absl::Status CheckReduction(const Reduction& reduction, DType dtype) {
  const auto refuse = [&](absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction ", Name(reduction.op), " wants ", wanted,
                     " elements, found dtype ", Name(dtype)));
  };
  if (reduction.factor != 1 && !IsFloating(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a factor (", reduction.factor,
                     ") wants floating elements, found dtype ", Name(dtype)));
  }
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return absl::OkStatus();
    case ReduceOp::kAverage:
      return dtype == DType::kBool ? refuse("numeric") : absl::OkStatus();
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      return IsFloating(dtype) ? refuse("integer or bool") : absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "reduction ", static_cast<int>(reduction.op), " is unknown"));
}

}  // namespace weft::collectives
