#include "weft/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/rule_numbers.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/update_rules.h"
#include "weft/tensor/ops/wide.h"

namespace weft::optimizer {
namespace {

absl::Status CheckParameter(const Parameter& parameter) {
  const Variable& variable = parameter.variable;
  if (variable.leaf() != nullptr && variable.value().is_contiguous() &&
      IsFloating(variable.dtype())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Optimizer: parameter \"", parameter.name, "\" is ",
      variable.defined() ? variable.value().Describe() : "undefined",
      "; wanted a contiguous leaf of f32, f64, f16 or bf16 made with "
      "requires_grad"));
}

bool IsFrozen(const Parameter& parameter) {
  return !parameter.variable.requires_grad();
}

int64_t RowsOf(const Tensor& value) {
  return value.dim() == 0 ? 1 : value.size(0);
}

Shape SlotShape(const UpdateRule& rule, const Slot& slot, const Tensor& value) {
  if (!slot.is_per_row) return value.shape();
  return {rule.scope() == Scope::kParameter ? 1 : RowsOf(value)};
}

// Applies the rule to `gradient.size()` elements of the parameter, from `begin`
// on; where its scope is a row, they are those of `row`.
template <typename T>
void Apply(const UpdateRule& rule, const StepContext& context,
           const Tensor& value, const std::vector<Tensor>& slots, int64_t row,
           int64_t begin, absl::Span<const T> gradient) {
  std::vector<absl::Span<T>> parts;
  for (size_t s = 0; s < slots.size(); ++s) {
    const absl::Span<T> all = slots[s].span<T>();
    parts.push_back(rule.slots()[s].is_per_row
                        ? all.subspan(row, 1)
                        : all.subspan(begin, gradient.size()));
  }
  rule.Apply(context, value.span<T>().subspan(begin, gradient.size()), gradient,
             parts);
}

template <typename T>
void ApplyDense(const UpdateRule& rule, const StepContext& context,
                const Tensor& value, const std::vector<Tensor>& slots,
                const Tensor& gradient) {
  const absl::Span<const T> all = gradient.span<T>();
  if (rule.scope() != Scope::kRow) {
    return optimizer::Apply<T>(rule, context, value, slots, 0, 0, all);
  }
  const int64_t rows = RowsOf(value);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t width = value.numel() / rows;
    optimizer::Apply<T>(rule, context, value, slots, row, row * width,
                        all.subspan(row * width, width));
  }
}

template <typename T>
void ApplyRows(const UpdateRule& rule, const StepContext& context,
               const Tensor& value, const std::vector<Tensor>& slots,
               const SparseRows& sparse) {
  // Sums equal rows: a rule must see each row once.
  const SparseRows rows = Coalesce(sparse);
  const Tensor values = rows.values.Contiguous();
  const Tensor indices = rows.indices.Contiguous();
  const int64_t count = indices.numel();
  if (count == 0) return;
  const int64_t width = values.numel() / count;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = indices.data<int64_t>()[i];
    optimizer::Apply<T>(
        rule, context, value, slots, row, row * width,
        absl::MakeConstSpan(values.data<T>() + i * width, width));
  }
}

// The update as an operation that a device finds by its name, with the numbers
// that its kernel needs (tensor/cuda/update.h). Whether the gradient is dense
// or rows, a kernel sees by its operands.
internal::Operation OperationOf(const RuleOptions& rule,
                                const ClipOptions& clip,
                                const StepContext& context) {
  // Names of rules are literals.
  internal::Operation operation(RuleName(rule).data());
  const RuleNumbers numbers = NumbersOf(rule, context);
  static_assert(std::tuple_size_v<RuleNumbers> <= internal::kClipValue);
  std::copy(numbers.begin(), numbers.end(), operation.numbers.begin());
  operation.numbers[internal::kClipValue] = clip.value;
  operation.numbers[internal::kClipNorm] = clip.norm;
  return operation;
}

// Calls apply(value, slots, gradient...) with tensors of the CPU: at once if
// they are there, else as work of their device. `apply` holds by value what it
// uses.
template <typename Apply>
void Enqueue(const internal::Operation& operation, const Tensor& value,
             const std::vector<Tensor>& slots,
             const std::vector<Tensor>& gradient, Apply apply) {
  if (value.device().is_cpu()) return apply(value, slots, gradient);
  std::vector<const Tensor*> all = {&value};
  for (const Tensor& slot : slots) all.push_back(&slot);
  for (const Tensor& part : gradient) all.push_back(&part);
  internal::EnqueueOnDevice(
      operation, all,
      [apply, slot_count = slots.size(),
       gradient_count = gradient.size()](const Tensor* tensors) {
        const Tensor* const first = tensors + 1 + slot_count;
        apply(tensors[0], std::vector<Tensor>(tensors + 1, first),
              std::vector<Tensor>(first, first + gradient_count));
      });
}

