// Handle<T>: an object or a result that a call left at another worker.
//
//   WEFT_ASSIGN_OR_RETURN(auto shard, rpc::Make<Embedding>(ps, rows, dim));
//   Future<Tensor> h = rpc::CallAsync(shard, &Embedding::Lookup, ids);
//   WEFT_ASSIGN_OR_RETURN(auto kept, rpc::Remote(ps, Scale, x, 2.0));
//   absl::StatusOr<Tensor> y = rpc::Fetch(kept);
//   rpc::Release(shard).IgnoreError();
//
// The object belongs to the callee, under the id of the call that made it
// (object_id.h). It is destroyed when it is released or when its maker ends:
// the incarnation of a member, the session of a client. Handles are not
// counted: dropping the last one without Release() leaks the object, and
// Agent::Leaks() of both workers names it. A worker may hold at most
// Limits::objects at another. Calls through a handle are like all calls; those
// in progress keep the object alive. An object whose construction failed is not
// kept.
//
// Only the agent that made a handle can use it; it cannot be sent.

#ifndef WEFT_RPC_HANDLE_H_
#define WEFT_RPC_HANDLE_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/object_id.h"

namespace weft::rpc {

namespace internal {

// Releases what the call `id` may have left behind, if `end` leaves that open.
void ReleaseUnlessKnown(const Target& target, uint64_t call,
                        const absl::Status& end);
ObjectTable& ObjectsOf(const Agent& agent);
// What the `call` of this agent to `target` has made.
ObjectId MadeBy(const Target& target, uint64_t call);
const std::shared_ptr<OpenHandles>& HandlesOf(const Target& target);
void ForgetHandle(const Target& target, uint64_t id);
// The functions that every worker has.
void ServeFetch(ServedCall& call);
void ServeRelease(ServedCall& call);

}  // namespace internal

// Cheap to copy. Thread-safety: as for an int. Must not outlive its agent.
template <typename T>
class Handle {
 public:
  const ObjectId& id() const { return id_; }
  const Target& target() const { return target_; }

  // The same object, called as by that Target.
  Handle WithTimeout(absl::Duration timeout) const {
    return Handle(target_.WithTimeout(timeout), id_);
  }
  Handle Within(const CallContext& context) const {
    return Handle(target_.Within(context), id_);
  }

  // The same object; calls by this handle and copies of it run one after
  // another: see Target::Serialized().
  Handle Serialized() const { return Handle(target_.Serialized(), id_); }

  // For the functions below. Of the incarnation that `target` names now.
  Handle(const Target& target, const ObjectId& id)
      : target_(target.Pinned()), id_(id) {}

