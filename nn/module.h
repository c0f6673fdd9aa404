// Module: a model or a part of one: named parameters, buffers and child
// modules.
//
//   class Net : public nn::Module {
//    public:
//     explicit Net(Generator& random) : hidden_(784, 128, random),
//                                       output_(128, 10, random) {
//       AddModule("hidden", hidden_);
//       AddModule("output", output_);
//     }
//     Variable Forward(const Variable& x) {
//       return Call({x}, [&](absl::Span<const Variable> in) {
//         return output_.Forward(Relu(hidden_.Forward(in[0])));
//       });
//     }
//    private:
//     nn::Linear hidden_, output_;
//   };
//
// Names join with dots ("hidden.weight") and are PyTorch's for the same model.
// Call runs the hooks of the module (AddForwardHook) around what it computes; a
// module that computes without it has no use of hooks.
//
// Two modules may have one parameter (a language model whose output layer is
// its embedding): the leaf is the same, under a name in each. Parameters() has
// it once, under the name that comes first; a state dict has it under each.

#ifndef WEFT_NN_MODULE_H_
#define WEFT_NN_MODULE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/tensor.h"

namespace weft::nn {

struct NamedParameter {
  std::string name;
  Variable variable;
};

struct NamedBuffer {
  std::string name;
  Tensor tensor;
  bool is_saved = true;
};

// A buffer of a module, as its forward pass uses it: Module::To moves the
// tensor, so that no copy of it may be kept from one pass to the next.
//
// Thread-safety: one thread at a time.
class Buffer {
 public:
  Buffer() = default;  // none

  bool defined() const { return tensor_ != nullptr; }
  // Undefined if there is none.
  const Tensor& tensor() const {
    static const Tensor* const none = new Tensor();
    return defined() ? *tensor_ : *none;
  }

 private:
  friend class Module;
  explicit Buffer(std::shared_ptr<Tensor> tensor)
      : tensor_(std::move(tensor)) {}

  std::shared_ptr<Tensor> tensor_;  // the module's
};

class Module;

// Runs before a forward pass of `module`, and may put other variables in the
// place of its inputs. Inputs that are tensors, such as indices, are variables
// without a gradient.
using ForwardPreHook =
    std::function<void(Module& module, absl::Span<Variable> inputs)>;
// Runs after a forward pass of `module`, with the inputs that it had, and may
// put other variables in the place of its outputs, or add hooks of gradients to
// them (Variable::AddHook).
using ForwardHook =
    std::function<void(Module& module, absl::Span<const Variable> inputs,
                       absl::Span<Variable> outputs)>;
using HookId = uint64_t;  // of one module

// All parameters and all buffers that are saved, by name. The tensors share the
// module's storage.
using StateDict = absl::btree_map<std::string, Tensor>;

// Thread-safety: one thread at a time. Neither copied nor moved, since parents
// point at it.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Those of this module first, then of its children, in the order added; each
  // once. Frozen parameters and buffers that are not saved too.
  std::vector<Variable> Parameters() const;
  std::vector<NamedParameter> NamedParameters() const;
  std::vector<NamedBuffer> NamedBuffers() const;
  // NamedParameters() without those that are frozen now.
  std::vector<NamedParameter> TrainedParameters() const;

  nn::StateDict StateDict() const;

  // Copies the values of `state` into this module's. If a name is missing or
  // not known here, a shape or dtype differs, or two names of one parameter
  // have different values, nothing is copied, and the kInvalidArgument lists
  // all of it.
  absl::Status LoadStateDict(const nn::StateDict& state);

  // Whether to act as in training (Dropout does), children too.
  void Train(bool on = true);
  void Eval() { Train(false); }
  bool is_training() const { return is_training_; }

  void ClearGradients() const;

  // Moves all parameters, their gradients and all buffers, of children too, to
  // `device`. Move a model before it is given to an optimizer or a
  // DistributedDataParallel: their state stays where it is. Error
  // kFailedPrecondition, with nothing moved, names a parameter whose gradient
  // another object keeps (a DistributedDataParallel), or one that was added as
  // a variable made without a gradient, which must be made on the device. The
  // errors of Tensor::To: what was moved before stays there.
  void To(Device device);
  // The same, and casts parameters and gradients to `dtype`, one of f32, f64,
  // f16 and bf16; buffers of real numbers too, but to f32 where that is f16 or
  // bf16, for they are statistics of many steps. An optimizer of f16 or bf16
  // parameters keeps them in f32, too.
  void To(Device device, DType dtype);

