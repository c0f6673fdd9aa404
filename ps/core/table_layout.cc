#include "weft/ps/core/table_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/ps/core/placement.h"

namespace weft::ps {
namespace {

using v1::Initializer;
using v1::TableSpec;

constexpr double kTwoPi = 6.283185307179586;

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= 256 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '/' ||
                  c == '-';
         });
}

absl::Status Unfit(const TableSpec& spec, absl::string_view field,
                   int64_t found, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(
      absl::StrCat("table '", spec.name(), "': ", field, " is ", found,
                   ", wanted ", low, " to ", high));
}

absl::Status CheckRange(const TableSpec& spec, absl::string_view field,
                        int64_t found, int64_t low, int64_t high) {
  if (found >= low && found <= high) return absl::OkStatus();
  return Unfit(spec, field, found, low, high);
}

// A power of two.
int64_t SliceElements(int64_t elements) {
  int64_t slice = kMinSliceElements;
  while (slice < kMaxSliceElements && slice * 64 < elements) slice *= 2;
  return slice;
}

// In [0, 1), from the upper 53 bits.
double Unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace

int64_t SlicesOf(int64_t elements) {
  const int64_t slice = SliceElements(elements);
  return (elements + slice - 1) / slice;
}

absl::StatusOr<TableSpec> CheckedSpec(TableSpec spec) {
  if (!IsName(spec.name())) {
    return absl::InvalidArgumentError(
        "a table's name is 1 to 256 characters of [A-Za-z0-9._/-]");
  }
  switch (spec.kind()) {
    case TableSpec::DENSE:
      WEFT_RETURN_IF_ERROR(
          CheckRange(spec, "elements", spec.elements(), 1, kMaxElements));
      break;
    case TableSpec::SPARSE:
      WEFT_RETURN_IF_ERROR(CheckRange(spec, "dim", spec.dim(), 1, kMaxDim));
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("table '", spec.name(), "': kind is ", spec.kind(),
                       ", wanted DENSE or SPARSE"));
  }
  switch (spec.mode()) {
    case TableSpec::ASYNC:
      break;
    case TableSpec::SYNC:
      WEFT_RETURN_IF_ERROR(
          CheckRange(spec, "shards", spec.shards(), 1, kMaxShards));
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("table '", spec.name(),
                                                     "': mode is ", spec.mode(),
                                                     ", wanted SYNC or ASYNC"));
  }
  if (spec.partitions() == 0) spec.set_partitions(kDefaultPartitions);
  WEFT_RETURN_IF_ERROR(
      CheckRange(spec, "partitions", spec.partitions(), 1, kMaxPartitions));
  if ((spec.partitions() & (spec.partitions() - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': partitions is ",
                     spec.partitions(), ", wanted a power of two"));
  }
  // A value of a later build, or of none.
  if (!Initializer::Kind_IsValid(spec.initializer().kind()) ||
      !TableSpec::Reduction_IsValid(spec.reduction()) ||
      !TableSpec::Orphans_IsValid(spec.orphans())) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': initializer.kind is ",
                     spec.initializer().kind(), ", reduction ",
                     spec.reduction(), ", orphans ", spec.orphans(),
                     "; this build knows 0 to 2, 0 to 1 and 0 to 1"));
  }
  constexpr double kMaxScale = std::numeric_limits<float>::max() / 16;
  if (!(spec.initializer().scale() >= 0 &&
        spec.initializer().scale() <= kMaxScale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': initializer.scale is ",
                     spec.initializer().scale(), ", wanted 0 to ", kMaxScale));
  }
  return spec;
}

absl::StatusOr<std::unique_ptr<TableLayout>> TableLayout::Create(
    TableSpec spec) {
  WEFT_ASSIGN_OR_RETURN(spec, CheckedSpec(std::move(spec)));
  absl::StatusOr<std::unique_ptr<optimizer::UpdateRule>> rule =
      optimizer::MakeRule(spec.rule());
  if (!rule.ok()) {
    return Reworded(
        rule.status(),
        absl::StrCat("table '", spec.name(), "': ", rule.status().message()));
  }
  return std::unique_ptr<TableLayout>(
      new TableLayout(std::move(spec), *std::move(rule)));
}

TableLayout::TableLayout(TableSpec spec,
                         std::unique_ptr<optimizer::UpdateRule> rule)
    : spec_(std::move(spec)),
      rule_(std::move(rule)),
      slots_(static_cast<int>(rule_->slots().size())),
      uses_step_(rule_->uses_step()),
      dim_(is_dense() ? SliceElements(spec_.elements()) : spec_.dim()),
      seed_(Mix64(spec_.initializer().seed()) ^ HashName(spec_.name())) {}

int64_t TableLayout::slices() const { return SlicesOf(spec_.elements()); }

int64_t TableLayout::RowLength(uint64_t key) const {
  if (!is_dense()) return dim_;
  const int64_t begin = static_cast<int64_t>(key) * dim_;
  return std::min(dim_, spec_.elements() - begin);
}

void TableLayout::InitialWeights(uint64_t key,
                                 absl::Span<float> weights) const {
  const double scale = spec_.initializer().scale();
  const uint64_t row = Mix64(seed_ ^ Mix64(key));
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint64_t bits = Mix64(row ^ i);
    switch (spec_.initializer().kind()) {
      case Initializer::UNIFORM:
        weights[i] = static_cast<float>((2 * Unit(bits) - 1) * scale);
        break;
      case Initializer::NORMAL: {
        // Box-Muller; 1 - u keeps the logarithm's argument above zero.
        const double radius = std::sqrt(-2 * std::log(1 - Unit(bits)));
        const double angle = kTwoPi * Unit(Mix64(bits));
        weights[i] = static_cast<float>(radius * std::cos(angle) * scale);
        break;
      }
      default:
        weights[i] = 0.0f;
    }
  }
}

void TableLayout::InitialSlots(float* row, int64_t length) const {
  for (int s = 0; s < slots(); ++s) {
    std::fill_n(row + (s + 1) * dim_, length,
                static_cast<float>(rule_->slots()[s].initial_value));
  }
}

void TableLayout::ApplyTo(const optimizer::StepContext& step, float* weights,
                          int64_t stride, const float* gradient,
                          int64_t length) const {
  absl::InlinedVector<absl::Span<float>, 4> slots_of_row;
  for (int s = 0; s < slots(); ++s) {
    slots_of_row.push_back(absl::MakeSpan(weights + (s + 1) * stride, length));
  }
  rule_->Apply(step, absl::MakeSpan(weights, length),
               absl::MakeConstSpan(gradient, length), slots_of_row);
}

}  // namespace weft::ps
