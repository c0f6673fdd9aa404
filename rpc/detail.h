// Details: a value of a user's type that is sent with an error.
//
//   struct Overdrawn { int64_t account; double by; };   // with a Codec
//   return rpc::WithDetail(absl::OutOfRangeError("no"), Overdrawn{7, 2});
//   ...
//   if (auto overdrawn = rpc::DetailOf<Overdrawn>(status)) Refill(*overdrawn);
//
// To send a detail with an exception, register its type once, at namespace
// scope:
//
//   Overdrawn Describe(const OverdrawnError& thrown);
//   WEFT_RPC_ERROR(OverdrawnError, absl::StatusCode::kOutOfRange, Describe);

#ifndef WEFT_RPC_DETAIL_H_
#define WEFT_RPC_DETAIL_H_

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/bytes.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/codec/codec.h"

namespace weft::rpc {

namespace internal {

// Beside a type's name in the URL of its payload.
inline constexpr absl::string_view kDetailUrl = "weft.rpc.v1/detail/";

template <typename T>
std::string DetailUrl() {
  return absl::StrCat(kDetailUrl, TypeName<T>());
}

template <typename E>
absl::string_view MessageOf(const E& thrown) {
  if constexpr (std::is_base_of_v<std::exception, E>) {
    return thrown.what();
  } else {
    return "";
  }
}

// The exception being handled, if it is an E.
template <typename E, auto describe>
std::optional<absl::Status> TranslateThrown(absl::StatusCode code);

}  // namespace internal

// `status` with `detail`, which replaces one of the same type. One that cannot
// be encoded is left out.
template <typename T>
absl::Status WithDetail(absl::Status status, const T& detail) {
  const absl::StatusOr<Slices> bytes = CatchToStatus([&] {
    Encoder encoder;
    encoder.Write(detail);
    return std::move(encoder).Finish();
  });
  if (bytes.ok()) {
    status.SetPayload(internal::DetailUrl<T>(),
                      absl::Cord(Flatten(*bytes).view()));
  }
  return status;
}

// The detail of type T that came with `status`, if there is one and it can be
// read.
template <typename T>
std::optional<T> DetailOf(const absl::Status& status) {
  const auto payload = status.GetPayload(internal::DetailUrl<T>());
  if (!payload.has_value()) return std::nullopt;
  const Received received{{Bytes::Own(std::string(*payload))}, false};
  Decoder decoder(received);
  std::optional<T> detail(std::in_place);
  const absl::Status read = CatchToStatus([&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(decoder.Read(*detail));
    return decoder.AtEnd();
  });
  if (!read.ok()) return std::nullopt;
  return detail;
}

namespace internal {

template <typename E, auto describe>
std::optional<absl::Status> TranslateThrown(absl::StatusCode code) {
  try {
    throw;
  } catch (const E& thrown) {
    return WithDetail(absl::Status(code, MessageOf(thrown)), describe(thrown));
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace internal
}  // namespace weft::rpc

// `describe` takes a const reference and returns anything with a Codec; it must
// not throw. Code and detail are the caller's; the message is what().
#define WEFT_RPC_ERROR(exception, code, describe) \
  WEFT_RPC_ERROR_(exception, code, describe, __COUNTER__)
#define WEFT_RPC_ERROR_(exception, code, describe, n) \
  WEFT_RPC_ERROR_AS_(exception, code, describe, n)
#define WEFT_RPC_ERROR_AS_(exception, code, describe, n)                     \
  [[maybe_unused]] static const bool weft_rpc_error_##n =                    \
      ::weft::RegisterThrown([] {                                            \
        return ::weft::rpc::internal::TranslateThrown<exception, &describe>( \
            code);                                                           \
      })

#endif  // WEFT_RPC_DETAIL_H_
