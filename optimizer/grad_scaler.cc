#include "weft/optimizer/grad_scaler.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/autograd/ops/elementwise.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/wide.h"

namespace weft::optimizer {
namespace {

constexpr char kScale[] = "scale";
constexpr char kStepsAtScale[] = "steps_at_scale";

// Whether `scale` is positive and finite.
bool IsScale(double scale) { return scale > 0 && std::isfinite(scale); }

const Tensor& ValuesOf(const Gradient& gradient) {
  return gradient.is_sparse() ? gradient.sparse().values : gradient.dense();
}

// Whether all elements are finite: x - x is 0 for finite x, else NaN, and sums
// keep NaN. Waits for a device once.
bool AreFinite(const std::vector<Gradient>& gradients) {
  Tensor total;
  for (const Gradient& gradient : gradients) {
    const Tensor& values = ValuesOf(gradient);
    const Tensor zero = Sum(Sub(values, values)).To(DType::kF32);
    total = total.defined() ? Add(total, zero.To(total.device())) : zero;
  }
  return !total.defined() || total.item<float>() == 0;
}

absl::Status CheckNotF16(const Parameter& parameter) {
  if (parameter.variable.dtype() != DType::kF16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "GradScaler: the parameter \"", parameter.name, "\" is ",
      parameter.variable.value().Describe(),
      ", whose gradient loses when unscaled what scaling saves; keep it in f32 "
      "and compute under an AutocastScope of f16, or take bf16"));
}

// Multiplies the parameter's gradient by `factor`, in place.
void ScaleGradient(const Variable& parameter, double factor) {
  const Gradient gradient = parameter.gradient();
  if (!gradient.is_sparse()) return Mul_(gradient.dense(), factor);
  const SparseRows& rows = gradient.sparse();
  parameter.SetGradient(
      SparseRows{rows.indices, Mul(rows.values, factor), rows.rows});
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradScaler>> GradScaler::Create(
    const Options& options) {
  if (IsScale(options.initial_scale) && options.growth > 1 &&
      std::isfinite(options.growth) && options.backoff > 0 &&
      options.backoff < 1 && options.growth_interval >= 1) {
    return std::unique_ptr<GradScaler>(new GradScaler(options));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "GradScaler: initial_scale is ", options.initial_scale, ", growth ",
      options.growth, ", backoff ", options.backoff, ", growth_interval ",
      options.growth_interval,
      "; wanted a positive scale, growth above 1, backoff between 0 and 1, and "
      "an interval of at least 1"));
}

Variable GradScaler::Scale(const Variable& loss) const {
  const bool is_half = internal::IsHalf(loss.dtype());
  return Mul(is_half ? Cast(loss, DType::kF32) : loss, scale_);
}

absl::Status GradScaler::Unscale(Optimizer& optimizer) {
  if (unscaled_.contains(&optimizer)) {
    return absl::FailedPreconditionError(
        "GradScaler::Unscale: the gradients of this optimizer were unscaled "
        "since the last Update; wanted one Unscale for a step");
  }
  return CatchToStatus([&]() -> absl::Status {
    std::vector<Variable> scaled;
    std::vector<Gradient> gradients;
    for (const Parameter& parameter : optimizer.Parameters()) {
      Gradient gradient = parameter.variable.gradient();
      if (!gradient.defined()) continue;
      WEFT_RETURN_IF_ERROR(CheckNotF16(parameter));
      scaled.push_back(parameter.variable);
      gradients.push_back(std::move(gradient));
    }
    const bool is_finite = AreFinite(gradients);
    gradients.clear();
    for (const Variable& parameter : scaled) {
      ScaleGradient(parameter, 1 / scale_);
    }
    unscaled_[&optimizer].is_finite = is_finite;
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> GradScaler::Step(Optimizer& optimizer) {
  if (!unscaled_.contains(&optimizer)) {
    WEFT_RETURN_IF_ERROR(Unscale(optimizer));
  }
  Unscaled& unscaled = unscaled_[&optimizer];
  if (unscaled.is_stepped) {
    return absl::FailedPreconditionError(
        "GradScaler::Step: this optimizer has had its step since the last "
        "Update");
  }
  unscaled.is_stepped = true;
  if (unscaled.is_finite) WEFT_RETURN_IF_ERROR(optimizer.Step());
  return unscaled.is_finite;
}

absl::Status GradScaler::Update() {
  if (unscaled_.empty()) {
    return absl::FailedPreconditionError(
        "GradScaler::Update: no gradients were unscaled since the last; wanted "
        "a Step or an Unscale before");
  }
  bool is_finite = true;
  for (const auto& [optimizer, unscaled] : unscaled_) {
    is_finite &= unscaled.is_finite;
  }
  unscaled_.clear();
  if (!is_finite) {
    // A scale of 0 would end the training without a word.
    const double less = scale_ * options_.backoff;
    if (less > 0) scale_ = less;
    steps_at_scale_ = 0;
  } else if (++steps_at_scale_ >= options_.growth_interval) {
    const double more = scale_ * options_.growth;
    if (std::isfinite(static_cast<float>(more))) scale_ = more;
    steps_at_scale_ = 0;
  }
  return absl::OkStatus();
}

absl::btree_map<std::string, Tensor> GradScaler::StateDict() const {
  return {{kScale, Tensor::Scalar<double>(scale_)},
          {kStepsAtScale, Tensor::Scalar<int64_t>(steps_at_scale_)}};
}

absl::Status GradScaler::LoadStateDict(
    const absl::btree_map<std::string, Tensor>& state) {
  return CatchToStatus([&]() -> absl::Status {
    const auto is_like = [&](const char* name, const Tensor& ours) {
      const auto found = state.find(name);
      return found != state.end() && found->second.defined() &&
             found->second.dtype() == ours.dtype() &&
             found->second.shape() == ours.shape();
    };
    for (const auto& [name, ours] : StateDict()) {
      if (is_like(name.c_str(), ours)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("GradScaler: wanted state \"", name, "\" of ",
                       ours.Describe(), "; it is missing or another"));
    }
    for (const auto& [name, tensor] : state) {
      if (name == kScale || name == kStepsAtScale) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("GradScaler: state \"", name, "\" is unknown"));
    }
    const double scale = state.at(kScale).item<double>();
    const int64_t steps = state.at(kStepsAtScale).item<int64_t>();
    if (!IsScale(scale) || steps < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GradScaler: the state has a scale of ", scale, " and ", steps,
          " steps; wanted a positive scale, and 0 steps or more"));
    }
    scale_ = scale;
    steps_at_scale_ = steps;
    unscaled_.clear();
    return absl::OkStatus();
  });
}

}  // namespace weft::optimizer
