// Error: the exception of local mathematics, which carries a Status.
//
// Only tensor, autograd and nn throw it, so that model code reads like
// mathematics. CatchToStatus turns it back where the world begins.

#ifndef WEFT_BASE_ERROR_H_
#define WEFT_BASE_ERROR_H_

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft {

class Error : public std::exception {
 public:
  // REQUIRES: !status.ok().
  explicit Error(absl::Status status)
      : status_(std::move(status)),
        what_(status_.ToString(absl::StatusToStringMode::kWithNoExtraData)) {}

  const absl::Status& status() const { return status_; }
  // "NOT_FOUND: no table". Payloads are for programs: see status().
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  absl::Status status_;
  std::string what_;
};

// Each joins its arguments, as absl::StrCat does, into the message.
template <typename... Args>
[[noreturn]] void ThrowInvalidArgument(const Args&... args) {
  throw Error(absl::InvalidArgumentError(absl::StrCat(args...)));
}

template <typename... Args>
[[noreturn]] void ThrowFailedPrecondition(const Args&... args) {
  throw Error(absl::FailedPreconditionError(absl::StrCat(args...)));
}

template <typename... Args>
[[noreturn]] void ThrowUnimplemented(const Args&... args) {
  throw Error(absl::UnimplementedError(absl::StrCat(args...)));
}

inline void ThrowIfError(absl::Status status) {
  if (!status.ok()) throw Error(std::move(status));
}

}  // namespace weft

#endif  // WEFT_BASE_ERROR_H_
