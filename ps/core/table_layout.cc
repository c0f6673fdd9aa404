#include "weft/ps/core/table_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/util/message_differencer.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/ps/core/placement.h"
#include "weft/ps/core/row_store.h"

namespace weft::ps {
namespace {

using v1::Initializer;
using v1::TableSpec;

constexpr int kDefaultCounters = 1024;
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

absl::Status CheckLife(const TableSpec& spec) {
  const v1::RowLife& life = spec.life();
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': life.", why...));
  };
  if (spec.kind() == TableSpec::DENSE) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(),
        "': life is set, wanted none: a DENSE table has all its rows"));
  }
  // A row for each partition.
  const int64_t least = life.max_rows() == 0 ? 0 : spec.partitions();
  WEFT_RETURN_IF_ERROR(
      CheckRange(spec, "life.max_rows", life.max_rows(), least, kMaxRows));
  WEFT_RETURN_IF_ERROR(
      CheckRange(spec, "life.max_bytes", life.max_bytes(), 0, kMaxTableBytes));
  WEFT_RETURN_IF_ERROR(CheckRange(spec, "life.idle_versions",
                                  life.idle_versions(), 0, kMostIdleVersions));
  WEFT_RETURN_IF_ERROR(CheckRange(spec, "life.drop_versions",
                                  life.drop_versions(), 0, kMostIdleVersions));
  WEFT_RETURN_IF_ERROR(CheckRange(spec, "life.admit_after", life.admit_after(),
                                  0, kMostAdmitAfter));
  if (life.max_rows() > 0 && life.max_bytes() > 0) {
    return refuse("max_rows is ", life.max_rows(), " and life.max_bytes ",
                  life.max_bytes(), ", wanted one of the two");
  }
  const bool lets_go =
      life.max_rows() > 0 || life.max_bytes() > 0 || life.idle_versions() > 0;
  if (life.drop_versions() > 0 && !lets_go) {
    return refuse("drop_versions is ", life.drop_versions(),
                  ", wanted 0: without max_rows, max_bytes and idle_versions "
                  "no row goes");
  }
  const int counters = life.admit_counters();
  const bool is_power = counters > 0 && (counters & (counters - 1)) == 0;
  if (life.admit_after() > 1
          ? !is_power || counters < kLeastCounters || counters > kMostCounters
          : counters != 0) {
    return refuse("admit_counters is ", counters, ", wanted a power of two, ",
                  kLeastCounters, " to ", kMostCounters,
                  ", or 0 if admit_after is at most 1");
  }
  if (!(life.admit_probability() >= 0 && life.admit_probability() <= 1)) {
    return refuse("admit_probability is ", life.admit_probability(),
                  ", wanted 0 to 1");
  }
  if (life.admit_probability() > 0 && life.admit_after() > 1) {
    return refuse("admit_probability is ", life.admit_probability(),
                  " and life.admit_after ", life.admit_after(),
                  ", wanted one of the two");
  }
  return absl::OkStatus();
}

// The limits of one partition, whose rows have `floats` floats each.
RowLimits LimitsOf(const TableSpec& spec, int64_t floats) {
  const v1::RowLife& life = spec.life();
  RowLimits limits;
  const int64_t rows =
      life.max_rows() + life.max_bytes() / RowStore::BytesOfRow(floats, true);
  limits.most_rows = rows / spec.partitions();
  limits.idle_versions = life.idle_versions();
  limits.drop_versions = life.drop_versions();
  limits.admit_after = std::max(1, life.admit_after());
  limits.counters = life.admit_counters();
  if (life.admit_probability() > 0) {
    limits.admit_probability = life.admit_probability();
  }
  limits.seed = life.seed();
  return limits;
}

// A power of two.
int64_t SliceElements(int64_t elements) {
  int64_t slice = kMinSliceElements;
  while (slice < kMaxSliceElements && slice * 64 < elements) slice *= 2;
  return slice;
}

// Whether a row of `a` has the slots that `b` wants. A rule that cannot be made
// is refused where it is.
bool HaveSameSlots(const optimizer::v1::RuleSpec& a,
                   const optimizer::v1::RuleSpec& b) {
  const auto rule_a = optimizer::MakeRule(a), rule_b = optimizer::MakeRule(b);
  if (!rule_a.ok() || !rule_b.ok()) return true;
  const auto slots_a = (*rule_a)->slots(), slots_b = (*rule_b)->slots();
  return std::equal(slots_a.begin(), slots_a.end(), slots_b.begin(),
                    slots_b.end(),
                    [](const optimizer::Slot& x, const optimizer::Slot& y) {
                      return x.name == y.name && x.is_per_row == y.is_per_row;
                    });
}

