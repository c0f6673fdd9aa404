// Call and CallAsync: run a registered function on another worker.
//
//   Future<Tensor> y = rpc::CallAsync(agent.To("ps0"), Scale, x, 2.0);
//   absl::StatusOr<Tensor> z = rpc::Call(agent.To("ps0"), Scale, x, 2.0);
//
// The arguments have the types of the function's parameters; others do not
// compile. They are encoded before CallAsync returns: an lvalue is copied, an
// rvalue is moved if its Codec supports it (a Tensor or a vector of numbers is
// then sent without a copy). If encoding fails or throws, the call ends with
// that error and is not sent. Errors of the callee keep its code and its
// payloads, and begin with its name; FailuresOf() tells where the call failed,
// OutcomeUnknown() whether the function may have run.

#ifndef WEFT_RPC_CALL_H_
#define WEFT_RPC_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/caller.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/directory.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/message.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/telemetry/spans.h"
#include "weft/tensor/payload.h"

namespace weft::rpc {

struct DeviceStreams;

namespace internal {
class CallStarter;
class OrderedQueue;
class NamedWorker;
}  // namespace internal

// The worker to call, the timeout of the call, and its options. Cheap to copy;
// make it once where many calls follow.
//
// A target by name follows the name: each call goes to the incarnation of the
// worker that the directory names when the call is made. So it can be created
// before the worker is there, and be kept across restarts of the worker; while
// no worker has that name, calls fail (kNotFound, or kUnavailable for one that
// is gone). Before that, CallAsync refreshes the directory, for which it waits
// up to a second: so a call made after a worker has joined reaches it. In an
// InlineScope it fails at once. A target by key, by Worker or by Pinned() stays
// with one incarnation, and its calls fail with kUnavailable once that is gone.
// Objects, kept results and streams belong to the incarnation that had the name
// when Make, Remote or OpenStream was called.
//
// Thread-safety: as for an int. Must not outlive its agent.
class Target {
 public:
  // The error with which a call made now would fail before it is sent: the
  // worker is not there, or the target is invalid. A target by name asks the
  // directory, unless it is WithRetry(), for which an absent worker is no error
  // yet.
  absl::Status status() const;
  const std::string& name() const;  // the name that was asked for, or "nobody"
  absl::Duration timeout() const;   // of a call made now
  Agent* agent() const { return agent_; }  // whose calls they are

  // The same worker with another time-out for each call; null is the default.
  Target WithTimeout(std::optional<absl::Duration> timeout) const;

  // The same, with calls that are spans of this trace. Calls made within a
  // function belong to the trace of the call that it serves.
  Target WithTrace(const telemetry::TraceContext& trace) const;

  // Calls that did not reach their worker are retried: retry_policy.h. The
  // worker need not be there when this is called. Calls end with
  // kInvalidArgument if `policy` is invalid.
  Target WithRetry(const RetryPolicy& policy) const;

  // The incarnation that has the name now, and no later one. If there is none,
  // all calls fail with the error of one made now. Has no effect after
  // WithRetry().
  Target Pinned() const;

  // The same worker, called as part of the call of `context`: deadline,
  // cancellation, trace and depth are inherited.
  Target Within(const CallContext& context) const;

  // The same worker, whose calls by this target and copies of it run there in
  // the order in which they are made, one at a time: an ordered queue. Each is
  // sent when the one before has ended, so each costs a round trip; for many
  // values in order use a stream (stream.h). A call that fails or is cancelled
  // does not change the order of the others. A function that waits for a call
  // of the same ordered queue deadlocks until its deadline. Not for streams:
  // kInvalidArgument. With both, WithRetry() comes first.
  Target Serialized() const;

  // A call for which the callee has granted no credit fails at once with
  // kResourceExhausted, instead of waiting for credit.
  Target FailingWithoutCredit() const;

