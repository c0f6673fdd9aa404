// WEFT_CHECK: ends the process at a broken invariant, saying which and where.
//
//   WEFT_CHECK(state != nullptr) << "rank " << rank;
//   WEFT_CHECK_EQ(parts, world);      // prints both values
//
// For what only our own bug can cause. What a peer, a file or a user can cause
// is a Status.

#ifndef WEFT_BASE_CHECK_H_
#define WEFT_BASE_CHECK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#define WEFT_CHECK(condition)                                              \
  (condition)                                                              \
      ? (void)0                                                            \
      : ::weft::internal::CheckVoid() &                                    \
            ::weft::internal::CheckFailure(__FILE__, __LINE__, #condition) \
                .stream()

#define WEFT_CHECK_EQ(a, b) WEFT_CHECK_OP_(==, std::equal_to<>, a, b)
#define WEFT_CHECK_NE(a, b) WEFT_CHECK_OP_(!=, std::not_equal_to<>, a, b)
#define WEFT_CHECK_LT(a, b) WEFT_CHECK_OP_(<, std::less<>, a, b)
#define WEFT_CHECK_LE(a, b) WEFT_CHECK_OP_(<=, std::less_equal<>, a, b)
#define WEFT_CHECK_GT(a, b) WEFT_CHECK_OP_(>, std::greater<>, a, b)
#define WEFT_CHECK_GE(a, b) WEFT_CHECK_OP_(>=, std::greater_equal<>, a, b)

// A `while` whose body does not return, so that `<< more` may follow.
#define WEFT_CHECK_OP_(op, compare, a, b)                         \
  while (const std::optional<std::string> weft_failure =          \
             ::weft::internal::CompareValues(compare(), (a), (b), \
                                             #a " " #op " " #b))  \
  ::weft::internal::CheckFailure(__FILE__, __LINE__, *weft_failure).stream()

namespace weft::internal {

// Collects the message; its destructor prints it and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const std::string& what);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives both branches of WEFT_CHECK's conditional the type void.
struct CheckVoid {
  void operator&(std::ostream&) const {}
};

template <typename T, typename = void>
struct IsStreamable : std::false_type {};
template <typename T>
struct IsStreamable<T, std::void_t<decltype(std::declval<std::ostream&>()
                                            << std::declval<const T&>())>>
    : std::true_type {};

template <typename T>
void PrintValue(std::ostream& out, const T& value) {
  if constexpr (IsStreamable<T>::value) {
    out << value;
  } else if constexpr (std::is_enum_v<T>) {
    out << static_cast<int64_t>(value);
  } else {
    out << "(no <<)";
  }
}

// The text of the failed comparison, or nothing if it holds.
template <typename Compare, typename A, typename B>
std::optional<std::string> CompareValues(Compare compare, const A& a,
                                         const B& b, const char* text) {
  if (compare(a, b)) return std::nullopt;
  std::ostringstream out;
  out << text << " (";
  PrintValue(out, a);
  out << " vs ";
  PrintValue(out, b);
  out << ")";
  return out.str();
}

}  // namespace weft::internal

#endif  // WEFT_BASE_CHECK_H_