  // Hooks around each forward pass, in the order in which they were added; they
  // run again where it is computed again (Checkpoint). What a hook throws ends
  // the forward pass. A hook may add and remove hooks: that counts from the
  // next pass on.
  HookId AddForwardPreHook(ForwardPreHook hook);
  HookId AddForwardHook(ForwardHook hook);
  // False if there is none.
  bool RemoveHook(HookId id);

  // Freezes all parameters, of children too: they are used, saved and loaded,
  // but have no gradient, and an optimizer that has them leaves them as they
  // are. A change clears the gradient. A parameter of a DistributedDataParallel
  // is frozen on all ranks alike; one that was frozen when that was made is not
  // reduced by it: make a new one after Unfreeze.
  void Freeze() const { SetRequiresGrad(false); }
  // Ends what Freeze began. Error kFailedPrecondition, with nothing changed,
  // names a parameter that was added as a variable made without a gradient: it
  // is frozen for good.
  void Unfreeze() const { SetRequiresGrad(true); }

 protected:
  bool has_hooks() const { return hooks_ != nullptr; }
  // The forward pass: `compute` of `inputs`, between the hooks.
  Variable Call(
      absl::Span<const Variable> inputs,
      absl::FunctionRef<Variable(absl::Span<const Variable> inputs)> compute);
  std::vector<Variable> Call(
      absl::Span<const Variable> inputs,
      absl::FunctionRef<std::vector<Variable>(absl::Span<const Variable>)>
          compute);

  // A name must be new here and hold no dot; else Error kInvalidArgument.

  // Returns the leaf made from `value`; keep it to use it.
  Variable AddParameter(absl::string_view name, Tensor value);
  // Takes a parameter that another module may have too. One that requires no
  // gradient, of any dtype, is a frozen parameter. Error kInvalidArgument
  // unless it is a defined leaf.
  Variable AddParameter(absl::string_view name, const Variable& shared);
  // State that is not trained. `is_saved`: whether a state dict has it; what is
  // made anew from the options of the module need not be.
  Buffer AddBuffer(absl::string_view name, Tensor value, bool is_saved = true);
  // `child` is borrowed: a member, or owned by this module in another way.
  void AddModule(absl::string_view name, Module& child);

 private:
  using Visitor =
      absl::FunctionRef<void(const std::string& prefix, const Module& module)>;

  void Visit(const std::string& prefix, Visitor visit) const;
  void SetRequiresGrad(bool on) const;
  // No `dtype`: each parameter keeps its own.
  void Convert(Device device, std::optional<DType> dtype);
  void ConvertBuffers(Device device, std::optional<DType> dtype);
  // The parameters under each of their names.
  std::vector<NamedParameter> AllNames() const;
  std::vector<std::string> TiedFaults(const nn::StateDict& state) const;
  void CheckName(absl::string_view name) const;

  struct Hook {
    HookId id;
    ForwardPreHook before;  // null: `after` is one
    ForwardHook after;
  };
  using Hooks = std::vector<Hook>;

  struct OwnBuffer {
    std::string name;
    std::shared_ptr<Tensor> tensor;
    bool is_saved;
  };

  HookId AddHook(Hook hook);

  // Null: none. Replaced as a whole, since a pass may be under way.
  std::shared_ptr<const Hooks> hooks_;
  HookId last_hook_ = 0;
  std::vector<NamedParameter> parameters_;
  std::vector<OwnBuffer> buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  bool is_training_ = true;
};

// A module that makes one variable from one: what Sequential is made of.
class Layer : public Module {
 public:
  // Compute, between the hooks.
  Variable Forward(const Variable& x);

 private:
  virtual Variable Compute(const Variable& x) = 0;
};

}  // namespace weft::nn

#endif  // WEFT_NN_MODULE_H_