absl::Status CheckIndices(const SparseRows& sparse, absl::string_view name) {
  for (const int64_t row : sparse.indices.ToVector<int64_t>()) {
    if (row < 0 || row >= sparse.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("Optimizer: the gradient of \"", name, "\" has row ",
                       row, ", the parameter has ", sparse.rows));
    }
  }
  return absl::OkStatus();
}

bool IsAlike(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype();
}

bool IsFinite(const Gradient& gradient) {
  const Tensor values =
      internal::Wide(
          (gradient.is_sparse() ? gradient.sparse().values : gradient.dense())
              .To(Device::Cpu()))
          .Contiguous();
  return VisitFloating(values.dtype(), "Optimizer", [&](auto type) {
    using T = typename decltype(type)::Type;
    const absl::Span<const T> all = values.span<T>();
    return std::all_of(all.begin(), all.end(),
                       [](T x) { return std::isfinite(x); });
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    std::vector<ParameterGroup> groups) {
  std::unique_ptr<Optimizer> optimizer(new Optimizer);
  for (ParameterGroup& group : groups) {
    WEFT_RETURN_IF_ERROR(optimizer->AddGroup(std::move(group)));
  }
  return optimizer;
}

absl::Status Optimizer::CheckNew(const ParameterGroup& group) const {
  std::set<std::string> names;
  std::map<const Leaf*, std::string> leaves;
  for (const Group& present : groups_) {
    for (const ParameterState& state : present.states) {
      names.insert(state.parameter.name);
      leaves[state.parameter.variable.leaf()] = state.parameter.name;
    }
  }
  for (const Parameter& parameter : group.parameters) {
    WEFT_RETURN_IF_ERROR(CheckParameter(parameter));
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Optimizer: two parameters are named \"", parameter.name, "\""));
    }
    const auto [it, is_new] =
        leaves.try_emplace(parameter.variable.leaf(), parameter.name);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Optimizer: \"", it->second, "\" and \"", parameter.name,
          "\" are one parameter, which would be updated twice; give it once"));
    }
  }
  return absl::OkStatus();
}

absl::Status Optimizer::AddGroup(ParameterGroup group) {
  return CatchToStatus([&]() -> absl::Status {
    Group made;
    WEFT_ASSIGN_OR_RETURN(made.rule, MakeRule(group.rule, group.clip));
    WEFT_RETURN_IF_ERROR(CheckNew(group));
    made.lazy = group.lazy;
    made.clip = group.clip;
    for (Parameter& parameter : group.parameters) {
      ParameterState state;
      const Tensor value = parameter.variable.value();
      const Tensor wide = internal::Wide(value);
      if (internal::IsHalf(value)) state.master = wide;
      for (const Slot& slot : made.rule->slots()) {
        state.slots.push_back(Tensor::Full(SlotShape(*made.rule, slot, value),
                                           slot.initial_value, wide.dtype(),
                                           value.device()));
      }
      value.storage()->KeepVersions();
      state.device = value.device();
      state.dtype = value.dtype();
      state.parameter = std::move(parameter);
      made.states.push_back(std::move(state));
    }
    groups_.push_back(std::move(made));
    return absl::OkStatus();
  });
}

