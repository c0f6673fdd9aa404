// WEFT_RPC: makes a function callable by every worker.
//
//   Tensor Scale(const Tensor& x, double k) { return Mul(x, k); }
//   WEFT_RPC(Scale);                 // at namespace scope, in the same file
//
// The function may take `CallContext&` first, then anything with a Codec, by
// value or const reference. It returns void, Status, R, StatusOr<R> or
// Future<R>, which is cancelled if the call is; what it throws becomes a
// Status. WEFT_RPC_INLINE runs it on the transport's thread: for functions that
// are short and never wait.
//
// Members of the job may call it (net::Roles::Members()). To let others do so,
// or only some, name the roles of certificates that may:
//
//   WEFT_RPC_ROLES(Scale, "client", "admin");   // below the registration
//
// The same holds for streams (stream.h); for classes see class.h.
//
// The file must be linked into the worker that serves: a library that holds
// registrations and nothing else that is used needs `alwayslink = True`.

#ifndef WEFT_RPC_FUNCTION_H_
#define WEFT_RPC_FUNCTION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/net/tls/roles.h"
#include "weft/rpc/attachment.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/object_table.h"
#include "weft/rpc/session/failure.h"
#include "weft/telemetry/spans.h"

namespace weft::rpc {

// Counts the calls that are being served, so that Shutdown can wait for them.
// Thread-safety: thread-safe.
class CallCounter {
 public:
  virtual ~CallCounter() = default;
  virtual void CallBegan() = 0;
  virtual void CallEnded() = 0;
};

// The first base of a call, so that it ends last: by then all that the call
// held has gone, users' objects too.
class CountedCall {
 protected:
  // REQUIRES: counter->CallBegan() was called.
  explicit CountedCall(std::shared_ptr<CallCounter> counter)
      : counter_(std::move(counter)) {}
  ~CountedCall() { counter_->CallEnded(); }

 private:
  const std::shared_ptr<CallCounter> counter_;
};

// A call being served, as the function's stub sees it. What outlives the stub
// keeps it by shared_from_this().
class ServedCall : private CountedCall,
                   public CallContext,
                   public std::enable_shared_from_this<ServedCall> {
 public:
  // Its time in its ordered queue, which ends with this.
  class Turn {
   public:
    virtual ~Turn() = default;
  };
  // The caller's message.
  struct Incoming {
    uint64_t id = 0;
    Received arguments;
    bool keeps_result = false;    // it stays here, under `id`
    std::shared_ptr<void> alias;  // in place of `arguments`; see Alias
    uint64_t ordered_queue = 0;   // see Request
    absl::string_view function;   // outlives the call
    Instant began;                // when it came
    // Whether its messages may have attachments: of a session, and of an agent
    // by itself.
    bool has_attachments = false;
  };

  uint64_t id() const { return incoming_.id; }
  // The encoded arguments; gone after the call.
  Received TakeRequest() { return std::move(incoming_.arguments); }
  bool keeps_result() const { return incoming_.keeps_result; }
  void* alias() const { return incoming_.alias.get(); }
  uint64_t ordered_queue() const { return incoming_.ordered_queue; }
  absl::string_view function() const { return incoming_.function; }
  Instant began() const { return incoming_.began; }
  Lineage lineage() const override;
  ReceivedAttachment* attachment(absl::string_view kind) const override {
    return attachments_ == nullptr ? nullptr : attachments_->Find(kind);
  }

  // For the result of the call; its attachments go with the Finish() that ends
  // the call.
  Encoder ReplyEncoder();

  // Waits, until the call's deadline, for what `encoder` has attached of
  // devices. kFailedPrecondition in an InlineScope; the errors of AwaitCopies
  // (codec/device_tensors.h).
  absl::Status AwaitCopiesOf(Encoder& encoder) const;

  // Keeps `object` for the caller under id(): as ObjectTable::Add; the reason
  // of the cancellation, and nothing kept, if the call was cancelled.
  absl::Status Keep(ObjectTable::Object object);

  // Keeps `registration` until the call's end.
  void Follow(CancelToken::Registration registration) {
    registration_ = std::move(registration);
  }

  // Ends the call; the first one counts. Thread-safe.
  virtual void Finish(absl::StatusOr<Slices> reply) = 0;

  // The phase that the call has reached, which errors report. Thread-safe.
  void Enter(Phase phase) { phase_.store(phase, std::memory_order_relaxed); }
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }

  // The function has returned a Future, which holds no thread. Thread-safe.
  void BecomeAsync() { is_async_.store(true, std::memory_order_relaxed); }
  bool is_async() const { return is_async_.load(std::memory_order_relaxed); }

  // It waits for a thread from AwaitThread() on, until one of the other two has
  // returned true: then its function runs there, or never runs. Thread-safe.
  void AwaitThread() { thread_.store(Thread::kAwaited); }
  bool BeginOnThread() { return LeaveQueue(Thread::kBegun); }
  bool DropUnrun() { return LeaveQueue(Thread::kDropped); }
  bool awaits_thread() const { return thread_.load() == Thread::kAwaited; }

  // These last as long as the call.
  void SetSpan(std::unique_ptr<telemetry::Span> span) {
    span_ = std::move(span);
  }
  void SetTurn(std::unique_ptr<Turn> turn) { turn_ = std::move(turn); }

 protected:
  // `peer` lasts as long as the call.
  ServedCall(std::shared_ptr<CallCounter> counter, Agent* agent,
             const Worker& peer, Lineage&& inherited, Incoming&& incoming)
      : CountedCall(std::move(counter)),
        CallContext(agent, peer, std::move(inherited)),
        incoming_(std::move(incoming)),
        attachments_(incoming_.arguments.attachments) {}

  // Before the end of the call is visible: the caller may then ask for the
  // spans.
  void EndSpan() {
    if (span_ != nullptr) span_->End();
  }
  // The attachments staged by ReplyEncoder(); for the code that ends the call.
  std::shared_ptr<StagedAttachments> TakeStaged() { return std::move(staged_); }

 private:
  enum class Thread { kNone, kAwaited, kBegun, kDropped };

  bool LeaveQueue(Thread to) {
    Thread awaited = Thread::kAwaited;
    return thread_.compare_exchange_strong(awaited, to);
  }

  Incoming incoming_;
  std::shared_ptr<const ReceivedAttachments> attachments_;  // of the request
  std::shared_ptr<StagedAttachments> staged_;               // of the reply
  CancelToken::Registration registration_;
  std::atomic<Thread> thread_{Thread::kNone};
  std::atomic<Phase> phase_{Phase::kQueue};
  std::atomic<bool> is_async_{false};
  std::unique_ptr<telemetry::Span> span_;  // null: not traced
  std::unique_ptr<Turn> turn_;             // null: of no ordered queue
};

// Where a function runs.
enum class RunsOn {
  kExecutor,   // the agent's; it may wait
  kTransport,  // where its call arrives; it must neither wait nor take long
};

// How calls of a batched function (batch.h) are gathered.
struct BatchPolicy {
  int64_t max_items = 0;
  absl::Duration max_delay;
};

// One registered function.
struct Function {
  using Address = void (*)();
  using Serve = void (*)(ServedCall&);
  using ServeBatch = void (*)(std::vector<std::shared_ptr<ServedCall>>);

  std::string name;       // ps::Push
  std::string signature;  // "tensor(tensor, f64)"
  uint64_t digest = 0;    // of the signature
  size_t index = 0;       // in its registry, from 1
  RunsOn runs_on = RunsOn::kExecutor;
  bool is_idempotent = false;      // may run twice without harm
  bool is_stream = false;          // see stream.h
  bool is_part_of_stream = false;  // what a stream calls beside its own call
  Address address = nullptr;
  std::optional<net::Roles> roles;  // who may call it; none: Roles::Members()
  // It reaches only objects that its caller has made: the maker may call it.
  bool is_of_maker = false;
  std::string method;  // internal::MethodKey of a method; else empty
  // The constructor of a method: roles that may call it may call the method
  // too, unless that has roles of its own.
  std::string constructor;
  Serve serve = nullptr;  // one of the two
  ServeBatch serve_batch = nullptr;
  BatchPolicy batch;
};

// The functions that a worker knows.
//
// Thread-safety: filled by one thread, then constant.
class Registry {
 public:
  // The registry that WEFT_RPC fills before main.
  static Registry& Global();

  // One that is in it already is left alone. REQUIRES: another function of the
  // same name is not in it.
  void Add(Function function);
  // REQUIRES: a function of that name is in it.
  void SetRoles(absl::string_view name, net::Roles roles);

