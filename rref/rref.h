// RRef<T>: a counted reference to an object that lives at one worker.
//
//   WEFT_ASSIGN_OR_RETURN(auto shard, rref::Make<Embedding>(ps, rows, dim));
//   Future<Tensor> h = rref::CallAsync(shard, &Embedding::Lookup, ids);
//   // Passes it on.
//   Future<void> done = rpc::CallAsync(trainer1, Train, shard);
//
// The object lives at its owner as long as any worker holds a reference: this
// one and its copies, or one that was passed on as an argument or a result, in
// any container. When the last reference is released, the object is destroyed.
// A reference that arrives has been registered at the owner before the function
// runs (or before the caller gets the result), so it can be used and passed on
// at once.
//
// When the owner's incarnation ends, each reference fails with kUnavailable;
// when a holder's ends, its references are released. docs/rref_protocol.md has
// the protocol. Cycles of references between owners are not collected before
// References::Close.
//
// A reference can be sent in calls, those of a worker to itself too. Streams,
// calls by WithRetry() and rpc::Client refuse one with kFailedPrecondition; a
// client uses rpc::Handle.

#ifndef WEFT_RREF_RREF_H_
#define WEFT_RREF_RREF_H_

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/driver.h"
#include "weft/base/error.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/extension/calls.h"
#include "weft/rpc/extension/objects.h"
#include "weft/rpc/handle.h"
#include "weft/rref/references.h"

namespace weft::rref {

// Cheap to copy; copies are one reference. It is empty if it was default
// constructed or moved from, or if an empty one was received: a peer may send
// one. Whatever needs an object then fails with kInvalidArgument.
//
// Thread-safety: as for an int. May outlive its agent and References::Close:
// then it is invalid, and dropping it does nothing.
template <typename T>
class RRef {
 public:
  RRef() = default;

  bool has_value() const { return reference_ != nullptr; }

  // The worker that has the object: its name is owner().name(). This and id()
  // throw Error kInvalidArgument if empty.
  const rpc::Target& owner() const {
    return called_ == nullptr ? CheckedReference().owner() : *called_;
  }
  const rpc::ObjectId& id() const { return CheckedReference().token().object; }
  bool is_owner() const {
    return has_value() && id().owner == reference_->references().key();
  }
  // Ready once the owner has registered this reference, or with the error if it
  // never will. One that came in a message is confirmed before user code gets
  // it.
  Future<void> Confirmed() const {
    return has_value() ? reference_->ready() : MakeReady<void>(status());
  }
  // OK while the reference is valid: kUnavailable once its owner is gone,
  // kNotFound if the object is, kInvalidArgument if empty.
  absl::Status status() const {
    if (has_value()) return reference_->status();
    return absl::InvalidArgumentError(
        "an empty RRef, which refers to no object: make one, or take one that "
        "a call has given");
  }

  // The same reference, through which calls and fetches have this time-out in
  // place of the agent's default. It does not travel. Throws as owner().
  RRef WithTimeout(absl::Duration timeout) const {
    RRef other(reference_);
    other.called_ =
        std::make_shared<const rpc::Target>(owner().WithTimeout(timeout));
    return other;
  }

  // The object itself, at its owner. kFailedPrecondition elsewhere: Fetch() it,
  // or call a method of it. Else as status(); kNotFound until it is made.
  absl::StatusOr<std::shared_ptr<T>> Local() const {
    WEFT_RETURN_IF_ERROR(status());
    if (!is_owner()) {
      return absl::FailedPreconditionError(
          absl::StrCat("object ", id().ToString(), " is at ", owner().name(),
                       ", not at ", reference_->references().name(),
                       ": fetch it, or call a method of it"));
    }
    return rpc::extension::FindObject<T>(reference_->references().agent(), id(),
                                         id().owner);
  }

  // For the functions below and Codec.
  explicit RRef(std::shared_ptr<Reference> reference)
      : reference_(std::move(reference)) {}
  const std::shared_ptr<Reference>& reference() const { return reference_; }
  rpc::Handle<T> handle(const rpc::Target& target) const {
    return rpc::Handle<T>(target, id());
  }

 private:
  const Reference& CheckedReference() const {
    if (!has_value()) throw Error(status());
    return *reference_;
  }

