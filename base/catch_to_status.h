// CatchToStatus: runs code that may throw and returns its result or the Status
// of its exception.
//
// Used wherever Weft calls user code. A registered exception type becomes the
// Status that its translator returns, weft::Error the Status that it carries,
// std::bad_alloc RESOURCE_EXHAUSTED, any other exception INTERNAL.

#ifndef WEFT_BASE_CATCH_TO_STATUS_H_
#define WEFT_BASE_CATCH_TO_STATUS_H_

#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft {

// Called while an exception is being handled: its Status if it is of the type
// that this translator is for. Must not throw.
using ThrownTranslator = std::optional<absl::Status> (*)();

// For use before main, as in a namespace-scope initialiser. If two know an
// exception, the one registered first is used. Returns true.
bool RegisterThrown(ThrownTranslator translator);

namespace internal {

// The return type of CatchToStatus for a function that returns R.
template <typename R>
struct Caught {
  using type = absl::StatusOr<R>;
};
template <>
struct Caught<void> {
  using type = absl::Status;
};
template <>
struct Caught<absl::Status> {
  using type = absl::Status;
};
template <typename T>
struct Caught<absl::StatusOr<T>> {
  using type = absl::StatusOr<T>;
};

// REQUIRES: called while an exception is being handled.
absl::Status CurrentExceptionToStatus();

}  // namespace internal

// Returns Status if `fn` returns void or Status, else StatusOr of its value.
template <typename Fn>
auto CatchToStatus(Fn&& fn) ->
    typename internal::Caught<std::invoke_result_t<Fn>>::type {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
      std::forward<Fn>(fn)();
      return absl::OkStatus();
    } else {
      return std::forward<Fn>(fn)();
    }
  } catch (...) {
    return internal::CurrentExceptionToStatus();
  }
}

}  // namespace weft

#endif  // WEFT_BASE_CATCH_TO_STATUS_H_
