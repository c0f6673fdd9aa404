// Scope: one distributed forward and backward pass.
//
//   dist_autograd::Scope pass(*contexts);
//   Result<Variable> h = pass.Call(ps0, Forward, x);      // recorded
//   Variable loss = CrossEntropy(h->..., labels);
//   WEFT_RETURN_IF_ERROR(pass.Backward(loss));
//   Gradient g = pass.GradientOf(w);                      // of local leaves
//
// A recorded call is one through the scope: a Variable among its arguments or
// its result, in any container, keeps its history across workers. The function
// takes and returns Variables; what it does with them is recorded where it
// runs. It makes recorded calls of its own through Scope::Within(context).
//
// Backward runs only the part of the graph that the roots depend on (the SMART
// algorithm: docs/dist_autograd.md), so a result that was not used costs
// nothing and is not waited for. Gradients end in the context, at the worker of
// each leaf, on all workers or on none; Variable::grad() stays as it is. A leaf
// that no root depends on gets no gradient.
//
// Not recorded, and refused with kFailedPrecondition: streams, and calls by
// WithRetry(), which may go to another incarnation.

#ifndef WEFT_DIST_AUTOGRAD_SCOPE_H_
#define WEFT_DIST_AUTOGRAD_SCOPE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/base/future.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_codec.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/variable_codec.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {

// Thread-safety: thread-safe.
class Scope {
 public:
  // Opens a context. The destructor releases the context at all workers.
  explicit Scope(Contexts& contexts)
      : contexts_(contexts.shared_from_this()),
        context_(contexts_->Create()),
        is_owner_(true) {}
  // The context of the recorded call that `call` serves, for further recorded
  // calls. kFailedPrecondition if it is not recorded.
  static absl::StatusOr<Scope> Within(const rpc::CallContext& call);
  ~Scope() {
    if (is_owner_ && contexts_ != nullptr) contexts_->Release(context_->id());
  }
  Scope(Scope&&) = default;
  Scope& operator=(Scope&&) = delete;

  ContextId id() const { return context_->id(); }
  Contexts& contexts() const { return *contexts_; }

  // A target whose calls are recorded; for call styles that are not here.
  // `function` is the name of what they call in reports of passes.
  rpc::Target Recorded(const rpc::Target& target,
                       std::string function = "") const;

  // As rpc::CallAsync and rpc::Call.
  template <typename F, typename... A>
  auto CallAsync(const rpc::Target& target, F function,
                 A&&... arguments) const {
    return rpc::CallAsync(
        Recorded(target, rpc::extension::NameOfFunction(target, function)),
        function, std::forward<A>(arguments)...);
  }
  template <typename F, typename... A>
  auto Call(const rpc::Target& target, F function, A&&... arguments) const {
    return rpc::Call(
        Recorded(target, rpc::extension::NameOfFunction(target, function)),
        function, std::forward<A>(arguments)...);
  }
  // A method of a remote object, as rref::CallAsync and rref::Call.
  template <typename T, typename Method, typename... A>
  auto CallAsync(const rref::RRef<T>& object, Method method,
                 A&&... arguments) const {
    return rref::StartThrough(
        object,
        [&](const rpc::Target& owner) {
          return Recorded(owner,
                          rpc::extension::NameOfMethod<T>(owner, method));
        },
        [&](const rpc::Handle<T>& handle) {
          return rpc::CallAsync(handle, method, std::forward<A>(arguments)...);
        });
  }
  template <typename T, typename Method, typename... A>
  auto Call(const rref::RRef<T>& object, Method method,
            A&&... arguments) const {
    return rref::WaitThrough(object, [&] {
      return CallAsync(object, method, std::forward<A>(arguments)...);
    });
  }
  // A copy of a remote value, whose history goes on at its owner.
  template <typename T>
  Future<T> FetchAsync(const rref::RRef<T>& object) const {
    return rref::StartThrough(
        object,
        [&](const rpc::Target& owner) { return Recorded(owner, "Fetch"); },
        [](const rpc::Handle<T>& handle) { return rpc::FetchAsync(handle); });
  }
  template <typename T>
  Result<T> Fetch(const rref::RRef<T>& object) const {
    return rref::WaitThrough(object, [&] { return FetchAsync(object); });
  }

  // Computes the gradients of all leaves behind `roots`, and leaves them in the
  // context at the leaves' workers. kInvalidArgument for invalid roots, seeds
  // or timeout; kFailedPrecondition for a graph that was freed, belongs to
  // another context, or is lost with a worker that died before, and in a
  // context that was released; kDeadlineExceeded, which names the messages
  // whose gradients are missing; kCancelled; kUnavailable if a participant dies
  // before the decision; the error of a node's function, with its name. After
  // an error all gradients are as before, and the pass may be repeated.
  Future<PassReport> BackwardAsync(absl::Span<const Variable> roots,
                                   const PassOptions& options = {}) const {
    return contexts_->passes().Begin(context_, roots, options);
  }
  absl::Status Backward(absl::Span<const Variable> roots,
                        const PassOptions& options = {}) const {
    return BackwardAsync(roots, options)
        .Wait(options.timeout + absl::Seconds(30))
        .status();
  }
  absl::Status Backward(const Variable& root,
                        const PassOptions& options = {}) const {
    return Backward(absl::MakeConstSpan(&root, 1), options);
  }

  // The gradient that the passes of this context accumulated for a leaf of this
  // worker. Undefined if none reached it.
  Gradient GradientOf(const Variable& leaf) const;
  void ClearGradients() const { context_->ClearGradients(); }

 private:
  Scope(std::shared_ptr<Contexts> contexts, std::shared_ptr<Context> context)
      : contexts_(std::move(contexts)),
        context_(std::move(context)),
        is_owner_(false) {}

  std::shared_ptr<Contexts> contexts_;
  std::shared_ptr<Context> context_;
  bool is_owner_;
};

// The value of a remote variable, such as a parameter, as it is then, without
// its history: not recorded. An update at that time may be seen in part. Errors
// as rref::CallAsync.
Future<Tensor> ValueOfAsync(const rref::RRef<Variable>& variable);
Result<Tensor> ValueOf(const rref::RRef<Variable>& variable);

// The gradient that a context holds for a leaf of this worker: for functions
// that a caller asks to use it. kNotFound without such a context here.
absl::StatusOr<Gradient> GradientOf(const rpc::CallContext& call, ContextId id,
                                    const Variable& leaf);

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_SCOPE_H_
