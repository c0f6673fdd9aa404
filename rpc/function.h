// WEFT_RPC: makes a function callable by every worker.
//
//   Tensor Scale(const Tensor& x, double k) { return x * k; }
//   WEFT_RPC(Scale);                 // at namespace scope, in the same file
//
// The function may take `CallContext&` first, then anything with a Codec, by
// value or const reference. It returns void, Status, R, StatusOr<R> or
// Future<R>, which is cancelled if the call is; what it throws becomes a
// Status. WEFT_RPC_INLINE runs it on the
// transport's thread: for what is short and never waits.
//
// Members of the job may call it (net::Roles::Members()). To let others do so,
// or only some, name the roles of certificates that may:
//
//   WEFT_RPC_ROLES(Scale, "client", "admin");   // below the registration
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
#include "weft/base/cancel.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/net/roles.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec.h"
#include "weft/rpc/failure.h"
#include "weft/telemetry/spans.h"

namespace weft::rpc {

// A call being served, as the function's stub sees it.
class ServedCall : public CallContext {
 public:
  // The encoded arguments; gone after the call.
  Received TakeRequest() { return std::move(request_); }

  // Ends the call; the first one counts. Thread-safe.
  virtual void Finish(absl::StatusOr<Slices> reply) = 0;

  // How far it has come: what an error is said to have happened in.
  // Thread-safe.
  void Enter(Phase phase) { phase_.store(phase, std::memory_order_relaxed); }
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }

  // The function has returned a Future, which holds no thread. Thread-safe.
  void BecomeAsync() { is_async_.store(true, std::memory_order_relaxed); }
  bool is_async() const { return is_async_.load(std::memory_order_relaxed); }

  // Lasts as long as the call.
  void SetSpan(telemetry::Span span) { span_ = std::move(span); }

 protected:
  ServedCall(Agent* agent, Worker peer, Lineage lineage, Received request)
      : CallContext(agent, std::move(peer), std::move(lineage)),
        request_(std::move(request)) {}

 private:
  Received request_;
  std::atomic<Phase> phase_{Phase::kQueue};
  std::atomic<bool> is_async_{false};
  telemetry::Span span_;
};

// Where a function runs.
enum class RunsOn {
  kExecutor,   // the agent's; it may wait
  kTransport,  // where its call arrives; it must neither wait nor take long
};

// One registered function.
struct Function {
  using Address = void (*)();
  using Serve = void (*)(std::shared_ptr<ServedCall>);

  std::string name;       // ps::Push
  std::string signature;  // "tensor(tensor, f64)"
  uint64_t digest = 0;    // of the signature
  RunsOn runs_on = RunsOn::kExecutor;
  bool is_idempotent = false;  // may run twice without harm
  Address address = nullptr;
  std::optional<net::Roles> roles;  // who may call it; none: Roles::Members()
  Serve serve = nullptr;
};

// The functions that a worker knows.
//
// Thread-safety: filled by one thread, then constant.
class Registry {
 public:
  // What WEFT_RPC fills before main.
  static Registry& Global();

  // REQUIRES: another function of the same name is not in it.
  void Add(Function function);
  // REQUIRES: a function of that name is in it.
  void SetRoles(absl::string_view name, net::Roles roles);

  const Function* FindName(absl::string_view name) const;
  const Function* FindAddress(Function::Address address) const;
  // Of all names and signatures: equal registries have equal digests.
  uint64_t Digest() const;
  std::vector<std::string> Names() const;  // sorted

 private:
  absl::flat_hash_map<std::string, std::unique_ptr<Function>> by_name_;
  absl::flat_hash_map<Function::Address, const Function*> by_address_;
};

