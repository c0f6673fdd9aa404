// WEFT_RPC_CLASS, WEFT_RPC_METHOD: a class whose objects others make and use
// here.
//
//   class Embedding {
//    public:
//     Embedding(int64_t rows, int64_t dim);
//     Tensor Lookup(const Tensor& ids) const;
//   };
//   WEFT_RPC_CLASS(Embedding, int64_t, int64_t);  // its constructor
//   WEFT_RPC_METHOD(Embedding, Lookup);
//
// The macros belong in the namespace of the class, visible to callers: in its
// header, or in the one file that uses it. handle.h makes such objects, calls
// their methods and releases them. A method is like a registered function: it
// may take `CallContext&` first and has the same result types; several methods
// of one object may run at the same time, so the class must be thread-safe. It
// must not be overloaded.
//
// Members of the job may make and use them. To let others do so, or only some:
//
//   WEFT_RPC_CLASS_ROLES(Embedding, "client");         // make, and all methods
//   WEFT_RPC_METHOD_ROLES(Embedding, Reset, "admin");  // but this one

#ifndef WEFT_RPC_CLASS_H_
#define WEFT_RPC_CLASS_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/catch_to_status.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/rpc/function.h"
#include "weft/rpc/object_id.h"

namespace weft::rpc {

namespace internal {

// The qualified name of T, as the compiler spells it.
template <typename T>
std::string NameOfType() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("T = ") + 4);
  return std::string(text.substr(0, text.find_first_of(";]")));
}

// The names under which a constructor and a method are called.
template <typename T>
std::string ConstructorName() {
  return absl::StrCat(NameOfType<T>(), "::new");
}
template <typename T>
std::string MethodName(absl::string_view method) {
  return absl::StrCat(NameOfType<T>(), "::", method);
}

// Which method of T `method` points to. Its bytes are compared, as pointers to
// virtual methods have no address; they have no padding either.
template <typename T, typename Method>
std::string MethodKey(Method method) {
  const void* const type = &kTypeKey<std::pair<T, Method>>;
  std::string key(sizeof(type) + sizeof(method), '\0');
  std::memcpy(key.data(), &type, sizeof(type));
  std::memcpy(key.data() + sizeof(type), &method, sizeof(method));
  return key;
}

// The constructor T(P...), as a function that callers may call.
template <typename T, typename... P>
struct ClassOf {
  static_assert(kCanTravel<P...>, "a constructor takes values");

  static void Serve(ServedCall& call) {
    std::tuple<std::decay_t<P>...> arguments;
    if (absl::Status taken = TakeArguments(call, arguments); !taken.ok()) {
      return call.Finish(std::move(taken));
    }
    call.Finish(CatchToStatus([&] {
      return KeepFor(call,
                     std::apply(
                         [](auto&... values) {
                           return std::make_shared<T>(std::move(values)...);
                         },
                         arguments));
    }));
  }

  static Function Describe() {
    Function f;
    f.name = ConstructorName<T>();
    f.signature = absl::StrCat("object(", TypeNames<P...>(), ")");
    f.digest = DigestOf(f.signature);
    f.address = reinterpret_cast<Function::Address>(&Serve);
    f.serve = &Serve;
    return f;
  }

  using Parameters = Types<P...>;
};

// R(P...) of a pointer to a method.
template <typename Method>
struct UntypedMethod;
template <typename C, typename R, typename... P>
struct UntypedMethod<R (C::*)(P...)> {
  using type = R(P...);
};
template <typename C, typename R, typename... P>
struct UntypedMethod<R (C::*)(P...) const> {
  using type = R(P...);
};

// What `use` makes of the object `id`, which the caller holds.
template <typename T, typename R, typename Use>
typename weft::internal::Caught<R>::type UseObject(CallContext& context,
                                                   const ObjectId& id,
                                                   Use use) {
  absl::StatusOr<T*> object = context.FindObject<T>(id);
  if (!object.ok()) return object.status();
  if constexpr (std::is_void_v<R>) {
    use(**object);
    return absl::OkStatus();
  } else {
    return use(**object);
  }
}

// A method of T, as a function that takes the object's id first.
template <typename T, auto method,
          typename F = typename UntypedMethod<decltype(method)>::type>
