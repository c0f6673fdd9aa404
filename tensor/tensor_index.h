// TensorIndex: one dimension's part of x(Slice(0, 2), 3).
//
//   x(3)                  row 3, without its dimension
//   x(Slice(0, 2), 3)     rows 0 and 1 of column 3
//   x(Slice(), Slice(-2)) all rows, the last two columns
//
// Dimensions that are not named are taken whole. A negative number counts from
// the end. What is outside throws Error with INVALID_ARGUMENT: nothing is cut
// off silently.

#ifndef WEFT_TENSOR_TENSOR_INDEX_H_
#define WEFT_TENSOR_TENSOR_INDEX_H_

#include <cstdint>
#include <limits>
#include <type_traits>

namespace weft {

// Elements [begin, end) of a dimension.
struct IndexRange {
  static constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

  int64_t begin = 0;
  int64_t end = kToTheEnd;
};

inline IndexRange Slice() { return {}; }
inline IndexRange Slice(int64_t begin) {
  return {begin, IndexRange::kToTheEnd};
}
inline IndexRange Slice(int64_t begin, int64_t end) { return {begin, end}; }

class TensorIndex {
 public:
  template <typename T, typename = std::enable_if_t<std::is_integral_v<T>>>
  TensorIndex(T index)  // NOLINT: x(3) is the purpose.
      : range_{Signed(index), 0}, is_range_(false) {}
  TensorIndex(IndexRange range)  // NOLINT: as above.
      : range_(range), is_range_(true) {}

  bool is_range() const { return is_range_; }
  int64_t number() const { return range_.begin; }  // REQUIRES: !is_range().
  const IndexRange& range() const { return range_; }

 private:
  // An unsigned number above all of int64_t is outside of any dimension, and
  // must not become a negative one, which counts from the end.
  template <typename T>
  static constexpr int64_t Signed(T index) {
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    if constexpr (std::is_unsigned_v<T>) {
      if (index > static_cast<uint64_t>(kMost)) return kMost;
    }
    return static_cast<int64_t>(index);
  }

  IndexRange range_;
  bool is_range_;
};

}  // namespace weft

#endif  // WEFT_TENSOR_TENSOR_INDEX_H_