namespace internal {

uint64_t DigestOf(absl::string_view text);

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
template <typename R>
struct IsFuture : std::false_type {};
template <typename T>
struct IsFuture<Future<T>> : std::true_type {};

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
absl::StatusOr<Slices> EncodeResult(Result<T> result) {
  if constexpr (std::is_void_v<T>) {
    if (!result.ok()) return result;
    return Slices();
  } else {
    if (!result.ok()) return std::move(result).status();
    Encoder encoder;
    encoder.Write(*std::move(result));
    return std::move(encoder).Finish();
  }
}

// `status` of a codec as that of a call: kInvalidArgument if the arguments
// could not be read (kResourceExhausted stays), kInternal if the result could
// not be written.
absl::Status DecodeError(const absl::Status& status);
absl::Status EncodeError(const absl::Status& status);

// Ends `call` with `result`.
template <typename T>
void FinishWith(ServedCall& call, Result<T> result) {
  absl::Status status;
  if constexpr (std::is_void_v<T>) {
    status = result;
  } else {
    status = result.status();
  }
  if (!status.ok()) return call.Finish(std::move(status));
  call.Enter(Phase::kEncode);
  absl::StatusOr<Slices> reply =
      CatchToStatus([&] { return EncodeResult<T>(std::move(result)); });
  if (!reply.ok()) reply = EncodeError(reply.status());
  call.Finish(std::move(reply));
}

// `index` from 1; 0 is what follows the last argument.
absl::Status ArgumentError(size_t index, absl::string_view type,
                           const absl::Status& status);

template <typename Tuple, size_t... I>
absl::Status DecodeArguments(Decoder& decoder, Tuple& arguments,
                             std::index_sequence<I...>) {
  absl::Status status;
  [[maybe_unused]] const auto read = [&](size_t index, auto& argument) {
    status = decoder.Read(argument);
    if (status.ok()) return true;
    status = ArgumentError(index, TypeName<std::decay_t<decltype(argument)>>(),
                           status);
    return false;
  };
  if (!(read(I + 1, std::get<I>(arguments)) && ...)) return status;
  status = decoder.AtEnd();
  return status.ok() ? status : ArgumentError(0, "", status);
}

// What a server runs for `function`: decode, call, encode.
template <auto function>
void ServeFunction(std::shared_ptr<ServedCall> call) {
  using Type = FunctionType<decltype(function)>;
  using Value = typename Type::Value;
  typename Type::Arguments arguments;
  call->Enter(Phase::kDecode);
  absl::Status decoded = CatchToStatus([&] {
    const Received request = call->TakeRequest();
    Decoder decoder(request);
    return DecodeArguments(
        decoder, arguments,
        std::make_index_sequence<std::tuple_size_v<decltype(arguments)>>());
  });
  if (!decoded.ok()) return call->Finish(DecodeError(decoded));
  call->Enter(Phase::kHandler);
  auto result = CatchToStatus([&] {
    return std::apply(
        [&](auto&... values) {
          if constexpr (Type::kTakesContext) {
            return function(*call, std::move(values)...);
          } else {
            return function(std::move(values)...);
          }
        },
        arguments);
  });
  if constexpr (std::is_same_v<decltype(result),
                               absl::StatusOr<Future<Value>>>) {
    if (!result.ok()) return call->Finish(std::move(result).status());
    Future<Value> future = *std::move(result);
    call->BecomeAsync();
    auto follow = std::make_shared<CancelToken::Registration>();
    // The callback holds the call, and with it the context.
    future.OnReady([call, follow](const Result<Value>& value) {
      FinishWith<Value>(*call, value);
    });
    // Else what is parked for nobody would keep the agent from ending.
    *follow = call->cancel().OnCancel(
        [future](const absl::Status& why) { future.Cancel(why); });
  } else {
    FinishWith<Value>(*call, std::move(result));
  }
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
#define WEFT_RPC_ROLES(function, ...) \
  WEFT_RPC_ROLES_(function, __COUNTER__, __VA_ARGS__)
#define WEFT_RPC_ROLES_(function, n, ...) \
  WEFT_RPC_ROLES_AS_(function, n, __VA_ARGS__)
#define WEFT_RPC_ROLES_AS_(function, n, ...)              \
  [[maybe_unused]] static const bool weft_rpc_roles_##n = \
      ::weft::rpc::internal::SetRoles(                    \
          ::weft::rpc::internal::NameOf<&function>(),     \
          ::weft::net::Roles::Only({__VA_ARGS__}))
#define WEFT_RPC_REGISTER_(function, n, runs_on) \
  WEFT_RPC_REGISTER_AS_(function, n, runs_on)
#define WEFT_RPC_REGISTER_AS_(function, n, runs_on)            \
  [[maybe_unused]] static const bool weft_rpc_registered_##n = \
      ::weft::rpc::internal::Register(                         \
          ::weft::rpc::internal::Describe<&function>(runs_on))

#endif  // WEFT_RPC_FUNCTION_H_
