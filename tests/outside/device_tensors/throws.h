// StatusOf: what a call throws, as a Status, so that matchers can look at it.

#ifndef WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_THROWS_H_
#define WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_THROWS_H_

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft::outside {

// OK if `call` throws nothing; kUnknown for what is no Error.
template <typename Call>
absl::Status StatusOf(const Call& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const Error& error) {
    return error.status();
  } catch (const std::exception& error) {
    return absl::UnknownError(absl::StrCat("not an Error: ", error.what()));
  }
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_DEVICE_TENSORS_THROWS_H_