struct MethodOf;
template <typename T, auto method, typename R, typename... P>
struct MethodOf<T, method, R(P...)> {
  static typename weft::internal::Caught<R>::type Run(CallContext& context,
                                                      const ObjectId& id,
                                                      P... p) {
    return UseObject<T, R>(context, id, [&](T& object) -> R {
      return (object.*method)(std::forward<P>(p)...);
    });
  }
};
template <typename T, auto method, typename R, typename... P>
struct MethodOf<T, method, R(CallContext&, P...)> {
  static typename weft::internal::Caught<R>::type Run(CallContext& context,
                                                      const ObjectId& id,
                                                      P... p) {
    return UseObject<T, R>(context, id, [&](T& object) -> R {
      return (object.*method)(context, std::forward<P>(p)...);
    });
  }
};

template <typename T, auto method>
Function DescribeMethod(absl::string_view name) {
  Function f = Describe<&MethodOf<T, method>::Run>(RunsOn::kExecutor,
                                                   MethodName<T>(name));
  f.method = MethodKey<T>(method);
  f.constructor = ConstructorName<T>();
  return f;
}

// Whether WEFT_RPC_CLASS names T, and not only a base of it. The function that
// says so is found by the namespace of T.
template <typename T, typename Constructor>
constexpr bool kMakes = false;
template <typename T, typename... P>
constexpr bool kMakes<T, ClassOf<T, P...>> = true;
template <typename T, typename Enable = void>
struct ConstructorOf {
  using type = void;
};
template <typename T>
struct ConstructorOf<T, std::void_t<decltype(WeftRpcConstructor(
                            static_cast<const T*>(nullptr)))>> {
  using type = decltype(WeftRpcConstructor(static_cast<const T*>(nullptr)));
};
template <typename T>
constexpr bool kIsClass = kMakes<T, typename ConstructorOf<T>::type>;

// The first of a list of types, and the parameters that are the others.
template <typename T, typename... P>
struct Split {
  using Class = T;
  using Constructor = ClassOf<T, P...>;
};

}  // namespace internal
}  // namespace weft::rpc

#define WEFT_RPC_CLASS(...) WEFT_RPC_CLASS_(__COUNTER__, __VA_ARGS__)
#define WEFT_RPC_CLASS_(n, ...) WEFT_RPC_CLASS_AS_(n, __VA_ARGS__)
// The function is found by its argument's namespace, and never called.
#define WEFT_RPC_CLASS_AS_(n, ...)                               \
  [[maybe_unused]] inline auto WeftRpcConstructor(               \
      const ::weft::rpc::internal::Split<__VA_ARGS__>::Class*)   \
      ->::weft::rpc::internal::Split<__VA_ARGS__>::Constructor { \
    return {};                                                   \
  }                                                              \
  [[maybe_unused]] static const bool weft_rpc_registered_##n =   \
      ::weft::rpc::internal::Register(                           \
          ::weft::rpc::internal::Split<__VA_ARGS__>::Constructor::Describe())

#define WEFT_RPC_METHOD(Class, Method) \
  WEFT_RPC_METHOD_(__COUNTER__, Class, Method)
#define WEFT_RPC_METHOD_(n, Class, Method) WEFT_RPC_METHOD_AS_(n, Class, Method)
#define WEFT_RPC_METHOD_AS_(n, Class, Method)                           \
  [[maybe_unused]] static const bool weft_rpc_registered_##n =          \
      ::weft::rpc::internal::Register(                                  \
          ::weft::rpc::internal::DescribeMethod<Class, &Class::Method>( \
              #Method))

// As WEFT_RPC_ROLES; below the registration.
#define WEFT_RPC_CLASS_ROLES(Class, ...)                                 \
  WEFT_RPC_NAMED_ROLES_(::weft::rpc::internal::ConstructorName<Class>(), \
                        __COUNTER__, __VA_ARGS__)
#define WEFT_RPC_METHOD_ROLES(Class, Method, ...)                          \
  WEFT_RPC_NAMED_ROLES_(::weft::rpc::internal::MethodName<Class>(#Method), \
                        __COUNTER__, __VA_ARGS__)

#endif  // WEFT_RPC_CLASS_H_