  // If the worker is the caller itself, arguments and result are passed without
  // copies, so that tensors share their elements. Else it has no effect.
  Target AllowingAlias() const;

  // The same worker; each call also carries the attachment of `kind` that
  // `make` makes for it, for its arguments to find by Encoder::Staged, beside
  // those of other kinds. Of one kind the last counts.
  // kFailedPrecondition for calls that have no attachments (attachment.h).
  using MakeAttachment =
      std::function<std::unique_ptr<Attachment>(const CodecContext&)>;
  Target WithAttachment(absl::string_view kind, MakeAttachment make) const;

 private:
  friend class Agent;
  friend class CallContext;
  friend class internal::CallStarter;
  explicit Target(Agent* agent) : agent_(agent) {}

  Agent* agent_;
  absl::Status status_;  // why each call fails
  // Null while follows_, and of an incarnation that is not there.
  std::shared_ptr<internal::Caller> caller_;
  std::shared_ptr<internal::NamedWorker> named_;  // null: caller_ has the name
  WorkerKey key_;  // of the one incarnation, once that is known
  std::shared_ptr<internal::OrderedQueue> queue_;  // see Serialized()
  std::optional<absl::Duration> timeout_;          // null: the agent's default
  std::shared_ptr<const Lineage> lineage_;         // null outside of a handler
  telemetry::TraceContext trace_;                  // counts where it is valid
  bool follows_ = false;  // each call asks for the incarnation of named_
  bool retries_ = false;  // caller_ does so
  bool waits_for_credit_ = true;
  bool allows_alias_ = false;
  struct Attached;
  std::shared_ptr<const Attached> attached_;  // null: none
};

// A tensor lent to a call, which sends it without a copy:
//
//   rpc::CallAsync(ps, Push, rpc::Borrow(gradient));
//
// No thread may write to it until the call has ended. A write before it is
// sent, or sent again over a new connection, fails the call with kDataLoss; a
// write while it is being sent, or after the call was cancelled, may be visible
// at the callee. A tensor that is small or not contiguous is copied.
class Borrowed {
 public:
  explicit Borrowed(const Tensor& tensor) : tensor_(tensor) {}
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
};
inline Borrowed Borrow(const Tensor& tensor) { return Borrowed(tensor); }

namespace internal {

// A call that is made here; it lives until it has ended and no code refers to
// it. Derived classes are notified of the end.
class OutgoingCall {
 public:
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;
  virtual ~OutgoingCall();

  // Returns the status with which the call ends; OnEnd may run later. If it has
  // ended, or is about to be sent, that status is unknown: it may have run.
  // REQUIRES: StartCall has returned.
  absl::Status GiveUp(const absl::Status& why) const;

 protected:
  OutgoingCall();
  // Runs once, perhaps before StartCall returns. `id` is that of the call. Must
  // not throw: its caller has other calls to end.
  virtual void OnEnd(uint64_t id, absl::StatusOr<Received>&& reply) = 0;
  // The status of the call if its reply cannot be read.
  absl::Status Unreadable(const absl::Status& why) const {
    return ResultError(worker_, function_->name, why);
  }

 private:
  friend class CallStarter;

  void End(absl::Status status, const ReplyPtr& reply);

