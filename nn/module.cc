#include "weft/nn/module.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"

namespace weft::nn {
namespace {

bool HaveSameBytes(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.To(Device::Cpu()).Contiguous();
  const Tensor y = b.To(Device::Cpu()).Contiguous();
  return std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())) == 0;
}

// What two names of one parameter have in common: the leaf; of a variable made
// without a gradient the memory. Null: nothing.
const void* IdentityOf(const NamedParameter& named) {
  const Variable& variable = named.variable;
  if (variable.leaf() != nullptr) return variable.leaf();
  return variable.numel() > 0 ? variable.value().address() : nullptr;
}

}  // namespace

HookId Module::AddHook(Hook hook) {
  auto hooks = hooks_ == nullptr ? std::make_shared<Hooks>()
                                 : std::make_shared<Hooks>(*hooks_);
  hook.id = ++last_hook_;
  hooks->push_back(std::move(hook));
  hooks_ = std::move(hooks);
  return last_hook_;
}

HookId Module::AddForwardPreHook(ForwardPreHook hook) {
  if (hook == nullptr) ThrowInvalidArgument("AddForwardPreHook: no function");
  return AddHook({0, std::move(hook), nullptr});
}

HookId Module::AddForwardHook(ForwardHook hook) {
  if (hook == nullptr) ThrowInvalidArgument("AddForwardHook: no function");
  return AddHook({0, nullptr, std::move(hook)});
}

bool Module::RemoveHook(HookId id) {
  if (hooks_ == nullptr) return false;
  auto left = std::make_shared<Hooks>();
  for (const Hook& hook : *hooks_) {
    if (hook.id != id) left->push_back(hook);
  }
  const bool is_known = left->size() < hooks_->size();
  hooks_ = left->empty() ? nullptr : std::move(left);
  return is_known;
}

std::vector<Variable> Module::Call(
    absl::Span<const Variable> inputs,
    absl::FunctionRef<std::vector<Variable>(absl::Span<const Variable>)>
        compute) {
  const std::shared_ptr<const Hooks> hooks = hooks_;
  if (hooks == nullptr) return compute(inputs);
  std::vector<Variable> used(inputs.begin(), inputs.end());
  for (const Hook& hook : *hooks) {
    if (hook.before != nullptr) hook.before(*this, absl::MakeSpan(used));
  }
  std::vector<Variable> outputs = compute(used);
  for (const Hook& hook : *hooks) {
    if (hook.after != nullptr) hook.after(*this, used, absl::MakeSpan(outputs));
  }
  return outputs;
}

Variable Module::Call(
    absl::Span<const Variable> inputs,
    absl::FunctionRef<Variable(absl::Span<const Variable> inputs)> compute) {
  if (hooks_ == nullptr) return compute(inputs);
  const auto as_list = [compute](absl::Span<const Variable> used) {
    return std::vector<Variable>{compute(used)};
  };
  return Call(inputs, as_list)[0];
}

Variable Layer::Forward(const Variable& x) {
  if (!has_hooks()) return Compute(x);
  return Call({x},
              [this](absl::Span<const Variable> in) { return Compute(in[0]); });
}

void Module::Visit(const std::string& prefix, Visitor visit) const {
  visit(prefix, *this);
  for (const auto& [name, child] : children_) {
    child->Visit(absl::StrCat(prefix, name, "."), visit);
  }
}

std::vector<NamedParameter> Module::AllNames() const {
  std::vector<NamedParameter> all;
  Visit("", [&](const std::string& prefix, const Module& module) {
    for (const NamedParameter& own : module.parameters_) {
      all.push_back({prefix + own.name, own.variable});
    }
  });
  return all;
}

std::vector<NamedParameter> Module::NamedParameters() const {
  std::vector<NamedParameter> all = AllNames();
  absl::flat_hash_set<const void*> seen;
  const auto is_repeated = [&seen](const NamedParameter& named) {
    const void* const identity = IdentityOf(named);
    return identity != nullptr && !seen.insert(identity).second;
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_repeated), all.end());
  return all;
}

