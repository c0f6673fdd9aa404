#include "weft/train/finite.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/tensor.h"
#include "weft/worker/exit_code.h"

namespace weft::train {
namespace {

template <typename T>
std::optional<std::string> NotFiniteIn(const std::string& name,
                                       const Tensor& tensor) {
  const Tensor values = tensor.To(Device::Cpu()).Contiguous();
  const auto elements = values.span<T>();
  for (size_t i = 0; i < elements.size(); ++i) {
    if (std::isfinite(elements[i])) continue;
    return absl::StrCat(name, " has ", elements[i], " at element ", i);
  }
  return std::nullopt;
}

// "conv1.weight has nan at element 5"; none if all are finite.
std::optional<std::string> FirstNotFinite(const nn::StateDict& state) {
  for (const auto& [name, tensor] : state) {
    std::optional<std::string> found;
    if (tensor.dtype() == DType::kF32) found = NotFiniteIn<float>(name, tensor);
    if (tensor.dtype() == DType::kF64) {
      found = NotFiniteIn<double>(name, tensor);
    }
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

}  // namespace

absl::Status CheckLoss(double loss, int64_t step, const std::string& self,
                       const nn::Module& model) {
  if (std::isfinite(loss)) return absl::OkStatus();
  const std::optional<std::string> first = FirstNotFinite(model.StateDict());
  return worker::WithExitCode(
      absl::OutOfRangeError(absl::StrCat(
          self, ", step ", step, ": the loss is ", loss, "; ",
          first.has_value() ? absl::StrCat("the parameter ", *first)
                            : "all parameters are finite",
          "; try a smaller --lr, or --allow-non-finite to go on")),
      worker::ExitCode::kDiverged);
}

absl::Status CheckFinite(const nn::Module& model) {
  return CheckFinite(model.StateDict());
}

absl::Status CheckFinite(const nn::StateDict& state) {
  const std::optional<std::string> first = FirstNotFinite(state);
  if (!first.has_value()) return absl::OkStatus();
  return worker::WithExitCode(
      absl::OutOfRangeError(absl::StrCat("the parameter ", *first)),
      worker::ExitCode::kDiverged);
}

}  // namespace weft::train