  // Both until the end.
  std::shared_ptr<Caller> caller_;
  std::shared_ptr<OrderedQueue> queue_;
  Agent* agent_ = nullptr;
  std::string worker_;
  const Function* function_ = nullptr;
  RequestPtr request_;                     // until the end
  std::unique_ptr<telemetry::Span> span_;  // null: not traced
  // Where tensors of devices in its reply are used; null: the agent has none.
  std::unique_ptr<const DeviceStreams> streams_;
  Abandon abandon_;
  CancelToken::Registration with_parent_;
};

// The agent that makes the calls to `target`.
class AgentParts;
AgentParts& PartsOf(const Agent& agent);
AgentParts& PartsOf(const Target& target);
Driver& DriverOf(const Target& target);
const Worker& WorkerOf(const Target& target);  // REQUIRES: target.status().ok()
// The same worker, without an ordered queue and with the default timeout.
Target Alone(const Target& target);
// For calls that are part of the one that `request` is, and end with `cancel`.
Target PartOf(const Target& target, const Request& request, CancelToken cancel);
// The registration of `address` in the target's agent, or kFailedPrecondition.
absl::StatusOr<const Function*> FindFunction(const Target& target,
                                             Function::Address address);
absl::StatusOr<const Function*> FindMethod(const Target& target,
                                           absl::string_view key);
// kInvalidArgument of one that was made by WithRetry().
absl::Status CheckFixed(const Target& target);
// kInvalidArgument, for the reason `why`, of one that was made by Serialized().
inline constexpr absl::string_view kObjectsAreNotSerialized =
    "an object has the id of the call that makes it, and calls by Serialized() "
    "get theirs when they leave";
absl::Status CheckNotSerialized(const Target& target, absl::string_view why);
// Writes the arguments of a call to it. `request` keeps the attachments, and
// outlives it.
Encoder RequestEncoder(const Target& target, Request* request);
// Stages what the target carries: see Target::WithAttachment.
void StageAttached(const Target& target, Encoder& encoder);
// Sets the attachments of `request`, once all arguments were encoded.
absl::Status FreezeAttachments(Request* request);
// Waits for the copies of `request` from its devices, until the time-out of a
// call, where its call must have an id at once. kFailedPrecondition in an
// InlineScope.
absl::Status AwaitCopiesOf(const Target& target, Request* request);
// Whether calls to it may share arguments and results.
bool IsAlias(const Target& target);
// Starts the call, once for each `call`. REQUIRES: `target` is Pinned(). Of
// `request` it wants the arguments, and keeps_result; the rest is set here.
void StartCall(const Target& target, const Function& function,
               const std::shared_ptr<Request>& request,
               std::shared_ptr<OutgoingCall> call);
// The error of a wait in an InlineScope. IsLocal, as are those above once
// NotBegun has named their call.
absl::Status NotHere(const std::string& worker);
// The result of the call to `target` that `start()` starts; NotHere in an
// InlineScope, and then it does not start. The call itself ends by its
// time-out; this bounds the wait if its Loop has stopped.
template <typename Start>
auto StartAndWait(const Target& target, Start start)
    -> decltype(start().Wait(absl::Duration())) {
  if (InlineScope::IsActive()) return NotHere(target.name());
  return start().Wait(target.timeout() + absl::Seconds(1));
}
// `why` no call of `function` is begun, as the failure of that call.
absl::Status NotBegun(const Target& target,
                      const absl::StatusOr<const Function*>& function,
                      const absl::Status& why);

// Whether an A may be given for a parameter P.
template <typename P, typename A>
constexpr bool kFits = std::is_convertible_v<A, std::decay_t<P>> ||
                       (std::is_same_v<std::decay_t<P>, Tensor> &&
                        std::is_same_v<std::decay_t<A>, Borrowed>);
// Whether arguments A may be given for the parameters P, or for the first of
// them: a call that gives too few is chosen, and EncodeArguments says why it
// does not compile.
template <typename P, typename A>
struct Fit : std::false_type {};
template <typename... P>
struct Fit<Types<P...>, Types<>> : std::true_type {};
template <typename P, typename... Ps, typename A, typename... As>
struct Fit<Types<P, Ps...>, Types<A, As...>>
    : std::bool_constant<kFits<P, A> &&
                         Fit<Types<Ps...>, Types<As...>>::value> {};

// `argument` as the parameter type P, which is what travels.
template <typename P, typename A>
void EncodeArgument(Encoder& encoder, std::vector<Payload>& borrowed,
                    A&& argument) {
  using Value = std::decay_t<P>;
  encoder.NextArgument();
  if constexpr (std::is_same_v<std::decay_t<A>, Borrowed>) {
    EncodeBorrowed(argument.tensor(), encoder, borrowed);
  } else if constexpr (std::is_same_v<std::decay_t<A>, Value>) {
    encoder.Write(std::forward<A>(argument));
  } else {
    encoder.Write(static_cast<Value>(std::forward<A>(argument)));
  }
}

template <typename P, typename A>
std::decay_t<P> AliasArgument(A&& argument) {
  if constexpr (std::is_same_v<std::decay_t<A>, Borrowed>) {
    return argument.tensor();
  } else {
    return std::forward<A>(argument);
  }
}

template <typename T>
Result<T> DecodeResult(const absl::StatusOr<Received>& reply) {
  if (!reply.ok()) return reply.status();
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

// A call whose result is `decode(id, reply)`, a Result<T>: one block of memory
// with the state of its Future. If no caller gets a result that came, `decode`
// is called as for a call that was cancelled.
template <typename T, typename Decode>
class TypedCall final : public weft::internal::FutureState<T>,
                        public OutgoingCall,
                        private weft::internal::FutureCore::CancelListener {
 public:
  TypedCall(Driver& driver, Decode decode)
      : weft::internal::FutureState<T>(driver, this),
        decode_(std::move(decode)) {}

 private:
  // The caller that cancels has the Future, and so the call was started. It
  // ends as all do that are given up: with its phase, and whether it may have
  // run.
  void OnCancelled(const absl::Status& why) override {
    // Callbacks run in order: others may be running, on another thread or
    // further up the stack.
    this->Set(GiveUp(why));
  }

  void OnEnd(uint64_t id, absl::StatusOr<Received>&& reply) override {
    const bool has_come = reply.ok();
    // Codecs are user code.
    Result<T> result =
        CatchToStatus([&] { return (*decode_)(id, std::move(reply)); });
    if (const absl::Status& status = weft::internal::StatusOf(result);
        has_come && !status.ok()) {
      result = Unreadable(status);
    }
    if (!this->Set(std::move(result)) && has_come) {
      // Cancelled before the result was set: no caller receives it.
      (void)(*decode_)(id, WithOutcomeUnknown(absl::CancelledError("dropped")));
    }
    decode_.reset();
  }

  std::optional<Decode> decode_;  // until the end
};

// The Future of `decode(id, reply)`.
template <typename T, typename Decode>
Future<T> StartTyped(const Target& target,
                     const absl::StatusOr<const Function*>& function,
                     const absl::StatusOr<std::shared_ptr<Request>>& request,
                     Decode decode) {
  Driver& driver = DriverOf(target);
  if (!function.ok() || !request.ok()) {
    const absl::Status& why =
        function.ok() ? request.status() : function.status();
    return MakeReady<T>(NotBegun(target, function, why), driver);
  }
  auto call = std::make_shared<TypedCall<T, Decode>>(driver, std::move(decode));
  StartCall(target, **function, *request, call);
  return weft::internal::FutureAccess::Make<T>(std::move(call));
}

// Attachments staged for arguments that could not be encoded receive kRefused.
template <typename... P, typename... A>
absl::StatusOr<std::shared_ptr<Request>> EncodeArguments(const Target& target,
                                                         Types<P...>,
                                                         A&&... arguments) {
  static_assert(sizeof...(A) == sizeof...(P),
                "too few arguments: a call gives all, since default arguments "
                "are no part of a function's type; or register a function that "
                "takes fewer and calls this one");
  static_assert((kHasCodec<std::decay_t<P>> && ...),
                "a parameter has no Codec; a Future has none: wait for it, or "
                "call in its Then");
  // Codecs are user code: an exception of one ends the call, and is not thrown
  // out of CallAsync.
  return CatchToStatus([&]() -> absl::StatusOr<std::shared_ptr<Request>> {
    WEFT_RETURN_IF_ERROR(target.status());
    auto request = std::make_shared<Request>();
    Encoder encoder = RequestEncoder(target, request.get());
    StageAttached(target, encoder);
    if constexpr (sizeof...(A) == sizeof...(P)) {
      (EncodeArgument<P>(encoder, request->borrowed,
                         std::forward<A>(arguments)),
       ...);
    }
    request->copies = encoder.TakeCopies();
    WEFT_ASSIGN_OR_RETURN(request->body, std::move(encoder).Finish());
    WEFT_RETURN_IF_ERROR(FreezeAttachments(request.get()));
    return request;
  });
}

template <typename Value, typename... P, typename... A>
Future<Value> StartAlias(const Target& target,
                         const absl::StatusOr<const Function*>& function,
                         Types<P...>, A&&... arguments) {
  using Shared = Alias<std::tuple<std::decay_t<P>...>, Value>;
  auto alias = std::make_shared<Shared>();
  const auto request = CatchToStatus([&] {
    if constexpr (sizeof...(A) == sizeof...(P)) {
      alias->arguments = std::tuple<std::decay_t<P>...>(
          AliasArgument<P>(std::forward<A>(arguments))...);
    }
    auto made = std::make_shared<Request>();
    made->alias = alias;
    return made;
  });
  return StartTyped<Value>(
      target, function, request,
      [alias](uint64_t,
              const absl::StatusOr<Received>& reply) -> Result<Value> {
        if (!reply.ok()) return reply.status();
        return std::move(*alias->result);
      });
}

// Calls the function at `address`, whose parameters are `types`.
template <typename Value, typename Parameters, typename... A>
Future<Value> StartFunction(const Target& target, Function::Address address,
                            Parameters types, A&&... arguments) {
  const Target now = target.Pinned();
  const absl::StatusOr<const Function*> function = FindFunction(now, address);
  if (IsAlias(now)) {
    return StartAlias<Value>(now, function, types,
                             std::forward<A>(arguments)...);
  }
  return StartTyped<Value>(
      now, function, EncodeArguments(now, types, std::forward<A>(arguments)...),
      [](uint64_t, const absl::StatusOr<Received>& reply) {
        return DecodeResult<Value>(reply);
      });
}

template <typename R>
using ValueOf = typename Returned<std::decay_t<R>>::type;

// If arguments A fit the parameters P, the Future of the result.
template <typename R, typename P, typename A>
using CallFuture = std::enable_if_t<Fit<P, A>::value, Future<ValueOf<R>>>;

}  // namespace internal

// The Future ends by the target's timeout at the latest. Cancelling it notifies
// the callee. Does not compile if the arguments do not fit the function.
template <typename R, typename... P, typename... A>
internal::CallFuture<R, internal::Types<P...>, internal::Types<A...>> CallAsync(
    const Target& target, R (*function)(P...), A&&... arguments) {
  return internal::StartFunction<internal::ValueOf<R>>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}
template <typename R, typename... P, typename... A>
internal::CallFuture<R, internal::Types<P...>, internal::Types<A...>> CallAsync(
    const Target& target, R (*function)(CallContext&, P...), A&&... arguments) {
  return internal::StartFunction<internal::ValueOf<R>>(
      target, reinterpret_cast<Function::Address>(function),
      internal::Types<P...>(), std::forward<A>(arguments)...);
}

// As CallAsync and Wait. kFailedPrecondition in an inline function, which must
// not wait; nothing is sent then.
template <typename F, typename... A>
auto Call(const Target& target, F* function, A&&... arguments)
    -> decltype(CallAsync(target, function, std::forward<A>(arguments)...)
                    .Wait(absl::Duration())) {
  return internal::StartAndWait(target, [&] {
    return CallAsync(target, function, std::forward<A>(arguments)...);
  });
}

}  // namespace weft::rpc

#endif  // WEFT_RPC_CALL_H_
