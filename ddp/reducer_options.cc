#include "weft/ddp/reducer_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::ddp {

absl::Status CheckArguments(const std::vector<ReducerParameter>& parameters,
                            const ReducerOptions& options) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "there is no parameter that requires a gradient");
  }
  if (options.first_bucket_bytes < 1 || options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wanted buckets of at least 1 byte, found ", options.first_bucket_bytes,
        " for the first and ", options.bucket_bytes, " for the others"));
  }
  if (options.is_static_graph && options.divisor == Divisor::kTotalWeight) {
    return absl::InvalidArgumentError(
        "is_static_graph needs Divisor::kWorldSize: weights differ from step "
        "to step");
  }
  for (const ReducerParameter& parameter : parameters) {
    if (!IsFloating(parameter.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", parameter.name, " is ",
                       Name(parameter.dtype), "; wanted a floating dtype"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const ReducerParameter& parameter,
                       const SparseRows& rows) {
  if (parameter.shape.size() != 2 || rows.rows != parameter.shape[0] ||
      rows.values.dim() != 2 || rows.values.size(1) != parameter.shape[1] ||
      rows.values.dtype() != parameter.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reducer::MarkRows: parameter ", parameter.name, " is ",
        Name(parameter.dtype), ShapeText(parameter.shape), ", found ",
        rows.values.Describe(), " of ", rows.rows, " rows"));
  }
  const Tensor indices = rows.indices.Contiguous();
  for (const int64_t row : indices.span<int64_t>()) {
    if (row < 0 || row >= rows.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("Reducer::MarkRows: parameter ", parameter.name, " has ",
                       rows.rows, " rows, found a gradient of row ", row));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> Describe(
    const std::vector<ReducerParameter>& parameters,
    const ReducerOptions& options) {
  std::vector<std::string> lines = {absl::StrCat(
      "options: division by ",
      options.divisor == Divisor::kWorldSize ? "the number of ranks"
                                             : "the total weight",
      ", buckets of ", options.first_bucket_bytes, " and ",
      options.bucket_bytes, " bytes",
      options.rebuilds_buckets ? "" : ", which are not rebuilt",
      options.is_static_graph ? ", a static graph" : "", ", hook ",
      options.hook == nullptr ? "all-reduce" : options.hook->name())};
  // Buckets are of one device each: which devices they are may differ between
  // ranks, and which parameters are together on one may not.
  std::vector<Device> devices;
  for (const ReducerParameter& parameter : parameters) {
    const auto found =
        std::find(devices.begin(), devices.end(), parameter.device);
    const auto place = found - devices.begin();
    if (found == devices.end()) devices.push_back(parameter.device);
    lines.push_back(absl::StrCat(
        "parameter ", parameter.name, " ", Name(parameter.dtype),
        ShapeText(parameter.shape),
        place == 0 ? "" : absl::StrCat(" on device ", place + 1, " of these")));
  }
  return lines;
}

}  // namespace weft::ddp