  const Function* FindName(absl::string_view name) const;
  const Function* FindAddress(Function::Address address) const;
  const Function* FindMethod(absl::string_view key) const;
  // A hash of all names and signatures: equal registries have equal digests.
  uint64_t Digest() const;
  std::vector<std::string> Names() const;  // sorted
  size_t size() const { return by_name_.size(); }

 private:
  absl::flat_hash_map<std::string, std::unique_ptr<Function>> by_name_;
  absl::flat_hash_map<Function::Address, const Function*> by_address_;
  absl::flat_hash_map<std::string, const Function*> by_method_;
};

namespace internal {

uint64_t DigestOf(absl::string_view text);

template <typename... P>
struct Types {};

// The T of R, StatusOr<T>, Future<T>; void of Status.
template <typename R>
struct Returned {
  using type = R;
};
template <>
struct Returned<absl::Status> {
  using type = void;
};
template <typename T>
struct Returned<absl::StatusOr<T>> {
  using type = T;
};
template <typename T>
struct Returned<Future<T>> {
  using type = T;
};
template <typename T>
struct Returned<absl::StatusOr<Future<T>>> {
  using type = T;
};

template <typename... P>
constexpr bool kCanTravel =
    ((!std::is_lvalue_reference_v<P> ||
      std::is_const_v<std::remove_reference_t<P>>)&&...) &&
    (!std::is_pointer_v<std::decay_t<P>> && ...);

template <typename R>
std::string ReturnName() {
  if constexpr (std::is_void_v<R>) {
    return "void";
  } else {
    return TypeName<R>();
  }
}

// R(P...) without the context, of any registered function.
template <typename R, typename... P>
struct Shape {
  static_assert(kCanTravel<P...>,
                "a registered function takes values and const references");
  using Value = typename Returned<std::decay_t<R>>::type;
  using Arguments = std::tuple<std::decay_t<P>...>;