std::vector<int64_t> SlotOffsets(absl::Span<const optimizer::Slot> slots,
                                 int64_t dim) {
  std::vector<int64_t> offsets = {dim};
  for (const optimizer::Slot& slot : slots) {
    offsets.push_back(offsets.back() + (slot.is_per_row ? 1 : dim));
  }
  return offsets;
}

// A slice is no row: where it ends depends on how long the vector is.
absl::Status CheckScope(const TableSpec& spec,
                        const optimizer::UpdateRule& rule) {
  if (spec.kind() != TableSpec::DENSE ||
      rule.scope() == optimizer::Scope::kElement) {
    return absl::OkStatus();
  }
  const absl::string_view name = optimizer::RuleName(rule.options());
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", spec.name(), "': ", name,
      spec.rule().clip_norm() > 0 ? " with clip_norm" : "",
      " looks at whole rows, and a DENSE table has none, only slices; choose a "
      "rule that works element by element and no clip_norm, or a SPARSE table "
      "with the parameter's rows"));
}

// In [0, 1), from the upper 53 bits.
double Unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

absl::Status CheckWire(const TableSpec& spec) {
  const v1::WireValues& wire = spec.wire();
  if (!v1::WireValues::Dtype_IsValid(wire.push()) ||
      !v1::WireValues::Dtype_IsValid(wire.pull()) ||
      !v1::WireValues::Residual_IsValid(wire.residual())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': wire.push is ", wire.push(), ", wire.pull ",
        wire.pull(), ", wire.residual ", wire.residual(),
        "; this build knows 0 to 3, 0 to 3 and 0 to 1: choose one of those, or "
        "start servers of the build that knows more"));
  }
  const bool has_residuals = wire.push() != v1::WireValues::F32 &&
                             wire.residual() == v1::WireValues::KEEP;
  const bool is_bounded = has_residuals && spec.kind() == TableSpec::SPARSE;
  return CheckRange(spec, "wire.residual_bytes", wire.residual_bytes(), 0,
                    is_bounded ? kMaxTableBytes : 0);
}

// When pulls are answered, and rounds closed.
absl::Status CheckConsistency(const TableSpec& spec) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': ", why...));
  };
  const bool is_sync = spec.mode() == TableSpec::SYNC;
  if (spec.has_staleness() && is_sync) {
    return refuse(
        "staleness is ", spec.staleness(),
        ", wanted none: a SYNC table's pulls wait for rounds; make it "
        "ASYNC, or set quorum");
  }
  if (spec.has_quorum() && !is_sync) {
    return refuse("quorum is ", spec.quorum(),
                  ", wanted none: an ASYNC table has no rounds; make it SYNC, "
                  "or set staleness");
  }
  if (spec.has_staleness()) {
    WEFT_RETURN_IF_ERROR(
        CheckRange(spec, "staleness", spec.staleness(), 0, kMostStaleness));
  }
  if (spec.has_quorum()) {
    WEFT_RETURN_IF_ERROR(
        CheckRange(spec, "quorum", spec.quorum(), 1, spec.shards()));
  }
  if (!TableSpec::Late_IsValid(spec.late())) {
    return refuse("late is ", spec.late(), "; this build knows 0 to 1");
  }
  if (spec.late() != TableSpec::DROP && !spec.has_quorum()) {
    return refuse(
        "late is FOLD, wanted DROP: without a quorum no part is late");
  }
  return absl::OkStatus();
}

// All of a spec that can be told without its rule.
absl::StatusOr<TableSpec> CheckedFields(TableSpec spec) {
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
  WEFT_RETURN_IF_ERROR(CheckConsistency(spec));
  if (spec.partitions() == 0) spec.set_partitions(kDefaultPartitions);
  WEFT_RETURN_IF_ERROR(
      CheckRange(spec, "partitions", spec.partitions(), 1, kMaxPartitions));
  if ((spec.partitions() & (spec.partitions() - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", spec.name(), "': partitions is ",
                     spec.partitions(), ", wanted a power of two"));
  }
  if (spec.life().admit_after() > 1 && spec.life().admit_counters() == 0) {
    spec.mutable_life()->set_admit_counters(kDefaultCounters);
  }
  if (spec.life().ByteSizeLong() == 0) spec.clear_life();
  if (spec.has_life()) WEFT_RETURN_IF_ERROR(CheckLife(spec));
  if (spec.wire().ByteSizeLong() == 0) spec.clear_wire();
  WEFT_RETURN_IF_ERROR(CheckWire(spec));
  // A value of a later build, or of none.
  if (!Initializer::Kind_IsValid(spec.initializer().kind()) ||
      !TableSpec::Reduction_IsValid(spec.reduction()) ||
      !TableSpec::Orphans_IsValid(spec.orphans()) ||
      !TableSpec::Durability_IsValid(spec.durability())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", spec.name(), "': initializer.kind is ",
        spec.initializer().kind(), ", reduction ", spec.reduction(),
        ", orphans ", spec.orphans(), ", durability ", spec.durability(),
        "; this build knows 0 to 2, 0 to 1, 0 to 1 and 0 to 4"));
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

}  // namespace

