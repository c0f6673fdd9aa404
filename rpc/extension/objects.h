// What a library above rpc needs to keep objects in its own way: their ids at
// once, calls that make them, and the table that keeps them
// (rpc/object_table.h, Agent::objects).

#ifndef WEFT_RPC_EXTENSION_OBJECTS_H_
#define WEFT_RPC_EXTENSION_OBJECTS_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/object_id.h"
#include "weft/rpc/object_table.h"

namespace weft::rpc::extension {

// A call that has left, and makes an object at its callee.
struct Creation {
  ObjectId object;    // known before it is made
  Future<void> made;  // how the call ends
};

namespace detail {

template <typename Parameters, typename... A>
absl::StatusOr<Creation> Begin(const Target& to, Function::Address address,
                               Parameters parameters, A&&... arguments) {
  const Target target = to.Pinned();
  const absl::StatusOr<const Function*> function =
      internal::FindFunction(target, address);
  absl::Status bad = function.status();
  bad.Update(internal::CheckFixed(target));
  bad.Update(
      internal::CheckNotSerialized(target, internal::kObjectsAreNotSerialized));
  if (!bad.ok()) return internal::NotBegun(target, function, bad);
  const absl::StatusOr<std::shared_ptr<Request>> request =
      internal::EncodeArguments(target, parameters,
                                std::forward<A>(arguments)...);
  if (!request.ok()) {
    return internal::NotBegun(target, function, request.status());
  }
  if (const absl::Status late = internal::AwaitCopiesOf(target, request->get());
      !late.ok()) {
    return internal::NotBegun(target, function, late);
  }
  (*request)->keeps_result = true;
  Future<void> made = internal::StartTyped<void>(
      target, function, request,
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return reply.status();
      });
  const uint64_t call = (*request)->id;
  if (call == 0) return *made.Peek();  // it did not leave
  return Creation{internal::MadeBy(target, call), std::move(made)};
}

template <typename F>
struct LeftBy;
template <typename R, typename... P>
struct LeftBy<R(P...)> {
  using Value = internal::ValueOf<R>;
  using Parameters = internal::Types<P...>;
};
template <typename R, typename... P>
struct LeftBy<R(CallContext&, P...)> {
  using Value = internal::ValueOf<R>;
  using Parameters = internal::Types<P...>;
};

}  // namespace detail

// Starts the call that makes a new T, which WEFT_RPC_CLASS names, at `target`:
// as rpc::MakeAsync, but whose object it is, and who releases it, is the
// library's matter: the call leaves no Handle, and Agent::Leaks() does not name
// the object here. An error: nothing was sent.
template <typename T, typename... A>
absl::StatusOr<Creation> BeginMake(const Target& target, A&&... arguments) {
  static_assert(internal::kIsClass<T>,
                "T has no WEFT_RPC_CLASS; it stands in T's namespace, before "
                "this (docs/rpc.md)");
  using Constructor = typename internal::ConstructorOf<T>::type;
  return detail::Begin(
      target, reinterpret_cast<Function::Address>(&Constructor::Serve),
      typename Constructor::Parameters(), std::forward<A>(arguments)...);
}

// The same of the result of `function`.
template <typename F>
using ResultOf = typename detail::LeftBy<F>::Value;
template <typename F, typename... A>
absl::StatusOr<Creation> BeginRemote(const Target& target, F* function,
                                     A&&... arguments) {
  static_assert(!std::is_void_v<ResultOf<F>>,
                "the function has no result to be kept");
  return detail::Begin(target, reinterpret_cast<Function::Address>(function),
                       typename detail::LeftBy<F>::Parameters(),
                       std::forward<A>(arguments)...);
}

// Takes the object of `handle` over: Agent::Leaks() does not name it any more,
// and who has taken it releases it.
inline void TakeOver(const Target& owner, const ObjectId& object) {
  internal::ForgetHandle(owner, object.call);
}

// `value` as ObjectTable::Add keeps it; fetched if T has a Codec. `function`,
// for reports, outlives it.
template <typename T>
ObjectTable::Object AsObject(std::shared_ptr<T> value,
                             absl::string_view function) {
  ObjectTable::Object object;
  object.value = std::move(value);
  object.type = &internal::kTypeKey<T>;
  object.function = function;
  if constexpr (internal::kHasCodec<T>) {
    object.encode = &internal::EncodeObject<T>;
  }
  return object;
}
// The object, a T, that `holder` holds at `agent`. As ObjectTable::Find.
template <typename T>
absl::StatusOr<std::shared_ptr<T>> FindObject(Agent& agent, const ObjectId& id,
                                              WorkerKey holder) {
  WEFT_ASSIGN_OR_RETURN(
      ObjectTable::Object object,
      agent.objects().Find(id, holder, &internal::kTypeKey<T>));
  return std::static_pointer_cast<T>(std::move(object.value));
}

}  // namespace weft::rpc::extension

#endif  // WEFT_RPC_EXTENSION_OBJECTS_H_
