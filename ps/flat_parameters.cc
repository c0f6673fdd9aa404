#include "weft/ps/flat_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"

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
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].requires_grad()) continue;
    index_of_[parameters_[i].leaf()] = i;
    parameters_[i].SetGradientSink(this);
  }
}

FlatParameters::~FlatParameters() {
  for (const Variable& parameter : parameters_) {
    // It may be frozen by now.
    const Leaf* const leaf = parameter.leaf();
    if (leaf != nullptr && leaf->sink() == this) {
      parameter.SetGradientSink(nullptr);
    }
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

absl::Status FlatParameters::CheckValues(const Tensor& values) const {
  if (!values.defined() || values.dtype() != DType::kF32 || values.dim() != 1 ||
      values.numel() != elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat("FlatParameters: wanted f32[", elements_, "], found ",
                     values.defined() ? values.Describe() : "no tensor"));
  }
  return absl::OkStatus();
}

absl::Status FlatParameters::SetValues(const Tensor& values) const {
  WEFT_RETURN_IF_ERROR(CheckValues(values));
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    parameter.value().CopyFrom(
        values.Slice(0, at, at + n).Reshape(parameter.shape()));
    at += n;
  }
  return absl::OkStatus();
}

absl::Status FlatParameters::AdoptValues(Tensor values) const {
  WEFT_RETURN_IF_ERROR(CheckValues(values));
  if (!values.is_contiguous()) values = values.Contiguous();
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    Tensor view = values.Slice(0, at, at + n).View(parameter.shape());
    if (parameter.requires_grad()) {
      parameter.SetValue(std::move(view));
    } else {
      parameter.value().CopyFrom(view);
    }
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
  for (const Variable& parameter : parameters_) {
    parameter.ClearGradient();
  }
}

Tensor FlatParameters::TakeGradient() {
  if (!gradient_.defined()) MakeViews();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Variable& parameter = parameters_[i];
    if (!parameter.has_grad()) {
      views_[i].Fill(0);
    } else {
      // Made elsewhere, if somebody has set it.
      (void)PrepareDestination(*parameter.leaf(), views_[i]);
    }
  }
  ClearGradient();
  views_.clear();
  return std::move(gradient_);
}

GradientDestination FlatParameters::Destination(const BackwardPass& pass,
                                                Leaf& leaf) {
  if (pass.store != nullptr) return {};
  return PrepareDestination(leaf, ViewOf(leaf));
}

void FlatParameters::Accept(const BackwardPass& pass, Leaf& leaf,
                            weft::Gradient gradient) {
  if (pass.store != nullptr) {
    return pass.store->Accept(pass, leaf, std::move(gradient));
  }
  AcceptInto(leaf, ViewOf(leaf), gradient);
}

void FlatParameters::NoGradient(const BackwardPass& pass, Leaf& leaf) {
  if (pass.store != nullptr) pass.store->NoGradient(pass, leaf);
}

const Tensor& FlatParameters::ViewOf(const Leaf& leaf) {
  if (!gradient_.defined()) MakeViews();
  return views_[index_of_.at(&leaf)];
}

void FlatParameters::MakeViews() {
  gradient_ = Tensor::Empty({elements_});
  views_.clear();
  int64_t at = 0;
  for (const Variable& parameter : parameters_) {
    const int64_t n = parameter.numel();
    views_.push_back(gradient_.Slice(0, at, at + n).View(parameter.shape()));
    at += n;
  }
}

}  // namespace weft::ps