absl::Status Optimizer::CheckGradient(const Group& group,
                                      const ParameterState& state,
                                      const Gradient& gradient, Finite finite) {
  const Tensor& value = state.parameter.variable.value();
  if (gradient.shape() != value.shape() || gradient.dtype() != value.dtype() ||
      gradient.device() != value.device()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: the gradient of \"", state.parameter.name, "\" is ",
        Name(gradient.dtype()), ShapeText(gradient.shape()), " on ",
        Name(gradient.device()), ", the parameter ", value.Describe()));
  }
  if (state.device != value.device()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: \"", state.parameter.name, "\" is ", value.Describe(),
        ", and its state was made on ", Name(state.device),
        "; move the model before it is given to an optimizer"));
  }
  if (state.dtype != value.dtype()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: \"", state.parameter.name, "\" is ", value.Describe(),
        ", and its state was made for ", Name(state.dtype),
        "; cast the model before it is given to an optimizer"));
  }
  if (finite == Finite::kRequired && !IsFinite(gradient)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: the gradient of \"", state.parameter.name,
        "\" has an infinite or NaN element; skip this step, or clip and scale "
        "before"));
  }
  if (!gradient.is_sparse()) return absl::OkStatus();
  if (group.rule->scope() == Scope::kParameter) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: the gradient of \"", state.parameter.name,
        "\" is sparse, and ", RuleName(group.rule->options()),
        " looks at whole parameters; give it a dense gradient, choose another "
        "rule, or keep the rows in a sparse table, where each is a parameter"));
  }
  if (!group.lazy && !group.rule->ignores_zero_gradient()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Optimizer: the gradient of \"", state.parameter.name,
        "\" is sparse, and ", RuleName(group.rule->options()),
        " with these options moves all rows; set ParameterGroup::lazy to move "
        "only those, or choose sgd, adagrad or rowwise_adagrad without decay "
        "and momentum, or ftrl"));
  }
  return CheckIndices(gradient.sparse(), state.parameter.name);
}

absl::Status Optimizer::Step() {
  return Apply([](const Parameter& p) { return p.variable.gradient(); });
}