std::vector<NamedParameter> Module::TrainedParameters() const {
  std::vector<NamedParameter> all = NamedParameters();
  const auto is_frozen = [](const NamedParameter& named) {
    return !named.variable.requires_grad();
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_frozen), all.end());
  return all;
}

std::vector<NamedBuffer> Module::NamedBuffers() const {
  std::vector<NamedBuffer> all;
  Visit("", [&](const std::string& prefix, const Module& module) {
    for (const OwnBuffer& own : module.buffers_) {
      all.push_back({prefix + own.name, *own.tensor, own.is_saved});
    }
  });
  return all;
}

std::vector<Variable> Module::Parameters() const {
  std::vector<Variable> all;
  for (NamedParameter& named : NamedParameters()) {
    all.push_back(std::move(named.variable));
  }
  return all;
}

nn::StateDict Module::StateDict() const {
  nn::StateDict state;
  for (const NamedParameter& named : AllNames()) {
    state[named.name] = named.variable.value();
  }
  for (const NamedBuffer& named : NamedBuffers()) {
    if (named.is_saved) state[named.name] = named.tensor;
  }
  return state;
}

// The names of one parameter that have different values in `state`, which has
// all names.
std::vector<std::string> Module::TiedFaults(const nn::StateDict& state) const {
  std::vector<std::string> faults;
  absl::flat_hash_map<const void*, std::string> first;
  for (const NamedParameter& named : AllNames()) {
    const void* const identity = IdentityOf(named);
    if (identity == nullptr) continue;
    const auto [it, is_new] = first.try_emplace(identity, named.name);
    if (!is_new && !HaveSameBytes(state.at(named.name), state.at(it->second))) {
      faults.push_back(absl::StrCat(it->second, " and ", named.name,
                                    " are one parameter, but differ"));
    }
  }
  return faults;
}

absl::Status Module::LoadStateDict(const nn::StateDict& state) {
  return CatchToStatus([&]() -> absl::Status {
    const nn::StateDict own = StateDict();
    std::vector<std::string> faults;
    for (const auto& [name, tensor] : own) {
      const auto found = state.find(name);
      if (found == state.end()) {
        faults.push_back(absl::StrCat(name, " is missing"));
      } else if (!found->second.defined()) {
        faults.push_back(absl::StrCat(name, " is undefined"));
      } else if (found->second.shape() != tensor.shape() ||
                 found->second.dtype() != tensor.dtype()) {
        faults.push_back(absl::StrCat(name, " is ", found->second.Describe(),
                                      ", wanted ", tensor.Describe()));
      }
    }
    for (const auto& [name, tensor] : state) {
      if (own.count(name) == 0) {
        faults.push_back(absl::StrCat(name, " is unexpected"));
      }
    }
    if (faults.empty()) faults = TiedFaults(state);
    if (!faults.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("LoadStateDict: ", absl::StrJoin(faults, "; ")));
    }
    for (const auto& [name, tensor] : own) tensor.CopyFrom(state.at(name));
    return absl::OkStatus();
  });
}

void Module::Train(bool on) {
  is_training_ = on;
  for (const auto& [name, child] : children_) child->Train(on);
}

void Module::To(Device device) { Convert(device, std::nullopt); }

void Module::To(Device device, DType dtype) {
  if (!IsFloating(dtype)) {
    ThrowInvalidArgument("Module::To: the dtype is ", Name(dtype),
                         "; wanted f32, f64, f16 or bf16");
  }
  Convert(device, dtype);
}