  static std::string Signature() {
    return absl::StrCat(ReturnName<Value>(), "(", TypeNames<P...>(), ")");
  }
};

template <typename F>
struct FunctionType;
template <typename R, typename... P>
struct FunctionType<R (*)(P...)> : Shape<R, P...> {
  static constexpr bool kTakesContext = false;
};
template <typename R, typename... P>
struct FunctionType<R (*)(CallContext&, P...)> : Shape<R, P...> {
  static constexpr bool kTakesContext = true;
};

template <typename T>
absl::StatusOr<Slices> EncodeResult(Encoder& encoder, Result<T> result) {
  if constexpr (std::is_void_v<T>) {
    if (!result.ok()) return result;
    return Slices();
  } else {
    if (!result.ok()) return std::move(result).status();
    encoder.Write(*std::move(result));
    return std::move(encoder).Finish();
  }
}

// `status` of a codec as that of a call: kInvalidArgument if the arguments
// could not be read, kInternal if the result could not be written.
// kResourceExhausted stays.
absl::Status DecodeError(const absl::Status& status);
absl::Status EncodeError(const absl::Status& status);
// The same at the caller, whose codec could not read what `function` of
// `worker` has sent: kInternal (kResourceExhausted stays), of phase decode.
absl::Status ResultError(const std::string& worker, const std::string& function,
                         const absl::Status& status);

// Arguments and result of a call that stays in this program and may share them:
// nothing is encoded.
template <typename Arguments, typename Value>
struct Alias {
  Arguments arguments;
  std::optional<Result<Value>> result;
};

template <typename T>
absl::StatusOr<Slices> EncodeObject(const void* value, Encoder& encoder) {
  return EncodeResult<T>(encoder, *static_cast<const T*>(value));
}

// Keeps `value` for the caller; the reply is empty.
template <typename T>
absl::StatusOr<Slices> KeepFor(ServedCall& call, std::shared_ptr<T> value) {
  ObjectTable::Object object;
  object.value = std::move(value);
  object.type = &kTypeKey<T>;
  if constexpr (kHasCodec<T>) object.encode = &EncodeObject<T>;
  WEFT_RETURN_IF_ERROR(call.Keep(std::move(object)));
  return Slices();
}

// Ends `call` with the result that `encode(encoder)` writes, a
// StatusOr<Slices>.
template <typename Encode>
void FinishEncoded(ServedCall& call, Encode encode) {
  call.Enter(Phase::kEncode);
  absl::StatusOr<Slices> reply = CatchToStatus([&]() -> absl::StatusOr<Slices> {
    Encoder encoder = call.ReplyEncoder();
    absl::StatusOr<Slices> written = encode(encoder);
    if (!written.ok()) return written;
    WEFT_RETURN_IF_ERROR(call.AwaitCopiesOf(encoder));
    return written;
  });
  if (!reply.ok()) reply = EncodeError(reply.status());
  call.Finish(std::move(reply));
}

// Ends `call`, of a function that takes Arguments, with its result.
template <typename Arguments, typename Value>
void FinishWith(ServedCall& call, Result<Value> result) {
  absl::Status status;
  if constexpr (std::is_void_v<Value>) {
    status = result;
  } else {
    status = result.status();
  }
  if (!status.ok()) return call.Finish(std::move(status));
  if (call.alias() != nullptr) {
    // Seen by the caller only if this is the call's end.
    static_cast<Alias<Arguments, Value>*>(call.alias())
        ->result.emplace(std::move(result));
    return call.Finish(Slices());
  }
  if constexpr (!std::is_void_v<Value>) {
    if (call.keeps_result()) {
      return call.Finish(CatchToStatus([&] {
        return KeepFor(call, std::make_shared<Value>(*std::move(result)));
      }));
    }
  }
  FinishEncoded(call, [&](Encoder& encoder) {
    return EncodeResult<Value>(encoder, std::move(result));
  });
}

// `index` from 1; 0 is what follows the last argument.
absl::Status ArgumentError(size_t index, absl::string_view type,
                           const absl::Status& status);

template <typename Tuple, size_t... I>
absl::Status DecodeArguments(Decoder& decoder, Tuple& arguments,
                             std::index_sequence<I...>) {
  absl::Status status;
  [[maybe_unused]] const auto read = [&](size_t index, auto& argument) {
    // Caught here, where it is known which argument it was.
    status = CatchToStatus([&] { return decoder.Read(argument); });
    if (status.ok()) return true;
    status = ArgumentError(index, TypeName<std::decay_t<decltype(argument)>>(),
                           status);
    return false;
  };
  if (!(read(I + 1, std::get<I>(arguments)) && ...)) return status;
  status = decoder.AtEnd();
  return status.ok() ? status : ArgumentError(0, "", status);
}

// The arguments that `call` brought; then its function runs.
template <typename Arguments>
absl::Status TakeArguments(ServedCall& call, Arguments& arguments) {
  call.Enter(Phase::kDecode);
  const absl::Status decoded = CatchToStatus([&] {
    const Received request = call.TakeRequest();
    Decoder decoder(request);
    return DecodeArguments(
        decoder, arguments,
        std::make_index_sequence<std::tuple_size_v<Arguments>>());
  });
  if (!decoded.ok()) return DecodeError(decoded);
  call.Enter(Phase::kHandler);
  return absl::OkStatus();
}

// Ends `call` with what its function has returned, once that is there if it is
// a Future; `before(call)` runs just before.
template <typename Arguments, typename Value, typename R, typename Before>
void FinishLater(ServedCall& call, R result, Before before) {
  if constexpr (std::is_same_v<R, absl::StatusOr<Future<Value>>>) {
    if (!result.ok()) {
      before(call);
      return call.Finish(std::move(result).status());
    }
    Future<Value> future = *std::move(result);
    call.BecomeAsync();
    auto follow = std::make_shared<CancelToken::Registration>();
    // The callback holds the call, and with it the context.
    future.OnReady([call = call.shared_from_this(), follow,
                    before](const Result<Value>& value) {
      before(*call);
      FinishWith<Arguments, Value>(*call, value);
    });
    // Else a parked reply without a caller would keep the agent from ending.
    *follow = call.cancel().OnCancel(
        [future](const absl::Status& why) { future.Cancel(why); });
  } else {
    before(call);
    FinishWith<Arguments, Value>(call, std::move(result));
  }
}

// Serves a call of `function`: decodes, calls, encodes.
template <auto function>
void ServeFunction(ServedCall& call) {
  using Type = FunctionType<decltype(function)>;
  using Value = typename Type::Value;
  using Arguments = typename Type::Arguments;
  Arguments arguments;
  if (call.alias() != nullptr) {
    arguments = std::move(
        static_cast<Alias<Arguments, Value>*>(call.alias())->arguments);
    call.Enter(Phase::kHandler);
  } else if (absl::Status taken = TakeArguments(call, arguments); !taken.ok()) {
    return call.Finish(std::move(taken));
  }
  auto result = CatchToStatus([&] {
    return std::apply(
        [&](auto&... values) {
          if constexpr (Type::kTakesContext) {
            return function(call, std::move(values)...);
          } else {
            return function(std::move(values)...);
          }
        },
        arguments);
  });
  FinishLater<Arguments, Value>(call, std::move(result), [](ServedCall&) {});
}

// The qualified name of `function`, as the compiler spells it.
template <auto function>
std::string NameOf() {
  std::string_view text = __PRETTY_FUNCTION__;
  // gcc:   "... [with auto function = ps::Push; std::string = ...]"
  // clang: "... [function = &ps::Push]"
  text.remove_prefix(text.find("function = ") + 11);
  text = text.substr(0, text.find_first_of(";]"));
  if (!text.empty() && text.front() == '&') text.remove_prefix(1);
  return std::string(text);
}

template <auto function>
Function Describe(RunsOn runs_on, std::string name = NameOf<function>()) {
  Function f;
  f.name = std::move(name);
  f.signature = FunctionType<decltype(function)>::Signature();
  f.digest = DigestOf(f.signature);
  f.runs_on = runs_on;
  f.address = reinterpret_cast<Function::Address>(function);
  f.serve = &ServeFunction<function>;
  return f;
}

inline Function Idempotent(Function function) {
  function.is_idempotent = true;
  return function;
}

inline bool Register(Function function) {
  Registry::Global().Add(std::move(function));
  return true;
}

inline bool SetRoles(absl::string_view name, net::Roles roles) {
  Registry::Global().SetRoles(name, std::move(roles));
  return true;
}

}  // namespace internal
}  // namespace weft::rpc