absl::Status Optimizer::Check(GradientsOf gradients, Finite finite) const {
  return CatchToStatus([&]() -> absl::Status {
    for (const Group& group : groups_) {
      for (const ParameterState& state : group.states) {
        const Gradient gradient = gradients(state.parameter);
        if (!gradient.defined() || IsFrozen(state.parameter)) continue;
        WEFT_RETURN_IF_ERROR(CheckGradient(group, state, gradient, finite));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status Optimizer::Apply(GradientsOf gradients) {
  return CatchToStatus([&]() -> absl::Status {
    // One pass to look, one to change, on the same gradients.
    std::vector<Due> due;
    for (Group& group : groups_) {
      for (ParameterState& state : group.states) {
        Gradient gradient = gradients(state.parameter);
        if (!gradient.defined() || IsFrozen(state.parameter)) continue;
        WEFT_RETURN_IF_ERROR(
            CheckGradient(group, state, gradient, Finite::kAny));
        due.push_back({group.rule, &state, std::move(gradient), group.clip});
      }
    }
    for (const Due& update : due) FollowWrites(*update.state);
    for (const Due& update : due) {
      update.state->parameter.variable.value().BeginUpdate();
    }
    for (const Due& update : due) Update(update);
    return absl::OkStatus();
  });
}

// Takes what was written to the parameter since it was updated.
void Optimizer::FollowWrites(ParameterState& state) {
  if (!state.master.defined()) return;
  const Tensor& value = state.parameter.variable.value();
  if (state.rounded == value.storage().get() &&
      state.rounded_version == value.version()) {
    return;
  }
  const Tensor differs = NotEqual(state.master.To(value.dtype()), value);
  if (Sum(differs).item<int64_t>() > 0) state.master.CopyFrom(value);
}

void Optimizer::RoundMaster(ParameterState& state) {
  if (!state.master.defined()) return;
  const Tensor& value = state.parameter.variable.value();
  value.CopyFrom(state.master);
  state.rounded = value.storage().get();
  state.rounded_version = value.version();
}

void Optimizer::Update(const Due& due) const {
  ParameterState& state = *due.state;
  const Gradient& gradient = due.gradient;
  const Tensor value =
      state.master.defined() ? state.master : state.parameter.variable.value();
  StepContext context;
  context.step = ++state.step;
  context.lr_scale = lr_scale_;
  const std::shared_ptr<const UpdateRule>& rule = due.rule;
  const internal::Operation operation =
      value.device().is_cpu() ? internal::Operation("")
                              : OperationOf(rule->options(), due.clip, context);
  VisitFloating(value.dtype(), "Optimizer", [&](auto type) {
    using T = typename decltype(type)::Type;
    if (gradient.is_sparse()) {
      const SparseRows& sparse = gradient.sparse();
      Enqueue(operation, value, state.slots,
              {sparse.indices.Contiguous(),
               internal::Wide(sparse.values).Contiguous()},
              [rule, context, rows = sparse.rows](
                  const Tensor& weights, const std::vector<Tensor>& slots,
                  const std::vector<Tensor>& parts) {
                ApplyRows<T>(*rule, context, weights, slots,
                             {parts[0], parts[1], rows});
              });
      return;
    }
    Enqueue(
        operation, value, state.slots,
        {internal::Wide(gradient.dense()).Contiguous()},
        [rule, context](const Tensor& weights, const std::vector<Tensor>& slots,
                        const std::vector<Tensor>& parts) {
          ApplyDense<T>(*rule, context, weights, slots, parts[0]);
        });
  });
  RoundMaster(state);
}

std::vector<Parameter> Optimizer::Parameters() const {
  std::vector<Parameter> all;
  for (const Group& group : groups_) {
    for (const ParameterState& state : group.states) {
      all.push_back(state.parameter);
    }
  }
  return all;
}

void Optimizer::ZeroGrad() {
  for (const Group& group : groups_) {
    for (const ParameterState& state : group.states) {
      state.parameter.variable.ClearGradient();
    }
  }
}

double Optimizer::learning_rate(int group) const {
  WEFT_CHECK(group >= 0 && group < groups()) << group;
  return LearningRate(groups_[group].rule->options());
}

absl::Status Optimizer::SetLearningRate(int group, double lr) {
  WEFT_CHECK(group >= 0 && group < groups()) << group;
  RuleOptions options = groups_[group].rule->options();
  optimizer::SetLearningRate(options, lr);
  WEFT_ASSIGN_OR_RETURN(groups_[group].rule,
                        MakeRule(options, groups_[group].clip));
  return absl::OkStatus();
}

absl::Status Optimizer::SetLearningRateScale(double scale) {
  if (!(scale >= 0) || !std::isfinite(scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Optimizer: the learning rate's scale is ", scale,
                     "; wanted a finite number, at least 0"));
  }
  lr_scale_ = scale;
  return absl::OkStatus();
}

absl::btree_map<std::string, Tensor> Optimizer::StateDict() const {
  absl::btree_map<std::string, Tensor> dict = StateInPlace();
  for (auto& [name, tensor] : dict) tensor = tensor.Clone();
  return dict;
}

absl::btree_map<std::string, Tensor> Optimizer::StateInPlace() const {
  absl::btree_map<std::string, Tensor> dict;
  for (const Group& group : groups_) {
    for (const ParameterState& state : group.states) {
      const std::string& name = state.parameter.name;
      dict[name + "/step"] = Tensor::Scalar<int64_t>(state.step);
      if (state.master.defined()) dict[name + "/master"] = state.master;
      for (size_t i = 0; i < state.slots.size(); ++i) {
        dict[absl::StrCat(name, "/", group.rule->slots()[i].name)] =
            state.slots[i];
      }
    }
  }
  return dict;
}

absl::Status Optimizer::LoadStateDict(
    const absl::btree_map<std::string, Tensor>& state) {
  return CatchToStatus([&]() -> absl::Status {
    const absl::btree_map<std::string, Tensor> ours = StateInPlace();
    for (const auto& [name, tensor] : ours) {
      const auto found = state.find(name);
      if (found == state.end() || !found->second.defined() ||
          !IsAlike(found->second, tensor)) {
        return absl::InvalidArgumentError(
            absl::StrCat("Optimizer: wanted state \"", name, "\" of ",
                         tensor.Describe(), ", found ",
                         found == state.end() || !found->second.defined()
                             ? "none"
                             : found->second.Describe()));
      }
      // Slots are floating: this is a step.
      if (tensor.dtype() == DType::kI64 && found->second.item<int64_t>() < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("Optimizer: state \"", name, "\" is ",
                         found->second.item<int64_t>(), ", wanted 0 or more"));
      }
    }
    for (const auto& [name, tensor] : state) {
      if (ours.count(name) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Optimizer: state \"", name, "\" belongs to no parameter here"));
      }
    }
    for (Group& group : groups_) {
      for (ParameterState& mine : group.states) {
        const std::string& name = mine.parameter.name;
        mine.step = state.at(name + "/step").item<int64_t>();
        if (mine.master.defined()) {
          const Tensor& given = state.at(name + "/master");
          if (!given.IsSameAs(mine.master)) mine.master.CopyFrom(given);
          mine.rounded = nullptr;
        }
        for (size_t i = 0; i < mine.slots.size(); ++i) {
          const Tensor& given =
              state.at(absl::StrCat(name, "/", group.rule->slots()[i].name));
          if (!given.IsSameAs(mine.slots[i])) mine.slots[i].CopyFrom(given);
        }
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace weft::optimizer