 private:
  Target target_;
  ObjectId id_;
};

namespace internal {

// A call with its result left behind: the Future of the Handle.
template <typename T>
Future<Handle<T>> StartKept(const Target& target,
                            const absl::StatusOr<const Function*>& function,
                            absl::StatusOr<std::shared_ptr<Request>> request) {
  if (request.ok()) {
    (*request)->keeps_result = true;
    absl::Status fits = CheckFixed(target);
    fits.Update(CheckNotSerialized(target, kObjectsAreNotSerialized));
    if (!fits.ok()) request = std::move(fits);
  }
  if (!function.ok()) {
    return MakeReady<Handle<T>>(NotBegun(target, function, function.status()),
                                DriverOf(target));
  }
  return StartTyped<Handle<T>>(
      target, function, request,
      [target, made = *function, handles = HandlesOf(target)](
          uint64_t id,
          const absl::StatusOr<Received>& reply) -> Result<Handle<T>> {
        if (reply.ok()) {
          handles->Add(WorkerOf(target), id, made->name);
          return Handle<T>(target, MadeBy(target, id));
        }
        ReleaseUnlessKnown(target, id, reply.status());
        return reply.status();
      });
}

template <typename T, typename C, typename... A>
Future<Handle<T>> StartConstructor(const Target& target, C, A&&... arguments) {
  static_assert(Fit<typename C::Parameters, Types<A...>>::value,
                "these are not the arguments of the constructor that "
                "WEFT_RPC_CLASS names");
  const Target now = target.Pinned();
  return StartKept<T>(
      now, FindFunction(now, reinterpret_cast<Function::Address>(&C::Serve)),
      EncodeArguments(now, typename C::Parameters(),
                      std::forward<A>(arguments)...));
}

// The parameters of a method without its context.
template <typename F>
struct MethodParameters;
template <typename R, typename... P>
struct MethodParameters<R(P...)> {
  using Result = R;
  using type = Types<P...>;
};
template <typename R, typename... P>
struct MethodParameters<R(CallContext&, P...)> {
  using Result = R;
  using type = Types<P...>;
};
template <typename Method>
using ParametersOf = MethodParameters<typename UntypedMethod<Method>::type>;

// A call of the function at `address`, whose parameters are `types`, with its
// result left behind.
template <typename Value, typename Parameters, typename... A>
Future<Handle<Value>> StartRemote(const Target& target,
                                  Function::Address address, Parameters types,
                                  A&&... arguments) {
  static_assert(!std::is_void_v<Value>,
                "the function has no result to be kept");
  const Target now = target.Pinned();
  return StartKept<Value>(
      now, FindFunction(now, address),
      EncodeArguments(now, types, std::forward<A>(arguments)...));
}

// If arguments A fit the parameters P, the Future of the Handle.
template <typename R, typename P, typename A>
using RemoteFuture =
    std::enable_if_t<Fit<P, A>::value, Future<Handle<ValueOf<R>>>>;

template <typename... P, typename... A>
absl::StatusOr<std::shared_ptr<Request>> EncodeMethod(const Target& target,
                                                      const ObjectId& id,
                                                      Types<P...>,
                                                      A&&... arguments) {
  return EncodeArguments(target, Types<ObjectId, P...>(), id,
                         std::forward<A>(arguments)...);
}

}  // namespace internal

// Makes a new T at the target's worker; T is registered by WEFT_RPC_CLASS. It
// belongs to the incarnation that the target names now: the Handle does not
// follow the name. Errors as of a call, and kResourceExhausted if this worker
// holds Limits::objects there; kInvalidArgument for a target of WithRetry() or
// Serialized().
template <typename T, typename... A>
Future<Handle<T>> MakeAsync(const Target& target, A&&... arguments) {
  static_assert(internal::kIsClass<T>,
                "T has no WEFT_RPC_CLASS; it stands in T's namespace, before "
                "this (docs/rpc.md)");
  if constexpr (internal::kIsClass<T>) {
    using Constructor = typename internal::ConstructorOf<T>::type;
    return internal::StartConstructor<T>(target, Constructor(),
                                         std::forward<A>(arguments)...);
  }
}
template <typename T, typename... A>
Result<Handle<T>> Make(const Target& target, A&&... arguments) {
  return internal::StartAndWait(target, [&] {
    return MakeAsync<T>(target, std::forward<A>(arguments)...);
  });
}

// Runs `function` there, as CallAsync, and leaves its result there, with the
// incarnation that the target names now.
template <typename R, typename... P, typename... A>
internal::RemoteFuture<R, internal::Types<P...>, internal::Types<A...>>
RemoteAsync(const Target& target, R (*function)(P...), A&&... arguments) {
  return internal::StartRemote<internal::ValueOf<R>>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}
template <typename R, typename... P, typename... A>
internal::RemoteFuture<R, internal::Types<P...>, internal::Types<A...>>
RemoteAsync(const Target& target, R (*function)(CallContext&, P...),
            A&&... arguments) {
  return internal::StartRemote<internal::ValueOf<R>>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}
template <typename F, typename... A>
auto Remote(const Target& target, F* function, A&&... arguments)
    -> decltype(RemoteAsync(target, function, std::forward<A>(arguments)...)
                    .Wait(absl::Duration())) {
  return internal::StartAndWait(target, [&] {
    return RemoteAsync(target, function, std::forward<A>(arguments)...);
  });
}

// Calls a method, which WEFT_RPC_METHOD names, of the object. kNotFound if it
// was released.
template <typename T, typename Method, typename... A>
internal::CallFuture<typename internal::ParametersOf<Method>::Result,
                     typename internal::ParametersOf<Method>::type,
                     internal::Types<A...>>
CallAsync(const Handle<T>& object, Method method, A&&... arguments) {
  using Parameters = internal::ParametersOf<Method>;
  using Value = internal::ValueOf<typename Parameters::Result>;
  return internal::StartTyped<Value>(
      object.target(),
      internal::FindMethod(object.target(), internal::MethodKey<T>(method)),
      internal::EncodeMethod(object.target(), object.id(),
                             typename Parameters::type(),
                             std::forward<A>(arguments)...),
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return internal::DecodeResult<Value>(reply);
      });
}
template <typename T, typename Method, typename... A>
auto Call(const Handle<T>& object, Method method, A&&... arguments)
    -> decltype(CallAsync(object, method, std::forward<A>(arguments)...)
                    .Wait(absl::Duration())) {
  return internal::StartAndWait(object.target(), [&] {
    return CallAsync(object, method, std::forward<A>(arguments)...);
  });
}

// A copy of the current value. kNotFound if it was released; kUnimplemented if
// T had no Codec where it was made.
template <typename T>
Future<T> FetchAsync(const Handle<T>& object) {
  static_assert(internal::kHasCodec<T>, "a T without a Codec does not travel");
  return internal::StartTyped<T>(
      object.target(),
      internal::FindFunction(
          object.target(),
          reinterpret_cast<Function::Address>(&internal::ServeFetch)),
      internal::EncodeMethod(object.target(), object.id(), internal::Types<>()),
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return internal::DecodeResult<T>(reply);
      });
}
template <typename T>
Result<T> Fetch(const Handle<T>& object) {
  return internal::StartAndWait(object.target(),
                                [&] { return FetchAsync(object); });
}

// Releases the object there. kNotFound if that was done before.
template <typename T>
Future<void> ReleaseAsync(const Handle<T>& object) {
  internal::ForgetHandle(object.target(), object.id().call);
  return internal::StartTyped<void>(
      object.target(),
      internal::FindFunction(
          object.target(),
          reinterpret_cast<Function::Address>(&internal::ServeRelease)),
      internal::EncodeMethod(object.target(), object.id(), internal::Types<>()),
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return reply.status();
      });
}
template <typename T>
absl::Status Release(const Handle<T>& object) {
  return internal::StartAndWait(object.target(),
                                [&] { return ReleaseAsync(object); });
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_HANDLE_H_