#define WEFT_RPC(function) \
  WEFT_RPC_REGISTER_(function, __COUNTER__, ::weft::rpc::RunsOn::kExecutor)
#define WEFT_RPC_INLINE(function) \
  WEFT_RPC_REGISTER_(function, __COUNTER__, ::weft::rpc::RunsOn::kTransport)
// As WEFT_RPC, of a function that may run twice without harm: see retry.h.
#define WEFT_RPC_IDEMPOTENT(function) \
  WEFT_RPC_IDEMPOTENT_(function, __COUNTER__)
#define WEFT_RPC_IDEMPOTENT_(function, n) WEFT_RPC_IDEMPOTENT_AS_(function, n)
#define WEFT_RPC_IDEMPOTENT_AS_(function, n)                             \
  [[maybe_unused]] static const bool weft_rpc_registered_##n =           \
      ::weft::rpc::internal::Register(::weft::rpc::internal::Idempotent( \
          ::weft::rpc::internal::Describe<&function>(                    \
              ::weft::rpc::RunsOn::kExecutor)))
#define WEFT_RPC_ROLES(function, ...)                               \
  WEFT_RPC_NAMED_ROLES_(::weft::rpc::internal::NameOf<&function>(), \
                        __COUNTER__, __VA_ARGS__)
#define WEFT_RPC_NAMED_ROLES_(name, n, ...) \
  WEFT_RPC_NAMED_ROLES_AS_(name, n, __VA_ARGS__)
#define WEFT_RPC_NAMED_ROLES_AS_(name, n, ...)            \
  [[maybe_unused]] static const bool weft_rpc_roles_##n = \
      ::weft::rpc::internal::SetRoles(name,               \
                                      ::weft::net::Roles::Only({__VA_ARGS__}))
#define WEFT_RPC_REGISTER_(function, n, runs_on) \
  WEFT_RPC_REGISTER_AS_(function, n, runs_on)
#define WEFT_RPC_REGISTER_AS_(function, n, runs_on)            \
  [[maybe_unused]] static const bool weft_rpc_registered_##n = \
      ::weft::rpc::internal::Register(                         \
          ::weft::rpc::internal::Describe<&function>(runs_on))

#endif  // WEFT_RPC_FUNCTION_H_