  std::shared_ptr<Reference> reference_;
  std::shared_ptr<const rpc::Target> called_;  // null: reference_->owner()
};

namespace internal {

// Keeps the reference until the request through it has ended. If its object is
// never made, so does the request, and says why.
template <typename T, typename R>
Future<R> Through(const RRef<T>& ref, Future<R> request) {
  request.OnReady([kept = ref.reference()](const Result<R>&) {});
  const Future<void>& made = ref.reference()->ready();
  // If the creation has failed just now, the request may wait for its object at
  // the owner, where the creating call has ended already.
  if (made.IsReady() && made.Wait(absl::ZeroDuration()).ok()) return request;
  // The owner may say first that there is no object: its creation says why.
  struct Waiting {
    Waiting(Future<R> sent, const Future<void>& creation)
        : request(std::move(sent)), made(creation), promise(request.driver()) {}
    const Future<R> request;
    const Future<void> made;
    Promise<R> promise;
  };
  const auto waiting = std::make_shared<Waiting>(std::move(request), made);
  waiting->promise.OnCancel(
      [waiting](const absl::Status& why) { waiting->request.Cancel(why); });
  waiting->request.OnReady([waiting](const Result<R>& result) {
    if (!absl::IsNotFound(weft::internal::StatusOf(result))) {
      waiting->promise.Set(result);
      return;
    }
    waiting->made.OnReady([waiting, result](const absl::Status& status) {
      waiting->promise.Set(status.ok() ? result : Result<R>(status));
    });
  });
  waiting->made.OnReady([waiting](const absl::Status& status) {
    if (!status.ok()) waiting->request.Cancel(status);
  });
  return waiting->promise.future();
}

inline const rpc::Target& AsItIs(const rpc::Target& owner) { return owner; }

}  // namespace internal

// ---- For libraries above.

// A request through `ref`, which start(handle) sends: the only way from a
// reference to a Handle of it. `dress(owner)` is the target with what else the
// request carries. One that may come before the object is made waits for it at
// the owner.
template <typename T, typename Dress, typename Start>
auto StartThrough(const RRef<T>& ref, Dress dress, Start start)
    -> decltype(start(std::declval<const rpc::Handle<T>&>())) {
  using Sent = decltype(start(std::declval<const rpc::Handle<T>&>()));
  if (absl::Status bad = ref.status(); !bad.ok()) {
    return MakeReady<typename Sent::value_type>(std::move(bad));
  }
  rpc::Target target = dress(ref.owner());
  if (!ref.reference()->ready().IsReady()) {
    target = target.WithAttachment(
        References::kAwaitKind, [object = ref.id()](const rpc::CodecContext&) {
          return References::AwaitObject(object);
        });
  }
  return internal::Through(ref, start(ref.handle(target)));
}

// The result of the request through `ref` that start() starts.
template <typename T, typename Start>
auto WaitThrough(const RRef<T>& ref, Start start)
    -> decltype(start().Wait(absl::Duration())) {
  if (absl::Status bad = ref.status(); !bad.ok()) return bad;
  return rpc::extension::WaitFor(ref.owner(), start);
}

// ----

namespace internal {

// A creating call that has left: the reference to what it makes, and how it
// ends.
template <typename T>
struct Begun {
  RRef<T> ref;
  Future<void> made;
};

// Starts the call begin(target) that makes a T, with the token of its creator.
template <typename T, typename Start>
absl::StatusOr<Begun<T>> Begin(const rpc::Target& target, Start begin) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<References> references,
                        References::Of(*target.agent()));
  WEFT_RETURN_IF_ERROR(references->CheckOpen());
  // Made while the arguments are written, in begin().
  const auto fork = std::make_shared<ForkId>();
  WEFT_ASSIGN_OR_RETURN(
      const rpc::extension::Creation call,
      begin(target.WithAttachment(
          References::kCreationKind, [references, fork](const auto&) {
            References::Creation creation = references->PrepareCreation();
            *fork = creation.fork;
            return std::move(creation.attachment);
          })));
  return Begun<T>{
      RRef<T>(references->BeginCreation(*fork, call.object, call.made)),
      call.made};
}

template <typename T, typename... A>
absl::StatusOr<Begun<T>> BeginMake(const rpc::Target& target,
                                   A&&... arguments) {
  return Begin<T>(target, [&](const rpc::Target& to) {
    return rpc::extension::BeginMake<T>(to, std::forward<A>(arguments)...);
  });
}

template <typename F, typename... A>
auto BeginRemote(const rpc::Target& target, F* function, A&&... arguments) {
  return Begin<rpc::extension::ResultOf<F>>(target, [&](const rpc::Target& to) {
    return rpc::extension::BeginRemote(to, function,
                                       std::forward<A>(arguments)...);
  });
}

// The reference once its object is made.
template <typename T>
Future<RRef<T>> WhenMade(absl::StatusOr<Begun<T>> begun, Driver& driver) {
  if (!begun.ok()) return MakeReady<RRef<T>>(begun.status(), driver);
  return begun->made.Then([ref = begun->ref] { return ref; });
}

// The reference alone, without waiting for its object to be made.
template <typename T>
absl::StatusOr<RRef<T>> AtOnce(absl::StatusOr<Begun<T>> begun) {
  if (!begun.ok()) return begun.status();
  return std::move(begun->ref);
}

}  // namespace internal

// Shares an object of rpc::Make or rpc::Remote; the Handle is invalid from now
// on. kFailedPrecondition, and the Handle stays valid, if the agent has no
// References or they are closed.
template <typename T>
absl::StatusOr<RRef<T>> Share(rpc::Agent& agent, const rpc::Handle<T>& handle) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<References> references,
                        References::Of(agent));
  WEFT_RETURN_IF_ERROR(references->CheckOpen());
  return RRef<T>(references->Adopt(handle.target(), handle.id()));
}

