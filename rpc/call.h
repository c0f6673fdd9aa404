// Call and CallAsync: run a registered function on another worker.
//
//   Future<Tensor> y = rpc::CallAsync(agent.To("ps0"), Scale, x, 2.0);
//   absl::StatusOr<Tensor> z = rpc::Call(agent.To("ps0"), Scale, x, 2.0);
//
// The arguments are those of the function itself, so wrong ones do not compile.
// They are encoded before the call returns: an lvalue is copied, an rvalue is
// moved where its Codec can (a Tensor or a vector of numbers then travels
// without a copy). Errors of the other side carry its code and its payloads,
// and begin with its name; FailuresOf() tells where the call failed,
// OutcomeUnknown() whether the function may have run.

#ifndef WEFT_RPC_CALL_H_
#define WEFT_RPC_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec.h"
#include "weft/rpc/directory.h"
#include "weft/rpc/failure.h"
#include "weft/rpc/function.h"
#include "weft/rpc/outcome.h"
#include "weft/rpc/retry_policy.h"
#include "weft/rpc/tensor_codec.h"

namespace weft::rpc {

namespace internal {
class Caller;
class CallStarter;
}  // namespace internal

// Whom to call and how long to wait for it. Cheap to copy; make it once where
// many calls follow. It names one incarnation: after a restart of the worker
// ask for a new one. An unknown worker shows in the result of the call.
//
// Thread-safety: as for an int. Must not outlive its agent.
class Target {
 public:
  const absl::Status& status() const { return status_; }
  const std::string& name() const;
  absl::Duration timeout() const;  // of a call made now

  // The same worker with another time-out for each call; null is the default.
  Target WithTimeout(std::optional<absl::Duration> timeout) const;

  // The same, with calls that are spans of this trace. Within a function calls
  // are of the trace of the call that it serves.
  Target WithTrace(const telemetry::TraceContext& trace) const;

  // The worker of that name, whichever incarnation it is; see retry.h. Calls
  // are kInvalidArgument if `policy` makes no sense.
  Target WithRetry(const RetryPolicy& policy) const;

 private:
  friend class Agent;
  friend class CallContext;
  friend class internal::CallStarter;

  Agent* agent_ = nullptr;
  absl::Status status_;  // why there is no such worker
  std::shared_ptr<internal::Caller> caller_;
  std::optional<absl::Duration> timeout_;   // null: the agent's default
  std::shared_ptr<const Lineage> lineage_;  // null outside of a handler
  telemetry::TraceContext trace_;           // counts where it is valid
};

namespace internal {

using Done = absl::AnyInvocable<void(absl::StatusOr<Received>) &&>;
using Abandon = absl::AnyInvocable<void(absl::Status) &&>;

Driver& DriverOf(const Target& target);
// The registration of `address` in the target's agent, or kFailedPrecondition.
absl::StatusOr<const Function*> FindFunction(const Target& target,
                                             Function::Address address);
// Starts the call; `done` runs once. What is returned gives the call up.
Abandon StartCall(const Target& target, const Function& function,
                  Slices request, Done done);
absl::Status NotHere(absl::string_view function);  // a wait in an InlineScope

// `argument` as the parameter type P, which is what travels.
template <typename P, typename A>
void EncodeArgument(Encoder& encoder, A&& argument) {
  using Value = std::decay_t<P>;
  if constexpr (std::is_same_v<std::decay_t<A>, Value>) {
    encoder.Write(std::forward<A>(argument));
  } else {
    encoder.Write(static_cast<Value>(std::forward<A>(argument)));
  }
}

template <typename T>
Result<T> DecodeResult(absl::StatusOr<Received> reply) {
  if (!reply.ok()) return std::move(reply).status();
  if constexpr (std::is_void_v<T>) {
    return absl::OkStatus();
  } else {
    absl::StatusOr<T> value(absl::in_place);
    Decoder decoder(*reply);
    WEFT_RETURN_IF_ERROR(decoder.Read(*value));
    WEFT_RETURN_IF_ERROR(decoder.AtEnd());
    return value;
  }
}

template <typename T>
Future<T> StartTyped(const Target& target, Function::Address address,
                     absl::StatusOr<Slices> request) {
  Driver& driver = DriverOf(target);
  absl::StatusOr<const Function*> function = FindFunction(target, address);
  if (!function.ok()) return MakeReady<T>(function.status(), driver);
  if (!request.ok()) return MakeReady<T>(request.status(), driver);
  auto promise = std::make_shared<Promise<T>>(driver);
  Future<T> future = promise->future();
  promise->OnCancel(StartCall(target, **function, *std::move(request),
                              [promise](absl::StatusOr<Received> reply) {
                                promise->Set(DecodeResult<T>(std::move(reply)));
                              }));
  return future;
}

template <typename R, typename... P>
struct Starter {
  using Value = typename Returned<std::decay_t<R>>::type;

  template <typename... A>
  static Future<Value> Start(const Target& target, Function::Address address,
                             A&&... arguments) {
    static_assert(sizeof...(A) == sizeof...(P),
                  "the call has another number of arguments than the function");
    Encoder encoder;
    (EncodeArgument<P>(encoder, std::forward<A>(arguments)), ...);
    return StartTyped<Value>(target, address, std::move(encoder).Finish());
  }
};

template <typename R>
using ValueOf = typename Returned<std::decay_t<R>>::type;

}  // namespace internal

// The Future ends by the target's time-out at the latest. Cancelling it tells
// the other side.
template <typename R, typename... P, typename... A>
Future<internal::ValueOf<R>> CallAsync(const Target& target,
                                       R (*function)(P...), A&&... arguments) {
  return internal::Starter<R, P...>::Start(
      target, reinterpret_cast<Function::Address>(function),
      std::forward<A>(arguments)...);
}
template <typename R, typename... P, typename... A>
Future<internal::ValueOf<R>> CallAsync(const Target& target,
                                       R (*function)(CallContext&, P...),
                                       A&&... arguments) {
  return internal::Starter<R, P...>::Start(
      target, reinterpret_cast<Function::Address>(function),
      std::forward<A>(arguments)...);
}

// As CallAsync and Wait. kFailedPrecondition in an inline function, which must
// not wait; nothing is sent then.
template <typename R, typename... P, typename... A>
Result<internal::ValueOf<R>> Call(const Target& target, R (*function)(P...),
                                  A&&... arguments) {
  if (InlineScope::IsActive()) return internal::NotHere(target.name());
  // The call itself ends by its time-out; this bounds the wait if its Loop has
  // stopped.
  return CallAsync(target, function, std::forward<A>(arguments)...)
      .Wait(target.timeout() + absl::Seconds(1));
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_CALL_H_
