#include "weft/ps/flat_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft::ps {

FlatParameters::FlatParameters(const nn::Module& module) {
  for (const nn::NamedParameter& parameter : module.NamedParameters()) {
    if (parameter.variable.dtype() != DType::kF32) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "FlatParameters: wanted f32 parameters, '", parameter.name, "' is ",
          parameter.variable.value().Describe())));
    }
    elements_ += parameter.variable.numel();
    parameters_.push_back(parameter.variable);
  }
}

Tensor FlatParameters::Values() const {
  Tensor flat = Tensor::Empty({elements_});
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    flat.Slice(0, at, at + n).CopyFrom(parameter.value().Reshape({n}));
    at += n;
  }
  return flat;
}

absl::Status FlatParameters::SetValues(const Tensor& values) const {
  if (!values.defined() || values.dtype() != DType::kF32 || values.dim() != 1 ||
      values.numel() != elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("FlatParameters: wanted f32[", elements_, "], found ",
                     values.defined() ? values.Describe() : "no tensor"));
  }
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    parameter.value().CopyFrom(
        values.Slice(0, at, at + n).Reshape(parameter.shape()));
    at += n;
  }
  return absl::OkStatus();
}

Tensor FlatParameters::Gradient() const {
  Tensor flat = Tensor::Zeros({elements_});
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    if (parameter.has_grad()) {
      flat.Slice(0, at, at + n).CopyFrom(parameter.grad().Reshape({n}));
    }
    at += n;
  }
  return flat;
}

void FlatParameters::ClearGradient() const {
  for (const Variable& parameter : parameters_) parameter.ClearGradient();
}

}  // namespace weft::ps
