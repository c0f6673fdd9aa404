// RemoteModule<M>: an nn::Module at another worker, called like a local one.
//
//   class Net : public nn::Module {
//    public:
//     Net(int64_t inputs, int64_t outputs);
//     Variable Forward(const Variable& x);
//   };
//   WEFT_RPC_MODULE(Net, int64_t, int64_t);   // in a source of every worker
//
//   WEFT_ASSIGN_OR_RETURN(const auto net,
//                         RemoteModule<Net>::Create(agent.To("ps0"), 784, 10));
//   WEFT_ASSIGN_OR_RETURN(const auto parameters, net.RemoteParameters());
//   // ... a DistributedOptimizer of them ...
//   dist_autograd::Scope pass(worker.contexts());
//   WEFT_ASSIGN_OR_RETURN(const Variable y, net.Forward(pass, x));
//
// It is a reference (rref/rref.h) to the module: copies share it, it can be
// sent as an argument or a result, and the module is destroyed with the last
// one. Each worker that has a reference can train the module.
//
// Calls of several trainers run at the same time at the owner, so M::Forward
// must be thread-safe; it is in the modules of nn that only read their
// parameters.

#ifndef WEFT_DIST_AUTOGRAD_REMOTE_MODULE_H_
#define WEFT_DIST_AUTOGRAD_REMOTE_MODULE_H_

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/scope.h"
#include "weft/nn/module.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/class.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"

namespace weft::dist_autograd {

// References to parameters that `agent`'s worker has, in their order: for a
// DistributedOptimizer, together with the RemoteParameters of other modules.
// Errors as rref::MakeLocal.
inline absl::StatusOr<std::vector<rref::RRef<Variable>>> LocalParameters(
    rpc::Agent& agent, const std::vector<Variable>& parameters) {
  std::vector<rref::RRef<Variable>> references;
  for (const Variable& parameter : parameters) {
    WEFT_ASSIGN_OR_RETURN(
        rref::RRef<Variable> made,
        rref::MakeLocal(agent, std::make_shared<Variable>(parameter)));
    references.push_back(std::move(made));
  }
  return references;
}

namespace internal {

// The functions that the owner of a module serves, beside its Forward.
template <typename M>
absl::StatusOr<std::vector<rref::RRef<Variable>>> ParametersOf(
    rpc::CallContext& call, const rref::RRef<M>& module) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<M> local, module.Local());
  return LocalParameters(call.agent(), local->Parameters());
}

template <typename M>
absl::Status SetTraining(const rref::RRef<M>& module, bool on) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<M> local, module.Local());
  local->Train(on);
  return absl::OkStatus();
}

}  // namespace internal

// Thread-safety: as for an int.
template <typename M>
class RemoteModule {
  static_assert(std::is_base_of_v<nn::Module, M>,
                "a RemoteModule is of a class of nn::Module");

 public:
  RemoteModule() = default;
  // An existing module, by a reference to it.
  explicit RemoteModule(rref::RRef<M> module) : module_(std::move(module)) {}

  // Makes a new M at the worker that `target` names, and waits until it is
  // made. Errors as rref::Make.
  template <typename... A>
  static absl::StatusOr<RemoteModule> Create(const rpc::Target& target,
                                             A&&... arguments) {
    WEFT_ASSIGN_OR_RETURN(rref::RRef<M> made,
                          rref::Make<M>(target, std::forward<A>(arguments)...));
    return RemoteModule(std::move(made));
  }

  // If this is empty, the functions below fail with kInvalidArgument, and
  // owner() as RRef::owner().
  bool has_value() const { return module_.has_value(); }
  const rref::RRef<M>& reference() const { return module_; }
  const rpc::Target& owner() const { return module_.owner(); }

  // M::Forward there, recorded in `pass`: as Scope::Call and Scope::CallAsync.
  template <typename... A>
  auto Forward(const Scope& pass, A&&... arguments) const {
    return pass.Call(module_, &M::Forward, std::forward<A>(arguments)...);
  }
  template <typename... A>
  auto ForwardAsync(const Scope& pass, A&&... arguments) const {
    return pass.CallAsync(module_, &M::Forward, std::forward<A>(arguments)...);
  }

  // References to the parameters, each once, in the order of
  // Module::Parameters: what a DistributedOptimizer updates.
  absl::StatusOr<std::vector<rref::RRef<Variable>>> RemoteParameters() const {
    WEFT_RETURN_IF_ERROR(module_.status());
    return rpc::Call(module_.owner(), internal::ParametersOf<M>, module_);
  }

  // As those of Module, at the owner.
  absl::Status Train(bool on = true) const {
    WEFT_RETURN_IF_ERROR(module_.status());
    return rpc::Call(module_.owner(), internal::SetTraining<M>, module_, on);
  }
  absl::Status Eval() const { return Train(false); }

 private:
  rref::RRef<M> module_;
};

}  // namespace weft::dist_autograd

namespace weft::rpc {

template <typename M>
struct Codec<dist_autograd::RemoteModule<M>> {
  static std::string TypeName() {
    return absl::StrCat("weft.RemoteModule<", extension::NameOfType<M>(), ">");
  }
  static void Encode(const dist_autograd::RemoteModule<M>& module, Encoder& e) {
    e.Write(module.reference());
  }
  static absl::Status Decode(Decoder& d,
                             dist_autograd::RemoteModule<M>& module) {
    rref::RRef<M> reference;
    WEFT_RETURN_IF_ERROR(d.Read(reference));
    module = dist_autograd::RemoteModule<M>(std::move(reference));
    return absl::OkStatus();
  }
};

}  // namespace weft::rpc

// Names a class of nn::Module, the types of its constructor's arguments, and
// its Forward: WEFT_RPC_MODULE(Net, int64_t, int64_t). In the namespace of the
// class, in a source.
#define WEFT_RPC_MODULE(Class, ...)                               \
  WEFT_RPC_CLASS(Class, ##__VA_ARGS__);                           \
  WEFT_RPC_METHOD(Class, Forward);                                \
  WEFT_RPC(::weft::dist_autograd::internal::ParametersOf<Class>); \
  WEFT_RPC(::weft::dist_autograd::internal::SetTraining<Class>)

#endif  // WEFT_DIST_AUTOGRAD_REMOTE_MODULE_H_
