// What a library above rpc needs to offer calls of its own: to register what
// peers call, to wait as rpc::Call does, and to name functions in reports.

#ifndef WEFT_RPC_EXTENSION_CALLS_H_
#define WEFT_RPC_EXTENSION_CALLS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/agent_parts.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"

// As WEFT_RPC_INLINE and WEFT_RPC_IDEMPOTENT: for control calls
// (WeakAgent::CallUntilAnswered) that neither wait nor run users' code.
#define WEFT_RPC_INLINE_IDEMPOTENT(function) \
  WEFT_RPC_INLINE_IDEMPOTENT_(function, __COUNTER__)
#define WEFT_RPC_INLINE_IDEMPOTENT_(function, n) \
  WEFT_RPC_INLINE_IDEMPOTENT_AS_(function, n)
#define WEFT_RPC_INLINE_IDEMPOTENT_AS_(function, n)                      \
  [[maybe_unused]] static const bool weft_rpc_registered_##n =           \
      ::weft::rpc::internal::Register(::weft::rpc::internal::Idempotent( \
          ::weft::rpc::internal::Describe<&function>(                    \
              ::weft::rpc::RunsOn::kTransport)))

namespace weft::rpc::extension {

// By which Futures of calls of this agent wait; outlives the agent.
inline Driver& DriverOf(const Agent& agent) {
  return internal::PartsOf(agent).driver;
}
inline Driver& DriverOf(const Target& target) {
  return internal::DriverOf(target);
}

// The result of the call to `target` that start() starts: waits as rpc::Call
// does, so start() does not run, and this is kFailedPrecondition, in an inline
// function.
template <typename Start>
auto WaitFor(const Target& target, Start start)
    -> decltype(start().Wait(absl::Duration())) {
  return internal::StartAndWait(target, start);
}

// The name of `function` of its kind, "ps::Push", at the target's agent; "" if
// it is not registered there.
template <typename R, typename... P>
std::string NameOfFunction(const Target& target, R (*function)(P...)) {
  const auto found = internal::FindFunction(
      target, reinterpret_cast<Function::Address>(function));
  return found.ok() ? (*found)->name : "";
}
template <typename T, typename Method>
std::string NameOfMethod(const Target& target, Method method) {
  const auto found =
      internal::FindMethod(target, internal::MethodKey<T>(method));
  return found.ok() ? (*found)->name : "";
}

// The qualified name of T, for Codec<My<T>>::TypeName.
template <typename T>
std::string NameOfType() {
  return internal::NameOfType<T>();
}

}  // namespace weft::rpc::extension

#endif  // WEFT_RPC_EXTENSION_CALLS_H_
