// IsOk, IsOkAndHolds, StatusIs: what a test says about a Status or StatusOr.
//
//   EXPECT_THAT(store.Set(key, value), IsOk());
//   EXPECT_THAT(future.Wait(timeout), IsOkAndHolds(42));
//   EXPECT_THAT(result, StatusIs(absl::StatusCode::kNotFound, "table"));
//   WEFT_ASSERT_OK_AND_ASSIGN(Message reply, future.Wait(timeout));

#ifndef WEFT_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define WEFT_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#define WEFT_EXPECT_OK(expr) EXPECT_THAT((expr), ::weft::testing::IsOk())
#define WEFT_ASSERT_OK(expr) ASSERT_THAT((expr), ::weft::testing::IsOk())

#define WEFT_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  WEFT_ASSERT_OK_AND_ASSIGN_(WEFT_TEST_CONCAT_(weft_or_, __LINE__), lhs, expr)
#define WEFT_ASSERT_OK_AND_ASSIGN_(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  ASSERT_THAT(tmp, ::weft::testing::IsOk());       \
  lhs = *std::move(tmp)
#define WEFT_TEST_CONCAT_(a, b) WEFT_TEST_CONCAT_INNER_(a, b)
#define WEFT_TEST_CONCAT_INNER_(a, b) a##b

// How gtest prints them: by code and message, or the value. The payloads are
// for programs.
namespace absl {
inline void PrintTo(const Status& status, std::ostream* out) {
  *out << status.ToString(StatusToStringMode::kWithNoExtraData);
}
template <typename T>
void PrintTo(const StatusOr<T>& result, std::ostream* out) {
  if (!result.ok()) return PrintTo(result.status(), out);
  *out << "OK: " << ::testing::PrintToString(*result);
}
}  // namespace absl

namespace weft::testing {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") { return GetStatus(arg).ok(); }

// Holds a value that `matcher` (a value or a matcher) accepts.
MATCHER_P(IsOkAndHolds, matcher, "is OK and holds what is wanted") {
  if (!arg.ok()) {
    return false;
  }
  return ::testing::ExplainMatchResult(matcher, *arg, result_listener);
}

// `substring` is a part of the message.
MATCHER_P2(StatusIs, code, substring,
           absl::StatusCodeToString(code) + " with a message that has \"" +
               std::string(substring) + "\"") {
  return GetStatus(arg).code() == code &&
         absl::StrContains(GetStatus(arg).message(), substring);
}

inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ""); }

}  // namespace weft::testing

#endif  // WEFT_TESTS_SUPPORT_STATUS_MATCHERS_H_