int64_t SlicesOf(int64_t elements) {
  const int64_t slice = SliceElements(elements);
  return (elements + slice - 1) / slice;
}

absl::StatusOr<TableSpec> CheckedSpec(TableSpec spec) {
  WEFT_ASSIGN_OR_RETURN(const auto layout,
                        TableLayout::Create(std::move(spec)));
  return layout->spec();
}

std::string DifferenceOf(const v1::TableSpec& found,
                         const v1::TableSpec& wanted) {
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  (void)differencer.Compare(found, wanted);
  return difference;
}

v1::TableSpec WithChanges(v1::TableSpec restored, const v1::TableSpec& wanted) {
  if (restored.rule().rule_case() == wanted.rule().rule_case() &&
      HaveSameSlots(restored.rule(), wanted.rule())) {
    *restored.mutable_rule() = wanted.rule();
  }
  restored.set_shards(wanted.shards());
  restored.set_reduction(wanted.reduction());
  restored.set_orphans(wanted.orphans());
  restored.set_durability(wanted.durability());
  restored.clear_staleness();
  if (wanted.has_staleness()) restored.set_staleness(wanted.staleness());
  restored.clear_quorum();
  if (wanted.has_quorum()) restored.set_quorum(wanted.quorum());
  restored.set_late(wanted.late());
  if (wanted.has_life()) {
    *restored.mutable_life() = wanted.life();
  } else {
    restored.clear_life();
  }
  if (wanted.has_wire()) {
    *restored.mutable_wire() = wanted.wire();
  } else {
    restored.clear_wire();
  }
  return restored;
}

absl::StatusOr<std::unique_ptr<TableLayout>> TableLayout::Create(
    TableSpec spec) {
  WEFT_ASSIGN_OR_RETURN(spec, CheckedFields(std::move(spec)));
  absl::StatusOr<std::unique_ptr<optimizer::UpdateRule>> rule =
      optimizer::MakeRule(spec.rule());
  if (!rule.ok()) {
    return Reworded(
        rule.status(),
        absl::StrCat("table '", spec.name(), "': ", rule.status().message()));
  }
  WEFT_RETURN_IF_ERROR(CheckScope(spec, **rule));
  std::unique_ptr<TableLayout> layout(
      new TableLayout(std::move(spec), *std::move(rule)));
  const v1::RowLife& life = layout->spec().life();
  if (life.max_bytes() > 0 && layout->limits().most_rows == 0) {
    return Unfit(layout->spec(), "life.max_bytes", life.max_bytes(),
                 layout->spec().partitions() *
                     RowStore::BytesOfRow(layout->row_floats(), true),
                 kMaxTableBytes);
  }
  return layout;
}

TableLayout::TableLayout(TableSpec spec,
                         std::unique_ptr<optimizer::UpdateRule> rule)
    : spec_(std::move(spec)),
      rule_(std::move(rule)),
      slots_(static_cast<int>(rule_->slots().size())),
      uses_step_(rule_->uses_step()),
      dim_(is_dense() ? SliceElements(spec_.elements()) : spec_.dim()),
      slot_offsets_(SlotOffsets(rule_->slots(), dim_)),
      limits_(LimitsOf(spec_, slot_offsets_.back())),
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
    std::fill_n(row + SlotOffset(s), SlotLength(s, length),
                static_cast<float>(rule_->slots()[s].initial_value));
  }
}

void TableLayout::Apply(const optimizer::StepContext& step, float* row,
                        const float* gradient, int64_t length) const {
  absl::InlinedVector<absl::Span<float>, 4> slots_of_row;
  for (int s = 0; s < slots(); ++s) {
    slots_of_row.push_back(
        absl::MakeSpan(row + SlotOffset(s), SlotLength(s, length)));
  }
  rule_->Apply(step, absl::MakeSpan(row, length),
               absl::MakeConstSpan(gradient, length), slots_of_row);
}

void TableLayout::ApplyJoined(const optimizer::StepContext& step,
                              float* weights, const float* gradient,
                              int64_t length) const {
  absl::InlinedVector<absl::Span<float>, 4> slots_of_rows;
  for (int s = 0; s < slots(); ++s) {
    slots_of_rows.push_back(absl::MakeSpan(weights + (s + 1) * length, length));
  }
  rule_->Apply(step, absl::MakeSpan(weights, length),
               absl::MakeConstSpan(gradient, length), slots_of_rows);
}

}  // namespace weft::ps