void Module::Convert(Device device, std::optional<DType> dtype) {
  const std::vector<NamedParameter> all = NamedParameters();
  for (const NamedParameter& named : all) {
    const Leaf* const leaf = named.variable.leaf();
    const bool is_there = named.variable.value().device() == device;
    const DType own = named.variable.dtype();
    if (is_there && dtype.value_or(own) == own) continue;
    if (leaf != nullptr && leaf->sink() == nullptr) continue;
    ThrowFailedPrecondition(
        "Module::To: parameter ", named.name, " is ",
        named.variable.value().Describe(), ", ",
        leaf == nullptr
            ? "added as a variable made without a gradient; make that on "
            : "and its gradient is kept by another object, such as a "
              "DistributedDataParallel; make that after the model is on ",
        Name(device), dtype.has_value() ? " as " : "",
        dtype.has_value() ? Name(*dtype) : "");
  }
  for (const NamedParameter& named : all) {
    Leaf* const leaf = named.variable.leaf();
    if (leaf == nullptr) continue;
    leaf->Convert(device, dtype.value_or(leaf->value().dtype()));
  }
  ConvertBuffers(device, dtype);
}

void Module::ConvertBuffers(Device device, std::optional<DType> dtype) {
  for (OwnBuffer& own : buffers_) {
    *own.tensor = own.tensor->To(device);
    if (!dtype.has_value() || !IsFloating(own.tensor->dtype())) continue;
    const bool is_half = *dtype == DType::kF16 || *dtype == DType::kBF16;
    *own.tensor = own.tensor->To(is_half ? DType::kF32 : *dtype);
  }
  for (const auto& [name, child] : children_) {
    child->ConvertBuffers(device, dtype);
  }
}

void Module::ClearGradients() const {
  for (const Variable& parameter : Parameters()) parameter.ClearGradient();
}

void Module::SetRequiresGrad(bool on) const {
  const std::vector<NamedParameter> all = NamedParameters();
  for (const NamedParameter& named : all) {
    if (on && named.variable.leaf() == nullptr) {
      ThrowFailedPrecondition("Module::Unfreeze: parameter ", named.name,
                              " is ", named.variable.value().Describe(),
                              ", added as a variable made without a gradient; "
                              "wanted one made with requires_grad");
    }
  }
  for (const NamedParameter& named : all) {
    if (named.variable.leaf() != nullptr) named.variable.SetRequiresGrad(on);
  }
}

Variable Module::AddParameter(absl::string_view name, Tensor value) {
  CheckName(name);
  Variable variable(std::move(value), /*requires_grad=*/true);
  parameters_.push_back({std::string(name), variable});
  return variable;
}

Variable Module::AddParameter(absl::string_view name, const Variable& shared) {
  CheckName(name);
  if (!shared.defined() || !shared.is_leaf()) {
    ThrowInvalidArgument(
        "Module: the parameter \"", name, "\" is ",
        shared.defined() ? "the result of an operation" : "undefined",
        "; wanted a leaf, or a variable without a gradient");
  }
  parameters_.push_back({std::string(name), shared});
  return shared;
}

Buffer Module::AddBuffer(absl::string_view name, Tensor value, bool is_saved) {
  CheckName(name);
  auto tensor = std::make_shared<Tensor>(std::move(value));
  buffers_.push_back({std::string(name), tensor, is_saved});
  return Buffer(std::move(tensor));
}

void Module::AddModule(absl::string_view name, Module& child) {
  CheckName(name);
  children_.emplace_back(std::string(name), &child);
}

void Module::CheckName(absl::string_view name) const {
  const auto is_same = [name](const auto& own) { return own.name == name; };
  const bool is_taken =
      std::any_of(parameters_.begin(), parameters_.end(), is_same) ||
      std::any_of(buffers_.begin(), buffers_.end(), is_same) ||
      std::any_of(children_.begin(), children_.end(),
                  [name](const auto& child) { return child.first == name; });
  if (is_taken) {
    ThrowInvalidArgument("Module: the name \"", name, "\" is taken");
  }
  if (name.empty() || absl::StrContains(name, '.')) {
    ThrowInvalidArgument("Module: \"", name,
                         "\" is no name: it is empty or holds a dot");
  }
}

}  // namespace weft::nn