// Makes a new T at the worker that `target` names; T is registered by
// WEFT_RPC_CLASS. The Future is ready once it is made, or with the error.
// Errors: as rpc::MakeAsync.
template <typename T, typename... A>
Future<RRef<T>> MakeAsync(const rpc::Target& target, A&&... arguments) {
  return internal::WhenMade(
      internal::BeginMake<T>(target, std::forward<A>(arguments)...),
      rpc::extension::DriverOf(target));
}
template <typename T, typename... A>
Result<RRef<T>> Make(const rpc::Target& target, A&&... arguments) {
  return rpc::extension::WaitFor(target, [&] {
    return rref::MakeAsync<T>(target, std::forward<A>(arguments)...);
  });
}

// The same without waiting for the object (PyTorch's remote()). The reference
// can be used and passed on at once: calls that reach the owner before the
// object is made wait there, without a thread. Confirmed() is ready once it is
// made, or with the error if it never will be; the waiting calls end with that
// error. An error returned here is the caller's: nothing was sent.
template <typename T, typename... A>
absl::StatusOr<RRef<T>> BeginMake(const rpc::Target& target, A&&... arguments) {
  return internal::AtOnce(
      internal::BeginMake<T>(target, std::forward<A>(arguments)...));
}

// Runs `function` there and leaves its result there; in each form as above.
template <typename F, typename... A>
auto RemoteAsync(const rpc::Target& target, F* function, A&&... arguments) {
  return internal::WhenMade(
      internal::BeginRemote(target, function, std::forward<A>(arguments)...),
      rpc::extension::DriverOf(target));
}
template <typename F, typename... A>
auto Remote(const rpc::Target& target, F* function, A&&... arguments)
    -> decltype(rref::RemoteAsync(target, function,
                                  std::forward<A>(arguments)...)
                    .Wait(absl::Duration())) {
  return rpc::extension::WaitFor(target, [&] {
    return rref::RemoteAsync(target, function, std::forward<A>(arguments)...);
  });
}
template <typename F, typename... A>
auto BeginRemote(const rpc::Target& target, F* function, A&&... arguments) {
  return internal::AtOnce(
      internal::BeginRemote(target, function, std::forward<A>(arguments)...));
}

// A reference to `value`, which this agent keeps. kInvalidArgument if it is
// null; kFailedPrecondition as Share.
template <typename T>
absl::StatusOr<RRef<T>> MakeLocal(rpc::Agent& agent, std::shared_ptr<T> value) {
  if (value == nullptr) {
    return absl::InvalidArgumentError("a reference to a null pointer");
  }
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<References> references,
                        References::Of(agent));
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Reference> reference,
                        references->Keep(rpc::extension::AsObject(
                            std::move(value), "weft::rref::MakeLocal")));
  return RRef<T>(std::move(reference));
}

// Calls a method, which WEFT_RPC_METHOD names, of the object, with the agent's
// default time-out or that of WithTimeout(). Errors: as rpc::CallAsync, and
// status().
template <typename T, typename Method, typename... A>
auto CallAsync(const RRef<T>& ref, Method method, A&&... arguments)
    -> decltype(rpc::CallAsync(std::declval<const rpc::Handle<T>&>(), method,
                               std::forward<A>(arguments)...)) {
  return rref::StartThrough(
      ref, internal::AsItIs, [&](const rpc::Handle<T>& object) {
        return rpc::CallAsync(object, method, std::forward<A>(arguments)...);
      });
}
template <typename T, typename Method, typename... A>
auto Call(const RRef<T>& ref, Method method, A&&... arguments)
    -> decltype(CallAsync(ref, method, std::forward<A>(arguments)...)
                    .Wait(absl::Duration())) {
  return rref::WaitThrough(ref, [&] {
    return CallAsync(ref, method, std::forward<A>(arguments)...);
  });
}

// A copy of the value, as it is then (PyTorch's to_here).
template <typename T>
Future<T> FetchAsync(const RRef<T>& ref) {
  return rref::StartThrough(
      ref, internal::AsItIs,
      [](const rpc::Handle<T>& object) { return rpc::FetchAsync(object); });
}
template <typename T>
Result<T> Fetch(const RRef<T>& ref) {
  return rref::WaitThrough(ref, [&] { return FetchAsync(ref); });
}

}  // namespace weft::rref

namespace weft::rpc {

// An RRef as an argument or a result, in any container.
template <typename T>
struct Codec<rref::RRef<T>> {
  static std::string TypeName() {
    return absl::StrCat("weft.RRef<", extension::NameOfType<T>(), ">");
  }
  static void Encode(const rref::RRef<T>& ref, Encoder& e) {
    e.Write(ref.has_value());
    if (!ref.has_value()) return;
    ref.reference()->references().Encode(*ref.reference(), e);
  }
  static absl::Status Decode(Decoder& d, rref::RRef<T>& ref) {
    bool has_value = false;
    WEFT_RETURN_IF_ERROR(d.Read(has_value));
    if (!has_value) {
      ref = rref::RRef<T>();
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<rref::Reference> reference,
                          rref::References::Decode(d));
    ref = rref::RRef<T>(std::move(reference));
    return absl::OkStatus();
  }
};

}  // namespace weft::rpc

#endif  // WEFT_RREF_RREF_H_
